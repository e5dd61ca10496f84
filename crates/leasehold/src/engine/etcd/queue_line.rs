//! One queue, as it was read: who is in it, in order, and who of them holds.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Time;

use super::failure::EtcdFailure;
use super::keys::{ContenderKey, KeyLayout};
use super::members::CallKind;
use super::messages::{RangeCall, RangeReply, StoredKey};
use super::shared::EtcdShared;
use super::values::{ContenderState, ContenderValue};
use crate::clock::Clock as _;
use crate::engine::admission::is_admitted;
use crate::engine::consensus::lease_id::PublicId;
use crate::engine::{Mode, Token};

/// The label of a holder that is another client of etcd.
const FOREIGN: &str = "another etcd client";
/// Contenders that are read of one queue when something is decided by it.
const MAX_CONTENDERS: i64 = 100_000;
/// The longest label of another client that is shown.
const MAX_FOREIGN_LABEL: usize = 256;

/// One contender for a resource.
#[derive(Clone, Debug)]
pub(super) struct QueueContender {
    pub key: Vec<u8>,
    pub mode: Mode,
    /// The revision at which it came.
    pub arrival: i64,
    /// The revision at which it was last written.
    pub written: i64,
    pub lease: i64,
    pub kind: ContenderKind,
}

#[derive(Clone, Debug)]
pub(super) enum ContenderKind {
    Ours(PublicId, Box<ContenderValue>),
    /// With what it shows.
    Foreign(String),
}

impl QueueContender {
    /// None: the key belongs to a deeper name.
    pub fn parse(layout: &KeyLayout, name: &str, kv: &StoredKey) -> Result<Option<Self>, EtcdFailure> {
        let (mode, kind) = match layout.parse_contender(name, kv) {
            None => return Ok(None),
            Some(ContenderKey::Ours(_, public)) => {
                let value = ContenderValue::parse(&kv.value, &kv.key)?;
                (value.mode.into(), ContenderKind::Ours(public, Box::new(value)))
            }
            Some(ContenderKey::Foreign(_)) => (Mode::Exclusive, ContenderKind::Foreign(foreign_label(&kv.value))),
        };
        let (arrival, written) = (kv.create_revision, kv.mod_revision);
        Ok(Some(Self { key: kv.key.clone(), mode, arrival, written, lease: kv.lease, kind }))
    }

    pub fn state(&self) -> Option<ContenderState> {
        match &self.kind {
            ContenderKind::Ours(_, value) => Some(value.state),
            ContenderKind::Foreign(_) => None,
        }
    }

    pub fn value(&self) -> Option<(PublicId, &ContenderValue)> {
        match &self.kind {
            ContenderKind::Ours(public, value) => Some((*public, value)),
            ContenderKind::Foreign(_) => None,
        }
    }

    pub fn label(&self) -> &str {
        match &self.kind {
            ContenderKind::Ours(_, value) => &value.holder,
            ContenderKind::Foreign(label) => label,
        }
    }

    pub fn token(&self, shared: &EtcdShared) -> Option<Token> {
        let (_, value) = self.value()?;
        (value.state != ContenderState::Waiting).then(|| grant_token(shared, value, self.written).ok()).flatten()
    }
}

/// The token of a lease: the revision of the write that granted, or what later writes carry.
pub(super) fn grant_token(shared: &EtcdShared, value: &ContenderValue, written: i64) -> Result<Token, EtcdFailure> {
    match value.token {
        Some(number) => Token::new(number)
            .ok_or_else(|| EtcdFailure::Corrupt { law: "a token is a positive number", at: format!("token {number}") }),
        None => shared.token(u64::try_from(written).unwrap_or(0)),
    }
}

/// What another client shows, where it is text: the proposal of an election.
fn foreign_label(value: &[u8]) -> String {
    let text = std::str::from_utf8(value).unwrap_or("").trim();
    let fits = !text.is_empty() && text.len() <= MAX_FOREIGN_LABEL && !text.chars().any(char::is_control);
    if fits { text.to_owned() } else { FOREIGN.to_owned() }
}

/// One queue, in order of arrival.
#[derive(Clone, Debug, Default)]
pub(super) struct QueueLine {
    pub contenders: Vec<QueueContender>,
    /// Contenders that were not read.
    pub unread: usize,
    /// The revision at which it was read.
    pub revision: i64,
}

