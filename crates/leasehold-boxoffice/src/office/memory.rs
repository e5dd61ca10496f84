//! What an office remembers: layouts, and the state of every seat as it was told. It may refuse early, and never grants.
//!
//! The picture of an event is made from one snapshot and kept up by entries in order. It is believed only while the
//! follower keeps looking: an office whose follower stands still asks the ledger.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::Time;
use tokio::sync::watch;

use super::Office;
use crate::error::Error;
use crate::layout::Layout;
use crate::model::facts::AreaFact;
use crate::model::*;
use crate::pick::{Free, Hall, Place};

/// How old a picture may be that refuses.
const FRESH: Duration = Duration::from_secs(2);
/// A picture that was read so lately need not be read again for what decides nothing.
const GLANCE: Duration = Duration::from_millis(50);

/// An event as this office knows it.
pub(super) struct Known {
    pub(super) event: EventRow,
    pub(super) layout: Arc<Layout>,
    pub(super) hall: Hall,
    prices: HashMap<String, u64>,
    picture: Mutex<Picture>,
    /// Snapshots that were begun to be read for those who pick, and (held while one is read) the last that was read: a
    /// crowd that loses at once would read the same hall as many times as it has heads.
    looks: AtomicU64,
    looked: tokio::sync::Mutex<u64>,
    /// Picked by requests of this office that are under way: the next picks others. It decides nothing.
    intents: Mutex<HashSet<Place>>,
}

struct Picture {
    seq: u64,
    seats: HashMap<String, SeatState>,
    /// The same, one bit a seat, to pick from.
    free: Free,
    /// Areas, as they were when the whole was last looked at.
    areas: Vec<AreaNow>,
    /// When it was last known to be current.
    at: Time,
    /// When it was last read as a whole.
    painted: Time,
    /// What this office did or heard itself, ahead of the entries, and when. It is believed no longer than a picture is:
    /// a note that came after the entry that undid it must not stand for ever.
    notes: HashMap<String, (SeatState, Time)>,
}

/// All events that this office knows.
#[derive(Default)]
pub(super) struct Memory {
    events: Mutex<HashMap<EventId, Arc<Known>>>,
    heads: Mutex<HashMap<EventId, watch::Sender<u64>>>,
    /// Held while an event is learned: a crowd at the door would read the same hall as many times as it has heads.
    learning: tokio::sync::Mutex<()>,
    /// Held while pictures are brought up to date: two who did so at once would read the same entries.
    following: tokio::sync::Mutex<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Known {
    /// What a seat costs; none if there is no such seat.
    pub(super) fn price(&self, seat: &str) -> Option<u64> {
        self.prices.get(seat).copied()
    }

    /// An area of the layout.
    pub(super) fn area(&self, id: &str) -> Option<&crate::layout::Area> {
        self.layout.areas.iter().find(|area| area.id == id)
    }

    /// How many places an area has.
    pub(super) fn capacity(&self, id: &str) -> u32 {
        self.area(id).map_or(0, |area| area.capacity)
    }

    /// The state of a seat by the picture there is: for what is told and decides nothing.
    pub(super) fn seems(&self, seat: &str, now: Time) -> SeatState {
        let picture = lock(&self.picture);
        let noted = picture.notes.get(seat).filter(|(_, at)| now.since(*at) <= FRESH).map(|(state, _)| *state);
        noted.or_else(|| picture.seats.get(seat).copied()).unwrap_or(SeatState::Free)
    }

    /// Why an area does not seem to have so many places, by the picture there is: for what is told and decides nothing.
    pub(super) fn seems_short_of(&self, area: &str, places: u32) -> Option<Reason> {
        let picture = lock(&self.picture);
        let AreaNow { id, capacity, held, paying, sold, blocked } = picture.areas.iter().find(|now| now.id == area)?;
        let (id, held) = (id.clone(), held + paying);
        AreaFact { id, capacity: *capacity, held, sold: *sold, blocked: *blocked }.short_of(places)
    }

    /// Notes what this office did itself, ahead of the entries.
    pub(super) fn note<'a>(&self, seats: impl Iterator<Item = &'a str>, state: SeatState, now: Time) {
        let mut picture = lock(&self.picture);
        picture.notes.retain(|_, (_, at)| now.since(*at) <= FRESH);
        picture.notes.extend(seats.map(|seat| (seat.into(), (state, now))));
    }

    /// What seems to be free.
    pub(super) fn free(&self, now: Time) -> Free {
        let picture = lock(&self.picture);
        let mut free = picture.free.clone();
        for (seat, (state, _)) in picture.notes.iter().filter(|(_, (_, at))| now.since(*at) <= FRESH) {
            if let Some(place) = self.hall.place(seat) {
                free.set(place, *state == SeatState::Free);
            }
        }
        free
    }

