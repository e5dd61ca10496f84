//! What a server is and how it is set: read on every connection before it is used, and again every half minute.
//!
//! The promises follow from it. A setting that cannot be read is a setting that is not as it must be.

use std::collections::BTreeMap;

use redis::Value;

use super::decode::{UnexpectedReply, text};
use crate::engine::known_faults::{KnownFault, fault_findings};
use crate::engine::{Finding, FindingKind, Promise};

/// The oldest server whose replicas refuse our scripts instead of answering from stale data.
const OLDEST_MAJOR: u32 = 7;

/// The settings that a lease needs to be durable and fenced: name, wanted, what follows otherwise.
const SETTINGS: [(&str, &str, &str); 5] = [
    ("appendonly", "yes", "without it a restart forgets every lease"),
    ("appendfsync", "always", "otherwise a crash forgets leases that were acknowledged"),
    ("no-appendfsync-on-rewrite", "no", "otherwise appendfsync is skipped during a rewrite"),
    ("aof-load-truncated", "no", "otherwise a restart drops a damaged tail in silence"),
    ("maxmemory-policy", "noeviction", "otherwise a full memory ends leases that are held"),
];

/// Versions that break a promise although all settings are right.
const KNOWN_FAULTS: [KnownFault; 3] = [
    KnownFault {
        since: [7, 0, 0],
        fixed: [7, 0, 1],
        sentence: "After an error of the disk (MISCONF) replies may come out of step, and a caller may get the reply of another.",
        source: "Redis 7.0.1, #10786",
    },
    KnownFault {
        since: [7, 0, 0],
        fixed: [7, 0, 3],
        sentence: "A rewrite of the append-only file does not sync its directory: a power failure may lose the leases written since.",
        source: "Redis 7.0.3, #10737",
    },
    KnownFault {
        since: [7, 0, 0],
        fixed: [7, 0, 3],
        sentence: "A slow script may be broken off by NOREPLICAS after it has written: half of a grant or of a release is left.",
        source: "Redis 7.0.3, #10855",
    },
];

/// Both promises stand and fall together: a forgotten lease is granted again, and its token may come again.
const DENIED: &[Promise] = &[Promise::Durable, Promise::Fencing];

/// What one connection found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct ServerReport {
    /// `7.0.15`; empty where INFO is denied.
    pub version: String,
    pub cluster: bool,
    pub replica: bool,
    /// Names the history of the data: another one after a restart or a failover.
    pub history: String,
    replicas: u32,
    last_write_failed: bool,
    /// Which run of the server.
    run: String,
    aof: AofState,
    info_denied: bool,
    /// None where CONFIG is denied.
    settings: Option<BTreeMap<String, String>>,
}

/// What the append-only file does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum AofState {
    #[default]
    Off,
    /// Everything is written to it.
    Written,
    /// It is being rewritten. If that is the first time since it was switched on, nothing is written until that is done,
    /// and the server does not show which it is.
    Rewriting,
    /// A rewrite waits for another process of the server. Again nobody is told whether it is the first.
    Scheduled,
    /// The last rewrite failed.
    Failed,
}

impl AofState {
    fn read(field: impl Fn(&str) -> String) -> Self {
        if field("aof_rewrite_scheduled") == "1" {
            Self::Scheduled
        } else if field("aof_rewrite_in_progress") == "1" {
            Self::Rewriting
        } else if field("aof_last_bgrewrite_status") == "err" {
            Self::Failed
        } else if field("aof_enabled") == "1" {
            Self::Written
        } else {
            Self::Off
        }
    }

    /// Setting, what was found, what is wanted, and what follows; none where everything is written, or the file is off: that
    /// is a setting.
    const fn denial(self) -> Option<(&'static str, &'static str, &'static str, &'static str)> {
        match self {
            Self::Off | Self::Written => None,
            Self::Rewriting => Some((
                "aof_rewrite_in_progress",
                "1",
                "0",
                "The append-only file is being rewritten, perhaps for the first time since it was switched on: wait for it.",
            )),
            Self::Scheduled => Some((
                "aof_rewrite_scheduled",
                "1",
                "0",
                "A rewrite of the append-only file is to come, perhaps the first since it was switched on: wait for it.",
            )),
            Self::Failed => Some((
                "aof_last_bgrewrite_status",
                "err",
                "ok",
                "The last rewrite of the append-only file failed: if it was the first, nothing is written.",
            )),
        }
    }
}

impl ServerReport {
    /// From the text of `INFO everything needed`, and the reply to CONFIG GET; none where they are denied.
    pub fn new(info: Option<&str>, config: Option<&Value>) -> Result<Self, UnexpectedReply> {
        let settings = config.map(read_settings).transpose()?;
        let Some(info) = info else {
            return Ok(Self { info_denied: true, settings, ..Self::default() });
        };
        let fields: BTreeMap<&str, &str> = info.lines().filter_map(|line| line.split_once(':')).collect();
        let field = |name: &str| fields.get(name).map_or("", |value| value.trim());
        Ok(Self {
            version: field("redis_version").to_owned(),
            cluster: field("redis_mode") == "cluster",
            replica: field("role") == "slave",
            history: field("master_replid").to_owned(),
            replicas: field("connected_slaves").parse().unwrap_or(0),
            last_write_failed: field("aof_last_write_status") == "err",
            run: field("run_id").to_owned(),
            aof: AofState::read(|name| field(name).to_owned()),
            info_denied: false,
            settings,
        })
    }

