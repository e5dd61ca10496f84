//! What the server's settings allow the engine to promise: read at open, on every connection and every 30 s.
//!
//! # Laws
//!
//! 1. What was promised at open stays promised. A setting that is weaker later makes acquires Unavailable, with the
//!    setting named; leases that exist are renewed and released.

use std::sync::{Mutex, PoisonError};

use super::connection::EngineConnection;
use super::sql_error::{Cause, SqlFailure};
use crate::engine::{Finding, Promise, Promises};

/// `trim_array` came with 14.
const OLDEST_SERVER: i32 = 140_000;

/// Both go together: a token that is lost can come again.
const BOTH: [Promise; 2] = [Promise::Durable, Promise::Fencing];

const FACTS: &str = "SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), \
     current_setting('transaction_read_only') = 'on', current_setting('synchronous_commit'), \
     current_setting('fsync'), current_setting('full_page_writes'), \
     (SELECT string_agg(coalesce(r.application_name, 'unknown') || ' ' || coalesce(r.sync_state, 'unknown'), ', ') \
      FROM pg_stat_replication r WHERE coalesce(r.state, '') <> 'backup' \
      AND coalesce(r.sync_state, '') NOT IN ('sync', 'quorum') \
      AND coalesce(r.application_name, '') NOT IN ('pg_basebackup', 'pg_receivewal') \
      AND NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical')), \
     (SELECT count(*) FROM pg_stat_replication r WHERE r.sync_state = 'quorum'), \
     current_setting('synchronous_standby_names')";

/// The settings of a session and of its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerFacts {
    pub version: i32,
    pub in_recovery: bool,
    pub read_only: bool,
    pub synchronous_commit: String,
    pub fsync: String,
    pub full_page_writes: String,
    /// Standbys that are not synchronous, or not known to be.
    pub asynchronous_standbys: Option<String>,
}

/// Reads the facts of a session.
pub(super) async fn read_facts(connection: &EngineConnection) -> Result<ServerFacts, SqlFailure> {
    // Not prepared: it is asked once on most connections.
    let rows = connection.query_once(FACTS).await?;
    let row = rows.first().ok_or_else(|| SqlFailure::Away(Cause::new("the settings cannot be read")))?;
    let read = || {
        let quorum: i64 = row.try_get(7)?;
        let names: String = row.try_get(8)?;
        let outside: Option<String> = row.try_get(6)?;
        let some_of_many = (quorum > 0 && !waits_for_all(&names, quorum)).then(|| format!("some of {names}"));
        let standbys: Vec<String> = outside.into_iter().chain(some_of_many).collect();
        Ok(ServerFacts {
            version: row.try_get(0)?,
            in_recovery: row.try_get(1)?,
            read_only: row.try_get(2)?,
            synchronous_commit: row.try_get(3)?,
            fsync: row.try_get(4)?,
            full_page_writes: row.try_get(5)?,
            asynchronous_standbys: (!standbys.is_empty()).then(|| standbys.join(", ")),
        })
    };
    read().map_err(|error| SqlFailure::from_statement(&error))
}

/// Whether `ANY n (list)` waits for everybody in the list, and for everybody who is connected: a `*` stands for many.
fn waits_for_all(names: &str, connected: i64) -> bool {
    let Some((head, list)) = names.trim().trim_end_matches(')').split_once('(') else { return false };
    let number = head.split_whitespace().last().and_then(|word| word.parse::<usize>().ok());
    // A comma inside quotes makes the list look longer: then less is promised.
    let listed = list.split(',').count();
    number.is_some_and(|number| number >= listed && number >= usize::try_from(connected).unwrap_or(usize::MAX))
}

impl ServerFacts {
    /// A server on which nothing can be granted.
    pub fn refuse_unusable(&self) -> Result<(), SqlFailure> {
        if self.version < OLDEST_SERVER {
            let sentence = format!("PostgreSQL {} is too old: the engine needs 14 or newer", self.version / 10_000);
            return Err(SqlFailure::Never(sentence));
        }
        if self.in_recovery {
            return Err(SqlFailure::Away(Cause::new(
                "the server is a standby: name the primary in the url, or all servers, separated by commas",
            )));
        }
        if self.read_only {
            return Err(SqlFailure::Away(Cause::new("the server is read only: default_transaction_read_only is on")));
        }
        Ok(())
    }

    /// What these settings deny, each with its sentence.
    pub fn find_denials(&self, clocks_synced: bool) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut deny = |setting: &str, found: &str, wanted: &str, sentence: &str| {
            findings.push(Finding::denies(&BOTH, setting, found, wanted, sentence));
        };
        match self.synchronous_commit.as_str() {
            "on" | "remote_apply" => {}
            "remote_write" => deny(
                "synchronous_commit",
                "remote_write",
                "on",
                "an acknowledged lease may be lost when the standby crashes with the primary",
            ),
            weak => deny(
                "synchronous_commit",
                weak,
                "on",
                "an acknowledged lease may be lost in a crash; the engine grants nothing in such a session",
            ),
        }
        for (setting, found) in [("fsync", &self.fsync), ("full_page_writes", &self.full_page_writes)] {
            if found != "on" {
                deny(
                    setting,
                    found,
                    "on",
                    "an acknowledged lease may be lost in a crash, and its token may come again",
                );
            }
        }
        if let Some(standbys) = &self.asynchronous_standbys {
            let promises: &[Promise] = if clocks_synced { &[Promise::Durable] } else { &BOTH };
            findings.push(Finding::denies(
                promises,
                "synchronous_standby_names",
                format!("standbys that are not synchronous, or may not be seen: {standbys}"),
                "all standbys synchronous (pg_monitor lets the engine see it)",
                "a failover to an asynchronous standby loses acknowledged leases: name it in synchronous_standby_names",
            ));
        }
        findings
    }
}

