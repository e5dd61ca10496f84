//! The sessions of one engine: a few, each connected again when it is over.
//!
//! The client sends what is queued while it is disconnected once it is connected again. So a request is given only to a
//! connected session, and what was given to one is not taken for undone before that session answers again or is over.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use zookeeper_client::{self as zk, Client, SessionState};

use crate::clock::{Clock, Time, until};
use crate::error::{BoxError, Error};

use super::failure::{CLOSED, no_effect, unavailable};
use super::options::ZookeeperEngineOptions;
use super::probe::ServerProbe;

/// Sessions of one engine. More than this was not faster.
pub(super) const SESSIONS: usize = 4;
/// How long a server may be silent before another one is tried.
const MAX_SILENCE: Duration = Duration::from_secs(2);
/// Half of the longest tick that session leases are made for. ZooKeeper's own default is 3 s, that of its example 2 s.
const MAX_HALF_TICK: Duration = Duration::from_secs(2);
/// How long opening tries.
const OPEN_FOR: Duration = Duration::from_secs(5);
/// How long a session that could not be opened waits before it is tried again.
const RECONNECT_AFTER: Duration = Duration::from_millis(250);

/// See the module.
pub(super) struct SessionPool {
    options: ZookeeperEngineOptions,
    slots: Vec<Mutex<Option<Client>>>,
    /// Counts every change of any session.
    changes: watch::Sender<u64>,
    closed: CancellationToken,
}

impl SessionPool {
    /// Opens the first session, so that a wrong address is told, and the others.
    pub async fn open(options: &ZookeeperEngineOptions, closed: CancellationToken) -> Result<Arc<Self>, Error> {
        let clock = options.clock.clone();
        let attempt = format!("open zk://{}", options.at());
        let slots = (0..SESSIONS).map(|_| Mutex::new(None)).collect();
        let pool = Arc::new(Self { options: options.clone(), slots, changes: watch::Sender::new(0), closed });
        let by = clock.now().plus(OPEN_FOR);
        let first = loop {
            match until(&*clock, by, pool.connect(true)).await {
                Some(Ok(client)) => break client,
                Some(Err(error)) if error == zk::Error::AuthFailed => return Err(no_effect(&attempt, error)),
                Some(Err(_)) | None => {}
            }
            // Servers that are slow, or in an election, are waited for. Servers that are down are not.
            let probe = ServerProbe::run(options).await;
            if probe.is_hopeless() || clock.now() >= by {
                return Err(unavailable(&attempt, probe.sentence().into()));
            }
            clock.sleep_until(clock.now().plus(RECONNECT_AFTER).min(by)).await;
        };
        *pool.lock(0) = Some(first);
        let others = (1..SESSIONS).map(|_| tokio::spawn(pool.clone().connect_owned()));
        for (slot, other) in (1..).zip(others.collect::<Vec<_>>()) {
            // If one fails, its keeper tries again.
            if let Some(Ok(Ok(client))) = until(&*clock, by, other).await {
                *pool.lock(slot) = Some(client);
            }
        }
        Ok(pool)
    }

    async fn connect_owned(self: Arc<Self>) -> Result<Client, zk::Error> {
        self.connect(true).await
    }

    /// How long a server may be silent before a session goes to another one.
    fn max_silence(&self) -> Duration {
        MAX_SILENCE.min(self.options.wanted_session() / 3)
    }

    async fn connect(&self, eagerly: bool) -> Result<Client, zk::Error> {
        let (session, silence) = (self.options.wanted_session(), self.max_silence());
        let mut connector = Client::connector().with_session_timeout(session).with_connection_timeout(silence);
        if eagerly {
            connector = connector.with_fail_eagerly();
        }
        if let Some((user, password)) = &self.options.login {
            connector = connector.with_auth("digest", format!("{user}:{password}").as_bytes());
        }
        connector.connect(&self.options.at()).await
    }

