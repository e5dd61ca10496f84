//! Events and what staff does: blocks, forced releases, voids, moves, reports.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::lease::{LeaseOutcome, LeaseTerms, SALE_LEASE_TTL, seat_resource};
use super::open_hold::priced_items;
use super::secret::name;
use super::view::{Availability, EventReport, HoldView, StaffHold, Totals};
use super::{Office, to_hold_view};
use crate::error::Error;
use crate::layout::Layout;
use crate::model::check::{InvariantCheck, invariants};
use crate::model::*;

/// The most seats and areas of an event.
const MAX_SEATS_PER_EVENT: usize = 200_000;
/// The highest price: any sum of a hold stays far from overflow.
const MAX_SEAT_PRICE: u64 = 1 << 40;

/// What is wrong with a layout, in a sentence; none if nothing is.
fn layout_problem(layout: &Layout) -> Option<String> {
    if layout.seats.len() + layout.areas.len() > MAX_SEATS_PER_EVENT {
        return Some(format!("at most {MAX_SEATS_PER_EVENT} seats and areas in one event"));
    }
    let seats = layout.seats.iter().map(|seat| (&seat.id, seat.price));
    let mut ids = HashSet::new();
    for (id, price) in seats.chain(layout.areas.iter().map(|area| (&area.id, area.price))) {
        if !ids::well_formed(id) {
            return Some("ids of seats and areas must be 1 to 128 bytes, without control characters".into());
        }
        if price > MAX_SEAT_PRICE {
            return Some(format!("the price of {id} is more than {MAX_SEAT_PRICE}"));
        }
        if !ids.insert(id.as_str()) {
            return Some(format!("{id} is there twice"));
        }
    }
    layout.areas.iter().find(|area| area.capacity == 0).map(|area| format!("{} has no places", area.id))
}

pub(super) fn check_reason(reason: &str) -> Result<String, Error> {
    let trimmed = reason.trim();
    if trimmed.is_empty() || trimmed.len() > 1000 {
        return Err(Error::Invalid("reason must be 1 to 1,000 bytes".into()));
    }
    Ok(trimmed.into())
}

impl Office {
    /// Makes an event with its layout.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] with what is wrong about rules or layout.
    pub async fn create_event(
        &self,
        call: LedgerCall,
        settings: EventSettings,
        layout: Layout,
    ) -> Result<EventRow, Error> {
        if let Some(problem) = settings.problem().or_else(|| layout_problem(&layout)) {
            return Err(Error::Invalid(problem));
        }
        let event_id = EventId(name("ev_", self.clock().now())?);
        Ok(self.0.ledger.create_event(call, NewEvent { event_id, settings, layout }).await?.value)
    }

    /// Changes the rules of an event, from now on; if `seen` is given, only while the event is at that version.
    ///
    /// # Errors
    ///
    /// As for a new one, or [`Refusal::Changed`].
    pub async fn configure(
        &self,
        call: LedgerCall,
        event: &EventId,
        settings: EventSettings,
        seen: Option<u64>,
    ) -> Result<EventRow, Error> {
        if let Some(problem) = settings.problem() {
            return Err(Error::Invalid(problem));
        }
        let done = self.0.ledger.configure(call, Configure { event_id: event.clone(), settings, seen }).await?;
        self.0.cache.forget(event);
        Ok(done.value)
    }

    /// Changes the layout of an event. What is held, sold or blocked must be in it.
    ///
    /// # Errors
    ///
    /// As for a new one, or a conflict that names what is in use.
    pub async fn replace_layout(&self, call: LedgerCall, event: &EventId, layout: Layout) -> Result<EventRow, Error> {
        if let Some(problem) = layout_problem(&layout) {
            return Err(Error::Invalid(problem));
        }
        let command = ReplaceLayout { event_id: event.clone(), layout, dry_run: false };
        let done = self.0.ledger.replace_layout(call, command).await?;
        self.0.cache.forget(event);
        Ok(done.value)
    }

    /// Whether this layout could replace the present one: everything that is in use is in it.
    ///
    /// # Errors
    ///
    /// As for [`Office::replace_layout`].
    pub async fn try_layout(&self, event: &EventId, layout: Layout) -> Result<(), Error> {
        if let Some(problem) = layout_problem(&layout) {
            return Err(Error::Invalid(problem));
        }
        let command = ReplaceLayout { event_id: event.clone(), layout, dry_run: true };
        self.0.ledger.replace_layout(LedgerCall::by("office"), command).await.map(drop)
    }

