//! Opens a hold: picks the seats, acquires one lease on all of them, then writes the hold row.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::event_cache::CachedEvent;
use super::lease::{self, LEASE_MARGIN, LeaseOutcome, LeaseTerms};
use super::secret::{HoldKey, name};
use super::view::{HoldRequest, HoldView};
use super::{Office, to_hold_view};
use crate::error::Error;
use crate::model::*;
use crate::pick;

/// The most seats and areas in one hold, and so the most resources of one claim.
pub const MAX_SEATS_PER_HOLD: usize = 64;
/// How often seats are picked again when another request took them first.
const MAX_PICK_ATTEMPTS: usize = 16;
/// How long a retry waits for its own first try, which is still under way.
const JOIN_FIRST_TRY_WAIT: Duration = Duration::from_millis(100);

/// Seats and areas of a hold, with prices.
#[derive(Clone, Debug)]
pub(super) struct HoldItems {
    pub(super) seats: Vec<Priced>,
    pub(super) areas: Vec<PricedArea>,
}

/// Whose hold is opened: buyer, id and key, and the payment of an offer.
pub(super) struct HoldOwner<'a> {
    pub(super) buyer: &'a Buyer,
    pub(super) hold_id: HoldId,
    pub(super) key_hash: String,
    pub(super) sealed_key: String,
    pub(super) payment_ref: Option<String>,
}

impl Office {
    /// Holds seats and places for a buyer, all or nothing.
    ///
    /// # Errors
    ///
    /// [`Refusal::Conflict`] names each seat lost and why, with an alternative where there is one.
    pub async fn hold(
        &self,
        call: LedgerCall,
        event: &EventId,
        buyer: Buyer,
        want: HoldRequest,
    ) -> Result<HoldView, Error> {
        let (office, event) = (self.clone(), event.clone());
        let work = async move {
            let began = office.clock().now();
            let held = office.hold_now(call, &event, &buyer, want).await;
            office.0.counts.record_hold_request(office.clock().now().since(began));
            match &held {
                Ok(_) => drop(office.0.counts.holds.fetch_add(1, Relaxed)),
                Err(Error::Refused(Refusal::Conflict { conflicts, .. })) => office.0.counts.count_conflicts(conflicts),
                Err(_) => {}
            }
            held
        };
        self.detached(work).await
    }

    async fn hold_now(
        &self,
        call: LedgerCall,
        event: &EventId,
        buyer: &Buyer,
        want: HoldRequest,
    ) -> Result<HoldView, Error> {
        if !buyer.is_well_formed() {
            return Err(Error::Invalid("buyer must be 1 to 128 bytes, without control characters".into()));
        }
        if let Some(stored) = self.stored_hold_view(&call).await? {
            return Ok(stored);
        }
        let mut cached = self.cached_event(event).await?;
        for _ in 0..3 {
            let held = match &want {
                HoldRequest::These { seats, areas } => self.hold_these(&call, &cached, buyer, seats, areas).await,
                HoldRequest::Best { qty, section, adjacent } => {
                    let ask = pick::PickRequest {
                        qty: usize::try_from(*qty).unwrap_or(usize::MAX),
                        section: section.as_deref(),
                        adjacent: *adjacent,
                        no_orphans: cached.event.settings.orphan_rule,
                    };
                    self.hold_best(&call, &cached, buyer, &ask).await
                }
            };
            match held {
                Err(Error::Refused(Refusal::LayoutChanged)) => cached = self.load_event(event).await?,
                other => return other,
            }
        }
        Err(Refusal::LayoutChanged.into())
    }

    /// The stored answer of the call's idempotency key.
    async fn stored_hold_view(&self, call: &LedgerCall) -> Result<Option<HoldView>, Error> {
        let Some(idem) = &call.idem else { return Ok(None) };
        let Some(answer) = self.0.ledger.stored_answer(idem).await? else { return Ok(None) };
        let opened: OpenedHold = serde_json::from_value(answer).map_err(|_| Error::Refused(Refusal::Mismatch))?;
        let (now_row, now) = self.0.ledger.hold(&opened.hold.hold_id).await?;
        // The stored answer, with the present state and time.
        let row = now_row.unwrap_or(opened.hold);
        let key = idem.unseal(&opened.sealed_key, &row.key_hash);
        Ok(Some(HoldView { key, replayed: true, ..to_hold_view(row, now) }))
    }

