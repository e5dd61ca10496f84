//! Operations on an open hold: view, renew, change, pay, release.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::event_cache::CachedEvent;
use super::lease::{LEASE_MARGIN, LeaseOutcome, LeaseTerms};
use super::open_hold::{HoldItems, MAX_SEATS_PER_HOLD, priced_items};
use super::view::{BuyersMoney, HoldChange, HoldView, NewPayment, PaymentEnding};
use super::{Office, to_hold_view};
use crate::error::Error;
use crate::model::*;

/// How long a replacement lease waits in the engine's queue. Only requests that will be refused are before it.
const HAND_OVER_WAIT: Duration = Duration::from_secs(5);

impl Office {
    /// A hold as its buyer sees it, also after its end.
    ///
    /// # Errors
    ///
    /// There is none, or what was shown does not open it.
    pub async fn hold_view(&self, hold: &HoldId, access: Access) -> Result<HoldView, Error> {
        let (row, now) = self.authorized_hold(hold, &access).await?;
        let mut money = Vec::new();
        let mut resolution = None;
        for part in self.0.ledger.money_of_hold(hold).await? {
            let became = self.resolution(&part).await?;
            // The payment that was begun for the hold decides what the buyer is shown.
            if part.part.is_empty() && row.payment_ref.as_ref().is_none_or(|own| *own == part.payment_ref) {
                resolution.get_or_insert_with(|| became.clone());
            }
            let payment_ref = (part.part != hold.as_str()).then_some(part.payment_ref);
            money.push(BuyersMoney { payment_ref, amount: part.amount, resolution: became });
        }
        Ok(HoldView { resolution, money, ..to_hold_view(row, now) })
    }

    /// The row of a hold, also after its end. Whoever asks was let in already: no key is compared.
    ///
    /// # Errors
    ///
    /// The ledger could not be asked.
    pub async fn hold_row(&self, hold: &HoldId) -> Result<Option<HoldRow>, Error> {
        Ok(self.0.ledger.hold(hold).await?.0)
    }

    /// The row, if the caller's key opens it.
    async fn authorized_hold(&self, hold: &HoldId, access: &Access) -> Result<(HoldRow, Moment), Error> {
        let (row, now) = self.0.ledger.hold(hold).await?;
        let row = row.filter(|row| access.opens(&row.key_hash)).ok_or_else(|| Refusal::NoHold(hold.clone()))?;
        Ok((row, now))
    }

    /// The stored answer of the call's idempotency key, as a view.
    async fn stored_row(&self, call: &LedgerCall, now: Moment) -> Result<Option<HoldView>, Error> {
        let Some(idem) = &call.idem else { return Ok(None) };
        let Some(answer) = self.0.ledger.stored_answer(idem).await? else { return Ok(None) };
        let row = serde_json::from_value(answer).map_err(|_| Error::Refused(Refusal::Mismatch))?;
        Ok(Some(HoldView { replayed: true, ..to_hold_view(row, now) }))
    }

    /// Pushes the end of a hold to now + ttl, within its cap.
    ///
    /// # Errors
    ///
    /// [`Refusal::Ended`], or [`Refusal::NotRenewable`] if the lease under it is gone and somebody else has it.
    pub async fn renew(&self, call: LedgerCall, hold: &HoldId, access: Access) -> Result<HoldView, Error> {
        let (office, hold) = (self.clone(), hold.clone());
        let work = async move {
            let renewed = office.renew_now(call, &hold, access).await;
            // A renewal after the end of the hold is no failure.
            if renewed.as_ref().is_err_and(|error| !matches!(error.refusal(), Some(Refusal::Ended(_)))) {
                office.0.counts.renew_failures.fetch_add(1, Relaxed);
            }
            renewed
        };
        self.detached(work).await
    }

    async fn renew_now(&self, call: LedgerCall, hold: &HoldId, access: Access) -> Result<HoldView, Error> {
        let (row, now) = self.authorized_hold(hold, &access).await?;
        if let Some(stored) = self.stored_row(&call, now).await? {
            return Ok(stored);
        }
        if !row.is_live(now) {
            return Err(Refusal::Ended(row.state_at(now)).into());
        }
        let began = self.clock().now();
        let tokens = if row.state == HoldState::Active {
            let ttl = row.ttl_ms.min(row.cap_at.since(now));
            self.renew_or_replace_leases(&row, Duration::from_millis(ttl), now).await?
        } else {
            Vec::new()
        };
        let command = RenewHold { hold_id: hold.clone(), access, tokens };
        let done = self.0.ledger.renew(call, command).await?;
        self.renew_leases_if_slow(&done, began).await;
        Ok(HoldView { replayed: done.replayed, ..to_hold_view(done.value, done.now) })
    }

