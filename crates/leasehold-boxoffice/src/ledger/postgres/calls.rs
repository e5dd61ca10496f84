//! The contract, method by method: each names its need and its decision, or its read.

use std::sync::PoisonError;

use super::lock::bodies;
use super::session::Params;
use super::store::{json, words};
use super::trouble::Loaded;
use super::{PART, Postgres, read};
use crate::error::Error;
use crate::layout::Layout;
use crate::ledger::picture;
use crate::ledger::{Answer, Ledger};
use crate::model::check::Dump;
use crate::model::decide;
use crate::model::*;

/// A transaction that one pair of functions in `decide` describes.
macro_rules! transaction {
    ($name:ident, $need:ident, $command:ty => $outcome:ty, $attempt:literal) => {
        fn $name(&self, call: Call, command: $command) -> Answer<'_, Done<$outcome>> {
            let need = decide::$need(&command);
            self.transact($attempt, call, need, move |facts, actor, now| decide::$name(&command, facts, actor, now))
        }
    };
    (alone: $name:ident, $need:ident, $command:ty => $outcome:ty, $attempt:literal) => {
        fn $name(&self, call: Call, command: $command) -> Answer<'_, Done<$outcome>> {
            let need = decide::$need(&command);
            let decide = move |facts: &_, actor: &_, now| decide::$name(&command, facts, actor, now);
            self.send($attempt, call, need, true, Box::new(decide))
        }
    };
}

/// A text that a statement is given.
fn text(value: &str) -> Params {
    vec![Box::new(value.to_owned())]
}

fn limit(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl Postgres {
    /// A picture that takes some statements about one thing.
    fn look<'a, T: Send + 'a>(
        &'a self,
        attempt: &'static str,
        about: &'a str,
        statements: &'static [&'static str],
        make: impl FnOnce(&[Vec<tokio_postgres::Row>], Moment) -> Loaded<T> + Send + 'a,
    ) -> Answer<'a, T> {
        let statements = statements.iter().map(|sql| (*sql, text(about))).collect();
        self.see(attempt, statements, make)
    }

    fn see<'a, T: Send + 'a>(
        &'a self,
        attempt: &'static str,
        statements: Vec<(&'static str, Params)>,
        make: impl FnOnce(&[Vec<tokio_postgres::Row>], Moment) -> Loaded<T> + Send + 'a,
    ) -> Answer<'a, T> {
        Box::pin(async move {
            let (now, rows) = self.picture(attempt, statements).await?;
            make(&rows, now).map_err(|trouble| trouble.undone(attempt))
        })
    }
}

