//! Checks the invariants of an event on its entries, in the order of their numbers.
//!
//! Where `check` looks at one moment, this looks at every moment: the entries are replayed on an empty event, and each
//! must be a legal step from the one before.
//!
//! # Laws (8 to 13 of the project's list)
//!
//! 8. No seat is sold twice.
//! 9. A sale comes from the buyer's own live hold, with the token of that hold on every seat.
//! 10. No hold beyond its cap, and no buyer beyond the limit, not for one entry.
//! 11. A seat is in one state, and an area never has more taken than places.
//! 12. Every cent of a sale has a source: a provider or a key said that it came, of a payment that was begun for this
//!     hold, or for the one whose late money was offered this.
//! 13. The tokens of a seat rise: from one hold to the next, whatever happened in between.
//!
//! And none lapses early, and numbers have no gap. Rules that were changed on the way are not known here: after such
//! an entry the cap and the limit are not looked at any more.

use std::collections::{BTreeMap, HashMap};

use super::entry::{Entry, EntryKind, SeatState};
use super::event::EventSettings;
use super::ids::{Buyer, HoldId, Moment};
use crate::layout::Layout;

#[derive(Clone, Debug)]
struct PlayedSeat {
    state: SeatState,
    buyer: Option<Buyer>,
    hold: Option<HoldId>,
    token: Option<u64>,
}

#[derive(Clone, Debug)]
struct PlayedHold {
    buyer: Option<Buyer>,
    opened: Moment,
    until: Moment,
    /// Where `until` returns to when the payment is declined; the same as `until` while none is on its way.
    active: Moment,
}

/// Plays entries and finds what is wrong with them.
#[derive(Debug)]
pub struct HistoryPlayer {
    settings: EventSettings,
    rules_known: bool,
    seats: HashMap<String, PlayedSeat>,
    areas: HashMap<String, (i64, i64)>,
    holds: HashMap<HoldId, PlayedHold>,
    buyers: BTreeMap<Buyer, i64>,
    /// The last token of each seat, and the hold that had it.
    tokens: HashMap<String, (u64, Option<HoldId>)>,
    /// Which hold each payment was begun for.
    payments: HashMap<String, HoldId>,
    last: u64,
    at: Moment,
    faults: Vec<String>,
}

/// Everything that is wrong with a history, from its first entry on.
#[must_use]
pub fn faults(settings: &EventSettings, layout: &Layout, entries: &[Entry]) -> Vec<String> {
    let mut player = HistoryPlayer::new(settings, layout);
    entries.iter().for_each(|entry| player.play(entry));
    player.faults
}

impl HistoryPlayer {
    /// An empty hall.
    #[must_use]
    pub fn new(settings: &EventSettings, layout: &Layout) -> Self {
        let free = || PlayedSeat { state: SeatState::Free, buyer: None, hold: None, token: None };
        Self {
            settings: settings.clone(),
            rules_known: true,
            seats: layout.seats.iter().map(|seat| (seat.id.clone(), free())).collect(),
            areas: layout.areas.iter().map(|area| (area.id.clone(), (0, i64::from(area.capacity)))).collect(),
            holds: HashMap::new(),
            buyers: BTreeMap::new(),
            tokens: HashMap::new(),
            payments: HashMap::new(),
            last: 0,
            at: Moment::default(),
            faults: Vec::new(),
        }
    }

    /// What was found so far.
    #[must_use]
    pub fn faults(&self) -> &[String] {
        &self.faults
    }

    /// Plays the next entry.
    pub fn play(&mut self, entry: &Entry) {
        if entry.seq != self.last + 1 {
            self.add_fault(entry, "a gap in the numbers");
        }
        if entry.at < self.at {
            self.add_fault(entry, "time went back");
        }
        (self.last, self.at) = (entry.seq, entry.at);
        self.rules_known &= !matches!(entry.kind, EntryKind::EventChanged | EntryKind::LayoutChanged);
        match entry.kind {
            EntryKind::Held | EntryKind::Offered if !entry.seats.is_empty() || !entry.areas.is_empty() => {
                self.open_hold(entry)
            }
            EntryKind::Renewed | EntryKind::Paying | EntryKind::Declined => self.continue_hold(entry),
            EntryKind::Changed => self.change_hold(entry),
            EntryKind::Sold => self.sell_hold(entry),
            EntryKind::SoldLate => self.take_seats(entry, SeatState::Sold),
            EntryKind::Released | EntryKind::ForceReleased | EntryKind::Lapsed => self.end_hold(entry),
            EntryKind::Blocked => self.take_seats(entry, SeatState::Blocked),
            EntryKind::Unblocked => self.free_seats(entry, SeatState::Blocked),
            EntryKind::Voided => self.free_seats(entry, SeatState::Sold),
            EntryKind::Moved => self.move_seats(entry),
            _ => {}
        }
        self.check_money(entry);
        self.check_tokens(entry);
        self.count_buyers(entry);
    }

