//! What an operator should know of the server: what its settings deny, and what may become a problem.

use leasehold_postgres::tokio_postgres::Row;
use leasehold_postgres::tokio_postgres::types::Type;

use super::shared::PostgresShared;
use super::sql_error::SqlFailure;
use super::verify::read_facts;
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
        if self.options().pooler && self.options().listen.is_none() {
            let sentence = "waiting claims are found by checks every second: say listen=HOST:PORT of the server";
            findings.push(Finding::warning("messages", "pooler=1 without listen=", "listen=HOST:PORT", sentence));
        }
        Ok(findings)
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
