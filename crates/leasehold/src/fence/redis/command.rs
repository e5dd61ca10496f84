//! What may be written under a fence: one of these commands, or a script of the caller.

/// A command on one key. Anything else is written by a [`RedisScript`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RedisVerb {
    /// `SET key value [option…]`
    Set,
    /// `DEL key`
    Del,
    /// `UNLINK key`
    Unlink,
    /// `HSET key field value…`
    Hset,
    /// `HDEL key field…`
    Hdel,
    /// `INCRBY key number`
    Incrby,
    /// `EXPIRE key seconds`
    Expire,
    /// `LPUSH key value…`
    Lpush,
    /// `RPUSH key value…`
    Rpush,
    /// `SADD key member…`
    Sadd,
    /// `SREM key member…`
    Srem,
    /// `ZADD key score member…`
    Zadd,
    /// `ZREM key member…`
    Zrem,
}

impl RedisVerb {
    /// Every verb.
    pub const ALL: [Self; 13] = [
        Self::Set,
        Self::Del,
        Self::Unlink,
        Self::Hset,
        Self::Hdel,
        Self::Incrby,
        Self::Expire,
        Self::Lpush,
        Self::Rpush,
        Self::Sadd,
        Self::Srem,
        Self::Zadd,
        Self::Zrem,
    ];

    /// The command in one word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Set => "SET",
            Self::Del => "DEL",
            Self::Unlink => "UNLINK",
            Self::Hset => "HSET",
            Self::Hdel => "HDEL",
            Self::Incrby => "INCRBY",
            Self::Expire => "EXPIRE",
            Self::Lpush => "LPUSH",
            Self::Rpush => "RPUSH",
            Self::Sadd => "SADD",
            Self::Srem => "SREM",
            Self::Zadd => "ZADD",
            Self::Zrem => "ZREM",
        }
    }

    /// The command on this key.
    pub fn on(self, key: impl Into<Vec<u8>>) -> RedisCommand {
        RedisCommand { verb: self, key: key.into(), words: vec![self.word().into()] }
    }
}

/// A command that is being put together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "nothing is written until it is given to a fence"]
pub struct RedisCommand {
    verb: RedisVerb,
    pub(super) key: Vec<u8>,
    /// The verb, then its arguments after the key.
    pub(super) words: Vec<Vec<u8>>,
}

impl RedisCommand {
    /// One more argument after the key.
    pub fn arg(mut self, word: impl Into<Vec<u8>>) -> Self {
        self.words.push(word.into());
        self
    }

    /// Whether its arguments are keys, which no fence was asked about.
    pub(super) fn names_more_keys(&self) -> bool {
        matches!(self.verb, RedisVerb::Del | RedisVerb::Unlink) && self.words.len() > 1
    }
}

/// A script of the caller. Its `KEYS` and `ARGV` are its own: those of the guard are hidden.
///
/// ```
/// use leasehold::fence::redis::RedisScript;
///
/// let script = RedisScript::new("return redis.call('COPY', KEYS[1], KEYS[2], 'REPLACE')").key("seat:14").key("seat:15");
/// # let _ = script;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "nothing is written until it is given to a fence"]
pub struct RedisScript {
    pub(super) text: String,
    pub(super) keys: Vec<Vec<u8>>,
    pub(super) args: Vec<Vec<u8>>,
}

impl RedisScript {
    /// A script without keys and arguments.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), keys: Vec::new(), args: Vec::new() }
    }

    /// One more key.
    pub fn key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.keys.push(key.into());
        self
    }

    /// One more argument.
    pub fn arg(mut self, word: impl Into<Vec<u8>>) -> Self {
        self.args.push(word.into());
        self
    }
}