    /// Renews the leases of a hold, so that its row may live so long. A lost lease is replaced if its seats are free.
    /// Returns the tokens.
    async fn renew_or_replace_leases(&self, row: &HoldRow, ttl: Duration, now: Moment) -> Result<Vec<u64>, Error> {
        let kept = self.renew_leases(row, ttl + LEASE_MARGIN).await?;
        let mut tokens: Vec<u64> = kept.iter().flatten().copied().collect();
        let gone = row.leases.iter().zip(&kept).filter(|(_, kept)| kept.is_none());
        for (lease, _) in gone {
            let cached = self.cached_event(&row.event_id).await?;
            let part = items_under_token(row, lease.token);
            let fresh = match self.replace_lease(&cached, row, &part, lease.token, ttl, now, Duration::ZERO).await {
                // A new lease with an old token: the engine was restored from a copy.
                Err(Error::Refused(Refusal::StaleToken)) => {
                    self.raise_engine_floor().await?;
                    self.replace_lease(&cached, row, &part, lease.token, ttl, now, Duration::ZERO).await?
                }
                other => other?,
            };
            tokens.push(fresh.ok_or(Error::Refused(Refusal::NotRenewable))?);
        }
        Ok(tokens)
    }

    /// Acquires a new lease on a part of a hold and stores its token. `None`: another holder has the seats.
    #[allow(clippy::too_many_arguments, reason = "all of it is needed, and only here")]
    async fn replace_lease(
        &self,
        cached: &CachedEvent,
        row: &HoldRow,
        part: &HoldItems,
        old: u64,
        ttl: Duration,
        now: Moment,
        wait: Duration,
    ) -> Result<Option<u64>, Error> {
        let left = row.cap_at.since(now).saturating_add(row.pay_within(&cached.event.settings));
        let max_hold = Some(Duration::from_millis(left) + LEASE_MARGIN + wait);
        let terms = LeaseTerms { ttl: ttl + LEASE_MARGIN, max_hold, wait };
        let LeaseOutcome::Granted(lease) =
            self.acquire_lease(part.resources(cached), terms, row.hold_id.as_str()).await?
        else {
            return Ok(None);
        };
        let command = ReplaceLease { hold_id: row.hold_id.clone(), old, lease: lease.clone() };
        match self.0.ledger.replace_lease(LedgerCall::by("office"), command).await {
            Ok(_) => Ok(Some(lease.token)),
            // The row may have it: then the lease is in use. If not, it lapses or the sweeper revokes it.
            Err(error @ Error::Indeterminate { .. }) => Err(error),
            Err(error) => {
                self.release_lease(&lease).await;
                Err(error)
            }
        }
    }

    /// If the ledger was slow, the row may end after its leases: renew them once more, or replace them. If that fails, the
    /// row decides, and the next renewal tries again.
    async fn renew_leases_if_slow(&self, done: &Done<HoldRow>, began: leasehold::Time) {
        let (row, now) = (&done.value, done.now);
        if done.replayed || !row.is_live(now) || self.clock().now().since(began) < LEASE_MARGIN {
            return;
        }
        let left = Duration::from_millis(row.expires_at.since(now));
        let _ = self.renew_or_replace_leases(row, left, now).await;
    }

    /// Adds and removes seats and places.
    ///
    /// # Errors
    ///
    /// As for a hold; and a hold must keep something.
    pub async fn change(
        &self,
        call: LedgerCall,
        hold: &HoldId,
        access: Access,
        change: HoldChange,
    ) -> Result<HoldView, Error> {
        let (office, hold) = (self.clone(), hold.clone());
        let work = async move {
            let first = office.change_now(call.clone(), &hold, access.clone(), change.clone()).await;
            // The cached layout was old and is dropped by now: try once more.
            let changed = match first {
                Err(Error::Refused(Refusal::LayoutChanged)) => office.change_now(call, &hold, access, change).await,
                other => other,
            };
            if let Err(Error::Refused(Refusal::Conflict { conflicts, .. })) = &changed {
                office.0.counts.count_conflicts(conflicts);
            }
            changed
        };
        self.detached(work).await
    }

