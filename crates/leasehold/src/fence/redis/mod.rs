//! Keys of Redis, fenced by a script: the check, the memory and the write are one step of the server.
//!
//! ```no_run
//! use leasehold::fence::redis::{RedisFence, RedisVerb};
//!
//! # async fn sell(lease: leasehold::FencedLease) -> Result<(), leasehold::fence::FenceError> {
//! let fence = RedisFence::open("redis://127.0.0.1:6379").await?;
//! let sold = RedisVerb::Hset.on("seat:14").arg("owner").arg("ada");
//! fence.write(&lease, &["seat/14"], sold).await?; // the lease covers the resource seat/14
//! # Ok(())
//! # }
//! ```
//!
//! # Laws
//!
//! 1. The fence of a resource is raised before the write, in the same step. So a write that fails leaves a higher fence at
//!    most, and never a write without its memory.
//! 2. All fences of a write are checked before any is raised: one refusal refuses all, and leaves no trace.
//! 3. Tokens are compared as text: numbers in Lua are wrong from 2^53 on.
//! 4. The memory has no expiry. A server that may evict it is refused.
//!
//! # A fence by agreement
//!
//! Redis cannot refuse a client that does not ask: it has no triggers, and its permissions are the same inside of a script.
//! This fence stops those who write through it. If strangers write the same keys, use a store that refuses by itself.
//!
//! # How strict it is
//!
//! [`RedisFence::strictness`] says it. Data and fence are one entry of the append-only file, so a lost tail loses both. A
//! *newer* write that is lost with its fence lets the older holder back in, though. That cannot happen with `appendonly
//! yes`, `appendfsync always` and no failover. Otherwise the fence holds among what survives.
//!
//! # Not here
//!
//! A cluster: it is refused when the fence is opened. A retry: `INCRBY` twice is not `INCRBY` once, so a lost reply is
//! [`FenceError::Indeterminate`].

mod command;
mod reply;
mod server;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ::redis::aio::MultiplexedConnection;
use ::redis::{Cmd, RedisError, Script, Value};

pub use command::{RedisCommand, RedisScript, RedisVerb};
pub use reply::RedisReply;
pub use server::RedisStrictness;

use self::reply::ReplyMeaning;
use super::{FenceError, FenceKind, FenceSetting, FenceToken, counters};
use crate::clock::{Clock, until};
use crate::engine::redis::RedisOptions;
use crate::engine::redis::bare_connection::{REPLY_TIMEOUT, open_bare_connection};
use crate::error::{BoxError, Error};
use crate::lease::FencedLease;

/// What the name of a fence begins with. The name of the resource follows.
pub const FENCE_PREFIX: &str = "leasehold:f:";
/// What every key of ours begins with: no key of a caller may.
const OWN_PREFIX: &[u8] = b"leasehold:";
/// The check and the memory, without the caller's part.
const GUARD: &str = include_str!("guard.lua");
/// The caller's part for one command.
const COMMAND: &str = include_str!("command.lua");
/// Around a caller's script: an error that it returns is told from one of the guard, and from one of the server.
const SCRIPT_BEGIN: &str = "local answer = (function()\n";
const SCRIPT_END: &str = concat!(
    "\nend)()\n",
    "if type(answer) == 'table' and answer.err then return redis.error_reply('WORKFAILED ' .. answer.err) end\n",
    "return answer\n",
);
/// Lua cannot unpack many more.
const MAX_ARGUMENTS: usize = 4000;

/// A Redis server whose keys are written under a fence. See the module.
pub struct RedisFence {
    options: RedisOptions,
    clock: Arc<dyn Clock>,
    guard: String,
    command: ScriptText,
    /// Held by who connects: others wait for the result.
    connecting: tokio::sync::Mutex<()>,
    current: Mutex<CurrentServer>,
}

/// The connection, if there is one, and what was read on it.
#[derive(Clone)]
struct CurrentServer {
    connection: Option<LiveConnection>,
    strictness: RedisStrictness,
}

#[derive(Clone)]
struct LiveConnection {
    redis: MultiplexedConnection,
    broken: Arc<AtomicBool>,
}

impl std::fmt::Debug for RedisFence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisFence").field("at", &self.options.at()).finish_non_exhaustive()
    }
}

impl RedisFence {
    /// Connects, and reads how strict the server is. The URL is that of the Redis engine; its options for leases have no
    /// meaning here.
    ///
    /// # Errors
    ///
    /// [`FenceError::Invalid`]: the URL is wrong, or the server is a cluster, is older than 7.0, may evict the memory of
    /// the fence (`maxmemory-policy allkeys-…`), or does not say. [`FenceError::Unavailable`]: it does not answer.
    pub async fn open(url: &str) -> Result<Self, FenceError> {
        Self::open_with(url, GUARD).await
    }

    /// As [`RedisFence::open`], with another text in place of the guard: for tests that plant a fault.
    ///
    /// # Errors
    ///
    /// As [`RedisFence::open`].
    #[cfg(any(test, feature = "testkit"))]
    pub async fn open_with_guard(url: &str, guard: &str) -> Result<Self, FenceError> {
        Self::open_with(url, guard).await
    }

