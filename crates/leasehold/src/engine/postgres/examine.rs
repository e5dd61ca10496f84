//! What an operator should know of the server: what its settings deny, and what may become a problem.

use leasehold_postgres::tokio_postgres::Row;
use leasehold_postgres::tokio_postgres::types::Type;

use super::connection::EngineConnection;
use super::shared::PostgresShared;
use super::sql_error::SqlFailure;
use super::statements::Sql;
use super::verify::read_facts;
use crate::engine::clock_offset::{CLOCK_PROBES, ClockProbes};
use crate::engine::known_faults::{KnownFault, fault_findings};
use crate::engine::{Finding, Promise};
use crate::error::Error;

/// A transaction that is open for so long keeps vacuum from its work.
const LONG_TRANSACTION_SECONDS: i64 = 600;
/// Connections that should be left for others.
const FEW_CONNECTIONS: i64 = 10;

const STATE: &str = "SELECT current_setting('max_connections')::bigint - (SELECT count(*) FROM pg_stat_activity \
         WHERE backend_type = 'client backend'), \
     (SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::bigint FROM pg_stat_activity \
         WHERE backend_xmin IS NOT NULL AND backend_type = 'client backend'), \
     current_setting('max_locks_per_transaction')::bigint, \
     (SELECT string_agg(DISTINCT coalesce(nullif(a.application_name, ''), 'pid ' || l.pid), ', ') FROM pg_locks l \
         LEFT JOIN pg_stat_activity a ON a.pid = l.pid WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted \
         AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
         AND l.classid::bigint IN ($1 & 4294967295, ($1 # 1) & 4294967295) \
         AND coalesce(a.application_name, '') NOT LIKE 'leasehold%'), \
     (SELECT string_agg(n.nspname, ', ' ORDER BY n.nspname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.relname = 'watch_state' AND c.relkind = 'r' AND n.nspname <> $2), \
     current_setting('server_version'), current_setting('synchronous_standby_names'), \
     (SELECT string_agg(s.slot_name, ', ' ORDER BY s.slot_name) FROM pg_replication_slots s \
         WHERE s.slot_type = 'physical' AND NOT s.active AND NOT s.temporary)";

/// Advisory locks that no engine of ours holds, who has them, and at which port the server itself was reached.
const OTHERS: &str = "SELECT count(*), \
         string_agg(DISTINCT coalesce(nullif(a.application_name, ''), 'pid ' || l.pid), ', '), inet_server_port() \
     FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid WHERE l.locktype = 'advisory' AND l.granted \
     AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
     AND NOT (l.objsubid = 2 AND l.classid::bigint IN ($1 & 4294967295, ($1 # 1) & 4294967295)) \
     AND coalesce(a.application_name, '') NOT LIKE 'leasehold%'";

/// Versions that may lose or hide rows.
const KNOWN_FAULTS: [KnownFault; 2] = [
    KnownFault {
        since: [14, 0, 0],
        fixed: [14, 2, 0],
        sentence: "vacuum may corrupt chains of updated rows, so that an index finds the wrong one",
        source: "PostgreSQL 14.2, release notes: reindex the tables of the engine after the update",
    },
    KnownFault {
        since: [14, 0, 0],
        fixed: [14, 4, 0],
        sentence: "an index that was made or rebuilt CONCURRENTLY may miss rows, and so a lease may not be found",
        source: "PostgreSQL 14.4, release notes: rebuild such indexes after the update",
    },
];

/// What follows from a clock that is not kept.
const CLOCK_FOLLOWS: &str =
    "leases end by the clock of the server: when it is put right by a step forward, they end before their time";

impl PostgresShared {
    /// See [`crate::engine::Engine::examine`].
    pub(super) async fn examine_server(&self) -> Result<Vec<Finding>, Error> {
        let attempt = || "examine the engine".to_owned();
        let failed = |failure: SqlFailure| match failure {
            SqlFailure::Unknown(cause) => SqlFailure::Away(cause).into_error(false, attempt()),
            other => other.into_error(false, attempt()),
        };
        let connection = self.reader.get().await.map_err(failed)?;
        let facts = read_facts(&connection).await.map_err(failed)?;
        let mut findings = facts.find_denials(self.options().clocks_synced);
        findings.push(Finding::denies(
            &[Promise::NeverEarly],
            "clock",
            "the wall clock of the primary",
            "a clock that is never set",
            "a server whose clock is set forward ends leases early: a fence makes that harmless",
        ));
        let _ = self.read_server_clock().await;
        let step = self.clocks.largest_step();
        if step != 0 {
            findings.push(Finding::warning(
                "clock",
                format!("set by {} ms", step / 1000),
                "slewed, never set",
                "the clock of the server was set while this engine watched it: leases ended early or late by as much",
            ));
        }
        if let Some(cause) = self.sweeps.last_failure() {
            let sentence = "what is over is not forgotten: the tables of the engine grow until this is put right";
            findings.push(Finding::warning("sweep", format!("failed: {cause}"), "once a minute", sentence));
        }
        let class = i64::from(self.options().schema.lock_class());
        let name = self.options().schema.as_str();
        let rows = connection.client().query_typed(STATE, &[(&class, Type::INT8), (&name, Type::TEXT)]).await;
        let rows = rows.map_err(|error| failed(SqlFailure::from_statement(&error)))?;
        if let Some(row) = rows.first() {
            self.add_state(row, &mut findings);
        }
        let version = format!("{}.{}", facts.version / 10_000, facts.version % 10_000);
        findings.extend(fault_findings("server_version", &version, &KNOWN_FAULTS));
        findings.extend(self.measure_clock(&connection).await);
        findings.extend(self.find_others(&connection, class).await);
        if self.options().pooler && self.options().listen.is_none() {
            let sentence = "waiting claims are found by checks every second: say listen=HOST:PORT of the server";
            findings.push(Finding::warning("messages", "pooler=1 without listen=", "listen=HOST:PORT", sentence));
        }
        Ok(findings)
    }

    /// How far the clock that leases end by is from ours.
    async fn measure_clock(&self, connection: &EngineConnection) -> Option<Finding> {
        let mut probes = ClockProbes::default();
        for _ in 0..CLOCK_PROBES {
            let started = ClockProbes::start_probe();
            let rows = connection.query(Sql::ServerClock, &[]).await.ok()?;
            probes.end_probe(started, rows.first()?.try_get(0).ok()?);
        }
        probes.offset().map(|offset| offset.finding("clock of the server", CLOCK_FOLLOWS))
    }

    /// Other programs with advisory locks, and whatever stands between us and the server.
    async fn find_others(&self, connection: &EngineConnection, class: i64) -> Vec<Finding> {
        let mut findings = Vec::new();
        let rows = connection.query_text(OTHERS, &[(&class, Type::INT8)]).await.unwrap_or_default();
        let Some(row) = rows.first() else { return findings };
        let locks: i64 = row.try_get(0).unwrap_or(0);
        if let Ok(Some(who)) = row.try_get::<_, Option<String>>(1) {
            let sentence =
                "other programs use advisory locks in this database: they and leases do not exclude each other";
            findings.push(Finding::note("other lock clients", format!("{locks} advisory locks of {who}"), sentence));
        }
        let asked = self.options().address.config().get_ports();
        if let Ok(Some(port)) = row.try_get::<_, Option<i32>>(2)
            && !asked.is_empty()
            && !asked.iter().any(|asked| i32::from(*asked) == port)
        {
            let asked: Vec<String> = asked.iter().map(ToString::to_string).collect();
            let found = format!("port {} was asked, port {port} answers", asked.join(", "));
            let sentence =
                "a pooler, a proxy or a port mapping stands before the server: a pooler of transactions needs pooler=1";
            findings.push(Finding::note("pooler", found, sentence));
        }
        findings
    }

    fn add_state(&self, row: &Row, findings: &mut Vec<Finding>) {
        let number = |at: usize| row.try_get::<_, Option<i64>>(at).ok().flatten().unwrap_or(0);
        let text = |at: usize| row.try_get::<_, Option<String>>(at).ok().flatten();
        if number(0) < FEW_CONNECTIONS {
            let sentence = "when max_connections is reached, no new process can open the engine";
            let wanted = format!("at least {FEW_CONNECTIONS}");
            findings.push(Finding::warning("connections left", number(0).to_string(), wanted, sentence));
        }
        if number(1) > LONG_TRANSACTION_SECONDS {
            let sentence = "a transaction that stays open keeps vacuum from removing ended leases: end it";
            let found = format!("{} s", number(1));
            findings.push(Finding::warning("oldest transaction", found, "under 10 minutes", sentence));
        }
        if number(2) < 64 {
            let sentence = "a batch locks a name for each of its callers: with few locks batches are halved";
            findings.push(Finding::warning("max_locks_per_transaction", number(2).to_string(), "64", sentence));
        }
        if let Some(who) = text(3) {
            let sentence = "somebody else holds advisory locks of the engine: names stay closed for as long";
            findings.push(Finding::warning("advisory locks", who, "none but the engine's", sentence));
        }
        if let Some(others) = text(4) {
            let sentence = "engines with different schemas do not exclude each other";
            findings.push(Finding::note("other schemas of engines", others, sentence));
        }
        if let Some(version) = text(5) {
            let sentence = "the engine was tried with PostgreSQL 15, and needs 14 or newer";
            findings.push(Finding::note("server_version", version, sentence));
        }
        if let Some(names) = text(6).filter(|names| !names.is_empty()) {
            let sentence = "with no such standby connected, commits wait for one";
            findings.push(Finding::note("synchronous_standby_names", names, sentence));
        }
        if let Some(slots) = text(7) {
            let sentence =
                "whoever uses these slots is not connected and lags: a failover to it loses acknowledged leases";
            findings.push(Finding::warning("replication slots", slots, "none without a connection", sentence));
        }
    }
}
