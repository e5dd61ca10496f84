//! One Redis server as a node: its connection, whether it votes, and whether it is waited for.
//!
//! # Laws
//!
//! 1. A node votes only if it cannot have forgotten a lease that is live: it keeps every lease over a restart
//!    (`appendfsync always`), or it has been up for the quarantine and no lease here is longer than that.
//! 2. That is known of the very connection over which its vote is asked.
//! 3. Two nodes are never the same server.
//! 4. All processes that use a node that may forget leases have the same quarantine.
//!
//! A node without a connection refuses at once: only the supervisor connects, so that no call waits for it.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Value;
use tokio::sync::Notify;

use super::node::{Node, NodeAnswer, NodeError, NodeReply, NodeRequest, Standing};
use super::node_reply::{NodeCall, node_reply, script_call};
use super::owner::OWNER_LIMIT;
use super::quarantine::agree_on_quarantine;
use super::scripts::NodeScript;
use super::vote::node_limit;
use crate::clock::{Time, until};
use crate::engine::Finding;
use crate::engine::clock_offset::ClockOffset;
use crate::engine::from_book::millis;
use crate::engine::redis::decode::text;
use crate::engine::redis::errors::{CallError, ConnectionState, read_error};
use crate::engine::redis::examine::{find_foreign_clients, measure_clock};
use crate::engine::redis::node::{NodeConnection, REPLY_TIMEOUT, RedisNode, send_command};
use crate::engine::redis::scripts::PREFIX;
use crate::engine::redis::verify::first_denial;
use crate::error::Error;

/// One connection is enough, and it is not the one that messages come over.
const SLOT: usize = 1;
/// How long a node that missed an answer is not waited for, at first and at most.
const SUSPECT_FOR: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Between two tries to connect.
const RECONNECT_AFTER: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How often an idle connection is looked at.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// How often the settings are read again.
const VERIFY_EVERY: Duration = Duration::from_secs(30);
/// Records that one script reads for a list.
const RECORDS_PER_STEP: usize = 500;

/// See the module.
pub(super) struct RedlockNode {
    redis: Arc<RedisNode>,
    address: String,
    quarantine: Duration,
    number: usize,
    /// The run of each node's server, by the number of the node.
    runs: Arc<Mutex<HashMap<usize, String>>>,
    shas: Vec<String>,
    state: Mutex<NodeState>,
    wake: Notify,
}

#[derive(Default)]
struct NodeState {
    verified: Option<Arc<VerifiedConnection>>,
    /// Why there is no connection.
    failed: Option<ConnectFailure>,
    suspect_until: Time,
    suspect_for: Duration,
    /// The run of the server, and when it last answered.
    run: String,
    last_heard: Time,
}

enum ConnectFailure {
    Away(String),
    Unusable(String),
}

/// A connection, and what is known of the server at its other end.
struct VerifiedConnection {
    connection: Arc<NodeConnection>,
    durable: bool,
    /// The server did not start later than this, by our clock.
    started: Time,
}

impl RedlockNode {
    pub fn new(
        redis: Arc<RedisNode>,
        number: usize,
        quarantine: Duration,
        runs: Arc<Mutex<HashMap<usize, String>>>,
    ) -> Arc<Self> {
        let shas =
            NodeScript::ALL.iter().map(|script| redis::Script::new(&script.text(&redis.layout)).get_hash().to_owned());
        Arc::new(Self {
            address: redis.options.at(),
            shas: shas.collect(),
            redis,
            quarantine,
            number,
            runs,
            state: Mutex::default(),
            wake: Notify::new(),
        })
    }

