//! What the tables of the engine say after a run, as the record that the laws compare with.

use std::collections::{BTreeMap, HashMap};

use leasehold_core::{End, Mode};
use leasehold_harness::postgres::Cluster;
use leasehold_torture::history::{History, Observation, Op, OpKind, OpOutcome, Recorded};

/// How much earlier than the release before it the grant of a claim that waited can be dated. A batch reads its clock once,
/// and may get the locks of such a claim's other names later. It waits for nothing in between. Seen: 200 microseconds.
const MAX_BACKDATING_US: u64 = 2_000_000;

/// A lease as the table has it. Times are microseconds of the server's clock.
struct StoredLease {
    label: String,
    names: Vec<String>,
    state: String,
    granted: u64,
    ends: u64,
    /// Milliseconds.
    ttl: u64,
    ended: Option<u64>,
    /// It was in a queue before.
    waited: bool,
}

impl StoredLease {
    /// Whether it was over when another one was granted.
    fn is_over_before(&self, next: &Self) -> bool {
        let shares_name = next.names.iter().any(|name| self.names.contains(name));
        match self.ended {
            Some(ended) if next.waited && shares_name => ended <= next.granted + MAX_BACKDATING_US,
            ended => ended.unwrap_or(self.ends) <= next.granted,
        }
    }
}

/// The history of a run: what clients saw, and what is stored. Endings are remembered for ten minutes, so all of it is.
pub async fn read_history(cluster: &Cluster, database: &str, ops: Vec<Op>) -> History {
    read_history_of(cluster, database, ops, str::to_owned).await
}

/// As [`read_history`], of several processes; `relabel` makes the label of an operation its place among all.
pub async fn read_history_of(
    cluster: &Cluster,
    database: &str,
    ops: Vec<Op>,
    relabel: impl Fn(&str) -> String,
) -> History {
    let client = cluster.client(database).await;
    let sql = "SELECT token, label, names, state::text, granted, ends, ttl::bigint, ended, leasehold_engine.now_us(), \
               arrival IS NOT NULL \
               FROM leasehold_engine.lease WHERE token IS NOT NULL";
    let mut leases = BTreeMap::new();
    let mut now = 0;
    for row in client.query(sql, &[]).await.expect("the table is there") {
        let number = |at: usize| u64::try_from(row.get::<_, i64>(at)).expect("not negative");
        now = number(8);
        let ended = row.get::<_, Option<i64>>(7).map(|ended| u64::try_from(ended).expect("not negative"));
        let (label, names, state) = (relabel(row.get(1)), row.get(2), row.get(3));
        let lease = StoredLease {
            label,
            names,
            state,
            granted: number(4),
            ends: number(5),
            ttl: number(6),
            ended,
            waited: row.get(9),
        };
        leases.insert(number(0), lease);
    }
    let observations = find_lost(&ops, &leases);
    let facts = to_facts(&ops, &leases, now);
    History { ops, facts, observations, ..History::default() }
}

/// What was acknowledged and is not stored.
fn find_lost(ops: &[Op], leases: &BTreeMap<u64, StoredLease>) -> Vec<Observation> {
    let mut lost = Vec::new();
    for op in ops {
        let what = match (&op.kind, op.outcome) {
            (OpKind::Acquire(_), OpOutcome::Granted { token, .. }) if !leases.contains_key(&token.get()) => {
                format!("token {token} was granted and is not stored")
            }
            (OpKind::Release { token }, OpOutcome::Released(_))
                if leases.get(&token.get()).is_none_or(|lease| lease.state != "R") =>
            {
                format!("token {token} was released, and is not stored as released")
            }
            _ => continue,
        };
        lost.push(Observation { invariant: "nothing_lost", what });
    }
    lost
}

/// Grants in the order of their tokens, which is that of their commits on each name; before each of them whatever had ended
/// by then.
fn to_facts(ops: &[Op], leases: &BTreeMap<u64, StoredLease>, now: u64) -> Vec<Recorded> {
    let mut facts = Vec::new();
    let mut live: HashMap<u64, &StoredLease> = HashMap::new();
    for (token, lease) in leases {
        end_leases(&mut live, ops, |earlier| earlier.is_over_before(lease), &mut facts);
        let end = lease.granted + lease.ttl * 1000;
        facts.push(Recorded::Granted {
            token: *token,
            holder: lease.label.clone(),
            wants: lease.names.iter().map(|name| (name.clone(), Mode::Exclusive)).collect(),
            at: lease.granted * 1000,
            expires_at: end * 1000,
            cap_at: u64::MAX,
            ttl: lease.ttl * 1_000_000,
            request: acquire_op(ops, lease).and_then(|op| match &op.kind {
                OpKind::Acquire(ask) => ask.request.clone(),
                _ => None,
            }),
            principal: String::new(),
            value: None,
        });
        if lease.ends != end {
            let (expires_at, ttl) = (lease.ends * 1000, lease.ttl * 1_000_000);
            facts.push(Recorded::Renewed { token: *token, expires_at, ttl });
        }
        live.insert(*token, lease);
    }
    end_leases(&mut live, ops, |lease| lease.ended.unwrap_or(lease.ends) <= now, &mut facts);
    facts
}

/// Writes down the ends of what is over.
fn end_leases(
    live: &mut HashMap<u64, &StoredLease>,
    ops: &[Op],
    is_over: impl Fn(&StoredLease) -> bool,
    facts: &mut Vec<Recorded>,
) {
    let mut over: Vec<u64> = live.iter().filter(|(_, lease)| is_over(lease)).map(|(token, _)| *token).collect();
    over.sort_unstable();
    for token in over {
        let Some(lease) = live.remove(&token) else { continue };
        let seen = acquire_op(ops, lease).is_some_and(|op| !matches!(op.outcome, OpOutcome::Unknown));
        let how = match lease.state.as_str() {
            "L" => End::Lapsed,
            "R" if seen => End::Released,
            // The engine ends by itself what it granted to a caller who does not know.
            _ => End::Revoked,
        };
        let at = lease.ended.unwrap_or(lease.ends) * 1000;
        facts.push(Recorded::Ended { token, how, at, closed_until: 0 });
    }
}

/// The operation that a grant names as its holder.
fn acquire_op<'o>(ops: &'o [Op], lease: &StoredLease) -> Option<&'o Op> {
    ops.get(lease.label.strip_prefix("op")?.parse::<usize>().ok()?)
}
