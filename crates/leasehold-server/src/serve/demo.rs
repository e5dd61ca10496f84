//! `--demo`: actors that use leases, so that the page shows something before the server is used.
//!
//! Actors acquire, renew, release and lose leases under `demo/`. They use the service with a principal that has no
//! rights outside that prefix. They stop with the server; their leases lapse.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::engine::{Claim, Mode, Want};
use tokio_util::sync::CancellationToken;

use crate::service::{Caller, Principal, Role, Roles, Service};

/// How an actor ends its lease.
#[derive(Clone, Copy)]
enum ActorExit {
    /// Releases it.
    Release,
    /// Stops renewing, as after a crash: the lease lapses.
    Crash,
}

/// One actor, which acquires again and again.
struct DemoActor {
    holder: &'static str,
    wants: Vec<Want>,
    ttl: Duration,
    /// How long it keeps the lease.
    keeps: Duration,
    /// The pause until it acquires again.
    rests: Duration,
    exit: ActorExit,
}

#[derive(Clone)]
struct DemoActors {
    service: Arc<Service>,
    clock: Arc<dyn Clock>,
    caller: Caller,
}

/// Starts the tasks of all actors.
pub fn start(service: &Arc<Service>, clock: &Arc<dyn Clock>, stop: &CancellationToken) {
    let roles = Roles::from_roles([Role::Lease, Role::Admin]);
    let caller = service.internal_caller(Principal::new("demo".into(), roles, vec!["demo/".into()], None));
    let actors = DemoActors { service: service.clone(), clock: clock.clone(), caller };
    for actor in demo_actors() {
        let actors = actors.clone();
        tokio::spawn(stop.clone().run_until_cancelled_owned(async move { actors.run_actor(actor).await }));
    }
    tokio::spawn(stop.clone().run_until_cancelled_owned(async move { actors.revoke_now_and_then().await }));
}

fn want(name: &str, mode: Mode) -> Want {
    Want { name: format!("demo/{name}"), mode }
}

fn demo_actors() -> Vec<DemoActor> {
    let s = Duration::from_secs;
    let actor = |holder, wants: &[Want], keeps, rests, exit| DemoActor {
        holder,
        wants: wants.to_vec(),
        ttl: s(9),
        keeps: s(keeps),
        rests: s(rests),
        exit,
    };
    let one = |name| [want(name, Mode::Exclusive)];
    let shared = |name| [want(name, Mode::Shared)];
    let slots = |count| [want("gpu-slots", Mode::Permits { count, capacity: 4 })];
    let pair = [want("seat-14", Mode::Exclusive), want("seat-15", Mode::Exclusive)];
    use ActorExit::{Crash, Release};
    vec![
        actor("ada@web-1", &one("seat-14"), 12, 3, Release),
        actor("bob@web-2", &one("seat-14"), 7, 2, Release),
        actor("cleo@web-3", &pair, 5, 9, Release),
        actor("scheduler-a", &one("leader/scheduler"), 45, 5, Release),
        actor("scheduler-b", &one("leader/scheduler"), 30, 1, Release),
        actor("report@batch-1", &one("nightly-report"), 14, 20, Crash),
        actor("reader-1", &shared("price-list"), 20, 4, Release),
        actor("reader-2", &shared("price-list"), 15, 6, Release),
        actor("editor", &one("price-list"), 4, 25, Release),
        actor("trainer-1", &slots(2), 18, 3, Release),
        actor("trainer-2", &slots(1), 11, 2, Release),
        actor("trainer-3", &slots(2), 13, 4, Release),
        actor("migration@db-3", &one("schema-migration"), 600, 5, Release),
    ]
}

impl DemoActors {
    async fn sleep(&self, span: Duration) {
        self.clock.sleep_until(self.clock.now().plus(span)).await;
    }

    async fn run_actor(&self, actor: DemoActor) {
        loop {
            let claim = Claim {
                wants: actor.wants.clone(),
                ttl: actor.ttl,
                wait: Duration::from_secs(300),
                max_hold: None,
                delay: Duration::ZERO,
                holder: actor.holder.into(),
                request: None,
                principal: String::new(),
            };
            if let Ok(grant) = self.service.acquire(&self.caller, claim).await {
                self.keep_lease(&actor, &grant.lease_id).await;
            }
            self.sleep(actor.rests).await;
        }
    }

    async fn keep_lease(&self, actor: &DemoActor, lease: &leasehold::engine::LeaseId) {
        let until = self.clock.now().plus(actor.keeps);
        while self.clock.now() < until {
            let next = self.clock.now().plus(actor.ttl / 3).min(until);
            self.clock.sleep_until(next).await;
            if self.service.renew(&self.caller, lease, None).await.is_err() {
                return;
            }
        }
        match actor.exit {
            ActorExit::Release => drop(self.service.release(&self.caller, lease).await),
            ActorExit::Crash => self.sleep(actor.ttl).await,
        }
    }

    /// Revokes one lease now and then, like an operator.
    async fn revoke_now_and_then(&self) {
        loop {
            self.sleep(Duration::from_secs(50)).await;
            let name = "demo/schema-migration";
            let _ = self.service.revoke(&self.caller, name, "demo: the host is gone").await;
        }
    }
}