    async fn hold_these(
        &self,
        call: &LedgerCall,
        cached: &Arc<CachedEvent>,
        buyer: &Buyer,
        seats: &[String],
        areas: &[(String, u32)],
    ) -> Result<HoldView, Error> {
        let items = priced_items(cached, seats, areas)?;
        if let Some(refusal) = self.refuse_early(cached, &items).await? {
            return Err(refusal.into());
        }
        let held = self.acquire_and_open(call, cached, buyer, &items).await;
        match held {
            Err(Error::Refused(Refusal::Conflict { conflicts, .. })) => {
                let alternative = self.alternative(cached, &items, &conflicts).await;
                Err(Refusal::Conflict { conflicts, alternative }.into())
            }
            other => other,
        }
    }

    /// Refuses by the event cache: seats that are sold or blocked, and choices that leave an orphan.
    async fn refuse_early(&self, cached: &Arc<CachedEvent>, items: &HoldItems) -> Result<Option<Refusal>, Error> {
        if let Some(conflicts) = self.lost_already(cached, items) {
            let alternative = self.alternative(cached, items, &conflicts).await;
            return Ok(Some(Refusal::Conflict { conflicts, alternative }));
        }
        let Some(instead) = self.orphan_alternative(cached, &[], &seat_positions(cached, items)).await? else {
            return Ok(None);
        };
        let conflicts = items.seats.iter().map(|seat| Conflict::seat(&seat.id, Reason::Orphan)).collect();
        Ok(Some(Refusal::Conflict { conflicts, alternative: Some(names(cached, &instead)) }))
    }

    /// All conflicts by the event cache, if any seat is sold or blocked. A seat that is only held may be free again by now:
    /// it is no reason to refuse by itself.
    pub(super) fn lost_already(&self, cached: &CachedEvent, items: &HoldItems) -> Option<Vec<Conflict>> {
        let lost = self.lost_items(cached, items, None);
        lost.iter().any(|lost| matches!(lost.reason, Reason::Sold | Reason::Blocked)).then_some(lost)
    }

    /// Other seats for a choice that leaves an orphan, where the rule is on. `had`: seats that the buyer holds already; the
    /// choice may contain some of them.
    pub(super) async fn orphan_alternative(
        &self,
        cached: &CachedEvent,
        had: &[pick::SeatPosition],
        choice: &[pick::SeatPosition],
    ) -> Result<Option<Vec<pick::SeatPosition>>, Error> {
        if !cached.event.settings.orphan_rule || choice.is_empty() {
            return Ok(None);
        }
        let mut free = self.fresh_map(cached).await?;
        had.iter().for_each(|position| free.set(*position, true));
        // A seat that is not free is a conflict, which is reported elsewhere.
        if choice.iter().any(|position| !free.is_free(*position)) {
            return Ok(None);
        }
        Ok(pick::avoid_orphan(&cached.index, &free, choice))
    }

    /// Similar free seats to offer with a refusal. None if other seats would not help, as with a limit.
    pub(super) async fn alternative(
        &self,
        cached: &CachedEvent,
        items: &HoldItems,
        conflicts: &[Conflict],
    ) -> Option<Vec<String>> {
        let other_seats_help = |lost: &Conflict| matches!(lost.reason, Reason::Taken | Reason::Sold | Reason::Blocked);
        if items.seats.is_empty() || !items.areas.is_empty() || !conflicts.iter().all(other_seats_help) {
            return None;
        }
        let mut free = self.stale_map(cached).await.ok()?;
        for lost in conflicts.iter().filter_map(|lost| cached.index.position(lost.seat.as_deref()?)) {
            free.set(lost, false);
        }
        let no_orphans = cached.event.settings.orphan_rule;
        let found = pick::alternative(&cached.index, &free, &seat_positions(cached, items), no_orphans)?;
        Some(names(cached, &found))
    }

    /// The price of these seats together, by the cached layout. None: the event is not in the cache.
    #[must_use]
    pub fn total(&self, event: &EventId, seats: &[String]) -> Option<u64> {
        let cached = self.0.cache.get(event)?;
        Some(seats.iter().filter_map(|seat| cached.price(seat)).fold(0, u64::saturating_add))
    }

