//! The event cache: layouts, and a seat map for each event. It may refuse a request early, and never grants one.
//!
//! A seat map is filled from one snapshot of the ledger and updated by entries in order. It is used to refuse only while
//! the follower task keeps it up to date ([`MAX_MAP_AGE`]). Otherwise the ledger is read.

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
use crate::pick::{FreeSet, SeatIndex, SeatPosition};

/// How old a seat map may be to refuse a request.
const MAX_MAP_AGE: Duration = Duration::from_secs(2);
/// How old a seat map may be for hints, which decide nothing.
const MAX_HINT_AGE: Duration = Duration::from_millis(50);

/// An event in the cache: its rules, its layout, and its seat map.
pub(super) struct CachedEvent {
    pub(super) event: EventRow,
    pub(super) layout: Arc<Layout>,
    pub(super) index: SeatIndex,
    prices: HashMap<String, u64>,
    map: Mutex<SeatMap>,
    /// How many reloads of the seat map were begun. With `last_reload`, which is locked during a reload, many requests
    /// that need a fresh map share one read of the ledger.
    reloads_begun: AtomicU64,
    last_reload: tokio::sync::Mutex<u64>,
    /// Seats picked by requests of this office that are under way: the next pick avoids them. It decides nothing.
    marked: Mutex<HashSet<SeatPosition>>,
}

struct SeatMap {
    seq: u64,
    seats: HashMap<String, SeatState>,
    /// The same as one bit a seat, for the picker.
    free: FreeSet,
    /// Areas, as of the last reload.
    areas: Vec<AreaNow>,
    /// When the follower last brought it up to date.
    at: Time,
    /// When it was last filled from a snapshot.
    reloaded_at: Time,
    /// States that this office knows before their entries arrive, and since when. They expire like the map itself: an
    /// override may be set after the entry that undid it.
    overrides: HashMap<String, (SeatState, Time)>,
}

/// All events that this office has loaded.
#[derive(Default)]
pub(super) struct EventCache {
    events: Mutex<HashMap<EventId, Arc<CachedEvent>>>,
    heads: Mutex<HashMap<EventId, watch::Sender<u64>>>,
    /// Locked while an event is loaded: many requests for a new event share one read of the ledger.
    loading: tokio::sync::Mutex<()>,
    /// Locked while seat maps are updated: otherwise two tasks would read the same entries.
    following: tokio::sync::Mutex<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CachedEvent {
    /// The price of a seat; none if there is no such seat.
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

    /// The state of a seat by the cached map, however old: a hint that decides nothing.
    pub(super) fn state_hint(&self, seat: &str, now: Time) -> SeatState {
        let map = lock(&self.map);
        let noted = map.overrides.get(seat).filter(|(_, at)| now.since(*at) <= MAX_MAP_AGE).map(|(state, _)| *state);
        noted.or_else(|| map.seats.get(seat).copied()).unwrap_or(SeatState::Free)
    }

    /// Why an area has not so many free places, by the cached map: a hint that decides nothing.
    pub(super) fn area_hint(&self, area: &str, places: u32) -> Option<Reason> {
        let map = lock(&self.map);
        let AreaNow { id, capacity, held, paying, sold, blocked } = map.areas.iter().find(|now| now.id == area)?;
        let (id, held) = (id.clone(), held + paying);
        AreaFact { id, capacity: *capacity, held, sold: *sold, blocked: *blocked }.short_of(places)
    }

    /// Overrides the state of seats that this office changed, until the entries arrive.
    pub(super) fn override_states<'a>(&self, seats: impl Iterator<Item = &'a str>, state: SeatState, now: Time) {
        let mut map = lock(&self.map);
        map.overrides.retain(|_, (_, at)| now.since(*at) <= MAX_MAP_AGE);
        map.overrides.extend(seats.map(|seat| (seat.into(), (state, now))));
    }

    /// The free seats by the cached map.
    pub(super) fn free(&self, now: Time) -> FreeSet {
        let map = lock(&self.map);
        let mut free = map.free.clone();
        for (seat, (state, _)) in map.overrides.iter().filter(|(_, (_, at))| now.since(*at) <= MAX_MAP_AGE) {
            if let Some(position) = self.index.position(seat) {
                free.set(position, *state == SeatState::Free);
            }
        }
        free
    }

    /// Picks from free seats that no other request of this office has picked. They are marked until the intent is dropped.
    pub(super) fn pick_and_mark(
        self: &Arc<Self>,
        free: &FreeSet,
        pick: impl Fn(&SeatIndex, &FreeSet) -> Option<Vec<SeatPosition>>,
    ) -> Option<PickIntent> {
        let mut marked = lock(&self.marked);
        let mut left = free.clone();
        marked.iter().for_each(|position| left.set(*position, false));
        // If only what others are about to take is left: not all of them will get it.
        let positions = pick(&self.index, &left).or_else(|| pick(&self.index, free))?;
        marked.extend(&positions);
        Some(PickIntent { cached: self.clone(), positions })
    }

