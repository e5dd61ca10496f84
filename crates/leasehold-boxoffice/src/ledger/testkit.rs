//! A ledger that wraps another and fails on request.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Ledger, LedgerFuture};
use crate::error::Error;
use crate::layout::Layout;
use crate::model::check::Dump;
use crate::model::*;

/// What goes wrong with one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LedgerFault {
    /// It never reaches the ledger: Unavailable, and no effect.
    Unavailable,
    /// It takes effect, and the answer to COMMIT is lost: Indeterminate.
    Indeterminate,
    /// It never reaches the ledger, and no answer ever comes: the caller has died.
    DiesBefore,
    /// It takes effect, and no answer ever comes: the caller has died.
    DiesAfter,
    /// Something else happens before it takes effect: see [`FlakyLedger::meanwhile`].
    Slow,
}

/// Forwards every call, except transactions that a test spoils, by their name in the trait.
pub struct FlakyLedger {
    inner: Arc<dyn Ledger>,
    faults: Mutex<VecDeque<(&'static str, LedgerFault)>>,
    meanwhile: Mutex<Option<Box<dyn Fn() + Send + Sync>>>,
    snapshots: AtomicU64,
    audits: AtomicU64,
}

impl FlakyLedger {
    /// Around this one.
    #[must_use]
    pub fn new(inner: Arc<dyn Ledger>) -> Arc<Self> {
        let (snapshots, audits) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { inner, faults: Mutex::default(), meanwhile: Mutex::default(), snapshots, audits })
    }

    /// The next transaction of this name goes wrong so.
    pub fn spoil(&self, transaction: &'static str, fault: LedgerFault) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).push_back((transaction, fault));
    }

    /// What happens before a transaction that is [`LedgerFault::Slow`] takes effect.
    pub fn meanwhile(&self, happens: impl Fn() + Send + Sync + 'static) {
        *self.meanwhile.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(happens));
    }

    /// How many snapshots were asked for.
    #[must_use]
    pub fn snapshots(&self) -> u64 {
        self.snapshots.load(Relaxed)
    }

    /// How often entries were read.
    #[must_use]
    pub fn audits(&self) -> u64 {
        self.audits.load(Relaxed)
    }

    fn take_fault(&self, transaction: &str) -> Option<LedgerFault> {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let at = faults.iter().position(|(name, _)| *name == transaction)?;
        faults.remove(at).map(|(_, fault)| fault)
    }

    fn call_or_fail<'a, T: Send + 'a>(
        &'a self,
        name: &'static str,
        call: impl FnOnce(&'a dyn Ledger) -> LedgerFuture<'a, T> + Send + 'a,
    ) -> LedgerFuture<'a, T> {
        let why = || "a fault that was ordered".into();
        match self.take_fault(name) {
            None => call(&*self.inner),
            Some(LedgerFault::Unavailable) => {
                Box::pin(async move { Err(Error::Unavailable { part: "flaky", attempt: name.into(), source: why() }) })
            }
            Some(LedgerFault::DiesBefore) => Box::pin(std::future::pending()),
            Some(LedgerFault::Indeterminate) => Box::pin(async move {
                let _ = call(&*self.inner).await;
                Err(Error::Indeterminate { part: "flaky", attempt: name.into(), source: why() })
            }),
            Some(LedgerFault::Slow) => Box::pin(async move {
                if let Some(happens) = &*self.meanwhile.lock().unwrap_or_else(PoisonError::into_inner) {
                    happens();
                }
                call(&*self.inner).await
            }),
            Some(LedgerFault::DiesAfter) => Box::pin(async move {
                let _ = call(&*self.inner).await;
                std::future::pending().await
            }),
        }
    }
}

macro_rules! transactions {
    ($($name:ident: $command:ty => $outcome:ty;)+) => {
        $(fn $name(&self, call: LedgerCall, command: $command) -> LedgerFuture<'_, Done<$outcome>> {
            self.call_or_fail(stringify!($name), move |inner| inner.$name(call, command))
        })+
    };
}