    /// Law 12.
    fn check_money(&mut self, entry: &Entry) {
        let (Some(payment), Some(hold)) = (&entry.payment_ref, &entry.hold_id) else { return };
        match entry.kind {
            EntryKind::Paying => drop(self.payments.entry(payment.clone()).or_insert_with(|| hold.clone())),
            // Its money was begun for the hold that lapsed.
            EntryKind::Offered if !entry.seats.is_empty() || !entry.areas.is_empty() => {
                self.payments.insert(payment.clone(), hold.clone());
            }
            EntryKind::Sold | EntryKind::SoldLate if entry.order_id.is_some() => {
                let (total, paid) = (entry.amount.unwrap_or(0), entry.paid.unwrap_or(0));
                if paid < total || (total > 0 && entry.source.is_none()) {
                    self.add_fault(entry, &format!("sold for {total}, and {paid} came by anybody's word"));
                }
                if self.payments.get(payment).is_some_and(|of| of != hold) {
                    self.add_fault(entry, "sold with a payment for another hold");
                }
            }
            _ => {}
        }
    }

    /// Law 13.
    fn check_tokens(&mut self, entry: &Entry) {
        for change in &entry.seats {
            let Some(token) = change.token else { continue };
            let before = self.tokens.insert(change.id.clone(), (token, entry.hold_id.clone()));
            let Some((last, hold)) = before else { continue };
            if token < last || (token == last && hold != entry.hold_id) {
                self.add_fault(entry, &format!("{} came to token {token}, after {last}", change.id));
            }
        }
    }

    fn add_fault(&mut self, entry: &Entry, what: &str) {
        self.faults.push(format!("{} ({:?} by {}): {what}", entry.seq, entry.kind, entry.actor));
    }

    fn open_hold(&mut self, entry: &Entry) {
        let (Some(hold), Some(until)) = (entry.hold_id.clone(), entry.until) else {
            return self.add_fault(entry, "a hold without a name or an end");
        };
        let state = if entry.kind == EntryKind::Offered { SeatState::Paying } else { SeatState::Held };
        // An offer has been paid for: whenever that money turns out to be none, it may end.
        let active = if entry.kind == EntryKind::Offered { entry.at } else { until };
        self.holds.insert(hold, PlayedHold { buyer: entry.buyer.clone(), opened: entry.at, until, active });
        self.take_seats(entry, state);
        self.within_cap(entry, until);
    }

    fn within_cap(&mut self, entry: &Entry, until: Moment) {
        let Some(open) = entry.hold_id.as_ref().and_then(|hold| self.holds.get(hold)) else { return };
        let paying = matches!(entry.kind, EntryKind::Paying | EntryKind::Offered);
        let cap = open.opened.plus(self.settings.max_hold_ms).plus(if paying { self.settings.pay_ms } else { 0 });
        if self.rules_known && until > cap {
            self.add_fault(entry, "a hold beyond its cap");
        }
    }

    /// A free seat comes to a state.
    fn take_seats(&mut self, entry: &Entry, state: SeatState) {
        for change in entry.seats.iter().filter(|change| change.state == state) {
            let place =
                PlayedSeat { state, buyer: entry.buyer.clone(), hold: entry.hold_id.clone(), token: change.token };
            match self.seats.insert(change.id.clone(), place) {
                None => self.add_fault(entry, &format!("{} is not in the layout", change.id)),
                Some(was) if was.state == SeatState::Sold && state == SeatState::Sold => {
                    self.add_fault(entry, &format!("{} is sold twice", change.id));
                }
                Some(was) if was.state != SeatState::Free => {
                    self.add_fault(entry, &format!("{} was {:?} and is {state:?}", change.id, was.state));
                }
                Some(_) => {}
            }
        }
    }

    /// A seat in a state is free again.
    fn free_seats(&mut self, entry: &Entry, from: SeatState) {
        for change in entry.seats.iter().filter(|change| change.state == SeatState::Free) {
            let free = PlayedSeat { state: SeatState::Free, buyer: None, hold: None, token: None };
            let was = self.seats.insert(change.id.clone(), free);
            if was.is_none_or(|was| was.state != from) {
                self.add_fault(entry, &format!("{} was not {from:?}", change.id));
            }
        }
    }

    /// The hold of an entry, which must be live; `None` was found to be a fault.
    fn live_hold(&mut self, entry: &Entry) -> Option<PlayedHold> {
        let open = entry.hold_id.as_ref().and_then(|hold| self.holds.get(hold)).cloned();
        match open {
            None => self.add_fault(entry, "no such hold is open"),
            Some(ref open) if entry.at >= open.until => self.add_fault(entry, "the hold was over"),
            Some(ref open) if open.buyer != entry.buyer => self.add_fault(entry, "the hold is another buyer's"),
            Some(_) => {}
        }
        open
    }