    async fn change_now(
        &self,
        call: LedgerCall,
        hold: &HoldId,
        access: Access,
        change: HoldChange,
    ) -> Result<HoldView, Error> {
        let (row, now) = self.authorized_hold(hold, &access).await?;
        if let Some(stored) = self.stored_row(&call, now).await? {
            return Ok(stored);
        }
        if !row.is_live(now) {
            return Err(Refusal::Ended(row.state_at(now)).into());
        }
        let cached = self.cached_event(&row.event_id).await?;
        let adds = !change.add.is_empty() || !change.add_areas.is_empty();
        if !adds && change.remove.is_empty() && change.remove_areas.is_empty() {
            return Err(Error::Invalid("name at least one seat or area to add or to remove".into()));
        }
        let added = match adds {
            true => priced_items(&cached, &change.add, &change.add_areas)?,
            false => HoldItems { seats: Vec::new(), areas: Vec::new() },
        };
        if let Some(again) = added.areas.iter().find(|area| row.areas.iter().any(|held| held.id == area.id)) {
            return Err(Error::Invalid(format!(
                "{} is in the hold already: remove it in another change first",
                again.id
            )));
        }
        let left = |ids: usize, going: usize| ids.saturating_sub(going);
        let seats = left(row.seats.len(), change.remove.len()) + added.seats.len();
        let areas = left(row.areas.len(), change.remove_areas.len()) + added.areas.len();
        if adds && seats + areas > MAX_SEATS_PER_HOLD {
            return Err(Error::Invalid(format!("at most {MAX_SEATS_PER_HOLD} seats and areas in one hold")));
        }
        let lease = match self.lease_change(&cached, &row, &change.remove, &added, now).await {
            Err(Error::Refused(refusal)) => return Err(self.with_alternative(&cached, &added, refusal).await),
            other => other?,
        };
        let command = ChangeSeats {
            hold_id: hold.clone(),
            access,
            layout_version: cached.event.layout_version,
            add: added.seats.clone(),
            add_areas: added.areas.clone(),
            lease: lease.clone(),
            remove: change.remove,
            remove_areas: change.remove_areas,
        };
        let done = self.0.ledger.change_seats(call, command).await;
        let done = match (done, &lease) {
            (Ok(done), _) => done,
            (Err(error), Some(lease)) => {
                if !matches!(error, Error::Indeterminate { .. }) {
                    self.release_lease(lease).await;
                }
                if matches!(error, Error::Refused(Refusal::LayoutChanged)) {
                    self.0.cache.forget(&row.event_id);
                }
                return Err(match error {
                    Error::Refused(refusal) => self.with_alternative(&cached, &added, refusal).await,
                    error => error,
                });
            }
            (Err(error), None) => return Err(error),
        };
        let row = self.hand_over(&cached, &row, done.value.clone(), done.now).await;
        Ok(HoldView { replayed: done.replayed, ..to_hold_view(row, done.now) })
    }

    /// Adds similar free seats to a refusal, if there are any.
    async fn with_alternative(&self, cached: &CachedEvent, added: &HoldItems, refusal: Refusal) -> Error {
        let refusal = match refusal {
            Refusal::Conflict { conflicts, alternative: None } => {
                let alternative = self.alternative(cached, added, &conflicts).await;
                Refusal::Conflict { conflicts, alternative }
            }
            other => other,
        };
        refusal.into()
    }

    /// Refuses early by the event cache, and acquires the lease on what is added, if anything is.
    async fn lease_change(
        &self,
        cached: &CachedEvent,
        row: &HoldRow,
        remove: &[String],
        added: &HoldItems,
        now: Moment,
    ) -> Result<Option<LeaseRef>, Error> {
        if let Some(conflicts) = self.lost_already(cached, added) {
            return Err(Refusal::Conflict { conflicts, alternative: None }.into());
        }
        let changed = added.seats.iter().map(|seat| &seat.id).chain(remove);
        if changed.clone().next().is_some() {
            let position = |id: &String| cached.index.position(id);
            let had: Vec<_> = row.seats.iter().filter_map(|seat| position(&seat.id)).collect();
            let stays = row.seats.iter().map(|seat| &seat.id).filter(|id| !remove.contains(id));
            let choice: Vec<_> = stays.chain(added.seats.iter().map(|seat| &seat.id)).filter_map(position).collect();
            if let Some(instead) = self.orphan_alternative(cached, &had, &choice).await? {
                let conflicts = changed.map(|id| Conflict::seat(id, Reason::Orphan)).collect();
                let alternative = Some(super::open_hold::names(cached, &instead));
                return Err(Refusal::Conflict { conflicts, alternative }.into());
            }
        }
        if added.seats.is_empty() && added.areas.is_empty() {
            return Ok(None);
        }
        self.lease_added(cached, row, added, now).await.map(Some)
    }

