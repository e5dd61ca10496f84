//! What all calls of one remote engine share: its connections, and the rules for asking again.
//!
//! # Laws
//!
//! 1. Requests that have nothing to wait for go over one shared connection, in the order they were made.
//! 2. A request that may block its connection on the server has a connection of its own, of which there are at most
//!    [`MOST_WAITING`].
//! 3. Asked again is only what may be asked twice, for [`INSIST`], with pauses that grow and are spread.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::Time;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::answer::{Said, said};
use super::command;
use super::connect::{Away, Connector, NoConnection};
use super::link::{Broken, Link, REPLY};
use super::reply::Value;
use super::{indeterminate, unavailable};
use crate::clock::Clock;
use crate::engine::LeaseId;
use crate::error::{BoxError, Error, Refusal};

/// How long what is worth repeating is repeated.
pub(super) const INSIST: Duration = Duration::from_secs(3);
/// How long a server may be away before those who wait in its line hear of it.
pub(super) const OUTAGE: Duration = Duration::from_secs(30);
/// Connections with a blocked request. Each is a file descriptor, of which a process often has 1024.
const MOST_WAITING: usize = 512;
/// Connections for claims that do not wait, and might have to for somebody under the same id.
const MOST_ASKING: usize = 64;
/// Of these, how many are kept for later.
const MOST_IDLE: usize = 16;
/// The first pause before asking again, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// What an unanswered request means, and whether it may be repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Nature {
    /// It changes nothing.
    Reading,
    /// Twice is once.
    Repeatable,
    /// Twice is not once.
    Once,
    /// Twice is once, and nobody else will see to it: also a server that is not there is pressed.
    Owed,
}

/// Says what was tried, for the error message.
pub(super) type Attempt<'a> = &'a (dyn Fn() -> String + Sync);

/// What came of one try.
pub(super) enum Tried {
    /// The answer.
    Heard(Value),
    /// The server decided, and this is it.
    No(Error),
    /// Nothing was changed.
    NoEffect(BoxError),
    /// It may have happened.
    Unknown(BoxError),
}

impl Tried {
    pub fn of(heard: Result<Value, Broken>) -> Self {
        match heard {
            Ok(Value::Error(text)) => match said(&text) {
                Said::No(error) => Self::No(error),
                Said::NoEffect(sentence) => Self::NoEffect(sentence.into()),
                Said::Unknown(sentence) => Self::Unknown(sentence.into()),
            },
            Ok(value) => Self::Heard(value),
            Err(Broken { sent: true, why }) => Self::Unknown(Box::new(why)),
            Err(Broken { sent: false, why }) => Self::NoEffect(Box::new(why)),
        }
    }

    /// A no that says nothing of an earlier try whose answer was lost: the server's gate (the key, its rate, too many
    /// connections) speaks before anybody looks at what was asked.
    pub fn is_of_the_gate(error: &Error) -> bool {
        matches!(error, Error::Invalid(_) | Error::Refused(Refusal::Quota(_)))
    }

    pub fn unconnected(why: NoConnection) -> Self {
        match why {
            NoConnection::Away(away) => Self::NoEffect(Box::new(away)),
            NoConnection::Never(error) => Self::No(error),
        }
    }
}

/// See the module.
pub(super) struct Hub {
    pub connector: Connector,
    pub clock: Arc<dyn Clock>,
    pub runtime: Handle,
    shared: tokio::sync::Mutex<Shared>,
    idle: Mutex<Vec<Link>>,
    /// Permits for connections of law 2.
    pub waiting: Semaphore,
    pub asking: Semaphore,
    /// Cancelled when the engine is closed.
    pub closed: CancellationToken,
    /// What goes on without its caller.
    pub errands: TaskTracker,
}

#[derive(Default)]
struct Shared {
    link: Option<Arc<Link>>,
    /// When connecting last failed, and why: for those who wanted it too.
    failed: Option<(Time, Away)>,
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("options", &self.connector.options).finish_non_exhaustive()
    }
}

impl Hub {
    pub fn new(connector: Connector, clock: Arc<dyn Clock>, runtime: Handle) -> Self {
        Self {
            connector,
            clock,
            runtime,
            shared: tokio::sync::Mutex::default(),
            idle: Mutex::default(),
            waiting: Semaphore::new(MOST_WAITING),
            asking: Semaphore::new(MOST_ASKING),
            closed: CancellationToken::new(),
            errands: TaskTracker::new(),
        }
    }