    fn continue_hold(&mut self, entry: &Entry) {
        self.live_hold(entry);
        let Some(until) = entry.until else { return self.add_fault(entry, "a hold that goes on without an end") };
        if let Some(open) = entry.hold_id.as_ref().and_then(|hold| self.holds.get_mut(hold)) {
            open.until = until;
            open.active = if entry.kind == EntryKind::Paying { open.active } else { until };
        }
        for change in &entry.seats {
            if let Some(place) = self.own_seat(entry, &change.id, change.token) {
                place.state = change.state;
            }
        }
        self.within_cap(entry, until);
    }

    /// A seat that must be under the hold of the entry, with this token.
    fn own_seat(&mut self, entry: &Entry, seat: &str, token: Option<u64>) -> Option<&mut PlayedSeat> {
        let place = self.seats.get(seat)?;
        let held = matches!(place.state, SeatState::Held | SeatState::Paying);
        if !held || place.hold != entry.hold_id || place.token != token {
            self.add_fault(entry, &format!("{seat} is not under this hold and token"));
        }
        self.seats.get_mut(seat)
    }

    fn change_hold(&mut self, entry: &Entry) {
        self.live_hold(entry);
        self.give_held(entry);
        let fresh = |player: &Self, id: &str| player.seats.get(id).is_some_and(|place| place.hold != entry.hold_id);
        for change in entry.seats.iter().filter(|change| change.state != SeatState::Free) {
            if fresh(self, &change.id) {
                let one = Entry { seats: vec![change.clone()], ..entry.clone() };
                self.take_seats(&one, change.state);
            } else if let Some(place) = self.seats.get_mut(&change.id) {
                // The same hold, under another lease.
                place.token = change.token;
            }
        }
    }

    fn give_held(&mut self, entry: &Entry) {
        for change in entry.seats.iter().filter(|change| change.state == SeatState::Free) {
            let free = PlayedSeat { state: SeatState::Free, buyer: None, hold: None, token: None };
            let was = self.seats.insert(change.id.clone(), free);
            let held = |was: &PlayedSeat| matches!(was.state, SeatState::Held | SeatState::Paying);
            if was.is_none_or(|was| !held(&was) || was.hold != entry.hold_id) {
                self.add_fault(entry, &format!("{} was not under this hold", change.id));
            }
        }
    }

    fn sell_hold(&mut self, entry: &Entry) {
        self.live_hold(entry);
        let sold = |player: &Self, id: &str| player.seats.get(id).is_some_and(|place| place.state == SeatState::Sold);
        for change in &entry.seats {
            if sold(self, &change.id) {
                self.add_fault(entry, &format!("{} is sold twice", change.id));
            } else if let Some(place) = self.own_seat(entry, &change.id, change.token) {
                place.state = SeatState::Sold;
            }
        }
        let under = |place: &&PlayedSeat| place.hold == entry.hold_id && place.state != SeatState::Sold;
        if self.seats.values().any(|place| under(&place)) {
            self.add_fault(entry, "a sale of less than the hold had");
        }
        entry.hold_id.as_ref().and_then(|hold| self.holds.remove(hold));
    }

    fn end_hold(&mut self, entry: &Entry) {
        let open = entry.hold_id.as_ref().and_then(|hold| self.holds.remove(hold));
        match open {
            None => self.add_fault(entry, "no such hold is open"),
            // A decline ends a hold before its pay deadline when its own time is over; nothing else does.
            Some(open) if entry.kind == EntryKind::Lapsed && entry.at < open.until.min(open.active) => {
                self.add_fault(entry, "a hold lapsed early");
            }
            Some(_) => {}
        }
        self.give_held(entry);
    }

    fn move_seats(&mut self, entry: &Entry) {
        self.free_seats(entry, SeatState::Sold);
        self.take_seats(entry, SeatState::Sold);
    }

    /// Counts what every buyer has and what is taken of areas, after every entry.
    fn count_buyers(&mut self, entry: &Entry) {
        for area in &entry.areas {
            let Some((taken, capacity)) = self.areas.get_mut(&area.id) else { continue };
            *taken += area.delta;
            let (taken, capacity) = (*taken, *capacity);
            if taken > capacity && self.rules_known {
                self.add_fault(entry, &format!("{} of {capacity} places of {} are taken", taken, area.id));
            }
            if taken != capacity - i64::from(area.free) && self.rules_known {
                self.add_fault(
                    entry,
                    &format!("{} places of {} are taken, {} said to be free", taken, area.id, area.free),
                );
            }
            if let Some(buyer) = entry.buyer.clone() {
                *self.buyers.entry(buyer).or_default() += area.delta;
            }
        }
        let Some(buyer) = &entry.buyer else { return };
        let seats = self.seats.values().filter(|place| place.buyer.as_ref() == Some(buyer)).count();
        let places = self.buyers.get(buyer).copied().unwrap_or(0);
        let have = i64::try_from(seats).unwrap_or(i64::MAX).saturating_add(places);
        if self.rules_known && have > i64::from(self.settings.per_buyer) {
            self.add_fault(entry, &format!("{buyer} has {have}, of {}", self.settings.per_buyer));
        }
    }
}