    async fn hold_best(
        &self,
        call: &LedgerCall,
        cached: &Arc<CachedEvent>,
        buyer: &Buyer,
        ask: &pick::PickRequest<'_>,
    ) -> Result<HoldView, Error> {
        if ask.qty == 0 || ask.qty > MAX_SEATS_PER_HOLD {
            return Err(Error::Invalid(format!("best.qty must be 1 to {MAX_SEATS_PER_HOLD}, not {}", ask.qty)));
        }
        let no_block = || Refusal::Conflict {
            conflicts: vec![Conflict { seat: None, area: None, reason: Reason::NoBlock }],
            alternative: None,
        };
        let mut lost: BTreeSet<pick::SeatPosition> = BTreeSet::new();
        for _ in 0..MAX_PICK_ATTEMPTS {
            let mut free = self.fresh_map(cached).await?;
            lost.iter().for_each(|position| free.set(*position, false));
            let picked = cached.pick_and_mark(&free, |index, free| pick::best(index, free, ask));
            let Some(intent) = picked else { return Err(no_block().into()) };
            let items = priced_items(cached, &names(cached, &intent.positions), &[])?;
            match self.acquire_and_open(call, cached, buyer, &items).await {
                Err(Error::Refused(Refusal::Conflict { conflicts, alternative })) => {
                    let before = lost.len();
                    let quicker =
                        |lost: &Conflict| matches!(lost.reason, Reason::Taken | Reason::Sold | Reason::Blocked);
                    let seats = conflicts.iter().filter(|lost| quicker(lost));
                    lost.extend(seats.filter_map(|lost| cached.index.position(lost.seat.as_deref()?)));
                    if lost.len() == before {
                        return Err(Refusal::Conflict { conflicts, alternative }.into());
                    }
                }
                other => return other,
            }
        }
        Err(no_block().into())
    }

    /// Acquires the lease and writes the row, under a new id and key.
    async fn acquire_and_open(
        &self,
        call: &LedgerCall,
        cached: &CachedEvent,
        buyer: &Buyer,
        items: &HoldItems,
    ) -> Result<HoldView, Error> {
        let key = HoldKey::draw()?;
        let pad = call.idem.as_ref().map(|idem| idem.pad);
        let who = HoldOwner {
            buyer,
            hold_id: HoldId(name("h_", self.clock().now())?),
            key_hash: key.digest(),
            sealed_key: pad.map_or_else(String::new, |pad| key.sealed(&pad)),
            payment_ref: None,
        };
        match self.acquire_and_open_for(call, cached, items, who).await {
            Ok(done) => {
                let own = if done.replayed { None } else { Some(key) };
                let unsealed = || call.idem.as_ref()?.unseal(&done.value.sealed_key, &done.value.hold.key_hash);
                let key = own.or_else(unsealed);
                Ok(HoldView { key, replayed: done.replayed, ..to_hold_view(done.value.hold, done.now) })
            }
            Err(error) => Err(error),
        }
    }

    /// Waits for the first try with the same idempotency key, and returns its stored answer.
    async fn join_first_try(&self, call: &LedgerCall) -> Result<Option<Done<OpenedHold>>, Error> {
        let Some(idem) = &call.idem else { return Ok(None) };
        let wait = self.clock().now().plus(JOIN_FIRST_TRY_WAIT);
        self.clock().sleep_until(wait).await;
        let Some(answer) = self.0.ledger.stored_answer(idem).await? else { return Ok(None) };
        let value: OpenedHold = serde_json::from_value(answer).map_err(|_| Error::Refused(Refusal::Mismatch))?;
        Ok(Some(Done { value, now: self.0.ledger.now().await?, replayed: true }))
    }