    /// Whether the map is good enough for hints: one reload serves many refused requests.
    pub(super) fn is_recent_enough(&self, now: Time) -> bool {
        let reloaded_at = lock(&self.map).reloaded_at;
        self.is_fresh(now) || (reloaded_at > Time::ZERO && now.since(reloaded_at) <= MAX_HINT_AGE)
    }

    /// Whether the follower brought the map up to date within [`MAX_MAP_AGE`].
    pub(super) fn is_fresh(&self, now: Time) -> bool {
        let at = lock(&self.map).at;
        at > Time::ZERO && now.since(at) <= MAX_MAP_AGE
    }
}

/// Seats that a request under way has picked. Dropping it unmarks them.
pub(super) struct PickIntent {
    cached: Arc<CachedEvent>,
    pub(super) positions: Vec<SeatPosition>,
}

impl Drop for PickIntent {
    fn drop(&mut self) {
        let mut marked = lock(&self.cached.marked);
        for position in &self.positions {
            marked.remove(position);
        }
    }
}

impl SeatMap {
    fn set_state(&mut self, index: &SeatIndex, seat: &str, state: SeatState) {
        self.overrides.remove(seat);
        if let Some(position) = index.position(seat) {
            self.free.set(position, state == SeatState::Free);
        }
        match state {
            SeatState::Free => self.seats.remove(seat),
            state => self.seats.insert(seat.into(), state),
        };
    }
}

impl EventCache {
    pub(super) fn subscribe(&self, event: &EventId) -> watch::Receiver<u64> {
        let mut heads = lock(&self.heads);
        heads.entry(event.clone()).or_insert_with(|| watch::Sender::new(0)).subscribe()
    }

    /// Wakes the subscribers of an event.
    pub(super) fn publish_head(&self, event: &EventId, seq: u64) {
        let mut heads = lock(&self.heads);
        let sender = heads.entry(event.clone()).or_insert_with(|| watch::Sender::new(0));
        sender.send_if_modified(|head| {
            let moved = *head < seq;
            *head = (*head).max(seq);
            moved
        });
    }

    pub(super) fn get(&self, event: &EventId) -> Option<Arc<CachedEvent>> {
        lock(&self.events).get(event).cloned()
    }

    pub(super) fn forget(&self, event: &EventId) {
        lock(&self.events).remove(event);
    }

    pub(super) fn all(&self) -> Vec<Arc<CachedEvent>> {
        lock(&self.events).values().cloned().collect()
    }
}

impl Office {
    /// An event from the cache, or else from the ledger. Every transaction checks that its layout version is current.
    pub(super) async fn cached_event(&self, event: &EventId) -> Result<Arc<CachedEvent>, Error> {
        if let Some(cached) = self.0.cache.get(event) {
            return Ok(cached);
        }
        let _turn = self.0.cache.loading.lock().await;
        match self.0.cache.get(event) {
            Some(cached) => Ok(cached),
            None => self.load_event(event).await,
        }
    }

    /// Loads an event from the ledger into the cache.
    pub(super) async fn load_event(&self, id: &EventId) -> Result<Arc<CachedEvent>, Error> {
        let none = || Error::Refused(Refusal::NoEvent(id.clone()));
        // The layout first: if it changes before the snapshot is read, the first transaction refuses the old version.
        let (version, layout) = self.0.ledger.layout(id).await?.ok_or_else(none)?;
        let snapshot = self.0.ledger.snapshot(id).await?.ok_or_else(none)?;
        let index = SeatIndex::new(&layout);
        let prices = layout.seats.iter().map(|seat| (seat.id.clone(), seat.price)).collect();
        let free = FreeSet::new(&index, true);
        let map = Mutex::new(SeatMap {
            seq: 0,
            seats: HashMap::new(),
            free,
            areas: Vec::new(),
            at: Time::ZERO,
            reloaded_at: Time::ZERO,
            overrides: HashMap::new(),
        });
        let event = EventRow { layout_version: version, ..snapshot.event.clone() };
        let cached = Arc::new(CachedEvent {
            event,
            layout: Arc::new(layout),
            index,
            prices,
            map,
            reloads_begun: AtomicU64::new(0),
            last_reload: tokio::sync::Mutex::default(),
            marked: Mutex::default(),
        });
        self.fill_map(&cached, &snapshot);
        lock(&self.0.cache.events).insert(id.clone(), cached.clone());
        Ok(cached)
    }