    /// Stops or resumes sales: no new holds, while what is held may still be paid.
    ///
    /// # Errors
    ///
    /// There is no such event.
    pub async fn freeze(
        &self,
        call: LedgerCall,
        event: &EventId,
        frozen: bool,
        reason: &str,
    ) -> Result<EventRow, Error> {
        let reason = check_reason(reason)?;
        let done = self.0.ledger.freeze(call, Freeze { event_id: event.clone(), frozen, reason }).await?;
        Ok(done.value)
    }

    /// All events.
    ///
    /// # Errors
    ///
    /// The ledger could not be asked.
    pub async fn events(&self) -> Result<Vec<EventRow>, Error> {
        self.0.ledger.events().await
    }

    /// One event.
    ///
    /// # Errors
    ///
    /// There is none.
    pub async fn event(&self, event: &EventId) -> Result<EventRow, Error> {
        self.0.ledger.event(event).await?.ok_or_else(|| Refusal::NoEvent(event.clone()).into())
    }

    /// The layout and its version (for the ETag).
    ///
    /// # Errors
    ///
    /// There is no such event.
    pub async fn layout(&self, event: &EventId) -> Result<(u64, Arc<Layout>), Error> {
        let current = self.event(event).await?.layout_version;
        let mut cached = self.cached_event(event).await?;
        if cached.event.layout_version != current {
            cached = self.load_event(event).await?;
        }
        Ok((cached.event.layout_version, cached.layout.clone()))
    }

    async fn snapshot(&self, event: &EventId) -> Result<Snapshot, Error> {
        self.0.ledger.snapshot(event).await?.ok_or_else(|| Refusal::NoEvent(event.clone()).into())
    }

    /// What is free and what is not, in one moment.
    ///
    /// # Errors
    ///
    /// There is no such event.
    pub async fn availability(&self, event: &EventId) -> Result<Availability, Error> {
        let snapshot = self.snapshot(event).await?;
        let totals = totals(snapshot.event.seats, snapshot.seats.iter().map(|seat| seat.state));
        Ok(Availability { seq: snapshot.seq, seats: snapshot.seats, areas: snapshot.areas, totals })
    }

    /// One order.
    ///
    /// # Errors
    ///
    /// There is none.
    pub async fn order(&self, order: &OrderId) -> Result<OrderRow, Error> {
        self.0.ledger.order(order).await?.ok_or_else(|| Refusal::NoOrder(order.clone()).into())
    }

    /// Orders of an event after one of them, in order of id, at most so many.
    ///
    /// # Errors
    ///
    /// The ledger could not be asked.
    pub async fn orders(&self, event: &EventId, after: Option<&OrderId>, limit: usize) -> Result<Vec<OrderRow>, Error> {
        self.0.ledger.orders(event, after, limit).await
    }

    /// Takes an order back, or some of its seats. The answer says what is owed; it is due to go back by itself.
    ///
    /// # Errors
    ///
    /// There is no such order, or it does not have these seats.
    pub async fn void(
        &self,
        call: LedgerCall,
        order: &OrderId,
        seats: Option<Vec<String>>,
        reason: &str,
    ) -> Result<Amended, Error> {
        if seats.as_ref().is_some_and(Vec::is_empty) {
            return Err(Error::Invalid(
                "name at least one seat, or none of them for the whole order: leave seats out".into(),
            ));
        }
        let before = self.order(order).await?;
        let command = Void { order_id: order.clone(), seats, reason: check_reason(reason)? };
        let amended = self.0.ledger.void(call, command).await?.value;
        // Until the entry is read, the event cache would refuse seats that are free again.
        let stays = |seat: &&SoldSeat| amended.order.seats.iter().any(|now| now.id == seat.id);
        let gone: Vec<String> = before.seats.iter().filter(|seat| !stays(seat)).map(|seat| seat.id.clone()).collect();
        self.override_states(&before.event_id, &gone, SeatState::Free);
        Ok(amended)
    }