    /// Acquires the lease and writes the row, for a given owner.
    pub(super) async fn acquire_and_open_for(
        &self,
        call: &LedgerCall,
        cached: &CachedEvent,
        items: &HoldItems,
        who: HoldOwner<'_>,
    ) -> Result<Done<OpenedHold>, Error> {
        let settings = &cached.event.settings;
        let event = &cached.event.event_id;
        let (max_hold, pay) = (Duration::from_millis(settings.max_hold_ms), Duration::from_millis(settings.pay_ms));
        let ttl = match who.payment_ref {
            Some(_) => pay,
            None => Duration::from_millis(settings.ttl_ms),
        };
        let terms =
            LeaseTerms { ttl: ttl + LEASE_MARGIN, max_hold: Some(max_hold + pay + LEASE_MARGIN), wait: Duration::ZERO };
        let began = self.clock().now();
        let tag = call.idem.as_ref().map(idempotency_tag);
        let holder = format!("{}{}", who.hold_id, tag.as_deref().unwrap_or_default());
        let lease = match self.acquire_lease(items.resources(cached), terms, &holder).await? {
            LeaseOutcome::Granted(lease) => lease,
            LeaseOutcome::Held(resource, holder) => {
                // The first try of this call holds the lease: its answer is the answer.
                let own = tag.is_some_and(|tag| holder.is_none_or(|holder| holder.ends_with(&tag)));
                return match if own { self.join_first_try(call).await? } else { None } {
                    Some(done) => Ok(done),
                    None => Err(self.taken_conflict(cached, items, &resource).await.into()),
                };
            }
        };
        let command = OpenHold {
            event_id: event.clone(),
            layout_version: cached.event.layout_version,
            hold_id: who.hold_id,
            buyer: who.buyer.clone(),
            key_hash: who.key_hash,
            sealed_key: who.sealed_key,
            seats: items.seats.clone(),
            areas: items.areas.clone(),
            lease: lease.clone(),
            payment_ref: who.payment_ref,
        };
        let opened = self.0.ledger.open_hold(call.clone(), command).await;
        match &opened {
            Ok(done) if done.replayed => self.release_lease(&lease).await,
            Ok(done) => {
                cached.override_states(
                    items.seats.iter().map(|seat| seat.id.as_str()),
                    SeatState::Held,
                    self.clock().now(),
                );
                self.ensure_lease_outlives(&done.value.hold, ttl, began).await?;
            }
            // The row may be stored: then the lease belongs to it. If not, the lease lapses or the sweeper revokes it.
            Err(Error::Indeterminate { .. }) => {}
            Err(Error::Refused(Refusal::Conflict { conflicts, .. })) => {
                self.override_lost(cached, conflicts);
                self.release_lease(&lease).await;
            }
            Err(Error::Refused(Refusal::StaleToken)) => {
                // A new lease with an old token: the engine was restored from a copy. Raise its floor for the next try.
                self.release_lease(&lease).await;
                let _ = self.raise_engine_floor().await;
            }
            Err(_) => self.release_lease(&lease).await,
        }
        opened
    }

    /// If the ledger was slow, the row may end after the lease: renew the lease, or release the hold.
    async fn ensure_lease_outlives(&self, hold: &HoldRow, ttl: Duration, began: leasehold::Time) -> Result<(), Error> {
        if self.clock().now().since(began) < LEASE_MARGIN {
            return Ok(());
        }
        // If the engine cannot be reached, the lease counts as lost: the hold must not stay without one.
        if self.renew_leases(hold, ttl + LEASE_MARGIN).await.is_ok_and(|kept| kept.iter().all(Option::is_some)) {
            return Ok(());
        }
        let release = ReleaseHold { hold_id: hold.hold_id.clone(), access: Access::Staff };
        let released = self.0.ledger.release(LedgerCall::by("office"), release).await;
        self.release_leases(&hold.leases).await;
        let (part, attempt) = (self.0.ledger.name(), "opening a hold".into());
        let source = "the ledger answered only after the lease on the seats had ended".into();
        Err(match released {
            Ok(_) => Error::Unavailable { part, attempt, source },
            Err(_) => Error::Indeterminate { part, attempt, source },
        })
    }

    /// The refusal after the engine refused a lease: the resource that it named, and whatever else is not free by the map.
    pub(super) async fn taken_conflict(&self, cached: &CachedEvent, items: &HoldItems, resource: &str) -> Refusal {
        // The list is a hint: if the map cannot be reloaded, only the named seat is reported. Entries do not carry the
        // counts of areas, so with areas the map is always reloaded.
        let good = items.areas.is_empty() && cached.is_recent_enough(self.clock().now());
        let _ = self.stale_map_unless(cached, good).await;
        Refusal::Conflict { conflicts: self.lost_items(cached, items, Some(resource)), alternative: None }
    }

    /// The items that are not free by the seat map, and the one that the engine named.
    fn lost_items(&self, cached: &CachedEvent, items: &HoldItems, resource: Option<&str>) -> Vec<Conflict> {
        let named = resource.and_then(|resource| lease::parse_resource_name(&cached.event.event_id, resource));
        let now = self.clock().now();
        let is_named =
            |seat: bool, id: &str| named.as_ref().is_some_and(|(is_seat, name)| *is_seat == seat && name == id);
        // If the engine refused, hints of any age may be added. Without the engine only a fresh map counts.
        let seen = named.is_some() || cached.is_fresh(now);
        let mut conflicts = Vec::new();
        for seat in &items.seats {
            let reason = match cached.state_hint(&seat.id, now) {
                _ if is_named(true, &seat.id) => Reason::Taken,
                SeatState::Held | SeatState::Paying if seen => Reason::Taken,
                SeatState::Sold if seen => Reason::Sold,
                SeatState::Blocked if seen => Reason::Blocked,
                _ => continue,
            };
            conflicts.push(Conflict::seat(&seat.id, reason));
        }
        // Only if the request is refused anyway: the counts of areas may be old.
        for area in items.areas.iter().filter(|_| named.is_some()) {
            let short = cached.area_hint(&area.id, area.qty);
            if let Some(reason) = short.or_else(|| is_named(false, &area.id).then_some(Reason::Taken)) {
                conflicts.push(Conflict::area(&area.id, reason));
            }
        }
        conflicts
    }