impl QueueLine {
    pub fn parse(
        layout: &KeyLayout,
        name: &str,
        kvs: &[StoredKey],
        count: usize,
        revision: i64,
    ) -> Result<Self, EtcdFailure> {
        let mut contenders = Vec::with_capacity(kvs.len());
        for kv in kvs {
            contenders.extend(QueueContender::parse(layout, name, kv)?);
        }
        contenders.sort_by_key(|contender| contender.arrival);
        Ok(Self { contenders, unread: count.saturating_sub(kvs.len()), revision })
    }

    pub fn from_reply(layout: &KeyLayout, name: &str, reply: &RangeReply) -> Result<Self, EtcdFailure> {
        let revision = reply.header.as_ref().map_or(0, |header| header.revision);
        Self::parse(layout, name, &reply.kvs, usize::try_from(reply.count).unwrap_or(0), revision)
    }

    pub fn modes(&self) -> impl Iterator<Item = Mode> {
        self.contenders.iter().map(|contender| contender.mode)
    }

    /// Whether a newcomer in this mode would be admitted. Never, when not everybody was read.
    pub fn admits(&self, mode: Mode) -> bool {
        self.unread == 0 && is_admitted(self.modes(), mode)
    }

    /// Another capacity that contenders for permits agreed on.
    pub fn other_capacity(&self, mode: Mode) -> Option<u32> {
        let Mode::Permits { capacity, .. } = mode else { return None };
        self.modes().find_map(|other| match other {
            Mode::Permits { capacity: used, .. } if used != capacity => Some(used),
            _ => None,
        })
    }

    /// Those who hold it, and those who wait for it.
    ///
    /// A claim on this resource alone that is admitted counts as a holder before it is told so. One on several does not:
    /// another resource may keep it waiting.
    pub fn split(&self) -> (Vec<&QueueContender>, Vec<&QueueContender>) {
        let (mut holders, mut waiters) = (Vec::new(), Vec::new());
        let mut before = LineBefore::default();
        for contender in &self.contenders {
            let admitted = before.admits(contender.mode);
            before.add(contender.mode);
            match &contender.kind {
                ContenderKind::Ours(_, value) => match value.state {
                    ContenderState::Held => holders.push(contender),
                    ContenderState::Closed => {}
                    ContenderState::Waiting if admitted && !value.is_several() => holders.push(contender),
                    ContenderState::Waiting => waiters.push(contender),
                },
                ContenderKind::Foreign(_) if admitted => holders.push(contender),
                ContenderKind::Foreign(_) => waiters.push(contender),
            }
        }
        (holders, waiters)
    }
}

/// The modes before a contender, summed up: the rule of [`is_admitted`] without a look at each of them.
#[derive(Default)]
pub(super) struct LineBefore {
    exclusive: bool,
    shared: bool,
    /// Capacity, and permits asked for; `None` with two capacities.
    permits: Option<Option<(u32, u64)>>,
}

impl LineBefore {
    pub fn add(&mut self, mode: Mode) {
        match mode {
            Mode::Exclusive => self.exclusive = true,
            Mode::Shared => self.shared = true,
            Mode::Permits { count, capacity } => {
                self.permits = Some(match self.permits {
                    None => Some((capacity, u64::from(count))),
                    Some(Some((same, taken))) if same == capacity => Some((same, taken + u64::from(count))),
                    Some(_) => None,
                });
            }
        }
    }

    /// Another capacity that all permits before it agree on.
    pub fn other_capacity(&self, mode: Mode) -> Option<u32> {
        match (mode, self.permits) {
            (Mode::Permits { capacity, .. }, Some(Some((used, _)))) if used != capacity => Some(used),
            _ => None,
        }
    }

    pub fn admits(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => !self.exclusive && !self.shared && self.permits.is_none(),
            Mode::Shared => !self.exclusive && self.permits.is_none(),
            Mode::Permits { count, capacity } => {
                !self.exclusive
                    && !self.shared
                    && match self.permits {
                        None => count <= capacity,
                        Some(Some((same, taken))) => {
                            same == capacity && taken + u64::from(count) <= u64::from(capacity)
                        }
                        Some(None) => false,
                    }
            }
        }
    }
}