impl Ledger for Postgres {
    fn name(&self) -> &'static str {
        PART
    }

    fn now(&self) -> Answer<'_, Moment> {
        self.see("reading the clock", vec![], |_, now| Ok(now))
    }

    transaction!(alone: create_event, need_create_event, NewEvent => EventRow, "making an event");
    transaction!(alone: configure, need_configure, Configure => EventRow, "changing an event");
    transaction!(alone: replace_layout, need_replace_layout, ReplaceLayout => EventRow, "changing a layout");
    transaction!(alone: freeze, need_freeze, Freeze => EventRow, "freezing an event");
    transaction!(open_hold, need_open_hold, OpenHold => Opened, "opening a hold");
    transaction!(renew, need_renew, Renew => HoldRow, "renewing a hold");
    transaction!(change_seats, need_change_seats, ChangeSeats => HoldRow, "changing a hold");
    transaction!(relet, need_relet, Relet => HoldRow, "putting a hold under another lease");
    transaction!(begin_pay, need_begin_pay, BeginPay => HoldRow, "beginning to pay");
    transaction!(decline, need_decline, Decline => HoldRow, "declining a payment");
    transaction!(confirm, need_confirm, Confirm => Confirmed, "selling a hold");
    transaction!(sell_late, need_sell_late, SellLate => OrderRow, "selling for late money");
    transaction!(release, need_release, Release => HoldRow, "releasing a hold");
    transaction!(set_blocks, need_set_blocks, SetBlocks => Blocks, "blocking seats");
    transaction!(force_release, need_force_release, ForceRelease => HoldRow, "forcing a release");
    transaction!(void, need_void, Void => Amended, "voiding an order");
    transaction!(move_order, need_move_order, MoveOrder => Amended, "moving an order");
    transaction!(money_step, need_money_step, MoneyStep => MoneyRow, "a step of late money");
    transaction!(capture_step, need_capture_step, CaptureStep => OrderRow, "a step of a capture");

    fn lapse_due(&self, limit: usize) -> Answer<'_, Swept> {
        let need = decide::need_lapse_due(limit);
        let decide = move |facts: &facts::Facts, _: &str, now| {
            let (writes, swept) = decide::lapse_due(limit, facts, now)?;
            Ok((writes, (swept.holds, swept.lag_ms, swept.more)))
        };
        let swept = self.transact("lapsing what is due", Call::by("sweeper"), need, decide);
        Box::pin(async move {
            let (holds, lag_ms, more) = swept.await?.value;
            Ok(Swept { holds, lag_ms, more })
        })
    }

    fn money<'a>(&'a self, payment_ref: &'a str) -> Answer<'a, Option<MoneyRow>> {
        self.look("reading late money", payment_ref, &[read::MONEY], |rows, _| read::first(&rows[0], "money"))
    }

    fn money_of<'a>(&'a self, payment_ref: &'a str) -> Answer<'a, Vec<MoneyRow>> {
        let (from, until) = order::parts_of(payment_ref);
        let params: Params = vec![Box::new(payment_ref.to_owned()), Box::new(from), Box::new(until)];
        self.see("reading money", vec![(read::MONEY_OF, params)], |rows, _| bodies(&rows[0], "money"))
    }

    fn money_of_hold<'a>(&'a self, id: &'a HoldId) -> Answer<'a, Vec<MoneyRow>> {
        self.look("reading money", id.as_str(), &[read::MONEY_OF_HOLD], |rows, _| bodies(&rows[0], "money"))
    }

    fn money_in<'a>(&'a self, event: Option<&'a EventId>, states: &'a [MoneyState]) -> Answer<'a, Vec<MoneyRow>> {
        Box::pin(async move {
            let attempt = "reading late money";
            let states = words(states.iter()).map_err(|trouble| trouble.undone(attempt))?;
            let params: Params = vec![Box::new(event.map(|event| event.0.clone())), Box::new(states)];
            self.see(attempt, vec![(read::MONEY_IN, params)], |rows, _| bodies(&rows[0], "money")).await
        })
    }

    fn captures_open(&self) -> Answer<'_, Vec<OrderRow>> {
        let statements = vec![(read::CAPTURES_OPEN, vec![])];
        self.see("reading what is to be captured", statements, |rows, _| bodies(&rows[0], "orders"))
    }

    fn live(&self) -> Answer<'_, Live> {
        self.see("counting holds", vec![(read::COUNT_LIVE, vec![])], |rows, _| read::live(&rows[0]))
    }

    fn paying(&self) -> Answer<'_, (Vec<HoldRow>, Moment)> {
        let statements = vec![(read::PAYING, vec![])];
        self.see("reading payments under way", statements, |rows, now| Ok((bodies(&rows[0], "holds")?, now)))
    }

    fn unheard(&self, within_ms: u64) -> Answer<'_, (Vec<HoldRow>, Moment)> {
        let params: Params = vec![Box::new(i64::try_from(within_ms).unwrap_or(i64::MAX))];
        let statements = vec![(read::UNHEARD, params)];
        self.see("reading payments nobody told of", statements, |rows, now| Ok((bodies(&rows[0], "holds")?, now)))
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn engine(&self) -> Answer<'_, Option<String>> {
        self.see("reading which engine it is", vec![(read::ENGINE, vec![])], |rows, _| read::engine(&rows[0]))
    }

    fn highest_token(&self) -> Answer<'_, u64> {
        self.see("reading the highest token", vec![(read::HIGHEST_TOKEN, vec![])], |rows, _| read::only(&rows[0]))
    }

    fn put_engine(&self, identity: Option<String>, seen: Option<String>) -> Answer<'_, bool> {
        Box::pin(async move {
            let params: Params = vec![Box::new(identity), Box::new(seen)];
            let rows = self.write("storing which engine it is", vec![(read::PUT_ENGINE, params)]).await?;
            Ok(!rows[0].is_empty())
        })
    }

    fn event<'a>(&'a self, id: &'a EventId) -> Answer<'a, Option<EventRow>> {
        self.look("reading an event", id.as_str(), &[read::EVENT], |rows, _| read::first(&rows[0], "events"))
    }

    fn events(&self) -> Answer<'_, Vec<EventRow>> {
        self.see("reading events", vec![(read::EVENTS, vec![])], |rows, _| bodies(&rows[0], "events"))
    }

    fn layout<'a>(&'a self, id: &'a EventId) -> Answer<'a, Option<(u64, Layout)>> {
        const ROWS: &[&str] = &[read::EVENT, read::SEATS, read::LAYOUT_AREAS];
        self.look("reading a layout", id.as_str(), ROWS, |rows, _| read::layout(rows))
    }

    fn hold<'a>(&'a self, id: &'a HoldId) -> Answer<'a, (Option<HoldRow>, Moment)> {
        let found = |rows: &[Vec<_>], now| Ok((read::first(&rows[0], "holds")?, now));
        self.look("reading a hold", id.as_str(), &[read::HOLD], found)
    }

    fn order<'a>(&'a self, id: &'a OrderId) -> Answer<'a, Option<OrderRow>> {
        self.look("reading an order", id.as_str(), &[read::ORDER], |rows, _| read::first(&rows[0], "orders"))
    }

    fn orders<'a>(&'a self, id: &'a EventId, after: Option<&'a OrderId>, count: usize) -> Answer<'a, Vec<OrderRow>> {
        let after = after.map_or_else(String::new, |after| after.0.clone());
        let params: Params = vec![Box::new(id.0.clone()), Box::new(after), Box::new(limit(count))];
        self.see("reading orders", vec![(read::ORDERS, params)], |rows, _| bodies(&rows[0], "orders"))
    }

    fn snapshot<'a>(&'a self, id: &'a EventId) -> Answer<'a, Option<Snapshot>> {
        const ROWS: &[&str] = &[read::EVENT, read::LIVE, read::SOLD, read::BLOCKS, read::AREAS, read::HEAD];
        self.look("reading an event", id.as_str(), ROWS, read::snapshot)
    }

    fn takings<'a>(&'a self, id: &'a EventId) -> Answer<'a, Takings> {
        let due: Params = vec![Box::new(Some(id.0.clone())), Box::new(vec!["refund_due".to_owned()])];
        let statements =
            vec![(read::ORDERS_OF, text(id.as_str())), (read::MONEY_IN, due), (read::LAPSED, text(id.as_str()))];
        self.see("reading takings", statements, |rows, _| {
            Ok(picture::takings(&bodies(&rows[0], "orders")?, &bodies(&rows[1], "money")?, read::only(&rows[2])?))
        })
    }

    fn dump<'a>(&'a self, id: &'a EventId) -> Answer<'a, Option<Dump>> {
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
        self.look("reading every row of an event", id.as_str(), ROWS, read::dump)
    }

    fn known_tokens<'a>(&'a self, id: &'a EventId, tokens: &'a [u64]) -> Answer<'a, Vec<u64>> {
        self.look("reading tokens", id.as_str(), &[read::LIVE], move |rows, _| {
            Ok(picture::known_tokens(&bodies(&rows[0], "holds")?, tokens))
        })
    }

    fn recall<'a>(&'a self, idem: &'a Idem) -> Answer<'a, Option<serde_json::Value>> {
        let key: Params = vec![Box::new(idem.key.to_vec())];
        let found = self.see("reading a stored answer", vec![(read::ANSWER, key)], |rows, _| {
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

    fn sequence(&self, count: usize) -> Answer<'_, Numbered> {
        Box::pin(async move {
            let attempt = "numbering entries";
            let count: Params = vec![Box::new(limit(count))];
            let rows = self.write(attempt, vec![(read::NUMBERING, vec![]), (read::NUMBER, count)]).await?;
            read::entries(&rows[1]).map_err(|trouble| trouble.undone(attempt))
        })
    }

    fn heads(&self) -> Answer<'_, Vec<(EventId, u64)>> {
        self.see("reading the last numbers", vec![(read::HEADS, vec![])], |rows, _| read::heads(&rows[0]))
    }

    fn audit<'a>(&'a self, id: &'a EventId, query: AuditQuery) -> Answer<'a, Vec<Entry>> {
        let most = if query.limit == 0 { 1000 } else { query.limit };
        let since = i64::try_from(query.since).unwrap_or(i64::MAX);
        let params: Params = vec![Box::new(id.0.clone()), Box::new(since), Box::new(query.seat), Box::new(limit(most))];
        self.see("reading the audit log", vec![(read::AUDIT, params)], |rows, _| read::entries(&rows[0]))
    }

    fn add_webhook(&self, webhook: WebhookRow, max: usize) -> Answer<'_, WebhookAdded> {
        Box::pin(async move {
            let attempt = "adding a webhook";
            let body = json(&webhook).map_err(|trouble| trouble.undone(attempt))?;
            let only = webhook.event_id.map(|event| event.0);
            let add: Params =
                vec![Box::new(webhook.id.clone()), Box::new(body), Box::new(limit(max)), Box::new(only)];
            let statements =
                vec![(read::LOCK_WEBHOOKS, vec![]), (read::ADD_WEBHOOK, add), (read::WEBHOOK, text(&webhook.id))];
            let rows = self.write(attempt, statements).await?;
            if !rows[1].is_empty() {
                return Ok(WebhookAdded::Added);
            }
            let found = read::first(&rows[2], "webhooks").map_err(|trouble| trouble.undone(attempt))?;
            Ok(found.map_or(WebhookAdded::TooMany, WebhookAdded::Exists))
        })
    }

    fn deactivate_webhook<'a>(&'a self, id: &'a str) -> Answer<'a, bool> {
        Box::pin(async move {
            let rows = self.write("switching a webhook off", vec![(read::DEACTIVATE_WEBHOOK, text(id))]).await?;
            Ok(!rows[0].is_empty())
        })
    }

    fn remove_webhook<'a>(&'a self, seen: &'a WebhookRow) -> Answer<'a, bool> {
        Box::pin(async move {
            let event = seen.event_id.as_ref().map(|event| event.0.clone());
            let remove: Params = vec![Box::new(seen.id.clone()), Box::new(event)];
            let statements = vec![(read::LOCK_WEBHOOKS, vec![]), (read::REMOVE_WEBHOOK, remove)];
            let rows = self.write("removing a webhook", statements).await?;
            Ok(!rows[1].is_empty())
        })
    }

    fn webhooks(&self) -> Answer<'_, Vec<WebhookRow>> {
        self.see("reading webhooks", vec![(read::WEBHOOKS, vec![])], |rows, _| bodies(&rows[0], "webhooks"))
    }

    fn webhook_cursor<'a>(&'a self, id: &'a str, event: &'a EventId) -> Answer<'a, u64> {
        let params: Params = vec![Box::new(id.to_owned()), Box::new(event.0.clone())];
        self.see("reading how far a webhook is", vec![(read::CURSOR, params)], |rows, _| read::only(&rows[0]))
    }

    fn advance_webhook<'a>(&'a self, id: &'a str, event: &'a EventId, seq: u64) -> Answer<'a, ()> {
        Box::pin(async move {
            let seq = i64::try_from(seq).unwrap_or(i64::MAX);
            let params: Params = vec![Box::new(id.to_owned()), Box::new(event.0.clone()), Box::new(seq)];
            let statements = vec![(read::LOCK_WEBHOOKS_SHARED, vec![]), (read::ADVANCE, params)];
            self.write("storing how far a webhook is", statements).await.map(drop)
        })
    }

    fn forget_older_than(&self, age_ms: u64) -> Answer<'_, u64> {
        Box::pin(async move {
            let attempt = "forgetting what is old";
            let age = i64::try_from(age_ms).unwrap_or(i64::MAX);
            let age = || -> Params { vec![Box::new(age)] };
            let rows = self.write(attempt, vec![(read::FORGET_ANSWERS, age()), (read::FORGET_HOLDS, age())]).await?;
            let count = || Ok(read::only(&rows[0])? + read::only(&rows[1])?);
            count().map_err(|trouble: super::Trouble| trouble.undone(attempt))
        })
    }

    fn close(&self) -> Answer<'_, ()> {
        // Those at work finish what was sent, and then find nobody who could send more.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take();
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        Box::pin(async move {
            let mut tasks = tasks;
            let mut ended = Ok(());
            while let Some(task) = tasks.join_next().await {
                if let Err(error) = task {
                    let attempt = "closing the ledger";
                    ended = Err(Error::Unavailable { part: PART, attempt: attempt.into(), source: error.into() });
                }
            }
            self.writers.close();
            self.readers.close();
            ended
        })
    }
}
