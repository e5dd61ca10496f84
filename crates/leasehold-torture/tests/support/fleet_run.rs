//! Clients of several engines on one cluster, while something goes wrong again and again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::engine::{Claim, Engine, Want};
use leasehold_torture::history::{History, Op, OpOutcome};
use leasehold_torture::invariant::{CheckerProfile, believed, check_profile, token_order, token_unique};

use super::laws::assert_laws;
use super::recorder::{NAMES, Recorder, from_environment, sleep_millis};

/// Clients of each engine: those of the first have the numbers from 0 on, and so on.
pub const CLIENTS: u64 = 3;
/// A run goes on until so much happened, even on a slow machine, but not for ever.
const MIN_GRANTS: usize = 60;
const MAX_RUN: Duration = Duration::from_secs(300);
/// A cluster without a leader for a while holds everybody up.
const LAST_PATIENCE: Duration = Duration::from_secs(60);

/// Clients of these engines race while `fault` runs again and again. Every law of what clients are told must hold.
pub async fn assert_lawful_under(engines: Vec<Arc<dyn Engine>>, fault: impl AsyncFn()) {
    assert_lawful(&run_clients(engines, fault).await);
}

/// The checker is not blind: leases that somebody revokes while their clients believe in them are seen. Tokens still rise.
pub async fn assert_revokes_are_seen(engines: Vec<Arc<dyn Engine>>) {
    let operator = engines[0].clone();
    let history = run_clients(engines, async || {
        sleep_millis(20).await;
        for name in NAMES {
            operator.revoke(name, "to be seen").await.expect("it is revoked");
        }
    })
    .await;
    believed::check(&history).expect_err("two clients believe in one lease");
    assert_eq!(token_unique::check(&history), Ok(()));
    assert_eq!(token_order::check(&history), Ok(()));
}

/// Clients of these engines race for as long as it is asked for, while `fault` runs again and again. Every name can be had in
/// the end.
pub async fn run_clients(engines: Vec<Arc<dyn Engine>>, fault: impl AsyncFn()) -> History {
    let recorder = Recorder::new();
    let mut clients = Vec::new();
    for (at, engine) in engines.iter().enumerate() {
        for client in 0..CLIENTS {
            clients.push(tokio::spawn(recorder.clone().run_client(engine.clone(), at as u64 * CLIENTS + client)));
        }
    }
    let (began, span) = (Instant::now(), Duration::from_secs(from_environment("LEASEHOLD_HISTORY_SECONDS", 6)));
    while began.elapsed() < span || (recorder.count_grants() < MIN_GRANTS && began.elapsed() < MAX_RUN) {
        fault().await;
    }
    recorder.stop();
    for client in clients {
        tokio::time::timeout(Duration::from_secs(90), client).await.expect("clients come to an end").expect("no panic");
    }
    for name in NAMES {
        // Nothing is left in the way but leases that nobody released, and they end.
        let claim =
            Claim { wait: LAST_PATIENCE, ..Claim::new(vec![Want::exclusive(name)], Duration::from_secs(5), "last") };
        let grant = engines[0].acquire(claim).await.expect("every name can be had again");
        engines[0].release(&grant.lease_id).await.expect("it is live");
    }
    for engine in engines {
        engine.close().await.expect("closed");
    }
    History { ops: recorder.take_ops(), ..History::default() }
}

/// What was answered with yes through one of the engines, to what was asked and answered between two moments.
pub fn count_yes(history: &History, engine: u64, (from, to): (u64, u64)) -> usize {
    let is_yes = |outcome: &OpOutcome| {
        use OpOutcome::{Granted, Released, Renewed};
        matches!(outcome, Granted { .. } | Renewed { .. } | Released(_))
    };
    let within = |op: &&Op| op.invoke >= from && op.ret.is_some_and(|ret| ret <= to);
    let asked = history.ops.iter().filter(|op| op.client / CLIENTS == engine).filter(within);
    asked.filter(|op| is_yes(&op.outcome)).count()
}

/// An empty history proves nothing.
pub fn assert_lawful(history: &History) {
    let count = |test: fn(&OpOutcome) -> bool| history.ops.iter().filter(|operation| test(&operation.outcome)).count();
    let grants = count(|outcome| matches!(outcome, OpOutcome::Granted { .. }));
    let unknown = count(|outcome| matches!(outcome, OpOutcome::Unknown | OpOutcome::Failed));
    println!("{} operations, {grants} grants, {unknown} without an answer", history.ops.len());
    assert_laws(check_profile(history, CheckerProfile::ANSWERS));
    assert!(grants >= MIN_GRANTS, "only {grants} grants");
}