impl Ledger for FlakyLedger {
    fn name(&self) -> &'static str {
        "flaky"
    }

    transactions! {
        create_event: NewEvent => EventRow;
        configure: Configure => EventRow;
        replace_layout: ReplaceLayout => EventRow;
        freeze: Freeze => EventRow;
        open_hold: OpenHold => OpenedHold;
        renew: RenewHold => HoldRow;
        change_seats: ChangeSeats => HoldRow;
        replace_lease: ReplaceLease => HoldRow;
        begin_pay: BeginPay => HoldRow;
        decline: Decline => HoldRow;
        confirm: Confirm => Confirmed;
        sell_late: SellLate => OrderRow;
        release: ReleaseHold => HoldRow;
        set_blocks: SetBlocks => Blocks;
        force_release: ForceRelease => HoldRow;
        void: Void => Amended;
        move_order: MoveOrder => Amended;
        money_step: MoneyStep => MoneyRow;
        capture_step: CaptureStep => OrderRow;
    }

    fn now(&self) -> LedgerFuture<'_, Moment> {
        self.inner.now()
    }
    fn lapse_due(&self, limit: usize) -> LedgerFuture<'_, Swept> {
        self.call_or_fail("lapse_due", move |inner| inner.lapse_due(limit))
    }
    fn money<'a>(&'a self, payment_ref: &'a str) -> LedgerFuture<'a, Option<MoneyRow>> {
        self.inner.money(payment_ref)
    }
    fn money_of_payment<'a>(&'a self, payment_ref: &'a str) -> LedgerFuture<'a, Vec<MoneyRow>> {
        self.inner.money_of_payment(payment_ref)
    }
    fn money_of_hold<'a>(&'a self, id: &'a HoldId) -> LedgerFuture<'a, Vec<MoneyRow>> {
        self.inner.money_of_hold(id)
    }
    fn money_in_states<'a>(
        &'a self,
        event: Option<&'a EventId>,
        states: &'a [MoneyState],
    ) -> LedgerFuture<'a, Vec<MoneyRow>> {
        self.inner.money_in_states(event, states)
    }
    fn captures_open(&self) -> LedgerFuture<'_, Vec<OrderRow>> {
        self.inner.captures_open()
    }
    fn count_live(&self) -> LedgerFuture<'_, LiveCounts> {
        self.inner.count_live()
    }
    fn paying(&self) -> LedgerFuture<'_, (Vec<HoldRow>, Moment)> {
        self.inner.paying()
    }
    fn payments_without_word(&self, within_ms: u64) -> LedgerFuture<'_, (Vec<HoldRow>, Moment)> {
        self.inner.payments_without_word(within_ms)
    }
    fn is_shared(&self) -> bool {
        self.inner.is_shared()
    }
    fn engine(&self) -> LedgerFuture<'_, Option<String>> {
        self.inner.engine()
    }
    fn highest_token(&self) -> LedgerFuture<'_, u64> {
        self.inner.highest_token()
    }
    fn put_engine(&self, identity: Option<String>, seen: Option<String>) -> LedgerFuture<'_, bool> {
        self.inner.put_engine(identity, seen)
    }
    fn event<'a>(&'a self, id: &'a EventId) -> LedgerFuture<'a, Option<EventRow>> {
        self.inner.event(id)
    }
    fn events(&self) -> LedgerFuture<'_, Vec<EventRow>> {
        self.inner.events()
    }
    fn layout<'a>(&'a self, id: &'a EventId) -> LedgerFuture<'a, Option<(u64, Layout)>> {
        self.inner.layout(id)
    }
    fn hold<'a>(&'a self, id: &'a HoldId) -> LedgerFuture<'a, (Option<HoldRow>, Moment)> {
        self.inner.hold(id)
    }
    fn order<'a>(&'a self, id: &'a OrderId) -> LedgerFuture<'a, Option<OrderRow>> {
        self.inner.order(id)
    }
    fn orders<'a>(
        &'a self,
        id: &'a EventId,
        after: Option<&'a OrderId>,
        limit: usize,
    ) -> LedgerFuture<'a, Vec<OrderRow>> {
        self.inner.orders(id, after, limit)
    }
    fn snapshot<'a>(&'a self, id: &'a EventId) -> LedgerFuture<'a, Option<Snapshot>> {
        self.snapshots.fetch_add(1, Relaxed);
        self.inner.snapshot(id)
    }
    fn takings<'a>(&'a self, id: &'a EventId) -> LedgerFuture<'a, Takings> {
        self.inner.takings(id)
    }
    fn dump<'a>(&'a self, id: &'a EventId) -> LedgerFuture<'a, Option<Dump>> {
        self.inner.dump(id)
    }
    fn known_tokens<'a>(&'a self, id: &'a EventId, tokens: &'a [u64]) -> LedgerFuture<'a, Vec<u64>> {
        self.inner.known_tokens(id, tokens)
    }
    fn stored_answer<'a>(&'a self, idem: &'a Idem) -> LedgerFuture<'a, Option<serde_json::Value>> {
        self.inner.stored_answer(idem)
    }
    fn sequence(&self, limit: usize) -> LedgerFuture<'_, Numbered> {
        self.call_or_fail("sequence", move |inner| inner.sequence(limit))
    }
    fn heads(&self) -> LedgerFuture<'_, Vec<(EventId, u64)>> {
        self.inner.heads()
    }
    fn audit<'a>(&'a self, id: &'a EventId, query: AuditQuery) -> LedgerFuture<'a, Vec<Entry>> {
        self.audits.fetch_add(1, Relaxed);
        self.inner.audit(id, query)
    }
    fn add_webhook(&self, webhook: WebhookRow, max: usize) -> LedgerFuture<'_, WebhookAdded> {
        self.inner.add_webhook(webhook, max)
    }
    fn deactivate_webhook<'a>(&'a self, id: &'a str) -> LedgerFuture<'a, bool> {
        self.inner.deactivate_webhook(id)
    }
    fn remove_webhook<'a>(&'a self, seen: &'a WebhookRow) -> LedgerFuture<'a, bool> {
        self.inner.remove_webhook(seen)
    }
    fn webhooks(&self) -> LedgerFuture<'_, Vec<WebhookRow>> {
        self.inner.webhooks()
    }
    fn webhook_cursor<'a>(&'a self, id: &'a str, event: &'a EventId) -> LedgerFuture<'a, u64> {
        self.inner.webhook_cursor(id, event)
    }
    fn advance_webhook<'a>(&'a self, id: &'a str, event: &'a EventId, seq: u64) -> LedgerFuture<'a, ()> {
        self.inner.advance_webhook(id, event, seq)
    }
    fn forget_older_than(&self, age_ms: u64) -> LedgerFuture<'_, u64> {
        self.inner.forget_older_than(age_ms)
    }
    fn close(&self) -> LedgerFuture<'_, ()> {
        self.inner.close()
    }
}
