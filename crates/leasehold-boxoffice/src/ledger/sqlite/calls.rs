//! [`Ledger`] for SQLite. Each method names the facts it needs and its decision, or its read.

use rusqlite::params;

use super::load;
use super::read;
use super::retention;
use super::webhooks;
use super::{JobFailure, Sqlite};
use crate::layout::Layout;
use crate::ledger::load_facts::load_facts;
use crate::ledger::{Ledger, LedgerFuture};
use crate::model::check::Dump;
use crate::model::decide;
use crate::model::*;

const FORGET_ATTEMPT: &str = "forgetting what is old";

/// A transaction that one pair of functions in `decide` describes.
macro_rules! transaction {
    ($(#[$doc:meta])* $name:ident, $need:ident, $command:ty => $outcome:ty, $attempt:literal) => {
        fn $name(&self, call: LedgerCall, command: $command) -> LedgerFuture<'_, Done<$outcome>> {
            let need = decide::$need(&command);
            self.transact($attempt, call, need, move |facts, actor, now| decide::$name(&command, facts, actor, now))
        }
    };
}

impl Ledger for Sqlite {
    fn name(&self) -> &'static str {
        super::LEDGER_NAME
    }

    fn now(&self) -> LedgerFuture<'_, Moment> {
        let now = self.time.now();
        Box::pin(async move { Ok(now) })
    }

    transaction!(create_event, need_create_event, NewEvent => EventRow, "making an event");
    transaction!(configure, need_configure, Configure => EventRow, "changing an event");
    transaction!(replace_layout, need_replace_layout, ReplaceLayout => EventRow, "changing a layout");
    transaction!(freeze, need_freeze, Freeze => EventRow, "freezing an event");
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
        self.write("lapsing what is due", move |db, time| {
            let now = time.now();
            let facts = load_facts(db, &decide::need_lapse_due(limit), now)?;
            let (writes, swept) = decide::lapse_due(limit, &facts, now)?;
            super::apply_and_store(db, &writes, None, &(), now)?;
            Ok(swept)
        })
    }

    fn money<'a>(&'a self, payment_ref: &'a str) -> LedgerFuture<'a, Option<MoneyRow>> {
        let reference = payment_ref.to_owned();
        self.read("reading late money", move |db, _| load::money(db, &reference))
    }

    fn money_of_payment<'a>(&'a self, payment_ref: &'a str) -> LedgerFuture<'a, Vec<MoneyRow>> {
        let reference = payment_ref.to_owned();
        self.read("reading money", move |db, _| read::money_of(db, &reference))
    }

    fn money_of_hold<'a>(&'a self, id: &'a HoldId) -> LedgerFuture<'a, Vec<MoneyRow>> {
        let id = id.clone();
        self.read("reading money", move |db, _| read::money_of_hold(db, &id))
    }

    fn money_in_states<'a>(
        &'a self,
        event: Option<&'a EventId>,
        states: &'a [MoneyState],
    ) -> LedgerFuture<'a, Vec<MoneyRow>> {
        let (event, states) = (event.cloned(), states.to_vec());
        self.read("reading late money", move |db, _| read::money_in(db, event.as_ref(), &states))
    }

    fn captures_open(&self) -> LedgerFuture<'_, Vec<OrderRow>> {
        self.read("reading what is to be captured", |db, _| read::captures_open(db))
    }

    fn count_live(&self) -> LedgerFuture<'_, LiveCounts> {
        self.read_for_follower("counting holds", read::live)
    }

    fn paying(&self) -> LedgerFuture<'_, (Vec<HoldRow>, Moment)> {
        self.read_for_follower("reading payments under way", |db, now| Ok((read::paying(db, now)?, now)))
    }

    fn payments_without_word(&self, within_ms: u64) -> LedgerFuture<'_, (Vec<HoldRow>, Moment)> {
        self.read_for_follower("reading payments nobody told of", move |db, now| {
            Ok((read::payments_without_word(db, now, within_ms)?, now))
        })
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn engine(&self) -> LedgerFuture<'_, Option<String>> {
        self.read_for_follower("reading which engine it is", |db, _| {
            Ok(db.prepare_cached("SELECT identity FROM engine")?.query_row([], |row| row.get(0))?)
        })
    }

    fn highest_token(&self) -> LedgerFuture<'_, u64> {
        self.read_for_follower("reading the highest token", |db, _| read::highest_token(db))
    }

    fn put_engine(&self, identity: Option<String>, seen: Option<String>) -> LedgerFuture<'_, bool> {
        self.write("storing which engine it is", move |db, _| {
            let sql = "UPDATE engine SET identity = ?1 WHERE identity IS ?2";
            Ok(db.prepare_cached(sql)?.execute(params![identity, seen])? > 0)
        })
    }

    fn event<'a>(&'a self, id: &'a EventId) -> LedgerFuture<'a, Option<EventRow>> {
        let id = id.clone();
        self.read("reading an event", move |db, _| load::event(db, &id))
    }

    fn events(&self) -> LedgerFuture<'_, Vec<EventRow>> {
        self.read("reading events", |db, _| load::load_list(db, "SELECT body FROM events ORDER BY rowid", [], "events"))
    }

    fn layout<'a>(&'a self, id: &'a EventId) -> LedgerFuture<'a, Option<(u64, Layout)>> {
        let id = id.clone();
        self.read_for_follower("reading a layout", move |db, _| read::layout(db, &id))
    }

    fn hold<'a>(&'a self, id: &'a HoldId) -> LedgerFuture<'a, (Option<HoldRow>, Moment)> {
        let id = id.clone();
        self.read("reading a hold", move |db, now| Ok((load::hold(db, &id)?, now)))
    }

    fn order<'a>(&'a self, id: &'a OrderId) -> LedgerFuture<'a, Option<OrderRow>> {
        let id = id.clone();
        self.read("reading an order", move |db, _| load::order(db, &id))
    }

    fn orders<'a>(
        &'a self,
        id: &'a EventId,
        after: Option<&'a OrderId>,
        limit: usize,
    ) -> LedgerFuture<'a, Vec<OrderRow>> {
        let (id, after) = (id.clone(), after.map_or_else(String::new, |after| after.0.clone()));
        self.read("reading orders", move |db, _| read::orders(db, &id, &after, limit))
    }

    fn snapshot<'a>(&'a self, id: &'a EventId) -> LedgerFuture<'a, Option<Snapshot>> {
        let id = id.clone();
        self.read("reading an event", move |db, now| read::snapshot(db, &id, now))
    }

    fn takings<'a>(&'a self, id: &'a EventId) -> LedgerFuture<'a, Takings> {
        let id = id.clone();
        self.read("reading takings", move |db, _| read::takings(db, &id))
    }

    fn dump<'a>(&'a self, id: &'a EventId) -> LedgerFuture<'a, Option<Dump>> {
        let id = id.clone();
        self.read("reading every row of an event", move |db, now| read::dump(db, &id, now))
    }

    fn known_tokens<'a>(&'a self, id: &'a EventId, tokens: &'a [u64]) -> LedgerFuture<'a, Vec<u64>> {
        let (id, tokens) = (id.clone(), tokens.to_vec());
        self.read("reading tokens", move |db, _| read::known_tokens(db, &id, &tokens))
    }

    fn stored_answer<'a>(&'a self, idem: &'a Idem) -> LedgerFuture<'a, Option<serde_json::Value>> {
        let idem = idem.clone();
        // A refusal is not an error of the file, so it is returned as a value.
        let found = self.read("reading a stored answer", move |db, _| match super::stored_answer(db, Some(&idem)) {
            Ok(value) => Ok(Ok(value)),
            Err(JobFailure::Refused(refusal)) => Ok(Err(refusal)),
            Err(JobFailure::Sqlite(error)) => Err(error),
        });
        Box::pin(async move { found.await?.map_err(Into::into) })
    }

    fn sequence(&self, limit: usize) -> LedgerFuture<'_, Numbered> {
        self.write("numbering entries", move |db, _| Ok(read::sequence(db, limit)?))
    }

    fn heads(&self) -> LedgerFuture<'_, Vec<(EventId, u64)>> {
        self.read_for_follower("reading the last numbers", |db, _| read::heads(db))
    }

    fn audit<'a>(&'a self, id: &'a EventId, query: AuditQuery) -> LedgerFuture<'a, Vec<Entry>> {
        let id = id.clone();
        self.read_entries("reading the audit log", move |db, _| read::audit(db, &id, &query))
    }

    fn add_webhook(&self, webhook: WebhookRow, max: usize) -> LedgerFuture<'_, WebhookAdded> {
        self.write("adding a webhook", move |db, _| Ok(webhooks::add(db, &webhook, max)?))
    }

    fn deactivate_webhook<'a>(&'a self, id: &'a str) -> LedgerFuture<'a, bool> {
        let id = id.to_owned();
        self.write("switching a webhook off", move |db, _| Ok(webhooks::deactivate(db, &id)?))
    }

    fn remove_webhook<'a>(&'a self, seen: &'a WebhookRow) -> LedgerFuture<'a, bool> {
        let seen = seen.clone();
        self.write("removing a webhook", move |db, _| Ok(webhooks::remove(db, &seen)?))
    }

    fn webhooks(&self) -> LedgerFuture<'_, Vec<WebhookRow>> {
        self.read("reading webhooks", |db, _| webhooks::list_all(db))
    }

    fn webhook_cursor<'a>(&'a self, id: &'a str, event: &'a EventId) -> LedgerFuture<'a, u64> {
        let (id, event) = (id.to_owned(), event.clone());
        self.read("reading how far a webhook is", move |db, _| webhooks::cursor(db, &id, &event))
    }

    fn advance_webhook<'a>(&'a self, id: &'a str, event: &'a EventId, seq: u64) -> LedgerFuture<'a, ()> {
        let (id, event) = (id.to_owned(), event.clone());
        self.write("storing how far a webhook is", move |db, _| Ok(webhooks::advance(db, &id, &event, seq)?))
    }

    fn forget_older_than(&self, age_ms: u64) -> LedgerFuture<'_, u64> {
        Box::pin(async move {
            let until = self.time.now().0.saturating_sub(age_ms);
            let (mut gone, mut from) = (0, Some(0));
            // In portions, each a job of its own: jobs of buyers run in between.
            loop {
                let answers =
                    self.write(FORGET_ATTEMPT, move |db, _| Ok(retention::forget_answers(db, until)?)).await?;
                gone += answers;
                if answers == 0 {
                    break;
                }
            }
            while let Some(begin) = from {
                let (holds, next) =
                    self.write(FORGET_ATTEMPT, move |db, _| Ok(retention::forget_holds(db, begin, until)?)).await?;
                gone += holds;
                from = next;
            }
            Ok(gone)
        })
    }

    fn close(&self) -> LedgerFuture<'_, ()> {
        let thread = self.writer.stop();
        self.readers.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clear();
        Box::pin(async move {
            let Some(thread) = thread else { return Ok(()) };
            let joined = tokio::task::spawn_blocking(move || thread.join()).await;
            self.lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
            match joined {
                Ok(Ok(())) => Ok(()),
                _ => Err(super::unavailable("closing the ledger", "the writer ended badly".into())),
            }
        })
    }
}