    /// Keeps it connected until the engine is closed.
    pub async fn supervise(self: Arc<Self>) {
        let clock = self.redis.clock.clone();
        let mut pause = RECONNECT_AFTER.0;
        let mut verified = clock.now();
        while !self.redis.closed.is_cancelled() {
            let next = if self.verified().is_none() {
                match self.connect().await {
                    Ok(()) => {
                        pause = RECONNECT_AFTER.0;
                        verified = clock.now();
                        CHECK_EVERY
                    }
                    Err(_) => {
                        pause = (pause * 2).min(RECONNECT_AFTER.1);
                        pause
                    }
                }
            } else if SharedNode(self.clone()).is_suspect() {
                self.probe().await;
                SUSPECT_FOR.0 / 2
            } else {
                if clock.now().since(verified) >= VERIFY_EVERY {
                    verified = clock.now();
                    // A server that cannot be used any more loses its connection here.
                    let _ = self.read_server().await;
                }
                CHECK_EVERY
            };
            tokio::select! {
                biased;
                () = self.redis.closed.cancelled() => {}
                () = self.wake.notified() => {
                    // Not more often than the pause after a failure allows.
                    if self.lock().failed.is_some() {
                        clock.sleep_until(clock.now().plus(pause)).await;
                    }
                }
                () = clock.sleep_until(clock.now().plus(next)) => {}
            }
        }
        self.lock().verified = None;
        self.redis.close_connections();
    }

    /// Connects once, and reads what the server is.
    pub async fn connect(self: &Arc<Self>) -> Result<(), Error> {
        match self.open_connection().await {
            Ok(verified) => {
                let mut state = self.lock();
                state.verified = Some(Arc::new(verified));
                state.failed = None;
                state.suspect_until = Time::ZERO;
                Ok(())
            }
            Err(NodeError::Broken(error)) => {
                self.lock().failed = Some(ConnectFailure::Unusable(error.to_string()));
                Err(error)
            }
            Err(other) => {
                let why = other.to_string();
                self.lock().failed = Some(ConnectFailure::Away(why.clone()));
                Err(super::unavailable(format!("connect to {}", self.address), why.into()))
            }
        }
    }

    async fn open_connection(self: &Arc<Self>) -> Result<VerifiedConnection, NodeError> {
        let connection = self.redis.connection(SLOT).await.map_err(|error| self.call_error(error))?;
        let verified = self.inspect_server(connection.clone()).await;
        if verified.is_err() {
            self.redis.drop_connection(SLOT, &connection);
        }
        verified
    }

    /// Law 2: what the server at the end of this connection is.
    async fn inspect_server(&self, connection: Arc<NodeConnection>) -> Result<VerifiedConnection, NodeError> {
        let asked = self.redis.clock.now();
        let mut info = redis::cmd("INFO");
        info.arg("server");
        let silent = || NodeError::NoEffect(format!("{} does not answer", self.address));
        let reply = send_command(&*self.redis.clock, &mut connection.redis.clone(), &info).await.ok_or_else(silent)?;
        let found = match reply {
            Ok(Value::VerbatimString { text, .. }) => text,
            Ok(value) => text(&value).map_err(|_| silent())?,
            // Without INFO nothing is known of its age: it never votes, unless its settings say that it forgets nothing.
            Err(_) => String::new(),
        };
        let field = |name: &str| found.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let run = field("run_id:").unwrap_or_default();
        self.note_run(run)?;
        let durable = first_denial(&self.redis.findings()).is_none();
        if !durable {
            agree_on_quarantine(&self.redis, &mut connection.redis.clone(), self.quarantine).await?;
        }
        // Whole seconds of two clocks that show whole seconds: up to one second too long.
        let uptime =
            field("uptime_in_seconds:").and_then(|text| text.parse::<u64>().ok()).unwrap_or(0).saturating_sub(1);
        let by_uptime = Time::from_nanos(asked.as_nanos().saturating_sub(uptime.saturating_mul(1_000_000_000)));
        // Another run than the one that answered then started after it, whatever its clock says.
        let mut state = self.lock();
        let restarted = !state.run.is_empty() && state.run != run;
        let started = if restarted { by_uptime.max(state.last_heard) } else { by_uptime };
        (state.run, state.last_heard) = (run.to_owned(), asked);
        drop(state);
        Ok(VerifiedConnection { connection, durable, started })
    }

