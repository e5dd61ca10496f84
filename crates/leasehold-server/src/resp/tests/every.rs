//! Every command, for the tests that leave none out.

use crate::service::Verb;

/// Every command, as it may be typed: what the tests try one by one, so that none goes around the gate.
///
/// Words stand between spaces; a space inside a word is written `~`.
pub const EVERY: &[(&str, Option<Verb>)] = &[
    ("LEASE ACQUIRE 30000 RESOURCES a", Some(Verb::Acquire)),
    ("LEASE ACQUIRE 30000 EACH a X b S c 1/2", Some(Verb::Acquire)),
    ("LEASE RENEW 1-00000000000000000000000000000000", Some(Verb::Renew)),
    ("LEASE RELEASE 1-00000000000000000000000000000000", Some(Verb::Release)),
    ("LEASE GET a", Some(Verb::Inspect)),
    ("LEASE LIST", Some(Verb::List)),
    ("LEASE REVOKE a REASON x", Some(Verb::Revoke)),
    ("LEASE WATCH", Some(Verb::Watch)),
    ("LEASE PROMISES", Some(Verb::Status)),
    ("SET a v NX PX 30000", Some(Verb::SetKey)),
    ("EVALSHA e5a322e2634ef59a516e8ea150cb085afafee684 1 a v 30000", Some(Verb::SetKey)),
    ("GET a", Some(Verb::GetKey)),
    ("EXISTS a", Some(Verb::GetKey)),
    ("PTTL a", Some(Verb::GetKey)),
    ("TTL a", Some(Verb::GetKey)),
    ("DEL a", Some(Verb::FreeKey)),
    ("EVALSHA c3f8721cbb97f72bc19e972846bd7aaf91901658 1 a v", Some(Verb::FreeKey)),
    (
        "EVAL if~redis.call(\"get\",KEYS[1])~==~ARGV[1]~then~return~redis.call(\"del\",KEYS[1])~else~return~0~end 1 a v",
        Some(Verb::FreeKey),
    ),
    ("PEXPIRE a 30000", Some(Verb::ExtendKey)),
    ("EVALSHA a4e8783852e6b949f9ef3a97212805108459a890 1 a v 1 0", Some(Verb::ExtendKey)),
    ("PING", None),
    ("ECHO x", None),
    ("HELLO", None),
    ("AUTH x", None),
    ("SELECT 0", None),
    ("CLIENT SETNAME x", None),
    ("CLIENT GETNAME", None),
    ("CLIENT ID", None),
    ("CLIENT SETINFO LIB-NAME x", None),
    ("COMMAND", None),
    ("COMMAND COUNT", None),
    ("COMMAND LIST", None),
    ("COMMAND INFO get x", None),
    ("COMMAND DOCS get", None),
    ("INFO", None),
    ("SCRIPT EXISTS x", None),
    ("SCRIPT LOAD x", None),
    ("MULTI", None),
    ("EXEC", None),
    ("DISCARD", None),
    ("QUIT", None),
];
