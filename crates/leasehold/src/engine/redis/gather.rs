//! Several callers, one script call. While a call is under way, the plain acquires and releases that come are queued, and go
//! together in the next one.
//!
//! ```text
//!   nothing under way ──▶ by itself, at once
//!   a call under way  ──▶ queued ──▶ up to 64 in one call ──▶ done | not plainly free, or certainly nothing happened: by itself
//!                                                         └─▶ no answer: unknown for each of them
//! ```
//!
//! All of them over one connection: the fewer calls, the more in each, and with `appendfsync always` the more for each sync.
//!
//! # Laws
//!
//! 1. Only first tries are gathered: a retry goes by itself, with the full script.
//! 2. What a gathered call does not answer with yes was not done by it, and is asked by itself. If the call has no answer,
//!    the outcome of each of them is unknown.
//! 3. First come, first sent. A call holds at most [`MAX_GATHERED`] requests, so that its script is short.
//! 4. Nobody waits for others to come: a caller alone is sent at once, without another task. What is queued waits for tasks
//!    of the engine only, never for the future of another caller.
//! 5. After a call that failed nothing stays queued: it all goes by itself.

use std::collections::VecDeque;
use std::iter::repeat_with;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::Time;
use redis::Value;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::decode::UnexpectedReply;
use super::errors::CallError;
use super::node::{RedisNode, ScriptCall};
use super::scripts::Script;
use crate::error::Error;

/// Requests in one call: some hundred microseconds of the server's time.
const MAX_GATHERED: usize = 64;
/// The connection for gathered calls. Not the one that messages come over: a grant does not wait behind them.
const GATHER_SLOT: usize = 1;
/// How long nothing is gathered after a call that did less than half of what it was asked: names are contended, or
/// somebody watches, and the full scripts do that better.
const PAUSE: Duration = Duration::from_millis(200);

/// See the module.
pub(super) struct Gatherer {
    node: Arc<RedisNode>,
    runtime: Handle,
    lane: Mutex<GatherLane>,
}

#[derive(Default)]
struct GatherLane {
    under_way: bool,
    queue: VecDeque<QueuedCall>,
    /// Nothing is gathered until then.
    paused: Option<Time>,
}

struct QueuedCall {
    call: ScriptCall,
    to: oneshot::Sender<Turn>,
}

/// What a queued caller is told.
enum Turn {
    /// The answer.
    Answered(Result<Value, CallError>),
    /// Nothing was done: send it by itself.
    Alone,
}

/// A call is under way. When it ends, however it ends, the next ones are sent.
struct LaneGuard {
    gatherer: Arc<Gatherer>,
    /// Nothing is under way any more.
    ended: bool,
}

impl Gatherer {
    pub fn new(node: Arc<RedisNode>, runtime: Handle) -> Arc<Self> {
        Arc::new(Self { node, runtime, lane: Mutex::default() })
    }

    /// Runs the first try of a script; with others if it can be.
    pub async fn run_script(self: &Arc<Self>, call: &ScriptCall) -> Result<Value, CallError> {
        if !self.node.options.gather || !is_plain(call) {
            return self.node.run_script(call).await;
        }
        match self.enter(call) {
            Entered::Direct(_until_it_is_answered) => self.run_alone(call).await,
            Entered::Queued(turn) => match turn.await {
                Ok(Turn::Answered(answer)) => answer,
                Ok(Turn::Alone) => self.node.run_script(call).await,
                Err(_) => Err(CallError::Unknown("the runtime of the engine is gone".into())),
            },
        }
    }

    fn enter(self: &Arc<Self>, call: &ScriptCall) -> Entered {
        let mut lane = self.lock();
        if lane.paused.is_some_and(|until| self.node.clock.now() < until) {
            return Entered::Direct(None);
        }
        lane.paused = None;
        if lane.under_way {
            let (to, turn) = oneshot::channel();
            lane.queue.push_back(QueuedCall { call: call.clone(), to });
            return Entered::Queued(turn);
        }
        // A release runs in its caller's future, which may be left alone half-way: others must not wait for it.
        if call.script == Script::Release {
            return Entered::Direct(None);
        }
        lane.under_way = true;
        drop(lane);
        Entered::Direct(Some(LaneGuard::new(self.clone())))
    }

    /// Keeps law 5 for a call that holds one request.
    async fn run_alone(&self, call: &ScriptCall) -> Result<Value, CallError> {
        let answer = self.node.run_script(call).await;
        if answer.is_err() {
            self.pause();
        }
        answer
    }