impl EtcdShared {
    /// A whole queue, as it is now.
    pub async fn read_line(&self, name: &str, limit: Option<i64>) -> Result<QueueLine, EtcdFailure> {
        let range = RangeCall::by_arrival(self.layout.queue(name), limit.unwrap_or(MAX_CONTENDERS));
        let reply = self.members.call(range, CallKind::Read).await?;
        QueueLine::from_reply(&self.layout, name, &reply)
    }

    /// The moment after which a contender of ours is certainly over: never before its deadline.
    pub async fn over_at(self: &Arc<Self>, contender: &QueueContender) -> Result<Option<Time>, EtcdFailure> {
        let Some((public, value)) = contender.value() else { return Ok(None) };
        if value.state == ContenderState::Waiting {
            return Ok(None);
        }
        if let Some(over) = self.own.over_at(public, contender.written) {
            return Ok(Some(over));
        }
        let upper = self.bounds(contender.lease).await?.upper;
        Ok(Some(minus(upper, Duration::from_millis(value.early))))
    }

    /// How long a contender can still hold, for people.
    pub async fn shown_remaining(self: &Arc<Self>, contender: &QueueContender) -> Option<Duration> {
        let now = self.clock.now();
        let Some((public, value)) = contender.value() else {
            let bounds = self.bounds_anew(contender.lease).await?;
            return Some(bounds.upper.since(now));
        };
        if value.state == ContenderState::Waiting {
            return Some(Duration::from_millis(value.ttl));
        }
        if let Some(deadline) = self.own.deadline(public, contender.written) {
            return Some(deadline.since(now));
        }
        let bounds = self.bounds(contender.lease).await.ok()?;
        let early = Duration::from_millis(value.early);
        let (lower, upper) = (minus(bounds.lower, early).since(now), minus(bounds.upper, early).since(now));
        // Wall clocks that agree tell it better than whole seconds do. Those that do not are kept within the bounds.
        let elapsed = u64::try_from(self.wall_millis().saturating_sub(value.renewed)).unwrap_or(0);
        let by_wall = Duration::from_millis(value.ttl.saturating_sub(elapsed));
        Some(by_wall.clamp(lower.min(upper), upper))
    }

    /// The lease of another client is prolonged by its client: what was known of it says nothing.
    async fn bounds_anew(&self, lease: i64) -> Option<super::lease_clock::EndBounds> {
        if lease == 0 {
            return None;
        }
        let sent = self.clock.now();
        let call = super::messages::LeaseTimeToLiveCall { id: lease };
        let seconds = u64::try_from(self.members.call(call, CallKind::Read).await.ok()?.ttl).ok()?;
        let span = Duration::from_secs(seconds);
        Some(super::lease_clock::EndBounds { lower: sent.plus(span), upper: sent.plus(span) })
    }
}

/// A moment minus a span.
pub(super) fn minus(at: Time, span: Duration) -> Time {
    Time::from_nanos(at.as_nanos().saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_mode() -> impl Strategy<Value = Mode> {
        prop_oneof![
            2 => Just(Mode::Exclusive),
            3 => Just(Mode::Shared),
            4 => (1..4_u32, 3..5_u32).prop_map(|(count, capacity)| Mode::Permits { count, capacity }),
        ]
    }

    proptest! {
        /// Goal: the sums decide as the rule does.
        #[test]
        fn sums_decide_as_the_rule_does(modes in prop::collection::vec(any_mode(), 1..12)) {
            let mut before = LineBefore::default();
            for (at, mode) in modes.iter().enumerate() {
                let admitted = is_admitted(modes[..at].iter().copied(), *mode);
                prop_assert_eq!(before.admits(*mode), admitted, "{:?} after {:?}", mode, &modes[..at]);
                before.add(*mode);
            }
        }
    }

    #[test]
    fn another_clients_label_is_shown_where_it_is_text() {
        assert_eq!(foreign_label(b""), FOREIGN);
        assert_eq!(foreign_label(b"node-7 "), "node-7");
        assert_eq!(foreign_label(b"a\nb"), FOREIGN);
        assert_eq!(foreign_label(&[0xff, 0xfe]), FOREIGN);
    }
}