    /// Takes into account what was read before. A rewrite of a file that was seen to be written is an ordinary one: what is
    /// new goes to the old file meanwhile.
    #[must_use]
    pub fn after(mut self, earlier: &Self) -> Self {
        let same = self.run == earlier.run && self.history == earlier.history;
        if same && self.aof == AofState::Rewriting && earlier.aof == AofState::Written {
            self.aof = AofState::Written;
        }
        self
    }

    /// What to read in CONFIG.
    pub fn setting_names() -> impl Iterator<Item = &'static str> {
        SETTINGS.iter().map(|(name, ..)| *name)
    }

    /// The value of a setting; none where it cannot be read.
    pub fn setting(&self, name: &str) -> Option<String> {
        self.settings.as_ref()?.get(name).cloned()
    }

    /// Why this server can never be used; none if it can.
    pub fn refusal(&self) -> Option<String> {
        let major = self.version.split('.').next().and_then(|major| major.parse().ok());
        if major.is_some_and(|major: u32| major < OLDEST_MAJOR) {
            return Some(format!(
                "this Redis is version {}, and leases need {OLDEST_MAJOR}.0 or later: on older ones a replica answers from \
                 stale data",
                self.version
            ));
        }
        self.cluster.then(|| {
            "this Redis is a cluster, which this version of Leasehold does not use: in a cluster, resources of one claim \
             share a {tag}"
                .into()
        })
    }

    /// What keeps it from its best promises.
    pub fn findings(&self, sentinel: bool) -> Vec<Finding> {
        let mut found = vec![Finding::denies(
            &[Promise::NeverEarly],
            "clock",
            "the wall clock of the server",
            "a clock that never steps",
            "Redis ends keys by its wall clock: when that clock steps forward, leases end before their time.",
        )];
        match &self.settings {
            None => found.push(Finding::denies(
                DENIED,
                "acl",
                "CONFIG GET is denied or renamed",
                "+config|get",
                "The settings cannot be read, so nothing that depends on them is promised.",
            )),
            Some(settings) => {
                for (name, wanted, follows) in SETTINGS {
                    let value = settings.get(name).map_or("(unknown)", String::as_str);
                    if value != wanted {
                        let sentence = format!("{name} is {value} and must be {wanted}: {follows}.");
                        found.push(Finding::denies(DENIED, name, value, wanted, sentence));
                    }
                }
            }
        }
        if self.info_denied {
            found.push(Finding::denies(
                DENIED,
                "acl",
                "INFO is denied or renamed",
                "+info",
                "Role and replicas cannot be read, so nothing that depends on them is promised.",
            ));
        }
        if self.replicas > 0 {
            let sentence = "A replica may take over without the last leases: they are copied to it after the answer.";
            found.push(Finding::denies(DENIED, "connected_slaves", self.replicas.to_string(), "0", sentence));
        }
        if sentinel {
            let sentence = "A failover may lose the last leases: they are copied to the replica after the answer.";
            found.push(Finding::denies(DENIED, "sentinel", "1", "one server without replicas", sentence));
        }
        if self.last_write_failed {
            let sentence = "The last write to the append-only file failed: the disk is full or broken.";
            found.push(Finding::denies(DENIED, "aof_last_write_status", "err", "ok", sentence));
        }
        if let Some((setting, value, wanted, sentence)) = self.aof.denial() {
            found.push(Finding::denies(DENIED, setting, value, wanted, sentence));
        }
        found.extend(fault_findings("redis_version", &self.version, &KNOWN_FAULTS));
        if !self.version.is_empty() {
            let sentence = format!("The server is Redis {}.", self.version);
            found.push(Finding::note("redis_version", self.version.clone(), sentence));
        }
        found
    }
}

/// The sentence of the first finding that denies fencing.
pub(in crate::engine) fn first_denial(findings: &[Finding]) -> Option<&str> {
    let denies =
        |finding: &&Finding| matches!(&finding.kind, FindingKind::Denies(all) if all.contains(&Promise::Fencing));
    findings.iter().find(denies).map(|finding| finding.sentence.as_str())
}