    /// Moves sold seats of an order to free ones: (from, to). What they cost less is due to go back; what they cost more
    /// is said, and owed by the buyer.
    ///
    /// # Errors
    ///
    /// A conflict for a new seat that is not free.
    pub async fn move_order(
        &self,
        call: LedgerCall,
        order: &OrderId,
        moves: Vec<(String, String)>,
        reason: &str,
    ) -> Result<Amended, Error> {
        let reason = check_reason(reason)?;
        let (office, order) = (self.clone(), order.clone());
        self.detached(async move { office.move_now(call, order, moves, reason).await }).await
    }

    async fn move_now(
        &self,
        call: LedgerCall,
        order_id: OrderId,
        moves: Vec<(String, String)>,
        reason: String,
    ) -> Result<Amended, Error> {
        if let Some(idem) = &call.idem
            && let Some(answer) = self.0.ledger.stored_answer(idem).await?
        {
            return serde_json::from_value(answer).map_err(|_| Refusal::Mismatch.into());
        }
        let order = self.order(&order_id).await?;
        let cached = self.load_event(&order.event_id).await?;
        let targets: Vec<String> = moves.iter().map(|(_, to)| to.clone()).collect();
        let from: HashSet<&String> = moves.iter().map(|(from, _)| from).collect();
        if from.len() != moves.len() {
            return Err(Error::Invalid("a seat can be moved only once".into()));
        }
        let items = priced_items(&cached, &targets, &[])?;
        let terms = LeaseTerms { ttl: SALE_LEASE_TTL, max_hold: None, wait: Duration::ZERO };
        let lease = match self.acquire_lease(items.resources(&cached), terms, order_id.as_str()).await? {
            LeaseOutcome::Granted(lease) => lease,
            LeaseOutcome::Held(resource, _) => {
                let lost = targets.iter().find(|seat| seat_resource(&order.event_id, seat) == resource);
                let conflicts = lost.map(|seat| Conflict::seat(seat, Reason::Taken)).into_iter().collect();
                return Err(Refusal::Conflict { conflicts, alternative: None }.into());
            }
        };
        let priced: HashMap<&str, &Priced> = items.seats.iter().map(|seat| (seat.id.as_str(), seat)).collect();
        let left: Vec<String> = moves.iter().map(|(from, _)| from.clone()).collect();
        let moves = moves.iter().map(|(from, to)| (from.clone(), priced[to.as_str()].clone())).collect();
        let layout_version = cached.event.layout_version;
        let command = MoveOrder { order_id, moves, layout_version, token: lease.token, reason };
        let moved = self.0.ledger.move_order(call, command).await;
        self.release_lease(&lease).await;
        let moved = moved?.value;
        self.override_states(&order.event_id, &left, SeatState::Free);
        self.override_states(&order.event_id, &targets, SeatState::Sold);
        Ok(moved)
    }

    /// Blocks and unblocks seats, and sets how many places of areas are kept back.
    ///
    /// # Errors
    ///
    /// A conflict for a seat that is held or sold.
    pub async fn set_blocks(&self, call: LedgerCall, mut command: SetBlocks) -> Result<Blocks, Error> {
        command.reason = check_reason(&command.reason)?;
        let cached = self.cached_event(&command.event_id).await?;
        let unknown = |id: &&String| cached.price(id).is_none();
        if let Some(id) = command.block.iter().chain(&command.unblock).find(unknown) {
            return Err(Refusal::NoSeat(id.clone()).into());
        }
        let mut named = HashSet::new();
        if let Some((id, _)) = command.areas.iter().find(|(id, _)| !named.insert(id.as_str())) {
            return Err(Error::Invalid(format!("{id} is named twice")));
        }
        let event = command.event_id.clone();
        let blocks = self.0.ledger.set_blocks(call, command).await?.value;
        self.override_states(&event, &blocks.blocked, SeatState::Blocked);
        self.override_states(&event, &blocks.unblocked, SeatState::Free);
        Ok(blocks)
    }

    /// Overrides seat states in the event cache, until the entry is read.
    fn override_states(&self, event: &EventId, seats: &[String], state: SeatState) {
        if let Some(cached) = self.0.cache.get(event) {
            cached.override_states(seats.iter().map(String::as_str), state, self.clock().now());
        }
    }