    /// Acquires the lease on added items. It ends with the other leases of the hold.
    async fn lease_added(
        &self,
        cached: &CachedEvent,
        row: &HoldRow,
        added: &HoldItems,
        now: Moment,
    ) -> Result<LeaseRef, Error> {
        let ttl = Duration::from_millis(row.expires_at.since(now)) + LEASE_MARGIN;
        let left = row.cap_at.since(now).saturating_add(row.pay_within(&cached.event.settings));
        let max_hold = Some(Duration::from_millis(left) + LEASE_MARGIN);
        let terms = LeaseTerms { ttl, max_hold, wait: Duration::ZERO };
        match self.acquire_lease(added.resources(cached), terms, row.hold_id.as_str()).await? {
            LeaseOutcome::Granted(lease) => Ok(lease),
            LeaseOutcome::Held(resource, _) => Err(self.taken_conflict(cached, added, &resource).await.into()),
        }
    }

    /// After a change, a lease may cover removed and kept seats. A replacement on the kept seats waits in the engine's queue
    /// while the old lease is released: no other request gets them in between.
    async fn hand_over(&self, cached: &CachedEvent, before: &HoldRow, after: HoldRow, now: Moment) -> HoldRow {
        for lease in &before.leases {
            let (had, has) = (items_under_token(before, lease.token), items_under_token(&after, lease.token));
            if had.seats.len() == has.seats.len() && had.areas.len() == has.areas.len() {
                continue;
            }
            if has.seats.is_empty() && has.areas.is_empty() {
                self.release_lease(lease).await;
                continue;
            }
            let ttl = Duration::from_millis(after.expires_at.since(now));
            let next = self.replace_lease(cached, &after, &has, lease.token, ttl, now, HAND_OVER_WAIT);
            let old = async {
                // The claim is queued once it was polled. A remote engine may receive them in the other order: then another
                // request may get the seats, and the ledger refuses it.
                tokio::task::yield_now().await;
                self.release_lease(lease).await;
            };
            // The row has decided already. A hold without a lease gets one at its next renewal.
            let _ = tokio::join!(biased; next, old);
        }
        let current = self.0.ledger.hold(&after.hold_id).await;
        current.ok().and_then(|(row, _)| row).unwrap_or(after)
    }

    /// Begins a payment under this name.
    ///
    /// # Errors
    ///
    /// As of [`Office::pay_with`].
    pub async fn pay(
        &self,
        call: LedgerCall,
        hold: &HoldId,
        access: Access,
        payment_ref: &str,
    ) -> Result<HoldView, Error> {
        let payment = NewPayment { payment_ref: payment_ref.into(), pay_url: None, total: None, paid_for: Vec::new() };
        self.pay_with(call, hold, access, payment).await
    }

    /// Begins a payment: renews the leases first, then writes the row.
    ///
    /// # Errors
    ///
    /// The hold is over, costs something else than the payment was made for, or another payment is on its way.
    pub async fn pay_with(
        &self,
        call: LedgerCall,
        hold: &HoldId,
        access: Access,
        payment: NewPayment,
    ) -> Result<HoldView, Error> {
        if !ids::well_formed(&payment.payment_ref) {
            return Err(Error::Invalid("payment_ref must be 1 to 128 bytes, without control characters".into()));
        }
        let (office, hold) = (self.clone(), hold.clone());
        self.detached(async move { office.pay_now(call, &hold, access, payment).await }).await
    }

    /// Prepares an active hold for a payment at the provider: its leases are renewed to the pay deadline, and lost ones are
    /// replaced. So the tokens that the provider gets stay valid.
    ///
    /// # Errors
    ///
    /// There is no such hold, or its seats cannot be kept.
    pub async fn prepare_pay(&self, hold: &HoldId, access: Access) -> Result<HoldView, Error> {
        let (row, now) = self.authorized_hold(hold, &access).await?;
        if row.is_live(now) && row.state == HoldState::Active {
            let event = self.event(&row.event_id).await?;
            self.renew_or_replace_leases(&row, Duration::from_millis(row.pay_within(&event.settings)), now).await?;
        }
        self.hold_view(hold, access).await
    }

    /// The id of the next payment of a hold. It is the same for the same hold, seats and price, so that a repeated request
    /// makes no second payment. It changes with each payment that is begun.
    #[must_use]
    pub fn payment_id(hold: &HoldRow) -> String {
        let seats = hold.seats.iter().map(|seat| (&seat.id, 1, seat.token, seat.price));
        let areas = hold.areas.iter().map(|area| (&area.id, area.qty, area.token, area.price));
        let what: Vec<_> = seats.chain(areas).collect();
        let name = format!("{} {} {what:?}", hold.hold_id, hold.payments);
        format!("pay_{}", crate::provider::short_id(&name))
    }

