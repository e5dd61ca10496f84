//! The statements of the engine: one per function in the schema.

use leasehold_postgres::tokio_postgres::types::{ToSql, Type};

use super::schema::SchemaName;

/// A parameter with its type, so that a statement can be sent without being prepared.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// A statement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sql {
    Batch,
    CheckWaiters,
    Leave,
    Revoke,
    Show,
    List,
    Heartbeat,
    BeginWatch,
    Expire,
    ReadEvents,
    Live,
    BeginSweep,
    Sweep,
    RaiseFloor,
    Identity,
    ServerClock,
}

impl Sql {
    /// All of them, in the order of the enumeration.
    const TEXTS: [&'static str; 16] = [
        "SELECT handle, verdict, token, remaining, renewable, proof, name, holder, queue \
         FROM @.batch($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)",
        "SELECT handle, verdict, token, remaining, renewable FROM @.check_waiters($1)",
        "SELECT verdict, token, remaining, renewable, name, holder, queue FROM @.leave($1, $2, $3, $4, $5, $6, $7)",
        "SELECT @.revoke($1, $2)",
        "SELECT name, held, used::bigint, capacity, holders, labels, tokens, since, remaining, queue, waiters, waiting, \
         head_count, head_capacity FROM @.show($1, $2)",
        "SELECT name FROM @.list($1, $2, $3)",
        "SELECT @.heartbeat($1, $2)",
        "SELECT run, last, first FROM @.begin_watch($1)",
        "SELECT handle, ends FROM @.expire($1)",
        "SELECT run, last, number, kind, token, label, names, reason, ago, handle, ends_in FROM @.read_events($1, $2)",
        "SELECT handle, ends_in FROM @.live($1, $2)",
        "SELECT @.begin_sweep()",
        "SELECT next_name, next_token, next_handle, removed FROM @.sweep($1, $2, $3, $4, $5)",
        "SELECT @.raise_floor($1)",
        "SELECT (SELECT system_identifier FROM pg_control_system())::text, oid::bigint FROM pg_database \
         WHERE datname = current_database()",
        "SELECT @.now_us()",
    ];

    pub const COUNT: usize = Self::TEXTS.len();

    /// The text of every statement for one schema.
    pub fn texts(schema: &SchemaName) -> Vec<String> {
        Self::TEXTS.iter().map(|text| schema.in_sql(text)).collect()
    }
}