    fn fill_map(&self, cached: &CachedEvent, snapshot: &Snapshot) {
        let mut map = lock(&cached.map);
        (map.seats, map.free) = (HashMap::new(), FreeSet::new(&cached.index, true));
        map.overrides.clear();
        snapshot.seats.iter().for_each(|seat| map.set_state(&cached.index, &seat.id, seat.state));
        map.areas.clone_from(&snapshot.areas);
        map.reloaded_at = self.clock().now();
        map.seq = snapshot.seq;
    }

    /// Free seats to pick from: by a fresh map. If it is not fresh, it is reloaded once for all who wait.
    pub(super) async fn fresh_map(&self, cached: &CachedEvent) -> Result<FreeSet, Error> {
        // A reload under way may have begun before changes that the caller knows of: only a later one will do.
        let wanted = cached.reloads_begun.load(Relaxed) + 1;
        if !cached.is_fresh(self.clock().now()) {
            let mut last_reload = cached.last_reload.lock().await;
            if *last_reload < wanted && !cached.is_fresh(self.clock().now()) {
                *last_reload = self.reload_map(cached).await?;
            }
        }
        Ok(cached.free(self.clock().now()))
    }

    /// Free seats for an offer, which decides nothing. While a reload is under way the present map is used: thousands of
    /// refused requests must not wait for it.
    pub(super) async fn stale_map(&self, cached: &CachedEvent) -> Result<FreeSet, Error> {
        self.stale_map_unless(cached, cached.is_recent_enough(self.clock().now())).await
    }

    /// The same. `good`: no reload is needed.
    pub(super) async fn stale_map_unless(&self, cached: &CachedEvent, good: bool) -> Result<FreeSet, Error> {
        if !good && let Ok(mut last_reload) = cached.last_reload.try_lock() {
            *last_reload = self.reload_map(cached).await?;
        }
        Ok(cached.free(self.clock().now()))
    }

    /// Fills the map from a new snapshot. Returns the number of this reload.
    async fn reload_map(&self, cached: &CachedEvent) -> Result<u64, Error> {
        let number = cached.reloads_begun.fetch_add(1, Relaxed) + 1;
        let id = &cached.event.event_id;
        let none = || Error::Refused(Refusal::NoEvent(id.clone()));
        let snapshot = self.0.ledger.snapshot(id).await?.ok_or_else(none)?;
        self.fill_map(cached, &snapshot);
        Ok(number)
    }

    /// Reads new entries into every seat map, and wakes subscribers.
    pub(super) async fn follow_entries(&self) -> Result<(), Error> {
        let _turn = self.0.cache.following.lock().await;
        let began = self.clock().now();
        let heads: HashMap<EventId, u64> = self.0.ledger.heads().await?.into_iter().collect();
        for cached in self.0.cache.all() {
            let id = &cached.event.event_id;
            let head = heads.get(id).copied().unwrap_or(0);
            self.catch_up(&cached, head).await?;
            let mut map = lock(&cached.map);
            map.at = began.max(Time::from_nanos(1));
        }
        for (event, head) in &heads {
            self.0.cache.publish_head(event, *head);
        }
        Ok(())
    }

    /// Applies entries that this office has just numbered to the seat maps, without reading them again.
    pub(super) async fn apply_numbered(&self, numbered: &[Entry]) {
        let _turn = self.0.cache.following.lock().await;
        for entry in numbered {
            if let Some(cached) = self.0.cache.get(&entry.event_id) {
                self.apply_entry(&cached, entry);
            }
        }
    }

    /// Applies an entry if it is the next one. If entries before it are missing, the follower reads them.
    fn apply_entry(&self, cached: &CachedEvent, entry: &Entry) {
        let mut map = lock(&cached.map);
        if entry.seq != map.seq + 1 {
            return;
        }
        if matches!(entry.kind, EntryKind::EventChanged | EntryKind::LayoutChanged) {
            self.0.cache.forget(&entry.event_id);
        }
        entry.seats.iter().for_each(|change| map.set_state(&cached.index, &change.id, change.state));
        map.seq = entry.seq;
    }

    async fn catch_up(&self, cached: &CachedEvent, head: u64) -> Result<(), Error> {
        let id = &cached.event.event_id;
        loop {
            let since = lock(&cached.map).seq;
            if since >= head {
                return Ok(());
            }
            let entries = self.0.ledger.audit(id, AuditQuery { since, seat: None, limit: 1000 }).await?;
            if entries.is_empty() {
                return Ok(());
            }
            entries.iter().for_each(|entry| self.apply_entry(cached, entry));
        }
    }
}
