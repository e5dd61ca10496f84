//! A ledger around a ledger, that fails on order.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Answer, Ledger};
use crate::error::Error;
use crate::layout::Layout;
use crate::model::check::Dump;
use crate::model::*;

/// What goes wrong with one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It never reaches the ledger: Unavailable, and no effect.
    Unavailable,
    /// It takes effect, and the answer to COMMIT is lost: Indeterminate.
    Indeterminate,
    /// It never reaches the ledger, and no answer ever comes: whoever asked has died.
    DiesBefore,
    /// It takes effect, and no answer ever comes: whoever asked has died.
    DiesAfter,
    /// Something else happens before it takes effect: see [`Flaky::meanwhile`].
    Slow,
}

/// Passes every call on, except transactions it was told to spoil, by their name in the trait.
pub struct Flaky {
    inner: Arc<dyn Ledger>,
    faults: Mutex<VecDeque<(&'static str, Fault)>>,
    meanwhile: Mutex<Option<Box<dyn Fn() + Send + Sync>>>,
    snapshots: AtomicU64,
    audits: AtomicU64,
}

impl Flaky {
    /// Around this one.
    #[must_use]
    pub fn new(inner: Arc<dyn Ledger>) -> Arc<Self> {
        let (snapshots, audits) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { inner, faults: Mutex::default(), meanwhile: Mutex::default(), snapshots, audits })
    }

    /// The next transaction of this name goes wrong so.
    pub fn spoil(&self, transaction: &'static str, fault: Fault) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).push_back((transaction, fault));
    }

    /// What happens while a transaction that is [`Fault::Slow`] is on its way.
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

    fn take(&self, transaction: &str) -> Option<Fault> {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let at = faults.iter().position(|(name, _)| *name == transaction)?;
        faults.remove(at).map(|(_, fault)| fault)
    }

    fn pass<'a, T: Send + 'a>(
        &'a self,
        name: &'static str,
        call: impl FnOnce(&'a dyn Ledger) -> Answer<'a, T> + Send + 'a,
    ) -> Answer<'a, T> {
        let why = || "a fault that was ordered".into();
        match self.take(name) {
            None => call(&*self.inner),
            Some(Fault::Unavailable) => {
                Box::pin(async move { Err(Error::Unavailable { part: "flaky", attempt: name.into(), source: why() }) })
            }
            Some(Fault::DiesBefore) => Box::pin(std::future::pending()),
            Some(Fault::Indeterminate) => Box::pin(async move {
                let _ = call(&*self.inner).await;
                Err(Error::Indeterminate { part: "flaky", attempt: name.into(), source: why() })
            }),
            Some(Fault::Slow) => Box::pin(async move {
                if let Some(happens) = &*self.meanwhile.lock().unwrap_or_else(PoisonError::into_inner) {
                    happens();
                }
                call(&*self.inner).await
            }),
            Some(Fault::DiesAfter) => Box::pin(async move {
                let _ = call(&*self.inner).await;
                std::future::pending().await
            }),
        }
    }
}

macro_rules! transactions {
    ($($name:ident: $command:ty => $outcome:ty;)+) => {
        $(fn $name(&self, call: Call, command: $command) -> Answer<'_, Done<$outcome>> {
            self.pass(stringify!($name), move |inner| inner.$name(call, command))
        })+
    };
}

