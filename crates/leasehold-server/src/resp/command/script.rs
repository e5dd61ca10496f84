//! The scripts of the lock clients that exist, recognised by their SHA-1 and run as native operations.
//!
//! There is no script machine here: any other script is refused in one sentence.

use sha1::{Digest, Sha1};

/// What a script does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockScript {
    /// Take all keys or none: answers how many.
    Acquire,
    /// Delete the key with this value: answers 1 or 0.
    Release,
    /// Delete those of the keys that have this value: answers how many.
    ReleaseAll,
    /// Set the end of the key with this value: answers 1 or 0.
    Expire,
    /// Set the end of all keys if they all have this value: answers how many, or 0.
    ExpireAll,
    /// Add to the end of the key with this value, or set it, as the third argument says: answers 1 or 0.
    Extend,
}

/// SHA-1 of the text, what it does, and whose it is.
const KNOWN: [(&str, LockScript, &str); 16] = [
    ("c3f8721cbb97f72bc19e972846bd7aaf91901658", LockScript::Release, "redis-py"),
    ("a4e8783852e6b949f9ef3a97212805108459a890", LockScript::Extend, "redis-py"),
    ("1cac51482acf5858da00f6d685d68f886cd6b6b2", LockScript::Expire, "redis-py"),
    ("e5a322e2634ef59a516e8ea150cb085afafee684", LockScript::Acquire, "redlock 4 for node"),
    ("0f0f23b9048b36752b5be114f357ba083449f908", LockScript::ReleaseAll, "redlock 4 for node"),
    ("ce46f80993d5dac20dd066eb301a4e37994bdbed", LockScript::ExpireAll, "redlock 4 for node"),
    ("daf86bbf8740dd3ca86733367a016364b2110627", LockScript::Release, "rslock"),
    ("17a49af0c4b1a9034503fa84f3570f5ca76c4cbf", LockScript::Expire, "rslock"),
    ("7157921a7cc7cfba979acf6d63f073151df17d12", LockScript::Release, "redis-semaphore"),
    ("594683e49a64ebaf975caf5f8079a1d097c438f1", LockScript::Expire, "redis-semaphore"),
    // The release script as the documentation of Redis gives it, in the spellings people copy.
    ("647c65a442733a1aa440f99908d249d13b4d6c4a", LockScript::Release, "the documentation of Redis"),
    ("b70c2384248f88e6b75b9f89241a180f856ad852", LockScript::Release, "the documentation of Redis"),
    ("f4984e94dda5d9bba88c7bdb1a61c5508d8bfd9c", LockScript::Release, "the documentation of Redis"),
    ("ae3671744a5dbb24ea37ef607b8b10ac7856d43e", LockScript::Release, "the documentation of Redis"),
    ("e9f69f2beb755be68b5e456ee2ce9aadfbc4ebf4", LockScript::Release, "the documentation of Redis"),
    ("cf0e94b2e9ffc7e04395cf88f7583fc309985910", LockScript::Release, "the documentation of Redis"),
];

/// What everybody else is told.
pub const UNKNOWN: &str = "this server runs no scripts: it knows those of common lock clients (redis-py, redlock, \
    rslock, redis-semaphore) by their SHA-1, and this is none of them; LEASE ACQUIRE, RENEW and RELEASE do the same";

/// The script with this SHA-1, in hexadecimal of either case.
pub fn by_sha(sha: &[u8]) -> Option<LockScript> {
    KNOWN.iter().find(|(known, ..)| known.as_bytes().eq_ignore_ascii_case(sha)).map(|(_, script, _)| *script)
}

/// The SHA-1 of a script's text.
pub fn sha(text: &[u8]) -> String {
    Sha1::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}