    fn lock(&self, slot: usize) -> std::sync::MutexGuard<'_, Option<Client>> {
        self.slots[slot].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_change(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Keeps one session: tells of its changes, and opens another when it is over. Ends when the engine is closed.
    pub async fn keep(self: Arc<Self>, slot: usize, ended: impl Fn(i64) + Send + Sync + 'static) {
        loop {
            let current = self.lock(slot).clone();
            if let Some(client) = current {
                let mut states = client.state_watcher();
                let session = client.session_id().0;
                drop(client);
                self.note_change();
                let mut state = states.peek_state();
                while !state.is_terminated() {
                    tokio::select! {
                        () = self.closed.cancelled() => return,
                        changed = states.changed() => state = changed,
                    }
                    self.note_change();
                }
                *self.lock(slot) = None;
                self.note_change();
                ended(session);
            }
            let client = tokio::select! {
                () = self.closed.cancelled() => return,
                client = self.connect(false) => client,
            };
            if self.closed.is_cancelled() {
                return;
            }
            match client {
                Ok(client) => *self.lock(slot) = Some(client),
                Err(_) => {
                    let clock = &self.options.clock;
                    clock.sleep_until(clock.now().plus(RECONNECT_AFTER)).await;
                }
            }
        }
    }

    /// A connected session: this one, or another.
    pub fn connected(&self, slot: usize) -> Option<Client> {
        (0..SESSIONS).find_map(|step| {
            let client = self.lock((slot + step) % SESSIONS);
            client.as_ref().filter(|client| client.state() == SessionState::SyncConnected).cloned()
        })
    }

    /// The same, as soon as there is one.
    pub async fn connected_by(&self, slot: usize, by: Time) -> Result<Client, BoxError> {
        let mut changes = self.changes.subscribe();
        loop {
            if self.closed.is_cancelled() {
                return Err(CLOSED.into());
            }
            if let Some(client) = self.connected(slot) {
                return Ok(client);
            }
            let changed = async {
                tokio::select! {
                    _ = changes.changed() => {}
                    () = self.closed.cancelled() => {}
                }
            };
            if until(&*self.options.clock, by, changed).await.is_none() {
                return Err("no server of the ensemble answers".into());
            }
        }
    }

    /// This session, as soon as it is connected. None in it: it is over.
    pub async fn owner_by(&self, session: i64, by: Time) -> Result<Option<Client>, BoxError> {
        let owner = (0..SESSIONS)
            .find_map(|slot| self.lock(slot).as_ref().filter(|client| client.session_id().0 == session).cloned());
        let Some(owner) = owner else { return Ok(None) };
        match settled(&owner, &*self.options.clock, by).await {
            SessionState::SyncConnected => Ok(Some(owner)),
            state if state.is_terminated() => Ok(None),
            _ => Err("no server of the ensemble answers".into()),
        }
    }

    /// Told of every change of any session.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The shortest of the session timeouts that the servers granted.
    pub fn session_timeout(&self) -> Duration {
        let granted = (0..SESSIONS).filter_map(|slot| self.lock(slot).as_ref().map(Client::session_timeout)).min();
        granted.unwrap_or_else(|| self.options.wanted_session())
    }

    /// How long a node lives at least after a request of its session was answered.
    ///
    /// A session ends a session timeout after the leader heard of it last, and a follower tells the leader every half tick of
    /// whom it heard. If it is cut off right after an answer, the leader counts from an earlier request, which was sent before
    /// by half a tick and the silence for which a server is kept. The client does not know the tick: it takes it for half a
    /// session, and for 4 s at most, as the documentation says.
    pub fn sure_life(&self) -> Duration {
        let session = self.session_timeout();
        // Of a session that is shorter than it was asked for, the client bears less silence.
        let silence = self.max_silence().min(session * 3 / 5);
        let half_tick = (session / 4).min(MAX_HALF_TICK);
        session.saturating_sub(silence + half_tick)
    }

    /// Gives up all sessions: the client closes them.
    pub fn close(&self) {
        for slot in 0..SESSIONS {
            *self.lock(slot) = None;
        }
    }
}

/// Waits until this session is connected, or over.
pub(super) async fn settled(client: &Client, clock: &dyn Clock, by: Time) -> SessionState {
    let mut states = client.state_watcher();
    let wait = async {
        let mut state = states.peek_state();
        while state == SessionState::Disconnected {
            state = states.changed().await;
        }
        state
    };
    until(clock, by, wait).await.unwrap_or(SessionState::Disconnected)
}