/// A map in RESP3, pairs in RESP2.
fn read_settings(value: &Value) -> Result<BTreeMap<String, String>, UnexpectedReply> {
    match value {
        Value::Map(pairs) => pairs.iter().map(|(name, value)| Ok((text(name)?, text(value)?))).collect(),
        Value::Array(all) => all.chunks_exact(2).map(|pair| Ok((text(&pair[0])?, text(&pair[1])?))).collect(),
        _ => Err(UnexpectedReply),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "redis_version:7.0.15\r\nredis_mode:standalone\r\nrole:master\r\nconnected_slaves:0\r\n\
        master_replid:abc\r\naof_last_write_status:ok\r\naof_rewrite_in_progress:0\r\n";

    fn config(changed: Option<(&str, &str)>) -> Value {
        let bulk = |text: &str| Value::BulkString(text.into());
        let value = |name: &str, wanted: &str| match changed {
            Some((other, value)) if other == name => bulk(value),
            _ => bulk(wanted),
        };
        Value::Map(SETTINGS.iter().map(|(name, wanted, _)| (bulk(name), value(name, wanted))).collect())
    }

    fn denial(info: &str, config: &Value, sentinel: bool) -> Option<String> {
        let report = ServerReport::new(Some(info), Some(config)).expect("a report");
        first_denial(&report.findings(sentinel)).map(str::to_owned)
    }

    /// Goal: only the server whose settings are all as they must be promises fencing, and each other one is named.
    #[test]
    fn each_weak_setting_is_named() {
        assert_eq!(denial(INFO, &config(None), false), None);
        for (name, weak) in [
            ("appendonly", "no"),
            ("appendfsync", "everysec"),
            ("no-appendfsync-on-rewrite", "yes"),
            ("aof-load-truncated", "yes"),
            ("maxmemory-policy", "allkeys-lru"),
        ] {
            let sentence = denial(INFO, &config(Some((name, weak))), false).expect("it is denied");
            assert!(sentence.contains(name) && sentence.contains(weak), "{sentence}");
        }
        assert!(denial(INFO, &config(None), true).is_some());
        for (good, bad) in [
            ("connected_slaves:0", "connected_slaves:1"),
            ("aof_last_write_status:ok", "aof_last_write_status:err"),
            ("aof_rewrite_in_progress:0", "aof_rewrite_in_progress:1\r\naof_base_size:0"),
            ("aof_rewrite_in_progress:0", "aof_rewrite_in_progress:1\r\naof_base_size:89"),
            ("aof_rewrite_in_progress:0", "aof_rewrite_in_progress:0\r\naof_rewrite_scheduled:1"),
            ("aof_rewrite_in_progress:0", "aof_rewrite_in_progress:0\r\naof_last_bgrewrite_status:err"),
        ] {
            assert!(denial(&INFO.replace(good, bad), &config(None), false).is_some(), "{bad}");
        }
        let denied = ServerReport::new(None, None).expect("a report");
        assert!(first_denial(&denied.findings(false)).is_some());
    }

    /// Goal: a rewrite is ordinary only of a file that was seen to be written, by the same run of the same data.
    #[test]
    fn a_rewrite_is_ordinary_after_the_file_was_seen_to_be_written() {
        let read = |info: &str| ServerReport::new(Some(info), Some(&config(None))).expect("a report");
        let denied = |report: &ServerReport| first_denial(&report.findings(false)).is_some();
        let info = format!("{INFO}run_id:one\r\naof_enabled:1\r\n");
        let written = read(&info).after(&ServerReport::default());
        assert!(!denied(&written));
        let rewriting = info.replace("in_progress:0", "in_progress:1");
        let again = read(&rewriting).after(&written);
        assert!(!denied(&again) && !denied(&read(&rewriting).after(&again)), "an ordinary one, seen twice");
        assert!(denied(&read(&rewriting).after(&ServerReport::default())), "never seen before");
        let off = read(&info.replace("aof_enabled:1", "aof_enabled:0"));
        assert!(denied(&read(&rewriting).after(&off)), "switched off between");
        assert!(denied(&read(&rewriting.replace("one", "two")).after(&written)), "another run");
        assert!(denied(&read(&rewriting.replace("abc", "def")).after(&written)), "other data");
        let scheduled =
            read(&info.replace("in_progress:0", "in_progress:0\r\naof_rewrite_scheduled:1")).after(&written);
        assert!(denied(&scheduled) && denied(&read(&rewriting).after(&scheduled)), "a waiting one may be the first");
    }

    /// Goal: a version with a known fault is a warning, which denies nothing; the one that these tests run on has none.
    #[test]
    fn a_version_with_known_faults_is_a_warning() {
        let faults = |version: &str| {
            let report =
                ServerReport::new(Some(&INFO.replace("7.0.15", version)), Some(&config(None))).expect("a report");
            assert_eq!(first_denial(&report.findings(false)), None);
            let is_fault =
                |finding: &&Finding| finding.setting == "redis_version" && finding.kind == FindingKind::Warning;
            report.findings(false).iter().filter(is_fault).count()
        };
        assert_eq!(["7.0.0", "7.0.2", "7.0.3", "7.0.15", "7.2.4"].map(faults), [3, 2, 0, 0, 0]);
    }

    #[test]
    fn old_servers_and_clusters_are_refused() {
        let refusal = |info: &str| ServerReport::new(Some(info), None).expect("a report").refusal();
        assert_eq!(refusal(INFO), None);
        assert!(refusal(&INFO.replace("7.0.15", "6.2.14")).is_some_and(|sentence| sentence.contains("6.2.14")));
        assert!(refusal(&INFO.replace("standalone", "cluster")).is_some_and(|sentence| sentence.contains("cluster")));
    }
}