    /// The shared connection, made anew if it is gone.
    pub async fn shared(&self) -> Result<Arc<Link>, NoConnection> {
        let asked = self.clock.now();
        let mut shared = self.shared.lock().await;
        if let Some(link) = shared.link.as_ref().filter(|link| !link.is_gone()) {
            return Ok(link.clone());
        }
        // It was tried while we stood here: all who wanted it have one answer, not one connect each.
        if let Some((at, away)) = &shared.failed
            && *at >= asked
        {
            return Err(NoConnection::Away(away.clone()));
        }
        match self.connect().await {
            Ok(link) => {
                let link = Arc::new(link);
                *shared = Shared { link: Some(link.clone()), failed: None };
                Ok(link)
            }
            Err(NoConnection::Away(away)) => {
                *shared = Shared { link: None, failed: Some((self.clock.now(), away.clone())) };
                Err(NoConnection::Away(away))
            }
            Err(never) => Err(never),
        }
    }

    /// A connection of one's own, which nobody else uses meanwhile.
    pub async fn own(&self) -> Result<Link, NoConnection> {
        loop {
            let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match kept {
                Some(link) if link.is_gone() => {}
                Some(link) => return Ok(link),
                None => return self.connect().await,
            }
        }
    }

    /// Hands back a connection of one's own on which nothing is under way.
    pub fn hand_back(&self, link: Link) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MOST_IDLE && !self.closed.is_cancelled() {
            idle.push(link);
        }
    }

    /// A connection broke: those that are kept for later may be as dead.
    pub fn doubt(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    async fn connect(&self) -> Result<Link, NoConnection> {
        let (wire, reader) = self.connector.connect(&self.clock).await?;
        Ok(Link::start(wire, reader, self.clock.clone(), &self.runtime))
    }

    /// Asks for a caller, unless the engine was closed.
    pub async fn call(&self, attempt: Attempt<'_>, bytes: Vec<u8>, nature: Nature) -> Result<Value, Error> {
        if self.closed.is_cancelled() {
            return Err(unavailable(attempt(), CLOSED.into()));
        }
        self.insist(attempt, bytes, nature).await
    }

    /// Asks over the shared connection, and again where that is worth it (law 3).
    pub async fn insist(&self, attempt: Attempt<'_>, bytes: Vec<u8>, nature: Nature) -> Result<Value, Error> {
        // Counted from the first trouble: to notice that a connection is dead may itself take longer.
        let mut give_up = None;
        let mut maybe = false;
        for round in 0.. {
            let (tried, connected) = match self.shared().await {
                Ok(link) => (Tried::of(link.ask(bytes.clone(), REPLY).heard().await), true),
                Err(why) => (Tried::unconnected(why), false),
            };
            let (source, again) = match tried {
                Tried::Heard(value) => return Ok(value),
                Tried::No(error) if maybe && Tried::is_of_the_gate(&error) => {
                    return Err(indeterminate(attempt(), Box::new(error)));
                }
                Tried::No(error) => return Err(error),
                Tried::Unknown(source) => {
                    maybe |= nature != Nature::Reading;
                    (source, nature != Nature::Once)
                }
                // A connection that broke before anything was sent was an old one. A server that is not there, or
                // says so, is not pressed, unless there is something to learn.
                Tried::NoEffect(source) => {
                    let broke = connected && source.is::<Arc<std::io::Error>>();
                    (source, maybe || broke || nature == Nature::Owed)
                }
            };
            self.doubt();
            let now = self.clock.now();
            if !again || now >= *give_up.get_or_insert(now.plus(INSIST)) {
                return Err(if maybe { indeterminate(attempt(), source) } else { unavailable(attempt(), source) });
            }
            self.pause(round).await;
        }
        unreachable!("the rounds end by time")
    }

    /// Ends a lease that nobody will use. If that fails, its ttl does it.
    pub async fn give_back(&self, lease: &LeaseId) {
        if let Ok(bytes) = command::release(lease) {
            let _ = self.insist(&|| "give back a lease".into(), bytes, Nature::Owed).await;
        }
    }

    /// Waits before asking again: longer every time, and not in step with others.
    pub async fn pause(&self, round: u32) {
        let whole = FIRST_PAUSE.saturating_mul(1 << round.min(10)).min(LONGEST_PAUSE);
        let spread = f64::from(u32::from_le_bytes(random())) / f64::from(u32::MAX);
        let span = whole.mul_f64(0.5 + spread / 2.0);
        self.clock.sleep_until(self.clock.now().plus(span)).await;
    }

    /// Lets go of all connections.
    pub async fn hang_up(&self) {
        *self.shared.lock().await = Shared::default();
        self.doubt();
    }
}

/// Why a closed engine does nothing.
pub(super) const CLOSED: &str = "the engine was closed";

/// Random bits from the operating system.
pub(super) fn random<const N: usize>() -> [u8; N] {
    let mut bits = [0; N];
    // Without randomness there are no unique request ids, and there is nothing to fall back on.
    getrandom::fill(&mut bits).expect("the operating system gives random bits");
    bits
}
