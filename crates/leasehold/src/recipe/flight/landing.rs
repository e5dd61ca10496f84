//! One flight per key in this process: the first computes, those behind get its value.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// The flights under way in this process, by key.
pub(super) struct Landings<V>(Mutex<HashMap<String, watch::Receiver<Option<V>>>>);

/// Where one who wants a key stands.
pub(super) enum Place<V: Clone> {
    First(Landing<V>),
    Behind(Landed<V>),
}

/// The first one's place. Dropping it without a value lets the next be first.
pub(super) struct Landing<V: Clone> {
    landings: Arc<Landings<V>>,
    key: String,
    value: watch::Sender<Option<V>>,
}

/// The value to come, for those behind.
pub(super) struct Landed<V>(watch::Receiver<Option<V>>);

impl<V: Clone> Landings<V> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::default()))
    }

    pub(super) fn enter(self: &Arc<Self>, key: &str) -> Place<V> {
        let mut flights = self.lock();
        if let Some(under_way) = flights.get(key) {
            return Place::Behind(Landed(under_way.clone()));
        }
        let (value, receiver) = watch::channel(None);
        flights.insert(key.to_owned(), receiver);
        Place::First(Landing { landings: self.clone(), key: key.to_owned(), value })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, watch::Receiver<Option<V>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V: Clone> Landing<V> {
    /// Hands the value to those behind.
    pub(super) fn land(self, value: V) {
        self.value.send_replace(Some(value));
    }
}

impl<V: Clone> Drop for Landing<V> {
    fn drop(&mut self) {
        self.landings.lock().remove(&self.key);
    }
}

impl<V: Clone> Landed<V> {
    /// The value; none if the first one gave up.
    pub(super) async fn value(mut self) -> Option<V> {
        self.0.wait_for(Option::is_some).await.ok().and_then(|value| value.clone())
    }
}