    fn override_lost(&self, cached: &CachedEvent, conflicts: &[Conflict]) {
        for lost in conflicts {
            let state = match lost.reason {
                Reason::Sold => SeatState::Sold,
                Reason::Blocked => SeatState::Blocked,
                _ => continue,
            };
            cached.override_states(lost.seat.as_deref().into_iter(), state, self.clock().now());
        }
    }
}

/// A suffix of the holder name that marks leases of one idempotency key: a retry recognises those of its first try.
fn idempotency_tag(idem: &Idem) -> String {
    let hex = idem.key.iter().take(8).map(|byte| format!("{byte:02x}"));
    hex.fold(" ".into(), |tag, byte| tag + &byte)
}

impl HoldItems {
    pub(super) fn resources(&self, cached: &CachedEvent) -> Vec<leasehold::engine::Want> {
        let seats = self.seats.iter().map(|seat| seat.id.as_str());
        lease::resources(&cached.event.event_id, seats, &self.areas, |id| cached.capacity(id))
    }
}

/// The requested items with prices: sorted, each once, each in the layout.
pub(super) fn priced_items(
    cached: &CachedEvent,
    seats: &[String],
    areas: &[(String, u32)],
) -> Result<HoldItems, Error> {
    if seats.is_empty() && areas.is_empty() {
        return Err(Error::Invalid("name at least one seat or area".into()));
    }
    if seats.len() + areas.len() > MAX_SEATS_PER_HOLD {
        return Err(Error::Invalid(format!("at most {MAX_SEATS_PER_HOLD} seats and areas in one hold")));
    }
    let mut items = HoldItems { seats: Vec::new(), areas: Vec::new() };
    for id in seats {
        let price = cached.price(id).ok_or_else(|| Refusal::NoSeat(id.clone()))?;
        items.seats.push(Priced { id: id.clone(), price });
    }
    for (id, qty) in areas {
        let area = cached.area(id).ok_or_else(|| Refusal::NoSeat(id.clone()))?;
        if *qty == 0 {
            return Err(Error::Invalid(format!("qty of {id} must be at least 1")));
        }
        if *qty > area.capacity {
            let conflicts = vec![Conflict::area(id, Reason::NoBlock)];
            return Err(Refusal::Conflict { conflicts, alternative: None }.into());
        }
        items.areas.push(PricedArea { id: id.clone(), qty: *qty, price: area.price });
    }
    items.seats.sort_by(|a, b| a.id.cmp(&b.id));
    items.areas.sort_by(|a, b| a.id.cmp(&b.id));
    let twice = items.seats.windows(2).find(|pair| pair[0].id == pair[1].id).map(|pair| &pair[0].id);
    let twice = twice.or_else(|| items.areas.windows(2).find(|pair| pair[0].id == pair[1].id).map(|pair| &pair[0].id));
    match twice {
        Some(id) => Err(Error::Invalid(format!("{id} is named twice"))),
        None => Ok(items),
    }
}

fn seat_positions(cached: &CachedEvent, items: &HoldItems) -> Vec<pick::SeatPosition> {
    items.seats.iter().filter_map(|seat| cached.index.position(&seat.id)).collect()
}

pub(super) fn names(cached: &CachedEvent, positions: &[pick::SeatPosition]) -> Vec<String> {
    positions.iter().map(|position| cached.index.seat(*position).id.clone()).collect()
}

/// Free seats similar to those of a hold, to offer for late money.
pub(super) fn similar_seats(cached: &CachedEvent, free: &pick::FreeSet, hold: &HoldRow) -> Option<Vec<String>> {
    let positions: Vec<_> = hold.seats.iter().filter_map(|seat| cached.index.position(&seat.id)).collect();
    if !hold.areas.is_empty() || positions.len() != hold.seats.len() {
        return None;
    }
    let found = pick::alternative(&cached.index, free, &positions, cached.event.settings.orphan_rule)?;
    Some(names(cached, &found))
}