    fn lock(&self) -> MutexGuard<'_, GatherLane> {
        self.lane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next ones that go together; none if nobody is queued, and then nothing is under way any more.
    fn take_next(&self) -> Option<Vec<QueuedCall>> {
        let mut lane = self.lock();
        // A caller that is gone meanwhile: nothing was sent for it.
        lane.queue.retain(|queued| !queued.to.is_closed());
        if lane.queue.is_empty() {
            lane.under_way = false;
            return None;
        }
        let count = lane.queue.len().min(MAX_GATHERED);
        Some(lane.queue.drain(..count).collect())
    }

    /// Sends what is queued, call after call, until nothing is.
    async fn send_queued(mut guard: LaneGuard, first: Vec<QueuedCall>) {
        let gatherer = guard.gatherer.clone();
        let mut calls = first;
        loop {
            if let [only] = &calls[..] {
                let answer = gatherer.run_alone(&only.call).await;
                answer_each(calls, [Turn::Answered(answer)]);
            } else {
                gatherer.send_together(calls).await;
            }
            match gatherer.take_next() {
                Some(next) => calls = next,
                None => {
                    guard.ended = true;
                    return;
                }
            }
        }
    }

    async fn send_together(&self, calls: Vec<QueuedCall>) {
        let gathered = gathered_call(calls.iter().map(|queued| &queued.call));
        let unknown = |why: String| move || Turn::Answered(Err(CallError::Unknown(why.clone().into())));
        match self.node.run_script(&gathered).await {
            Ok(Value::Array(replies)) if replies.len() == calls.len() => {
                let undone = replies.iter().filter(|reply| **reply == Value::Int(0)).count();
                if undone * 2 > calls.len() {
                    self.pause();
                }
                let turn = |reply| if reply == Value::Int(0) { Turn::Alone } else { Turn::Answered(Ok(reply)) };
                answer_each(calls, replies.into_iter().map(turn));
            }
            // Somebody watches.
            Ok(Value::Int(-1)) => {
                self.pause();
                answer_each(calls, repeat_with(|| Turn::Alone));
            }
            Ok(_) => answer_each(calls, repeat_with(unknown(UnexpectedReply.to_string()))),
            // Refused before it ran. By themselves they are refused, or not: a release is allowed when the memory is full.
            Err(CallError::Busy(_) | CallError::NoEffect(_) | CallError::Decided(Error::Invalid(_))) => {
                self.pause();
                answer_each(calls, repeat_with(|| Turn::Alone));
            }
            // The script may have ended half-way.
            Err(CallError::Decided(error)) => {
                self.pause();
                answer_each(calls, repeat_with(unknown(error.to_string())));
            }
            Err(CallError::Unknown(why)) => {
                self.pause();
                answer_each(calls, repeat_with(unknown(why.to_string())));
            }
        }
    }

    /// Nothing is gathered for a moment, and nothing stays queued.
    fn pause(&self) {
        let mut lane = self.lock();
        lane.paused = Some(self.node.clock.now().plus(PAUSE));
        let queued = std::mem::take(&mut lane.queue);
        drop(lane);
        answer_each(queued, repeat_with(|| Turn::Alone));
    }
}

/// How a caller begins.
enum Entered {
    /// By itself. With a guard, those who come meanwhile are queued.
    Direct(Option<LaneGuard>),
    Queued(oneshot::Receiver<Turn>),
}

impl LaneGuard {
    const fn new(gatherer: Arc<Gatherer>) -> Self {
        Self { gatherer, ended: false }
    }
}

impl Drop for LaneGuard {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        if let Some(calls) = self.gatherer.take_next() {
            let guard = Self::new(self.gatherer.clone());
            self.gatherer.runtime.spawn(Gatherer::send_queued(guard, calls));
        }
    }
}

fn answer_each(calls: impl IntoIterator<Item = QueuedCall>, turns: impl IntoIterator<Item = Turn>) {
    for (queued, turn) in calls.into_iter().zip(turns) {
        // A caller that is gone cleans up by itself.
        let _ = queued.to.send(turn);
    }
}

/// Whether it is an acquire or a release that the server can answer by its fast way.
pub(super) fn is_plain(call: &ScriptCall) -> bool {
    call.keys.len() == 2 && (call.script == Script::Acquire || (call.script == Script::Release && call.args.len() == 3))
}

/// One call for all of these, which are plain.
pub(super) fn gathered_call<'a>(calls: impl Iterator<Item = &'a ScriptCall>) -> ScriptCall {
    let (mut keys, mut args) = (Vec::new(), Vec::new());
    for call in calls {
        keys.extend_from_slice(&call.keys);
        // Of an acquire what it needs to be granted, of a release its proof.
        let (kind, used) = if call.script == Script::Acquire { ("a", 4) } else { ("r", 1) };
        args.push(kind.to_owned());
        args.extend_from_slice(&call.args[..used]);
    }
    ScriptCall { script: Script::Gathered, slot: GATHER_SLOT, keys, args }
}
