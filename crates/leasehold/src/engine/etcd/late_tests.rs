//! Transactions that arrive late or out of turn, on a real member: the conditions of each stand in its way.
//!
//! A network delays and repeats what it likes. These tests send what such a network would deliver.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Time;
use leasehold_harness::etcd::EtcdCluster;

use super::attempt::{EtcdAttempt, TryOutcome};
use super::joining::AttemptCallers;
use super::messages::{TxnCall, TxnPart, TxnReply};
use super::mirror::TurnOutcome;
use super::plan::{LeasePlan, PutLease, closed_value};
use super::session::EtcdSession;
use super::values::{ContenderState, ContenderValue, EndedValue, StoredEnd, layout_version};
use super::{EtcdEngine, EtcdEngineOptions};
use crate::engine::consensus::lease_id::PublicId;
use crate::engine::{Claim, Mode, Token, Want};
use crate::error::Error;

/// An engine on a member of its own, used for its connection and its session.
struct LateCalls {
    _cluster: EtcdCluster,
    engine: Arc<EtcdEngine>,
    session: Arc<EtcdSession>,
}

impl LateCalls {
    async fn open() -> Self {
        let cluster = EtcdCluster::start(1);
        let options = EtcdEngineOptions::from_url(&cluster.url()).expect("a url");
        let engine = EtcdEngine::open(options).await.expect("it opens");
        let session = engine.shared.session().await.expect("a session");
        Self { _cluster: cluster, engine, session }
    }

    fn plan(&self, id: u8, name: &str) -> LeasePlan {
        LeasePlan::new(&self.engine.shared.layout, PublicId([id; 16]), [(name.to_owned(), Mode::Exclusive)], None)
    }

    fn put<'a>(&self, value: &'a ContenderValue) -> PutLease<'a> {
        PutLease { value, lease: self.session.lease, request: None }
    }

    fn ending(&self, end: StoredEnd) -> (Vec<u8>, i64) {
        (EndedValue::new(end, "", "call", 0).to_bytes(), self.session.lease)
    }

    /// Sends it. True: it took effect.
    async fn send(&self, txn: TxnCall) -> (bool, i64) {
        let reply: TxnReply = self.engine.shared.txn(txn).await.expect("etcd answers");
        (reply.succeeded, reply.revision())
    }

    async fn take(&self, plan: &LeasePlan) -> (bool, i64) {
        let free = plan.nobody_is_in_the_way(&self.engine.shared.layout);
        self.send(plan.acquire(&self.session.marker, free, &self.put(&held()), Vec::new())).await
    }

    async fn line_up(&self, plan: &LeasePlan) -> (bool, i64) {
        let waiting = ContenderValue { state: ContenderState::Waiting, ..held() };
        self.send(plan.line_up(&self.engine.shared.layout, &self.session.marker, &self.put(&waiting))).await
    }

    async fn promote(&self, plan: &LeasePlan, arrival: i64) -> (bool, i64) {
        let layout = &self.engine.shared.layout;
        self.send(plan.promote(layout, &self.session.marker, arrival, &self.put(&held()), true)).await
    }

    async fn renew(&self, plan: &LeasePlan, seen: i64) -> (bool, i64) {
        self.send(plan.rewrite(&self.session.marker, seen, &self.put(&held()))).await
    }

    async fn lapse(&self, plan: &LeasePlan, seen: i64) -> (bool, i64) {
        self.send(plan.lapse(seen, self.ending(StoredEnd::Lapsed), None)).await
    }

    async fn release(&self, plan: &LeasePlan) -> (bool, i64) {
        self.send(plan.end(Some(self.ending(StoredEnd::Released)))).await
    }

    async fn written(&self, plan: &LeasePlan) -> Option<i64> {
        let key = self.engine.shared.read_key(plan.first().key.clone()).await.expect("etcd answers");
        key.map(|kv| kv.mod_revision)
    }
}