    async fn open_with(url: &str, guard: &str) -> Result<Self, FenceError> {
        let options = RedisOptions::from_url(url).map_err(|error| FenceError::Invalid(error.to_string()))?;
        let fence = Self {
            clock: options.clock.clone(),
            options,
            guard: format!("#!lua\n{guard}"),
            command: ScriptText::new(format!("#!lua\n{guard}{COMMAND}")),
            connecting: tokio::sync::Mutex::default(),
            current: Mutex::new(CurrentServer { connection: None, strictness: RedisStrictness::Strict }),
        };
        fence.connection(&|| format!("open a fence at {}", fence.options.at())).await?;
        Ok(fence)
    }

    /// The text of the script that runs one command, for clients that are not ours: `EVAL text n+1 fence… key n token mark
    /// command argument…`.
    #[must_use]
    pub fn script_text() -> String {
        format!("#!lua\n{GUARD}{COMMAND}")
    }

    /// The key that remembers the fence of a resource.
    #[must_use]
    pub fn fence_key(resource: &str) -> String {
        format!("{FENCE_PREFIX}{resource}")
    }

    /// How strict the server was when it was last connected to.
    #[must_use]
    pub fn strictness(&self) -> RedisStrictness {
        self.current().strictness
    }

    /// Runs one command under the lease, if the fences of all these resources admit it.
    ///
    /// A lease for efficiency has no token, and opens no fenced write:
    ///
    /// ```compile_fail,E0308
    /// use leasehold::{Lease, fence::redis::{RedisFence, RedisVerb}};
    ///
    /// async fn sell(fence: &RedisFence, lease: &Lease) {
    ///     let sold = RedisVerb::Set.on("seat:14").arg("sold");
    ///     let _ = fence.write(lease, &["seat/14"], sold).await; // expected `&FencedLease`, found `&Lease`
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`FenceError::Refused`]: a later holder has written, or the lease does not cover a resource.
    /// [`FenceError::Work`]: the fence admitted it, and the command failed (`WRONGTYPE`). Else as the variants say.
    pub async fn write(
        &self,
        lease: &FencedLease,
        resources: &[&str],
        command: RedisCommand,
    ) -> Result<RedisReply, FenceError> {
        self.write_setting(&FenceSetting::for_lease(lease)?, resources, command).await
    }

    /// Runs a script of the caller under the lease, in one step with the fence: its `KEYS` and `ARGV` are as ever.
    ///
    /// # Errors
    ///
    /// As [`RedisFence::write`], but a script that fails, or returns an error, leaves what it did before:
    /// [`FenceError::Indeterminate`].
    pub async fn eval(
        &self,
        lease: &FencedLease,
        resources: &[&str],
        script: RedisScript,
    ) -> Result<RedisReply, FenceError> {
        if script.text.starts_with("#!") {
            let sentence = "the script of a caller has no #! line: the guard stands before it";
            return Err(FenceError::Invalid(sentence.into()));
        }
        let text = ScriptText::new(format!("{}{SCRIPT_BEGIN}{}{SCRIPT_END}", self.guard, script.text));
        let call = FencedCall::new(&FenceSetting::for_lease(lease)?, resources, script.keys, script.args)?;
        self.run_script(&text, &call, WorkKind::Script).await
    }

    /// As [`RedisFence::write`], under whatever is shown: for tables of cases and races.
    ///
    /// # Errors
    ///
    /// As [`RedisFence::write`].
    #[cfg(any(test, feature = "testkit"))]
    pub async fn write_shown(
        &self,
        shown: &FenceSetting,
        resources: &[&str],
        command: RedisCommand,
    ) -> Result<RedisReply, FenceError> {
        self.write_setting(shown, resources, command).await
    }

    async fn write_setting(
        &self,
        shown: &FenceSetting,
        resources: &[&str],
        command: RedisCommand,
    ) -> Result<RedisReply, FenceError> {
        if command.names_more_keys() {
            return Err(FenceError::Invalid(
                "DEL and UNLINK take one key under a fence: write several by a script".into(),
            ));
        }
        let call = FencedCall::new(shown, resources, vec![command.key], command.words)?;
        self.run_script(&self.command, &call, WorkKind::Command).await
    }

    async fn run_script(
        &self,
        script: &ScriptText,
        call: &FencedCall<'_>,
        work: WorkKind,
    ) -> Result<RedisReply, FenceError> {
        let attempt = || format!("write {} at {}", call.resources.join(", "), self.options.at());
        let mut connection = self.connection(&attempt).await?;
        let answered = self.send_command(&mut connection, &call.command("EVALSHA", &script.hash)).await;
        let answered = match answered {
            // A server that was restarted knows no script, and did nothing.
            Some(Err(error)) if error.code() == Some("NOSCRIPT") => {
                self.send_command(&mut connection, &call.command("EVAL", &script.text)).await
            }
            answered => answered,
        };
        let source: BoxError = match answered {
            Some(Ok(value)) => {
                counters::count_admitted(FenceKind::Redis);
                return Ok(RedisReply::from_value(value));
            }
            Some(Err(error)) => match reply::read_error(&error, call.resources, work) {
                ReplyMeaning::Refused(refusal) => {
                    counters::count_rejected(FenceKind::Redis);
                    return Err(refusal.into());
                }
                ReplyMeaning::Work(source) => return Err(FenceError::Work(source)),
                ReplyMeaning::Invalid(sentence) => return Err(FenceError::Invalid(sentence)),
                ReplyMeaning::Corrupt(at) => return Err(FenceError::Corrupt { kind: FenceKind::Redis, at }),
                ReplyMeaning::NoEffect(source) => {
                    // A server that is not ready may be another one next time: it is read again.
                    self.drop_connection();
                    return Err(FenceError::Unavailable { kind: FenceKind::Redis, attempt: attempt(), source });
                }
                ReplyMeaning::Unknown(source) => source,
            },
            None => format!("no answer within {REPLY_TIMEOUT:?}").into(),
        };
        self.drop_connection();
        Err(FenceError::Indeterminate { kind: FenceKind::Redis, attempt: attempt(), source })
    }

    /// The reply; none if it takes too long.
    async fn send_command(
        &self,
        connection: &mut MultiplexedConnection,
        command: &Cmd,
    ) -> Option<Result<Value, RedisError>> {
        until(&*self.clock, self.clock.now().plus(REPLY_TIMEOUT), command.query_async::<Value>(connection)).await
    }

    /// The connection; opened again if it is gone. What the server is and how it is set is read every time.
    async fn connection(&self, attempt: &(dyn Fn() -> String + Sync)) -> Result<MultiplexedConnection, FenceError> {
        if let Some(connection) = self.live_connection() {
            return Ok(connection);
        }
        let _connecting = self.connecting.lock().await;
        if let Some(connection) = self.live_connection() {
            return Ok(connection);
        }
        let opened = open_bare_connection(&self.options).await.map_err(|error| match error {
            Error::Unavailable { source, .. } => {
                FenceError::Unavailable { kind: FenceKind::Redis, attempt: attempt(), source }
            }
            other => FenceError::Invalid(other.to_string()),
        })?;
        let strictness = server::read_strictness(&opened)?;
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let connection = LiveConnection { redis: opened.redis.clone(), broken: opened.broken };
        *current = CurrentServer { connection: Some(connection), strictness };
        Ok(opened.redis)
    }

    /// The connection, unless it is known to be lost: then nothing must be sent over it.
    fn live_connection(&self) -> Option<MultiplexedConnection> {
        let live = self.current().connection?;
        (!live.broken.load(Ordering::Acquire)).then_some(live.redis)
    }

    fn current(&self) -> CurrentServer {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn drop_connection(&self) {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).connection = None;
    }
}