    /// Law 3.
    fn note_run(&self, run: &str) -> Result<(), NodeError> {
        if run.is_empty() {
            return Ok(()); // INFO is denied: it cannot be told
        }
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        if runs.iter().any(|(number, other)| *number != self.number && other == run) {
            return Err(NodeError::Broken(Error::Invalid(format!(
                "{} is the same server as another node: a majority needs servers that fail one by one",
                self.address
            ))));
        }
        runs.insert(self.number, run.to_owned());
        Ok(())
    }

    /// Reads the settings again.
    pub async fn read_server(self: &Arc<Self>) -> Result<Vec<Finding>, NodeError> {
        let verified = self.usable_connection()?;
        let mut redis = verified.connection.redis.clone();
        let read = crate::engine::redis::connect::read_server(&self.redis, &mut redis).await;
        match read {
            Err(error) => {
                self.drop_verified(&verified);
                return Err(self.call_error(error));
            }
            // Its data were replaced: it is connected anew, as after a restart.
            Ok(report) if self.redis.is_other_history(&report) => self.drop_verified(&verified),
            Ok(_) => {}
        }
        if !verified.durable
            && let Err(error) =
                agree_on_quarantine(&self.redis, &mut verified.connection.redis.clone(), self.quarantine).await
        {
            self.drop_verified(&verified);
            return Err(error);
        }
        let findings = self.redis.findings();
        let durable = verified.durable && first_denial(&findings).is_none();
        if durable != verified.durable {
            // It was stronger when it was connected. From now on it counts as one that may forget.
            let mut state = self.lock();
            if state.verified.as_ref().is_some_and(|current| Arc::ptr_eq(current, &verified)) {
                let connection = verified.connection.clone();
                state.verified = Some(Arc::new(VerifiedConnection { connection, durable, started: verified.started }));
            }
        }
        Ok(findings)
    }

    /// How far its clock is from ours, and which other lock clients use it.
    pub async fn look_closer(&self) -> (Option<ClockOffset>, Vec<Finding>) {
        let Some(verified) = self.verified() else { return (None, Vec::new()) };
        let mut redis = verified.connection.redis.clone();
        let offset = measure_clock(&self.redis, &mut redis).await;
        // A server that does not even say what time it is, is not asked for more.
        let others = if offset.is_some() { find_foreign_clients(&self.redis, &mut redis).await } else { Vec::new() };
        (offset, others)
    }

    /// Whether the settings say that it forgets nothing; none without a connection.
    pub fn is_durable(&self) -> Option<bool> {
        self.verified().map(|verified| verified.durable)
    }

    async fn probe(&self) {
        let Some(verified) = self.verified() else { return };
        let clock = &*self.redis.clock;
        let limit = clock.now().plus(SUSPECT_FOR.0);
        let ping = redis::cmd("PING");
        let mut redis = verified.connection.redis.clone();
        let asked = ping.query_async::<Value>(&mut redis);
        if let Some(Ok(_)) = until(clock, limit, asked).await {
            self.note_answer();
        }
    }

    async fn run(self: Arc<Self>, request: NodeRequest) -> Result<NodeReply, NodeError> {
        let verified = self.usable_connection()?;
        if let NodeRequest::Acquire(claim) = &request
            && self.standing_of(&verified, claim.keys_live_ms) != Standing::Votes
        {
            return Err(NodeError::NoEffect(format!("{} does not vote on this", self.address)));
        }
        let limit = match &request {
            NodeRequest::Acquire(claim) => node_limit(claim.text.life_ms),
            NodeRequest::List => REPLY_TIMEOUT,
            _ => OWNER_LIMIT,
        };
        let deadline = self.redis.clock.now().plus(limit);
        let mut work = std::pin::pin!(self.run_on(&verified, &request));
        let done = match until(&*self.redis.clock, deadline, &mut work).await {
            Some(done) => done,
            None => {
                self.note_silence();
                work.await
            }
        };
        if done.is_ok() && self.redis.clock.now() < deadline {
            self.note_answer();
        }
        done
    }