    /// The stored answer to a call on this hold with this idempotency key; none if it is the first.
    ///
    /// # Errors
    ///
    /// There is no such hold, or the key was used with another body.
    pub async fn stored_hold(
        &self,
        call: &LedgerCall,
        hold: &HoldId,
        access: &Access,
    ) -> Result<Option<HoldView>, Error> {
        let (_, now) = self.authorized_hold(hold, access).await?;
        self.stored_row(call, now).await
    }

    async fn pay_now(
        &self,
        call: LedgerCall,
        hold: &HoldId,
        access: Access,
        payment: NewPayment,
    ) -> Result<HoldView, Error> {
        let (row, now) = self.authorized_hold(hold, &access).await?;
        let NewPayment { payment_ref, pay_url, total, paid_for } = payment;
        let began = self.clock().now();
        let tokens = if row.is_live(now) && row.state == HoldState::Active {
            let cached = self.cached_event(&row.event_id).await?;
            let event = self.0.ledger.event(&row.event_id).await?.unwrap_or_else(|| cached.event.clone());
            self.renew_or_replace_leases(&row, Duration::from_millis(row.pay_within(&event.settings)), now).await?
        } else {
            Vec::new()
        };
        let command = BeginPay { hold_id: hold.clone(), access, payment_ref, pay_url, total, paid_for, tokens };
        match self.0.ledger.begin_pay(call, command).await {
            Ok(done) => {
                self.renew_leases_if_slow(&done, began).await;
                Ok(HoldView { replayed: done.replayed, ..to_hold_view(done.value, done.now) })
            }
            Err(error) => {
                // The hold ended meanwhile, after its leases were renewed: release them.
                if matches!(error, Error::Refused(Refusal::Ended(_))) {
                    self.release_leases(&row.leases).await;
                }
                Err(error)
            }
        }
    }

    /// Ends a payment that is under way: the hold is active again, if time is left.
    ///
    /// # Errors
    ///
    /// No such payment is under way.
    pub async fn end_payment(
        &self,
        call: LedgerCall,
        hold: &HoldId,
        access: Access,
        payment_ref: &str,
        ending: PaymentEnding,
    ) -> Result<HoldView, Error> {
        let (hold_id, payment_ref, given_up) = (hold.clone(), payment_ref.into(), ending == PaymentEnding::GivenUp);
        let command = Decline { hold_id, access, payment_ref, given_up, callback: None };
        let office = self.clone();
        self.detached(async move { office.decline_now(call, command).await }).await
    }

    pub(super) async fn decline_now(&self, call: LedgerCall, command: Decline) -> Result<HoldView, Error> {
        let done = self.0.ledger.decline(call, command).await?;
        self.end_leases_unpaid(&done.value, done.now).await;
        Ok(HoldView { replayed: done.replayed, ..to_hold_view(done.value, done.now) })
    }

    /// Sets the leases of a hold to end with its row, after its payment ended without money.
    pub(super) async fn end_leases_unpaid(&self, row: &HoldRow, now: Moment) {
        if row.is_live(now) && row.state == HoldState::Active {
            // The leases reach to the pay deadline: shorten them, or the seats would stay locked after the row ends.
            let left = Duration::from_millis(row.expires_at.since(now));
            let _ = self.renew_leases(row, left + LEASE_MARGIN).await;
        } else if row.state == HoldState::Lapsed {
            self.release_leases(&row.leases).await;
        }
    }

    /// Releases a hold.
    ///
    /// # Errors
    ///
    /// Money is on its way, or the hold is over otherwise.
    pub async fn release(&self, call: LedgerCall, hold: &HoldId, access: Access) -> Result<HoldView, Error> {
        let command = ReleaseHold { hold_id: hold.clone(), access };
        let office = self.clone();
        let work = async move {
            let done = office.0.ledger.release(call, command).await?;
            office.release_leases(&done.value.leases).await;
            Ok(HoldView { replayed: done.replayed, ..to_hold_view(done.value, done.now) })
        };
        self.detached(work).await
    }
}

/// The items of a hold that are under the lease with this token.
fn items_under_token(row: &HoldRow, token: u64) -> HoldItems {
    let seats = row.seats.iter().filter(|seat| seat.token == token);
    let areas = row.areas.iter().filter(|area| area.token == token);
    HoldItems {
        seats: seats.map(|seat| Priced { id: seat.id.clone(), price: seat.price }).collect(),
        areas: areas.map(|area| PricedArea { id: area.id.clone(), qty: area.qty, price: area.price }).collect(),
    }
}