fn held() -> ContenderValue {
    ContenderValue {
        v: layout_version(),
        holder: "ada".into(),
        state: ContenderState::Held,
        mode: Mode::Exclusive.into(),
        ttl: 60_000,
        early: 0,
        delay: 0,
        cap: None,
        sure: None,
        token: None,
        names: None,
        first: None,
        request: None,
        at: 0,
        renewed: 0,
    }
}

/// Goal: an acquire that was given up has no effect afterwards, however late it comes: neither a lease nor a place in the
/// queue. One that came before is found.
#[tokio::test]
async fn an_acquire_that_comes_after_its_tombstone_has_no_effect() {
    let calls = LateCalls::open().await;
    let lost = calls.plan(1, "seat");
    assert!(calls.send(lost.resolve(calls.ending(StoredEnd::Cancelled))).await.0, "it had not happened");
    assert!(!calls.take(&lost).await.0 && !calls.line_up(&lost).await.0, "it never will");
    assert_eq!(calls.written(&lost).await, None);
    let there = calls.plan(2, "seat");
    let (granted, written) = calls.take(&there).await;
    assert!(granted && !calls.send(there.resolve(calls.ending(StoredEnd::Cancelled))).await.0, "it had happened");
    assert_eq!(calls.written(&there).await, Some(written), "and is still there");
}

/// Goal: a process that has lost its marker grants and renews nothing, and takes no place.
/// Method: its marker is deleted, as etcd does with the session; then each transaction that demands it.
#[tokio::test]
async fn nothing_is_granted_or_renewed_without_the_marker() {
    let calls = LateCalls::open().await;
    let [own, waiting, new] = [(1, "seat"), (2, "seat"), (3, "row")].map(|(id, name)| calls.plan(id, name));
    let (_, written) = calls.take(&own).await;
    let (_, arrival) = calls.line_up(&waiting).await;
    let gone = TxnCall { success: vec![TxnPart::delete(calls.session.marker.clone())], ..TxnCall::default() };
    calls.send(gone).await;
    assert!(!calls.renew(&own, written).await.0, "renewed");
    assert!(calls.release(&own).await.0, "a release needs no marker");
    assert!(!calls.promote(&waiting, arrival).await.0, "promoted");
    assert!(!calls.take(&new).await.0, "granted");
    assert!(!calls.line_up(&new).await.0, "lined up");
}

/// Goal: etcd itself promotes only the first of a queue, once, whatever the process believes.
#[tokio::test]
async fn only_the_first_in_the_queue_is_promoted() {
    let calls = LateCalls::open().await;
    let [own, second, third] = [1, 2, 3].map(|id| calls.plan(id, "seat"));
    calls.take(&own).await;
    let ((_, two), (_, three)) = (calls.line_up(&second).await, calls.line_up(&third).await);
    assert!(!calls.promote(&second, two).await.0, "somebody holds it");
    assert!(calls.release(&own).await.0);
    assert!(!calls.promote(&third, three).await.0, "somebody came before");
    let (promoted, written) = calls.promote(&second, two).await;
    assert!(promoted && !calls.promote(&second, two).await.0, "once");
    assert_eq!(calls.written(&second).await, Some(written), "with one token");
}

/// Goal: a renewal or a lapse that was meant for an older write of the lease has no effect.
#[tokio::test]
async fn what_was_meant_for_an_older_write_has_no_effect() {
    let calls = LateCalls::open().await;
    let own = calls.plan(1, "seat");
    let (_, first) = calls.take(&own).await;
    let (renewed, second) = calls.renew(&own, first).await;
    assert!(renewed);
    assert!(!calls.lapse(&own, first).await.0, "it was renewed meanwhile");
    assert!(!calls.renew(&own, first).await.0, "it would go back to an earlier bucket");
    assert_eq!(calls.written(&own).await, Some(second));
    assert!(calls.lapse(&own, second).await.0);
    assert!(!calls.renew(&own, second).await.0, "what has lapsed stays so");
    assert_eq!(calls.written(&own).await, None);
}