    async fn run_on(&self, verified: &Arc<VerifiedConnection>, request: &NodeRequest) -> Result<NodeReply, NodeError> {
        match script_call(request) {
            Some(call) => {
                let value = self.run_script(verified, &call).await?;
                node_reply(call.script, &value).map_err(|odd| NodeError::Unknown(format!("{}: {odd}", self.address)))
            }
            None => self.list_leases(verified).await,
        }
    }

    async fn run_script(&self, verified: &Arc<VerifiedConnection>, call: &NodeCall) -> Result<Value, NodeError> {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.shas[call.script as usize]).arg(call.keys.len());
        call.keys.iter().chain(&call.args).for_each(|arg| {
            command.arg(arg);
        });
        for may_load in [true, false] {
            match self.send(verified, &command, call.script).await {
                Err(ScriptError::NotLoaded) if may_load => self.load_script(verified, call.script).await?,
                Err(ScriptError::NotLoaded) => break,
                Err(ScriptError::Other(error)) => return Err(error),
                Ok(value) => return Ok(value),
            }
        }
        Err(NodeError::NoEffect(format!("{} forgets our scripts", self.address)))
    }

    async fn load_script(&self, verified: &Arc<VerifiedConnection>, script: NodeScript) -> Result<(), NodeError> {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(script.text(&self.redis.layout));
        match self.send(verified, &load, script).await {
            Ok(_) => Ok(()),
            // A script that was not loaded did nothing.
            Err(ScriptError::Other(NodeError::Unknown(why))) => Err(NodeError::NoEffect(why)),
            Err(ScriptError::Other(error)) => Err(error),
            Err(ScriptError::NotLoaded) => Err(NodeError::NoEffect(format!("{} takes no scripts", self.address))),
        }
    }

    async fn send(
        &self,
        verified: &Arc<VerifiedConnection>,
        command: &redis::Cmd,
        script: NodeScript,
    ) -> Result<Value, ScriptError> {
        let sent = send_command(&*self.redis.clock, &mut verified.connection.redis.clone(), command).await;
        match sent {
            None => {
                self.drop_verified(verified);
                let why = format!("{} gave no answer within {REPLY_TIMEOUT:?}", self.address);
                Err(ScriptError::Other(NodeError::Unknown(why)))
            }
            Some(Ok(value)) => Ok(value),
            Some(Err(error)) if error.code() == Some("NOSCRIPT") => Err(ScriptError::NotLoaded),
            Some(Err(error)) => {
                let (error, state) = read_error(&error, script.relative());
                if state == ConnectionState::Broken {
                    self.drop_verified(verified);
                }
                Err(ScriptError::Other(self.call_error(error)))
            }
        }
    }

    /// Reads every record of the server: there is no index, so that leases cost nothing more while nobody lists.
    async fn list_leases(&self, verified: &Arc<VerifiedConnection>) -> Result<NodeReply, NodeError> {
        let odd = || NodeError::NoEffect(format!("{} gave an odd answer to SCAN", self.address));
        let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(format!("{PREFIX}l:*")).arg("COUNT").arg(RECORDS_PER_STEP);
            let value = match self.send(verified, &scan, NodeScript::List).await {
                Ok(value) => value,
                Err(ScriptError::Other(error)) => return Err(error),
                Err(ScriptError::NotLoaded) => return Err(odd()),
            };
            let Value::Array(parts) = value else { return Err(odd()) };
            let [next, Value::Array(keys)] = &parts[..] else { return Err(odd()) };
            let keys = keys.iter().map(text).collect::<Result<Vec<_>, _>>().map_err(|_| odd())?;
            if !keys.is_empty() {
                let call = NodeCall { script: NodeScript::List, keys, args: Vec::new() };
                let value = self.run_script(verified, &call).await?;
                match node_reply(NodeScript::List, &value) {
                    Ok(NodeReply::Listed(more)) => found.extend(more),
                    _ => return Err(odd()),
                }
            }
            cursor = text(next).map_err(|_| odd())?;
            if cursor == "0" {
                break;
            }
        }
        // SCAN may show a key twice.
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found.dedup_by(|a, b| a.0 == b.0);
        Ok(NodeReply::Listed(found))
    }

    fn standing_of(&self, verified: &VerifiedConnection, keys_live_ms: u64) -> Standing {
        if verified.durable {
            return Standing::Votes;
        }
        if keys_live_ms > millis(self.quarantine) {
            return Standing::NotDurable;
        }
        let up = self.redis.clock.now().since(verified.started);
        match self.quarantine.checked_sub(up) {
            Some(left) if !left.is_zero() => Standing::Quarantined { left },
            _ => Standing::Votes,
        }
    }

    /// The connection, if it can be used.
    fn verified(&self) -> Option<Arc<VerifiedConnection>> {
        let usable = |verified: &&Arc<VerifiedConnection>| !verified.connection.broken.load(Ordering::Acquire);
        self.lock().verified.as_ref().filter(usable).cloned()
    }

    fn usable_connection(&self) -> Result<Arc<VerifiedConnection>, NodeError> {
        if let Some(verified) = self.verified() {
            return Ok(verified);
        }
        self.wake.notify_one();
        match &self.lock().failed {
            Some(ConnectFailure::Unusable(sentence)) => Err(NodeError::Broken(Error::Invalid(sentence.clone()))),
            Some(ConnectFailure::Away(why)) => Err(NodeError::NoEffect(why.clone())),
            None => Err(NodeError::NoEffect(format!("{} is not connected", self.address))),
        }
    }

    fn drop_verified(&self, verified: &Arc<VerifiedConnection>) {
        self.redis.drop_connection(SLOT, &verified.connection);
        let mut state = self.lock();
        if state.verified.as_ref().is_some_and(|current| Arc::ptr_eq(current, verified)) {
            state.verified = None;
        }
        drop(state);
        self.wake.notify_one();
    }

    fn note_silence(&self) {
        let now = self.redis.clock.now();
        let mut state = self.lock();
        // Many calls miss their answers at once, and that is one silence.
        if now >= state.suspect_until {
            state.suspect_for = (state.suspect_for * 2).clamp(SUSPECT_FOR.0, SUSPECT_FOR.1);
            state.suspect_until = now.plus(state.suspect_for);
            drop(state);
            self.wake.notify_one();
        }
    }

    fn note_answer(&self) {
        let now = self.redis.clock.now();
        let mut state = self.lock();
        state.suspect_until = Time::ZERO;
        state.suspect_for = Duration::ZERO;
        state.last_heard = now;
    }

    fn call_error(&self, error: CallError) -> NodeError {
        match error {
            CallError::Decided(Error::Indeterminate { source, .. }) | CallError::Unknown(source) => {
                NodeError::Unknown(format!("{}: {source}", self.address))
            }
            CallError::Decided(Error::Invalid(sentence)) => {
                NodeError::Broken(Error::Invalid(format!("{}: {sentence}", self.address)))
            }
            CallError::Decided(error) => NodeError::Broken(error),
            CallError::Busy(source) | CallError::NoEffect(source) => {
                NodeError::NoEffect(format!("{}: {source}", self.address))
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, NodeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum ScriptError {
    NotLoaded,
    Other(NodeError),
}

/// A node that the engine has a hold of, as the vote sees it.
pub(super) struct SharedNode(pub Arc<RedlockNode>);

impl Node for SharedNode {
    fn ask(&self, request: NodeRequest) -> NodeAnswer {
        Box::pin(self.0.clone().run(request))
    }

    fn standing(&self, keys_live_ms: u64) -> Standing {
        // A node that is away is asked all the same, and says why it is.
        self.0.verified().map_or(Standing::Votes, |verified| self.0.standing_of(&verified, keys_live_ms))
    }

    fn is_suspect(&self) -> bool {
        self.0.redis.clock.now() < self.0.lock().suspect_until
    }

    fn is_reachable(&self) -> bool {
        self.0.verified().is_some()
    }

    fn address(&self) -> &str {
        &self.0.address
    }
}
