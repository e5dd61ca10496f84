//! What an operator is told by `leasehold doctor`.

use std::sync::Arc;

use super::failure::EtcdFailure;
use super::keys::ContenderKey;
use super::members::CallKind;
use super::messages::{AlarmCall, MemberListCall, RangeCall, StatusCall, StatusReply};
use super::shared::EtcdShared;
use crate::engine::Finding;
use crate::engine::known_faults::{KnownFault, fault_findings};

/// With so many revisions and none compacted, nobody compacts.
const MANY_REVISIONS: i64 = 10_000;
/// Three quarters of etcd's usual quota.
const LARGE_DATABASE: i64 = 1_500_000_000;
/// Keys that are looked at for locks of other clients.
const LOOKED_AT: i64 = 1000;

/// Faults that bear on leases.
const FAULTS: [KnownFault; 3] = [
    KnownFault {
        since: [3, 4, 0],
        fixed: [3, 4, 21],
        sentence: "A cluster of one member may lose what it acknowledged when it crashes.",
        source: "etcd CHANGELOG-3.4, v3.4.21",
    },
    KnownFault {
        since: [3, 5, 0],
        fixed: [3, 5, 3],
        sentence: "Members may differ in what they hold after a crash under load.",
        source: "etcd CHANGELOG-3.5, v3.5.3",
    },
    KnownFault {
        since: [3, 5, 0],
        fixed: [3, 5, 5],
        sentence: "A cluster of one member may lose what it acknowledged when it crashes.",
        source: "etcd CHANGELOG-3.5, v3.5.5",
    },
];

impl EtcdShared {
    /// All findings. Promises stand whatever is found: none of it denies one.
    pub async fn examine_cluster(self: &Arc<Self>) -> Result<Vec<Finding>, EtcdFailure> {
        let status = self.members.call(StatusCall {}, CallKind::Read).await?;
        let mut findings =
            vec![Finding::note("etcd", status.version.clone(), "The version of the member that is asked.")];
        findings.extend(fault_findings("etcd", &status.version, &FAULTS));
        findings.extend(self.examine_members().await);
        findings.extend(self.examine_space(&status).await);
        findings.extend(self.examine_history(&status).await);
        findings.extend(self.examine_other_clients().await);
        Ok(findings)
    }

    async fn examine_members(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        if let Ok(list) = self.members.call(MemberListCall {}, CallKind::Read).await {
            let voting = list.members.iter().filter(|member| !member.is_learner).count();
            let sentence = match voting {
                1 => "One member: when its disk is lost, so are all leases and the order of tokens.",
                even if even % 2 == 0 => "An even number of members survives no more losses than one less.",
                _ => "",
            };
            if !sentence.is_empty() {
                findings.push(Finding::warning("members", voting.to_string(), "3 or 5", sentence));
            }
        }
        let mut leaders = Vec::new();
        for name in self.members.names().map(str::to_owned).collect::<Vec<_>>() {
            match self.members.ask_member(&name, StatusCall {}).await {
                Ok(status) => leaders.push(status.leader),
                Err(_) => {
                    let sentence = "The url names a member that does not answer.";
                    findings.push(Finding::warning("member", name, "reachable", sentence));
                }
            }
        }
        leaders.sort_unstable();
        leaders.dedup();
        if leaders.len() > 1 || leaders.contains(&0) {
            let sentence = "The members do not agree on a leader: an election is under way, or they are cut off.";
            findings.push(Finding::warning("leader", format!("{} answers", leaders.len()), "one", sentence));
        }
        findings
    }

    async fn examine_space(&self, status: &StatusReply) -> Vec<Finding> {
        let mut findings = Vec::new();
        if let Ok(reply) = self.members.call(AlarmCall {}, CallKind::Read).await {
            for alarm in reply.alarms {
                let (found, sentence) = match alarm.alarm {
                    1 => ("NOSPACE", "etcd takes no more writes: compact it, defragment it, and disarm the alarm."),
                    _ => ("CORRUPT", "A member found that its data differ from the others': replace it."),
                };
                findings.push(Finding::warning("alarm", found, "none", sentence));
            }
        }
        if status.db_size > LARGE_DATABASE {
            let size = format!("{} MB", status.db_size / 1_000_000);
            let sentence = "The database is large: at its quota etcd takes no more writes.";
            findings.push(Finding::warning("database", size, "below the quota", sentence));
        }
        findings
    }

    /// Every renewal is a revision. No call tells the setting, but a first revision that is still there does.
    async fn examine_history(&self, status: &StatusReply) -> Option<Finding> {
        let newest = status.header.as_ref().map_or(0, |header| header.revision);
        if newest < MANY_REVISIONS {
            return None;
        }
        let oldest = RangeCall { revision: 1, count_only: true, ..RangeCall::one(self.layout.raw("\u{1}")) };
        self.members.call(oldest, CallKind::Read).await.ok()?;
        let (found, wanted) = (format!("never, at revision {newest}"), "--auto-compaction-retention=1h");
        let sentence = "Nothing was ever compacted. Every renewal is a revision, and history fills the database.";
        Some(Finding::warning("auto-compaction", found, wanted, sentence))
    }

    async fn examine_other_clients(&self) -> Option<Finding> {
        let (key, range_end) = self.layout.all();
        let call = RangeCall { key, range_end, limit: LOOKED_AT, keys_only: true, ..RangeCall::default() };
        let reply = self.members.call(call, CallKind::Read).await.ok()?;
        let foreign = |kv| matches!(self.layout.parse_any(kv), Some((_, ContenderKey::Foreign(true))));
        let count = reply.kvs.iter().filter(|kv| foreign(kv)).count();
        let sentence =
            "Locks of other clients (etcdctl, Go's Mutex) are among the names: they and Leasehold exclude each other.";
        (count > 0).then(|| Finding::note("other clients", count.to_string(), sentence))
    }
}
