//! What nodes hold: JSON, so that other tools show it.
//!
//! Nothing is decided by the wall clock in it. A deadline is a moment of one boot of one machine: whoever runs there
//! reads it exactly, and everybody else counts the whole span from its own look.

use std::time::Duration;

use leasehold_core::Secret;
use serde::{Deserialize, Serialize};

use crate::clock::{Clock, Time};
use crate::engine::Token;
use crate::engine::consensus::lease_id::{ModeLetter, NamedLease, PublicId};

use super::node_name::NodeStep;

/// What a node of ours holds. Every node of a lease holds the same, but for `names` and `first`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct NodeRecord {
    /// The version of this form.
    pub v: u32,
    /// The whole public id; a part of it is in the name of the node.
    pub id: String,
    pub holder: String,
    pub state: NodeState,
    pub ttl: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub delay: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_hold: Option<u64>,
    /// The process that ends the lease when its time is over.
    pub server: String,
    /// Absent in the write that grants: then it is the zxid of that write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// The boot whose clock `until` and `cap` are of.
    pub boot: String,
    /// When the lease, or the delay after it, ends: nanoseconds of that boot.
    pub until: u64,
    /// When it ends however often it is renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap: Option<u64>,
    /// Since when it holds or waits: milliseconds of the wall clock, for people.
    pub at: u64,
    /// In the first node of a claim on several resources: all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// In the others: the first resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<String>,
    /// The digest of its request id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum NodeState {
    /// As it was made: it holds if it has its turn.
    Try,
    Waiting,
    Held,
    /// The lease lapsed, and its delay lasts.
    Closed,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl NodeRecord {
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok().filter(|record: &Self| record.v == 1)
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("text and numbers are JSON")
    }

    pub const fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl)
    }

    /// More than one resource.
    pub fn is_several(&self) -> bool {
        !self.names.is_empty() || self.first.is_some()
    }

    /// Whether this is a place in a queue, and no lease yet.
    pub fn waits(&self, step: Option<NodeStep>) -> bool {
        step == Some(NodeStep::Waiting) || self.state == NodeState::Waiting
    }

    /// The token, from the record or the zxid of the write that granted.
    pub fn token(&self, zxid: i64, base: u64) -> Option<Token> {
        self.token.or_else(|| token_number(zxid, base)).and_then(Token::new)
    }

    /// Whether `until` and `cap` are moments of the clock of this machine.
    ///
    /// Nobody on this boot wrote an end that is further away than its span. One that is comes from a copy of this machine,
    /// made while it ran, whose clock is ahead.
    fn is_of_this_boot(&self, clock: &dyn Clock) -> bool {
        self.boot == boot_text(clock) && self.until <= clock.now().plus(self.span()).as_nanos()
    }

    /// When it ends, if this machine can tell.
    pub fn known_end(&self, clock: &dyn Clock) -> Option<Time> {
        self.is_of_this_boot(clock).then(|| Time::from_nanos(self.until))
    }

    /// When it ends at most, counted by this process, which looks now.
    pub fn latest_end(&self, clock: &dyn Clock, now: Time) -> Time {
        self.known_end(clock).unwrap_or_else(|| now.plus(self.span()))
    }

    /// The whole span that the record is about: a life, or the delay after it.
    pub fn span(&self) -> Duration {
        Duration::from_millis(if self.state == NodeState::Closed { self.delay } else { self.ttl })
    }

    /// When renewals end, if this machine can tell.
    pub fn known_cap(&self, clock: &dyn Clock) -> Option<Time> {
        self.cap.filter(|_| self.is_of_this_boot(clock)).map(Time::from_nanos)
    }
}

/// What the token of a write is.
pub(super) fn token_number(zxid: i64, base: u64) -> Option<u64> {
    u64::try_from(zxid).ok().and_then(|zxid| zxid.checked_add(base))
}