impl Ledger for Flaky {
    fn name(&self) -> &'static str {
        "flaky"
    }

    transactions! {
        create_event: NewEvent => EventRow;
        configure: Configure => EventRow;
        replace_layout: ReplaceLayout => EventRow;
        freeze: Freeze => EventRow;
        open_hold: OpenHold => Opened;
        renew: Renew => HoldRow;
        change_seats: ChangeSeats => HoldRow;
        relet: Relet => HoldRow;
        begin_pay: BeginPay => HoldRow;
        decline: Decline => HoldRow;
        confirm: Confirm => Confirmed;
        sell_late: SellLate => OrderRow;
        release: Release => HoldRow;
        set_blocks: SetBlocks => Blocks;
        force_release: ForceRelease => HoldRow;
        void: Void => Amended;
        move_order: MoveOrder => Amended;
        money_step: MoneyStep => MoneyRow;
        capture_step: CaptureStep => OrderRow;
    }

    fn now(&self) -> Answer<'_, Moment> {
        self.inner.now()
    }
    fn lapse_due(&self, limit: usize) -> Answer<'_, Swept> {
        self.pass("lapse_due", move |inner| inner.lapse_due(limit))
    }
    fn money<'a>(&'a self, payment_ref: &'a str) -> Answer<'a, Option<MoneyRow>> {
        self.inner.money(payment_ref)
    }
    fn money_of<'a>(&'a self, payment_ref: &'a str) -> Answer<'a, Vec<MoneyRow>> {
        self.inner.money_of(payment_ref)
    }
    fn money_of_hold<'a>(&'a self, id: &'a HoldId) -> Answer<'a, Vec<MoneyRow>> {
        self.inner.money_of_hold(id)
    }
    fn money_in<'a>(&'a self, event: Option<&'a EventId>, states: &'a [MoneyState]) -> Answer<'a, Vec<MoneyRow>> {
        self.inner.money_in(event, states)
    }
    fn captures_open(&self) -> Answer<'_, Vec<OrderRow>> {
        self.inner.captures_open()
    }
    fn live(&self) -> Answer<'_, Live> {
        self.inner.live()
    }
    fn paying(&self) -> Answer<'_, (Vec<HoldRow>, Moment)> {
        self.inner.paying()
    }
    fn unheard(&self, within_ms: u64) -> Answer<'_, (Vec<HoldRow>, Moment)> {
        self.inner.unheard(within_ms)
    }
    fn is_shared(&self) -> bool {
        self.inner.is_shared()
    }
    fn engine(&self) -> Answer<'_, Option<String>> {
        self.inner.engine()
    }
    fn highest_token(&self) -> Answer<'_, u64> {
        self.inner.highest_token()
    }
    fn put_engine(&self, identity: Option<String>, seen: Option<String>) -> Answer<'_, bool> {
        self.inner.put_engine(identity, seen)
    }
    fn event<'a>(&'a self, id: &'a EventId) -> Answer<'a, Option<EventRow>> {
        self.inner.event(id)
    }
    fn events(&self) -> Answer<'_, Vec<EventRow>> {
        self.inner.events()
    }
    fn layout<'a>(&'a self, id: &'a EventId) -> Answer<'a, Option<(u64, Layout)>> {
        self.inner.layout(id)
    }
    fn hold<'a>(&'a self, id: &'a HoldId) -> Answer<'a, (Option<HoldRow>, Moment)> {
        self.inner.hold(id)
    }
    fn order<'a>(&'a self, id: &'a OrderId) -> Answer<'a, Option<OrderRow>> {
        self.inner.order(id)
    }
    fn orders<'a>(&'a self, id: &'a EventId, after: Option<&'a OrderId>, limit: usize) -> Answer<'a, Vec<OrderRow>> {
        self.inner.orders(id, after, limit)
    }
    fn snapshot<'a>(&'a self, id: &'a EventId) -> Answer<'a, Option<Snapshot>> {
        self.snapshots.fetch_add(1, Relaxed);
        self.inner.snapshot(id)
    }
    fn takings<'a>(&'a self, id: &'a EventId) -> Answer<'a, Takings> {
        self.inner.takings(id)
    }
    fn dump<'a>(&'a self, id: &'a EventId) -> Answer<'a, Option<Dump>> {
        self.inner.dump(id)
    }
    fn known_tokens<'a>(&'a self, id: &'a EventId, tokens: &'a [u64]) -> Answer<'a, Vec<u64>> {
        self.inner.known_tokens(id, tokens)
    }
    fn recall<'a>(&'a self, idem: &'a Idem) -> Answer<'a, Option<serde_json::Value>> {
        self.inner.recall(idem)
    }
    fn sequence(&self, limit: usize) -> Answer<'_, Numbered> {
        self.pass("sequence", move |inner| inner.sequence(limit))
    }
    fn heads(&self) -> Answer<'_, Vec<(EventId, u64)>> {
        self.inner.heads()
    }
    fn audit<'a>(&'a self, id: &'a EventId, query: AuditQuery) -> Answer<'a, Vec<Entry>> {
        self.audits.fetch_add(1, Relaxed);
        self.inner.audit(id, query)
    }
    fn add_webhook(&self, webhook: WebhookRow, max: usize) -> Answer<'_, WebhookAdded> {
        self.inner.add_webhook(webhook, max)
    }
    fn deactivate_webhook<'a>(&'a self, id: &'a str) -> Answer<'a, bool> {
        self.inner.deactivate_webhook(id)
    }
    fn remove_webhook<'a>(&'a self, seen: &'a WebhookRow) -> Answer<'a, bool> {
        self.inner.remove_webhook(seen)
    }
    fn webhooks(&self) -> Answer<'_, Vec<WebhookRow>> {
        self.inner.webhooks()
    }
    fn webhook_cursor<'a>(&'a self, id: &'a str, event: &'a EventId) -> Answer<'a, u64> {
        self.inner.webhook_cursor(id, event)
    }
    fn advance_webhook<'a>(&'a self, id: &'a str, event: &'a EventId, seq: u64) -> Answer<'a, ()> {
        self.inner.advance_webhook(id, event, seq)
    }
    fn forget_older_than(&self, age_ms: u64) -> Answer<'_, u64> {
        self.inner.forget_older_than(age_ms)
    }
    fn close(&self) -> Answer<'_, ()> {
        self.inner.close()
    }
}