/// A script, and what the server knows it by.
struct ScriptText {
    text: String,
    hash: String,
}

impl ScriptText {
    fn new(text: String) -> Self {
        Self { hash: Script::new(&text).get_hash().to_owned(), text }
    }
}

/// What an error of the caller's part means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkKind {
    /// One command: it did all or nothing.
    Command,
    /// A script: what it did before it failed stays.
    Script,
}

/// What the script gets.
struct FencedCall<'a> {
    resources: &'a [&'a str],
    fences: Vec<String>,
    shown: FenceToken,
    keys: Vec<Vec<u8>>,
    args: Vec<Vec<u8>>,
}

impl<'a> FencedCall<'a> {
    fn new(
        setting: &FenceSetting,
        resources: &'a [&'a str],
        keys: Vec<Vec<u8>>,
        args: Vec<Vec<u8>>,
    ) -> Result<Self, FenceError> {
        let invalid = |sentence: &str| Err(FenceError::Invalid(sentence.into()));
        let Some(first) = resources.first() else {
            return invalid("a fenced write names the resources that it is about");
        };
        if keys.iter().any(|key| key.starts_with(OWN_PREFIX)) {
            return invalid("keys that begin with leasehold: belong to the fence itself");
        }
        if keys.len() + args.len() > MAX_ARGUMENTS {
            return invalid("a fenced write has at most 4,000 keys and arguments");
        }
        let picked: Result<Vec<FenceToken>, _> = resources.iter().map(|name| setting.pick_for(name)).collect();
        let picked = picked.inspect_err(|_| counters::count_rejected(FenceKind::Redis))?;
        let shown = picked[0];
        if let Some(at) = picked.iter().position(|other| *other != shown) {
            let sentence = format!("{first} and {} are covered by two leases: one write shows one", resources[at]);
            return Err(FenceError::Invalid(sentence));
        }
        let fences = resources.iter().map(|name| RedisFence::fence_key(name)).collect();
        Ok(Self { resources, fences, shown, keys, args })
    }

    fn command(&self, verb: &str, script: &str) -> Cmd {
        let mut command = ::redis::cmd(verb);
        command.arg(script).arg(self.fences.len() + self.keys.len()).arg(&self.fences).arg(&self.keys);
        let mark = self.shown.mark.map_or_else(String::new, |mark| mark.to_string());
        command.arg(self.fences.len()).arg(self.shown.token.get()).arg(mark).arg(&self.args);
        command
    }
}