/// Compares what is found with what was promised.
pub(super) struct PromiseCheck {
    clocks_synced: bool,
    state: Mutex<CheckState>,
}

#[derive(Default)]
struct CheckState {
    promised: Option<Promises>,
    /// The setting that is weaker than it was.
    weaker: Option<Cause>,
}

impl PromiseCheck {
    pub fn new(clocks_synced: bool) -> Self {
        Self { clocks_synced, state: Mutex::default() }
    }

    /// What can be promised with these facts.
    pub fn promises(&self, facts: &ServerFacts) -> Promises {
        let denials = facts.find_denials(self.clocks_synced);
        let denied = |promise: Promise| {
            denials.iter().any(|finding| {
                matches!(&finding.kind, crate::engine::FindingKind::Denies(promises) if promises.contains(&promise))
            })
        };
        let best = super::PROFILE.best;
        Promises {
            durable: best.durable && !denied(Promise::Durable),
            fencing: best.fencing && !denied(Promise::Fencing),
            ..best
        }
    }

    /// From now on these are promised.
    pub fn set_promised(&self, promises: Promises) {
        self.lock().promised = Some(promises);
    }

    /// Notes whether these facts allow less than was promised.
    pub fn compare(&self, facts: &ServerFacts) {
        let now = self.promises(facts);
        let denials = facts.find_denials(self.clocks_synced);
        let mut state = self.lock();
        let Some(promised) = state.promised else { return };
        let less = (promised.durable && !now.durable) || (promised.fencing && !now.fencing);
        state.weaker = denials
            .first()
            .filter(|_| less)
            .map(|finding| Cause::new(format!("{} is {} now: {}", finding.setting, finding.found, finding.sentence)));
    }

    /// Why nothing is granted at the moment.
    pub fn weaker_setting(&self) -> Option<Cause> {
        self.lock().weaker.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, CheckState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> ServerFacts {
        ServerFacts {
            version: 150_018,
            in_recovery: false,
            read_only: false,
            synchronous_commit: "on".into(),
            fsync: "on".into(),
            full_page_writes: "on".into(),
            asynchronous_standbys: None,
        }
    }

    /// Goal: each weak setting denies what it must, and is named.
    #[test]
    fn each_weak_setting_is_named() {
        let check = PromiseCheck::new(false);
        assert!(check.promises(&good()).durable && check.promises(&good()).fencing);
        for (facts, setting) in [
            (ServerFacts { synchronous_commit: "off".into(), ..good() }, "synchronous_commit"),
            (ServerFacts { synchronous_commit: "remote_write".into(), ..good() }, "synchronous_commit"),
            (ServerFacts { fsync: "off".into(), ..good() }, "fsync"),
            (ServerFacts { full_page_writes: "off".into(), ..good() }, "full_page_writes"),
            (ServerFacts { asynchronous_standbys: Some("b async".into()), ..good() }, "synchronous_standby_names"),
        ] {
            let promises = check.promises(&facts);
            assert!(!promises.durable && !promises.fencing && promises.fair, "{setting}");
            assert_eq!(facts.find_denials(false)[0].setting, setting);
        }
        let standby = ServerFacts { asynchronous_standbys: Some("b async".into()), ..good() };
        let promises = PromiseCheck::new(true).promises(&standby);
        assert!(!promises.durable && promises.fencing, "with synchronised clocks tokens rise over a failover");
        assert!(ServerFacts { version: 130_000, ..good() }.refuse_unusable().is_err());
        assert!(ServerFacts { in_recovery: true, ..good() }.refuse_unusable().is_err());
    }

    /// Goal: a commit that some standbys may lack is told from one that all have.
    #[test]
    fn a_quorum_of_all_is_told_from_a_part() {
        for (names, connected, all) in [
            ("ANY 1 (a)", 1, true),
            ("any 2 (a, b)", 2, true),
            ("ANY 2(a,b)", 2, true),
            ("ANY 1 (a, b)", 1, false),
            ("ANY 1 (*)", 1, true),
            ("ANY 1 (*)", 2, false),
            ("ANY 2 (a, b, c)", 3, false),
            ("", 1, false),
        ] {
            assert_eq!(waits_for_all(names, connected), all, "{names} {connected}");
        }
    }

    /// Goal: a setting that got weaker is known until it is right again; one that was weak at open is not news.
    #[test]
    fn a_setting_that_got_weaker_is_known() {
        let check = PromiseCheck::new(false);
        let weak = ServerFacts { fsync: "off".into(), ..good() };
        check.set_promised(check.promises(&good()));
        check.compare(&weak);
        assert!(check.weaker_setting().is_some_and(|cause| cause.to_string().starts_with("fsync is off now")));
        check.compare(&good());
        assert!(check.weaker_setting().is_none());
        check.set_promised(check.promises(&weak));
        check.compare(&weak);
        assert!(check.weaker_setting().is_none());
    }
}