    /// Picks from what seems to be free and nobody here is about to take. What was picked is kept from others until the
    /// intent is dropped.
    pub(super) fn intend(
        self: &Arc<Self>,
        free: &Free,
        pick: impl Fn(&Hall, &Free) -> Option<Vec<Place>>,
    ) -> Option<Intent> {
        let mut intents = lock(&self.intents);
        let mut left = free.clone();
        intents.iter().for_each(|place| left.set(*place, false));
        // If only what others are about to take is left: not all of them will get it.
        let places = pick(&self.hall, &left).or_else(|| pick(&self.hall, free))?;
        intents.extend(&places);
        Some(Intent { known: self.clone(), places })
    }

    /// Whether the picture is good enough for what decides nothing: somebody who looks for one who lost looks for all.
    pub(super) fn will_do(&self, now: Time) -> bool {
        let painted = lock(&self.picture).painted;
        self.is_fresh(now) || (painted > Time::ZERO && now.since(painted) <= GLANCE)
    }

    /// Whether the picture was current a moment ago.
    pub(super) fn is_fresh(&self, now: Time) -> bool {
        let at = lock(&self.picture).at;
        at > Time::ZERO && now.since(at) <= FRESH
    }
}

/// Seats that a request under way is about to take.
pub(super) struct Intent {
    known: Arc<Known>,
    pub(super) places: Vec<Place>,
}

impl Drop for Intent {
    fn drop(&mut self) {
        let mut intents = lock(&self.known.intents);
        for place in &self.places {
            intents.remove(place);
        }
    }
}

impl Picture {
    fn set(&mut self, hall: &Hall, seat: &str, state: SeatState) {
        self.notes.remove(seat);
        if let Some(place) = hall.place(seat) {
            self.free.set(place, state == SeatState::Free);
        }
        match state {
            SeatState::Free => self.seats.remove(seat),
            state => self.seats.insert(seat.into(), state),
        };
    }
}

impl Memory {
    pub(super) fn subscribe(&self, event: &EventId) -> watch::Receiver<u64> {
        let mut heads = lock(&self.heads);
        heads.entry(event.clone()).or_insert_with(|| watch::Sender::new(0)).subscribe()
    }

    /// Wakes those who follow an event.
    pub(super) fn head(&self, event: &EventId, seq: u64) {
        let mut heads = lock(&self.heads);
        let sender = heads.entry(event.clone()).or_insert_with(|| watch::Sender::new(0));
        sender.send_if_modified(|head| {
            let moved = *head < seq;
            *head = (*head).max(seq);
            moved
        });
    }

    pub(super) fn get(&self, event: &EventId) -> Option<Arc<Known>> {
        lock(&self.events).get(event).cloned()
    }

    pub(super) fn forget(&self, event: &EventId) {
        lock(&self.events).remove(event);
    }

    pub(super) fn all(&self) -> Vec<Arc<Known>> {
        lock(&self.events).values().cloned().collect()
    }
}

impl Office {
    /// An event with its layout, from memory or from the ledger. Whether it is still current the ledger says in every
    /// transaction.
    pub(super) async fn known(&self, event: &EventId) -> Result<Arc<Known>, Error> {
        if let Some(known) = self.0.memory.get(event) {
            return Ok(known);
        }
        let _turn = self.0.memory.learning.lock().await;
        match self.0.memory.get(event) {
            Some(known) => Ok(known),
            None => self.learn(event).await,
        }
    }

    /// Learns an event anew.
    pub(super) async fn learn(&self, id: &EventId) -> Result<Arc<Known>, Error> {
        let none = || Error::Refused(Refusal::NoEvent(id.clone()));
        // The layout first: if it changes before the event is read, the version says so in the first transaction.
        let (version, layout) = self.0.ledger.layout(id).await?.ok_or_else(none)?;
        let snapshot = self.0.ledger.snapshot(id).await?.ok_or_else(none)?;
        let hall = Hall::new(&layout);
        let prices = layout.seats.iter().map(|seat| (seat.id.clone(), seat.price)).collect();
        let free = Free::new(&hall, true);
        let picture = Mutex::new(Picture {
            seq: 0,
            seats: HashMap::new(),
            free,
            areas: Vec::new(),
            at: Time::ZERO,
            painted: Time::ZERO,
            notes: HashMap::new(),
        });
        let event = EventRow { layout_version: version, ..snapshot.event.clone() };
        let known = Arc::new(Known {
            event,
            layout: Arc::new(layout),
            hall,
            prices,
            picture,
            looks: AtomicU64::new(0),
            looked: tokio::sync::Mutex::default(),
            intents: Mutex::default(),
        });
        self.paint(&known, &snapshot);
        lock(&self.0.memory.events).insert(id.clone(), known.clone());
        Ok(known)
    }