/// Goal: a lease ends once. A late release does not open what a lapse keeps closed.
#[tokio::test]
async fn what_has_ended_is_not_ended_again() {
    let calls = LateCalls::open().await;
    let own = calls.plan(1, "seat");
    calls.take(&own).await;
    assert!(calls.release(&own).await.0 && !calls.release(&own).await.0);
    let late = calls.plan(2, "seat");
    let (_, written) = calls.take(&late).await;
    let closed = closed_value(&held(), 7, 0);
    let ending = calls.ending(StoredEnd::Lapsed);
    let (lapsed, closed_at) = calls.send(late.lapse(written, ending, Some((&closed, calls.session.lease)))).await;
    assert!(lapsed && !calls.release(&late).await.0);
    assert_eq!(calls.written(&late).await, Some(closed_at), "it stays closed");
}

/// Goal: a member that does not know a lease that lives ends nothing.
/// Method: a contender with the number of an etcd lease that there is not, as a member would tell that lost its lead.
#[tokio::test]
async fn a_lease_that_a_member_does_not_know_is_not_over() {
    let calls = LateCalls::open().await;
    let (shared, plan) = (&calls.engine.shared, calls.plan(1, "seat"));
    assert!(calls.take(&plan).await.0);
    let line = shared.read_line("seat", None).await.expect("it reads");
    let mut contender = line.contenders[0].clone();
    contender.lease += 1;
    assert_eq!(shared.lapse_if_over("seat", &contender).await, Ok(false));
    assert_eq!(shared.read_line("seat", None).await.expect("it reads").contenders.len(), 1, "it is held still");
    // Where its key is gone, so is the lease.
    assert!(calls.release(&plan).await.0);
    assert_eq!(shared.lapse_if_over("seat", &contender).await, Ok(true));
}

/// Goal: a claim whose promotion was lost, and whose lease lapsed meanwhile into its delay, is granted nothing: the token would
/// be that of the lapse. A promotion that was lost is found while the lease lives, with its own token.
/// Method: the promotion is sent as its attempt would send it, once with a lapse after it; then the attempt sends its own.
#[tokio::test]
async fn a_lost_promotion_is_found_and_a_lapse_is_not_taken_for_one() {
    let calls = LateCalls::open().await;
    let shared = &calls.engine.shared;
    for lapses in [false, true] {
        let name = format!("seat {lapses}");
        let claim = Claim {
            delay: Duration::from_secs(60),
            ..Claim::new(vec![Want::exclusive(name.as_str())], Duration::from_secs(30), "ada")
        };
        let callers = Arc::new(AttemptCallers::new(1));
        let _caller = callers.join(Time::NEVER).expect("it waits");
        let attempt = EtcdAttempt { shared: shared.clone(), claim, callers, request_key: None };
        let tried = attempt.new_try(calls.session.clone());
        let terms = attempt.held_terms(&tried).await.expect("etcd answers");
        let TryOutcome::Waiting { arrival, .. } = attempt.line_up(&tried, &terms, Time::NEVER).await else {
            panic!("it has a place")
        };
        let promotion = tried.plan.promote(&shared.layout, &calls.session.marker, arrival, &terms.put(), true);
        let (promoted, written) = calls.send(promotion).await;
        assert!(promoted);
        tried.note_unanswered(terms.clone());
        if lapses {
            let plan = tried.plan.clone();
            assert!(shared.lapse_lease(&plan, &terms.value, written, terms.deadline).await.expect("etcd answers"));
        }
        let outcome = attempt.end_wait(&tried, arrival, TurnOutcome::Admitted { short: true }).await;
        match (lapses, outcome) {
            (false, TryOutcome::Done(Ok(grant))) => {
                assert_eq!(grant.token, Token::new(u64::try_from(written).unwrap_or(0)));
                assert!(grant.remaining <= Duration::from_secs(30));
            }
            (true, TryOutcome::Done(Err(Error::Unavailable { .. }))) => {
                assert!(calls.written(&tried.plan).await.is_some(), "it stays closed");
            }
            (_, TryOutcome::Done(other)) => panic!("{other:?}"),
            _ => panic!("it is not decided"),
        }
    }
}
