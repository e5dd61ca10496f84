//! [`Ledger`] for PostgreSQL. Each method names the facts it needs and its decision, or its read.

use std::sync::PoisonError;

use super::error::PostgresResult;
use super::lock::bodies;
use super::session::StatementParams;
use super::store::{json, words};
use super::{LEDGER_NAME, Postgres, read};
use crate::error::Error;
use crate::layout::Layout;
use crate::ledger::snapshot;
use crate::ledger::{Ledger, LedgerFuture};
use crate::model::check::Dump;
use crate::model::decide;
use crate::model::*;

/// A transaction that one pair of functions in `decide` describes.
macro_rules! transaction {
    ($name:ident, $need:ident, $command:ty => $outcome:ty, $attempt:literal) => {
        fn $name(&self, call: LedgerCall, command: $command) -> LedgerFuture<'_, Done<$outcome>> {
            let need = decide::$need(&command);
            self.transact($attempt, call, need, move |facts, actor, now| decide::$name(&command, facts, actor, now))
        }
    };
    (alone: $name:ident, $need:ident, $command:ty => $outcome:ty, $attempt:literal) => {
        fn $name(&self, call: LedgerCall, command: $command) -> LedgerFuture<'_, Done<$outcome>> {
            let need = decide::$need(&command);
            let decide = move |facts: &_, actor: &_, now| decide::$name(&command, facts, actor, now);
            self.send($attempt, call, need, true, Box::new(decide))
        }
    };
}

/// A statement's only parameter: a text.
fn text(value: &str) -> StatementParams {
    vec![Box::new(value.to_owned())]
}

fn limit(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl Postgres {
    /// Reads a snapshot by statements that all take the same key.
    fn read_about<'a, T: Send + 'a>(
        &'a self,
        attempt: &'static str,
        about: &'a str,
        statements: &'static [&'static str],
        make: impl FnOnce(&[Vec<tokio_postgres::Row>], Moment) -> PostgresResult<T> + Send + 'a,
    ) -> LedgerFuture<'a, T> {
        let statements = statements.iter().map(|sql| (*sql, text(about))).collect();
        self.read_rows(attempt, statements, make)
    }

    fn read_rows<'a, T: Send + 'a>(
        &'a self,
        attempt: &'static str,
        statements: Vec<(&'static str, StatementParams)>,
        make: impl FnOnce(&[Vec<tokio_postgres::Row>], Moment) -> PostgresResult<T> + Send + 'a,
    ) -> LedgerFuture<'a, T> {
        Box::pin(async move {
            let (now, rows) = self.read_consistent(attempt, statements).await?;
            make(&rows, now).map_err(|error| error.not_applied(attempt))
        })
    }
}