pub(super) fn boot_text(clock: &dyn Clock) -> String {
    format!("{:032x}", u128::from_be_bytes(clock.boot()))
}

/// What the node of a request id holds. The secret is in it: a repeat gets the same lease id.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct RequestRecord {
    pub v: u32,
    /// What was asked.
    pub fingerprint: u64,
    pub secret: String,
    pub first: String,
    pub letter: char,
    pub state: NodeState,
    pub server: String,
    /// Absent in the write that grants: then it is the zxid of that write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
}

impl RequestRecord {
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok().filter(|record: &Self| record.v == 1)
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("text and numbers are JSON")
    }

    /// The lease with this token; none if the record is not one of ours.
    pub fn lease(&self, token: Token) -> Option<NamedLease> {
        Some(NamedLease {
            token,
            letter: ModeLetter::from_char(self.letter.to_ascii_lowercase())?,
            several: self.letter.is_ascii_uppercase(),
            first: self.first.clone(),
            // A secret has the form of a public id.
            secret: PublicId::from_hex(&self.secret).map(|bits| Secret::new(bits.0))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::ManualClock;

    fn record() -> NodeRecord {
        NodeRecord {
            v: 1,
            id: "00".repeat(16),
            holder: "ada".into(),
            state: NodeState::Try,
            ttl: 1500,
            delay: 0,
            max_hold: None,
            server: "s1".into(),
            token: None,
            boot: "b".into(),
            until: 7,
            cap: None,
            at: 9,
            names: Vec::new(),
            first: None,
            request: None,
        }
    }

    /// Goal: the form is short and stays: other versions read it.
    #[test]
    fn a_record_has_the_documented_form() {
        let text = String::from_utf8(record().to_bytes()).expect("text");
        let id = "00".repeat(16);
        assert_eq!(
            text,
            format!(
                r#"{{"v":1,"id":"{id}","holder":"ada","state":"try","ttl":1500,"server":"s1","boot":"b","until":7,"at":9}}"#
            )
        );
        assert_eq!(NodeRecord::parse(text.as_bytes()).expect("a record").ttl, 1500);
        assert!(NodeRecord::parse(text.replace("\"v\":1", "\"v\":2").as_bytes()).is_none());
        assert!(NodeRecord::parse(b"").is_none());
        assert!(NodeRecord::parse(b"__REVOKE__").is_none());
    }

    /// Goal: the token is the zxid of the granting write, kept by later writes, and a base is added once.
    #[test]
    fn a_token_is_the_zxid_of_the_granting_write() {
        let fresh = record();
        assert_eq!(fresh.token(40, 2), Token::new(42));
        assert_eq!(NodeRecord { token: Some(42), ..fresh.clone() }.token(99, 2), Token::new(42));
        assert_eq!(fresh.token(i64::MAX, 1), None);
        assert_eq!(fresh.token(-1, 0), None);
    }

    /// Goal: a moment is compared only with a clock that it may be of: not with that of another boot, nor with that of a copy of
    /// this machine that runs ahead.
    #[test]
    fn a_moment_of_another_clock_is_not_known() {
        let clock = ManualClock::new();
        clock.advance(Duration::from_secs(10));
        let (now, ttl) = (clock.now(), Duration::from_millis(1500));
        let written = |until: Time, boot: String| {
            let record = NodeRecord { until: until.as_nanos(), cap: Some(until.as_nanos()), boot, ..record() };
            (record.known_end(&clock), record.known_cap(&clock), record.latest_end(&clock, now))
        };
        let (end, here) = (now.plus(ttl), boot_text(&clock));
        assert_eq!(written(end, here.clone()), (Some(end), Some(end), end));
        assert_eq!(written(now, here.clone()), (Some(now), Some(now), now));
        assert_eq!(written(now, "another".into()), (None, None, end));
        assert_eq!(written(end.plus(Duration::from_nanos(1)), here), (None, None, end));
    }
}