    fn paint(&self, known: &Known, snapshot: &Snapshot) {
        let mut picture = lock(&known.picture);
        (picture.seats, picture.free) = (HashMap::new(), Free::new(&known.hall, true));
        picture.notes.clear();
        snapshot.seats.iter().for_each(|seat| picture.set(&known.hall, &seat.id, seat.state));
        picture.areas.clone_from(&snapshot.areas);
        picture.painted = self.clock().now();
        picture.seq = snapshot.seq;
    }

    /// A picture to pick from: fresh if somebody follows, else read now, by one for all who ask meanwhile.
    pub(super) async fn look(&self, known: &Known) -> Result<Free, Error> {
        // One that is under way may have begun before what we know already: the next one serves.
        let wanted = known.looks.load(Relaxed) + 1;
        if !known.is_fresh(self.clock().now()) {
            let mut looked = known.looked.lock().await;
            if *looked < wanted && !known.is_fresh(self.clock().now()) {
                *looked = self.look_again(known).await?;
            }
        }
        Ok(known.free(self.clock().now()))
    }

    /// A picture to make an offer from, which decides nothing: while somebody looks, the one there is will do. A crowd of
    /// thousands that loses at once must not stand in line for a better one.
    pub(super) async fn glance(&self, known: &Known) -> Result<Free, Error> {
        self.glance_unless(known, known.will_do(self.clock().now())).await
    }

    /// The same, unless it is good enough.
    pub(super) async fn glance_unless(&self, known: &Known, good: bool) -> Result<Free, Error> {
        if !good && let Ok(mut looked) = known.looked.try_lock() {
            *looked = self.look_again(known).await?;
        }
        Ok(known.free(self.clock().now()))
    }

    /// Reads a snapshot. Its number.
    async fn look_again(&self, known: &Known) -> Result<u64, Error> {
        let number = known.looks.fetch_add(1, Relaxed) + 1;
        let id = &known.event.event_id;
        let none = || Error::Refused(Refusal::NoEvent(id.clone()));
        let snapshot = self.0.ledger.snapshot(id).await?.ok_or_else(none)?;
        self.paint(known, &snapshot);
        Ok(number)
    }

    /// Brings every picture up to date with what was numbered, and wakes those who follow.
    pub(super) async fn follow(&self) -> Result<(), Error> {
        let _turn = self.0.memory.following.lock().await;
        let began = self.clock().now();
        let heads: HashMap<EventId, u64> = self.0.ledger.heads().await?.into_iter().collect();
        for known in self.0.memory.all() {
            let id = &known.event.event_id;
            let head = heads.get(id).copied().unwrap_or(0);
            self.catch_up(&known, head).await?;
            let mut picture = lock(&known.picture);
            picture.at = began.max(Time::from_nanos(1));
        }
        for (event, head) in &heads {
            self.0.memory.head(event, *head);
        }
        Ok(())
    }

    /// Brings pictures up to date with entries that were just numbered here: they need not be read again.
    pub(super) async fn told(&self, numbered: &[Entry]) {
        let _turn = self.0.memory.following.lock().await;
        for entry in numbered {
            if let Some(known) = self.0.memory.get(&entry.event_id) {
                self.apply(&known, entry);
            }
        }
    }

    /// What an entry says, if it is the next one. What was numbered elsewhere before it is read by who follows.
    fn apply(&self, known: &Known, entry: &Entry) {
        let mut picture = lock(&known.picture);
        if entry.seq != picture.seq + 1 {
            return;
        }
        if matches!(entry.kind, Kind::EventChanged | Kind::LayoutChanged) {
            self.0.memory.forget(&entry.event_id);
        }
        entry.seats.iter().for_each(|change| picture.set(&known.hall, &change.id, change.state));
        picture.seq = entry.seq;
    }

    async fn catch_up(&self, known: &Known, head: u64) -> Result<(), Error> {
        let id = &known.event.event_id;
        loop {
            let since = lock(&known.picture).seq;
            if since >= head {
                return Ok(());
            }
            let entries = self.0.ledger.audit(id, AuditQuery { since, seat: None, limit: 1000 }).await?;
            if entries.is_empty() {
                return Ok(());
            }
            entries.iter().for_each(|entry| self.apply(known, entry));
        }
    }
}