impl Ledger for Postgres {
    fn name(&self) -> &'static str {
        LEDGER_NAME
    }

    fn now(&self) -> LedgerFuture<'_, Moment> {
        self.read_rows("reading the clock", vec![], |_, now| Ok(now))
    }

    transaction!(alone: create_event, need_create_event, NewEvent => EventRow, "making an event");
    transaction!(alone: configure, need_configure, Configure => EventRow, "changing an event");
    transaction!(alone: replace_layout, need_replace_layout, ReplaceLayout => EventRow, "changing a layout");
    transaction!(alone: freeze, need_freeze, Freeze => EventRow, "freezing an event");
    transaction!(open_hold, need_open_hold, OpenHold => OpenedHold, "opening a hold");
    transaction!(renew, need_renew, RenewHold => HoldRow, "renewing a hold");
    transaction!(change_seats, need_change_seats, ChangeSeats => HoldRow, "changing a hold");
    transaction!(replace_lease, need_replace_lease, ReplaceLease => HoldRow, "putting a hold under another lease");
    transaction!(begin_pay, need_begin_pay, BeginPay => HoldRow, "beginning to pay");
    transaction!(decline, need_decline, Decline => HoldRow, "declining a payment");
    transaction!(confirm, need_confirm, Confirm => Confirmed, "selling a hold");
    transaction!(sell_late, need_sell_late, SellLate => OrderRow, "selling for late money");
    transaction!(release, need_release, ReleaseHold => HoldRow, "releasing a hold");
    transaction!(set_blocks, need_set_blocks, SetBlocks => Blocks, "blocking seats");
    transaction!(force_release, need_force_release, ForceRelease => HoldRow, "forcing a release");
    transaction!(void, need_void, Void => Amended, "voiding an order");
    transaction!(move_order, need_move_order, MoveOrder => Amended, "moving an order");
    transaction!(money_step, need_money_step, MoneyStep => MoneyRow, "a step of late money");
    transaction!(capture_step, need_capture_step, CaptureStep => OrderRow, "a step of a capture");

    fn lapse_due(&self, limit: usize) -> LedgerFuture<'_, Swept> {
        let need = decide::need_lapse_due(limit);
        let decide = move |facts: &facts::Facts, _: &str, now| {
            let (writes, swept) = decide::lapse_due(limit, facts, now)?;
            Ok((writes, (swept.holds, swept.lag_ms, swept.more)))
        };
        let swept = self.transact("lapsing what is due", LedgerCall::by("sweeper"), need, decide);
        Box::pin(async move {
            let (holds, lag_ms, more) = swept.await?.value;
            Ok(Swept { holds, lag_ms, more })
        })
    }

    fn money<'a>(&'a self, payment_ref: &'a str) -> LedgerFuture<'a, Option<MoneyRow>> {
        self.read_about("reading late money", payment_ref, &[read::MONEY], |rows, _| {
            read::first_body(&rows[0], "money")
        })
    }

    fn money_of_payment<'a>(&'a self, payment_ref: &'a str) -> LedgerFuture<'a, Vec<MoneyRow>> {
        let (from, until) = order::parts_of(payment_ref);
        let params: StatementParams = vec![Box::new(payment_ref.to_owned()), Box::new(from), Box::new(until)];
        self.read_rows("reading money", vec![(read::MONEY_OF, params)], |rows, _| bodies(&rows[0], "money"))
    }

    fn money_of_hold<'a>(&'a self, id: &'a HoldId) -> LedgerFuture<'a, Vec<MoneyRow>> {
        self.read_about("reading money", id.as_str(), &[read::MONEY_OF_HOLD], |rows, _| bodies(&rows[0], "money"))
    }

    fn money_in_states<'a>(
        &'a self,
        event: Option<&'a EventId>,
        states: &'a [MoneyState],
    ) -> LedgerFuture<'a, Vec<MoneyRow>> {
        Box::pin(async move {
            let attempt = "reading late money";
            let states = words(states.iter()).map_err(|error| error.not_applied(attempt))?;
            let params: StatementParams = vec![Box::new(event.map(|event| event.0.clone())), Box::new(states)];
            self.read_rows(attempt, vec![(read::MONEY_IN, params)], |rows, _| bodies(&rows[0], "money")).await
        })
    }

    fn captures_open(&self) -> LedgerFuture<'_, Vec<OrderRow>> {
        let statements = vec![(read::CAPTURES_OPEN, vec![])];
        self.read_rows("reading what is to be captured", statements, |rows, _| bodies(&rows[0], "orders"))
    }

    fn count_live(&self) -> LedgerFuture<'_, LiveCounts> {
        self.read_rows("counting holds", vec![(read::COUNT_LIVE, vec![])], |rows, _| read::live(&rows[0]))
    }

    fn paying(&self) -> LedgerFuture<'_, (Vec<HoldRow>, Moment)> {
        let statements = vec![(read::PAYING, vec![])];
        self.read_rows("reading payments under way", statements, |rows, now| Ok((bodies(&rows[0], "holds")?, now)))
    }

    fn payments_without_word(&self, within_ms: u64) -> LedgerFuture<'_, (Vec<HoldRow>, Moment)> {
        let params: StatementParams = vec![Box::new(i64::try_from(within_ms).unwrap_or(i64::MAX))];
        let statements = vec![(read::PAYMENTS_WITHOUT_WORD, params)];
        self.read_rows("reading payments nobody told of", statements, |rows, now| Ok((bodies(&rows[0], "holds")?, now)))
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn engine(&self) -> LedgerFuture<'_, Option<String>> {
        self.read_rows("reading which engine it is", vec![(read::ENGINE, vec![])], |rows, _| read::engine(&rows[0]))
    }

    fn highest_token(&self) -> LedgerFuture<'_, u64> {
        self.read_rows("reading the highest token", vec![(read::HIGHEST_TOKEN, vec![])], |rows, _| {
            read::first_number(&rows[0])
        })
    }

    fn put_engine(&self, identity: Option<String>, seen: Option<String>) -> LedgerFuture<'_, bool> {
        Box::pin(async move {
            let params: StatementParams = vec![Box::new(identity), Box::new(seen)];
            let rows = self.write("storing which engine it is", vec![(read::PUT_ENGINE, params)]).await?;
            Ok(!rows[0].is_empty())
        })
    }

    fn event<'a>(&'a self, id: &'a EventId) -> LedgerFuture<'a, Option<EventRow>> {
        self.read_about("reading an event", id.as_str(), &[read::EVENT], |rows, _| read::first_body(&rows[0], "events"))
    }

    fn events(&self) -> LedgerFuture<'_, Vec<EventRow>> {
        self.read_rows("reading events", vec![(read::EVENTS, vec![])], |rows, _| bodies(&rows[0], "events"))
    }

    fn layout<'a>(&'a self, id: &'a EventId) -> LedgerFuture<'a, Option<(u64, Layout)>> {
        const ROWS: &[&str] = &[read::EVENT, read::SEATS, read::LAYOUT_AREAS];
        self.read_about("reading a layout", id.as_str(), ROWS, |rows, _| read::layout(rows))
    }

    fn hold<'a>(&'a self, id: &'a HoldId) -> LedgerFuture<'a, (Option<HoldRow>, Moment)> {
        let found = |rows: &[Vec<_>], now| Ok((read::first_body(&rows[0], "holds")?, now));
        self.read_about("reading a hold", id.as_str(), &[read::HOLD], found)
    }

    fn order<'a>(&'a self, id: &'a OrderId) -> LedgerFuture<'a, Option<OrderRow>> {
        self.read_about("reading an order", id.as_str(), &[read::ORDER], |rows, _| read::first_body(&rows[0], "orders"))
    }

    fn orders<'a>(
        &'a self,
        id: &'a EventId,
        after: Option<&'a OrderId>,
        count: usize,
    ) -> LedgerFuture<'a, Vec<OrderRow>> {
        let after = after.map_or_else(String::new, |after| after.0.clone());
        let params: StatementParams = vec![Box::new(id.0.clone()), Box::new(after), Box::new(limit(count))];
        self.read_rows("reading orders", vec![(read::ORDERS, params)], |rows, _| bodies(&rows[0], "orders"))
    }

    fn snapshot<'a>(&'a self, id: &'a EventId) -> LedgerFuture<'a, Option<Snapshot>> {
        const ROWS: &[&str] = &[read::EVENT, read::LIVE, read::SOLD, read::BLOCKS, read::AREAS, read::HEAD];
        self.read_about("reading an event", id.as_str(), ROWS, read::snapshot)
    }

    fn takings<'a>(&'a self, id: &'a EventId) -> LedgerFuture<'a, Takings> {
        let due: StatementParams = vec![Box::new(Some(id.0.clone())), Box::new(vec!["refund_due".to_owned()])];
        let statements =
            vec![(read::ORDERS_OF, text(id.as_str())), (read::MONEY_IN, due), (read::LAPSED, text(id.as_str()))];
        self.read_rows("reading takings", statements, |rows, _| {
            Ok(snapshot::takings(
                &bodies(&rows[0], "orders")?,
                &bodies(&rows[1], "money")?,
                read::first_number(&rows[2])?,
            ))
        })
    }

    fn dump<'a>(&'a self, id: &'a EventId) -> LedgerFuture<'a, Option<Dump>> {
        const ROWS: &[&str] = &[
            read::EVENT,
            read::SEATS,
            read::AREAS,
            read::HELD,
            read::SOLD,
            read::BLOCKS,
            read::LIVE,
            read::ORDERS_OF,
            read::BUYERS,
            read::NUMBERED,
            read::MONEY_OF_EVENT,
            read::TOKENS_BACK,
        ];
        self.read_about("reading every row of an event", id.as_str(), ROWS, read::dump)
    }

    fn known_tokens<'a>(&'a self, id: &'a EventId, tokens: &'a [u64]) -> LedgerFuture<'a, Vec<u64>> {
        self.read_about("reading tokens", id.as_str(), &[read::LIVE], move |rows, _| {
            Ok(snapshot::known_tokens(&bodies(&rows[0], "holds")?, tokens))
        })
    }

    fn stored_answer<'a>(&'a self, idem: &'a Idem) -> LedgerFuture<'a, Option<serde_json::Value>> {
        let key: StatementParams = vec![Box::new(idem.key.to_vec())];
        let found = self.read_rows("reading a stored answer", vec![(read::ANSWER, key)], |rows, _| {
            let Some(row) = rows[0].first() else { return Ok(None) };
            let asked: Vec<u8> = row.try_get(0)?;
            let answer = super::lock::parse(row.try_get(1)?, "answers")?;
            Ok(Some((asked == idem.body, answer)))
        });
        Box::pin(async move {
            match found.await? {
                None => Ok(None),
                Some((true, answer)) => Ok(Some(answer)),
                Some((false, _)) => Err(Refusal::Mismatch.into()),
            }
        })
    }

    fn sequence(&self, count: usize) -> LedgerFuture<'_, Numbered> {
        Box::pin(async move {
            let attempt = "numbering entries";
            let count: StatementParams = vec![Box::new(limit(count))];
            let rows = self.write(attempt, vec![(read::NUMBERING, vec![]), (read::NUMBER, count)]).await?;
            read::entries(&rows[1]).map_err(|error| error.not_applied(attempt))
        })
    }

    fn heads(&self) -> LedgerFuture<'_, Vec<(EventId, u64)>> {
        self.read_rows("reading the last numbers", vec![(read::HEADS, vec![])], |rows, _| read::heads(&rows[0]))
    }

    fn audit<'a>(&'a self, id: &'a EventId, query: AuditQuery) -> LedgerFuture<'a, Vec<Entry>> {
        let most = if query.limit == 0 { 1000 } else { query.limit };
        let since = i64::try_from(query.since).unwrap_or(i64::MAX);
        let params: StatementParams =
            vec![Box::new(id.0.clone()), Box::new(since), Box::new(query.seat), Box::new(limit(most))];
        self.read_rows("reading the audit log", vec![(read::AUDIT, params)], |rows, _| read::entries(&rows[0]))
    }

    fn add_webhook(&self, webhook: WebhookRow, max: usize) -> LedgerFuture<'_, WebhookAdded> {
        Box::pin(async move {
            let attempt = "adding a webhook";
            let body = json(&webhook).map_err(|error| error.not_applied(attempt))?;
            let only = webhook.event_id.map(|event| event.0);
            let add: StatementParams =
                vec![Box::new(webhook.id.clone()), Box::new(body), Box::new(limit(max)), Box::new(only)];
            let statements =
                vec![(read::LOCK_WEBHOOKS, vec![]), (read::ADD_WEBHOOK, add), (read::WEBHOOK, text(&webhook.id))];
            let rows = self.write(attempt, statements).await?;
            if !rows[1].is_empty() {
                return Ok(WebhookAdded::Added);
            }
            let found = read::first_body(&rows[2], "webhooks").map_err(|error| error.not_applied(attempt))?;
            Ok(found.map_or(WebhookAdded::TooMany, WebhookAdded::Exists))
        })
    }

    fn deactivate_webhook<'a>(&'a self, id: &'a str) -> LedgerFuture<'a, bool> {
        Box::pin(async move {
            let rows = self.write("switching a webhook off", vec![(read::DEACTIVATE_WEBHOOK, text(id))]).await?;
            Ok(!rows[0].is_empty())
        })
    }

    fn remove_webhook<'a>(&'a self, seen: &'a WebhookRow) -> LedgerFuture<'a, bool> {
        Box::pin(async move {
            let event = seen.event_id.as_ref().map(|event| event.0.clone());
            let remove: StatementParams = vec![Box::new(seen.id.clone()), Box::new(event)];
            let statements = vec![(read::LOCK_WEBHOOKS, vec![]), (read::REMOVE_WEBHOOK, remove)];
            let rows = self.write("removing a webhook", statements).await?;
            Ok(!rows[1].is_empty())
        })
    }

    fn webhooks(&self) -> LedgerFuture<'_, Vec<WebhookRow>> {
        self.read_rows("reading webhooks", vec![(read::WEBHOOKS, vec![])], |rows, _| bodies(&rows[0], "webhooks"))
    }

    fn webhook_cursor<'a>(&'a self, id: &'a str, event: &'a EventId) -> LedgerFuture<'a, u64> {
        let params: StatementParams = vec![Box::new(id.to_owned()), Box::new(event.0.clone())];
        self.read_rows("reading how far a webhook is", vec![(read::CURSOR, params)], |rows, _| {
            read::first_number(&rows[0])
        })
    }

    fn advance_webhook<'a>(&'a self, id: &'a str, event: &'a EventId, seq: u64) -> LedgerFuture<'a, ()> {
        Box::pin(async move {
            let seq = i64::try_from(seq).unwrap_or(i64::MAX);
            let params: StatementParams = vec![Box::new(id.to_owned()), Box::new(event.0.clone()), Box::new(seq)];
            let statements = vec![(read::LOCK_WEBHOOKS_SHARED, vec![]), (read::ADVANCE, params)];
            self.write("storing how far a webhook is", statements).await.map(drop)
        })
    }

    fn forget_older_than(&self, age_ms: u64) -> LedgerFuture<'_, u64> {
        Box::pin(async move {
            let attempt = "forgetting what is old";
            let age = i64::try_from(age_ms).unwrap_or(i64::MAX);
            let age = || -> StatementParams { vec![Box::new(age)] };
            let rows = self.write(attempt, vec![(read::FORGET_ANSWERS, age()), (read::FORGET_HOLDS, age())]).await?;
            let count = || Ok(read::first_number(&rows[0])? + read::first_number(&rows[1])?);
            count().map_err(|error: super::PostgresError| error.not_applied(attempt))
        })
    }

    fn close(&self) -> LedgerFuture<'_, ()> {
        // Without the sender the workers finish the queued jobs and end.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take();
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        Box::pin(async move {
            let mut tasks = tasks;
            let mut ended = Ok(());
            while let Some(task) = tasks.join_next().await {
                if let Err(error) = task {
                    let attempt = "closing the ledger";
                    ended =
                        Err(Error::Unavailable { part: LEDGER_NAME, attempt: attempt.into(), source: error.into() });
                }
            }
            self.writers.close();
            self.readers.close();
            ended
        })
    }
}