    /// Ends the hold on a seat, paying or not, with all that it has. In place of a seat the hold itself can be named: a
    /// hold may have places only.
    ///
    /// # Errors
    ///
    /// Nobody holds it.
    pub async fn force_release(
        &self,
        call: LedgerCall,
        event: &EventId,
        seat: &str,
        reason: &str,
    ) -> Result<HoldView, Error> {
        let command = ForceRelease { event_id: event.clone(), seat: seat.into(), reason: check_reason(reason)? };
        let office = self.clone();
        let work = async move {
            let done = office.0.ledger.force_release(call, command).await?;
            office.release_leases(&done.value.leases).await;
            Ok(to_hold_view(done.value, done.now))
        };
        self.detached(work).await
    }

    /// Every live hold, oldest first.
    ///
    /// # Errors
    ///
    /// There is no such event.
    pub async fn holds(&self, event: &EventId) -> Result<Vec<StaffHold>, Error> {
        let Snapshot { now, mut holds, .. } = self.snapshot(event).await?;
        holds.sort_by_key(|hold| hold.opened_at);
        let seen = |hold: HoldRow| StaffHold {
            age_ms: now.since(hold.opened_at),
            remaining_ms: hold.expires_at.since(now),
            hold,
        };
        Ok(holds.into_iter().map(seen).collect())
    }

    /// Payments under way, nearest to their deadline first: stuck ones are at the top.
    ///
    /// # Errors
    ///
    /// There is no such event.
    pub async fn paying(&self, event: &EventId) -> Result<Vec<StaffHold>, Error> {
        let mut holds = self.holds(event).await?;
        holds.retain(|hold| hold.hold.state == HoldState::Paying);
        holds.sort_by_key(|hold| hold.remaining_ms);
        Ok(holds)
    }

    /// Seats and money of an event, by section too.
    ///
    /// # Errors
    ///
    /// There is no such event.
    pub async fn report(&self, event: &EventId) -> Result<EventReport, Error> {
        let snapshot = self.snapshot(event).await?;
        let (_, layout) = self.layout(event).await?;
        let states: HashMap<&str, SeatState> =
            snapshot.seats.iter().map(|seat| (seat.id.as_str(), seat.state)).collect();
        let mut sections: BTreeMap<String, Vec<SeatState>> = BTreeMap::new();
        for seat in &layout.seats {
            let state = states.get(seat.id.as_str()).copied().unwrap_or(SeatState::Free);
            sections.entry(seat.section.clone()).or_default().push(state);
        }
        let of_section =
            |(name, states): (String, Vec<SeatState>)| (name, totals(states.len() as u64, states.into_iter()));
        Ok(EventReport {
            totals: totals(snapshot.event.seats, snapshot.seats.iter().map(|seat| seat.state)),
            sections: sections.into_iter().map(of_section).collect(),
            areas: snapshot.areas,
            takings: self.0.ledger.takings(event).await?,
            currency: snapshot.event.settings.currency,
        })
    }

    /// What happened, numbered without a gap.
    ///
    /// # Errors
    ///
    /// There is no such event.
    pub async fn audit(&self, event: &EventId, query: AuditQuery) -> Result<Vec<Entry>, Error> {
        let entries = self.0.ledger.audit(event, query).await?;
        if entries.is_empty() {
            self.event(event).await?;
        }
        Ok(entries)
    }

    /// Every invariant, proven from the rows themselves.
    ///
    /// # Errors
    ///
    /// There is no such event.
    pub async fn invariants(&self, event: &EventId) -> Result<Vec<InvariantCheck>, Error> {
        let dump = self.0.ledger.dump(event).await?.ok_or_else(|| Refusal::NoEvent(event.clone()))?;
        Ok(invariants(&dump))
    }
}

/// How many seats are what: all that are not named are free.
fn totals(seats: u64, states: impl Iterator<Item = SeatState>) -> Totals {
    let mut totals = Totals { seats, ..Totals::default() };
    for state in states {
        match state {
            SeatState::Free => {}
            SeatState::Held => totals.held += 1,
            SeatState::Paying => totals.paying += 1,
            SeatState::Sold => totals.sold += 1,
            SeatState::Blocked => totals.blocked += 1,
        }
    }
    // A report must not fail because rows disagree: the invariants say that they do.
    totals.free = seats.saturating_sub(totals.held + totals.paying + totals.sold + totals.blocked);
    totals
}
