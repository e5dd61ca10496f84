//! Elections under a clock set by hand, on the book alone. `simulation` is a seeded one with many candidates.

mod simulation;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold_core::Limits;
use tokio::task::JoinHandle;

use super::{ElectedLeader, Election, Leader, Observer};
use crate::clock::Clock;
use crate::testkit::{CoreEngine, EngineCall, EngineFault, FlakyEngine, ManualClock, TickTiming};
use crate::{Error, Leasehold, Lost, Refusal, Token};

const TTL: Duration = Duration::from_secs(15);

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

struct Assembly {
    clock: ManualClock,
    core: Arc<CoreEngine>,
    flaky: Arc<FlakyEngine>,
    leasehold: Leasehold,
}

impl Assembly {
    fn new() -> Self {
        let clock = ManualClock::new();
        let core = CoreEngine::new(&clock, Limits::default(), TickTiming::Prompt);
        let flaky = Arc::new(FlakyEngine::new(core.clone()));
        let leasehold = Leasehold::with_engine(flaky.clone(), clock.shared());
        Self { clock, core, flaky, leasehold }
    }

    fn election(&self, candidate: &str) -> Election {
        self.leasehold.election("scheduler").value(candidate).ttl(TTL)
    }

    async fn lead(&self, candidate: &str) -> Leader {
        self.election(candidate).campaign().await.unwrap()
    }

    /// Moves time on in small steps, letting everybody act in between.
    async fn pass(&self, span: Duration) {
        let end = self.clock.now().plus(span);
        while self.clock.now() < end {
            self.clock.advance(Duration::from_millis(100).min(end.since(self.clock.now())));
            settle().await;
        }
    }
}

async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

async fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    let task = tokio::spawn(work);
    settle().await;
    task
}

/// Goal: candidates lead in the order of arrival, each with a higher token, and resigning hands over at once.
#[tokio::test]
async fn resigning_hands_over_to_the_next_in_line() {
    let assembly = Assembly::new();
    let ada = assembly.lead("ada").await;
    let bob = spawn(assembly.election("bob").campaign()).await;
    let cleo = spawn(assembly.election("cleo").campaign()).await;
    assembly.pass(secs(60)).await;
    assert!(!bob.is_finished() && !cleo.is_finished(), "ada renews");
    let first = ada.token();
    assert!(ada.resign().await.unwrap());
    settle().await;
    assert!(!cleo.is_finished());
    let bob = bob.await.unwrap().unwrap();
    assert_eq!((bob.value().as_str(), bob.resources()), ("bob", &["election/scheduler".to_owned()][..]));
    assert!(bob.token() > first && bob.is_safe());
    bob.resign().await.unwrap();
    assert_eq!(cleo.await.unwrap().unwrap().value(), "cleo");
}

/// Goal: a leader that cannot renew is told danger, then its work is dropped, and all of that before another leads.
/// Method: no renewal of ada's gets through; the work writes down how far it came. Bob has a way of its own to the engine.
#[tokio::test]
async fn work_is_dropped_before_another_can_lead() {
    struct OnDrop(Arc<AtomicUsize>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let assembly = Assembly::new();
    let (danger, dropped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let ada = assembly.lead("ada").await;
    assembly.flaky.spoil(EngineCall::Renew, EngineFault::Unavailable, 10_000);
    let seen = (danger.clone(), OnDrop(dropped.clone()));
    let work = spawn(async move {
        ada.run(async |term| {
            let _in_work = seen.1;
            term.danger().await;
            seen.0.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<()>().await;
        })
        .await
    })
    .await;
    let other = Leasehold::with_engine(assembly.core.clone(), assembly.clock.shared());
    let bob = spawn(other.election("scheduler").value("bob").ttl(TTL).campaign()).await;
    assembly.pass(secs(9)).await;
    assert_eq!(danger.load(Ordering::SeqCst), 0);
    assembly.pass(secs(2)).await;
    assert_eq!((danger.load(Ordering::SeqCst), dropped.load(Ordering::SeqCst)), (1, 0));
    while !bob.is_finished() {
        assembly.pass(Duration::from_millis(100)).await;
        assert!(!bob.is_finished() || dropped.load(Ordering::SeqCst) == 1, "bob leads while ada's work is there");
    }
    assert_eq!(work.await.unwrap(), Err(Lost::Lapsed));
}

/// Goal: law 2: work that is woken after the term does not take another step.
/// Method: the process sleeps through its term, as in suspend; the clock wakes the work and the loss at once.
#[tokio::test]
async fn a_leader_that_was_paused_takes_no_further_step() {
    let assembly = Assembly::new();
    let ada = assembly.lead("ada").await;
    let steps = Arc::new(AtomicUsize::new(0));
    let (clock, counted) = (assembly.clock.clone(), steps.clone());
    let work = spawn(async move {
        ada.run(async |_| {
            loop {
                counted.fetch_add(1, Ordering::SeqCst);
                clock.sleep_until(clock.now().plus(secs(1))).await;
            }
        })
        .await
    })
    .await;
    assembly.pass(secs(3)).await;
    let before = steps.load(Ordering::SeqCst);
    assert!(before >= 3);
    assembly.clock.advance(secs(60));
    settle().await;
    assert_eq!((work.await.unwrap(), steps.load(Ordering::SeqCst)), (Err::<(), _>(Lost::Lapsed), before));
}

/// Goal: a result that came after the term is not passed off as the work of a leader.
#[tokio::test]
async fn work_that_ends_after_the_term_is_lost() {
    let assembly = Assembly::new();
    let ada = assembly.lead("ada").await;
    let clock = assembly.clock.clone();
    let done = ada.run(async |_| clock.advance(secs(60))).await;
    assert_eq!(done, Err(Lost::Lapsed));
    assert!(matches!(ada.proclaim("late").await, Err(Error::Refused(Refusal::Stale))));
}

#[tokio::test]
async fn a_campaign_goes_on_while_the_engine_is_away() {
    let assembly = Assembly::new();
    assembly.flaky.spoil(EngineCall::Acquire, EngineFault::Unavailable, 3);
    let troubles = Arc::new(AtomicUsize::new(0));
    let counted = troubles.clone();
    let election = assembly.election("ada").on_trouble(move |error| {
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        counted.fetch_add(1, Ordering::SeqCst);
    });
    let ada = spawn(election.campaign()).await;
    assert_eq!(troubles.load(Ordering::SeqCst), 1);
    assembly.pass(secs(3)).await;
    assert!(ada.await.unwrap().unwrap().is_safe());
    assert_eq!(troubles.load(Ordering::SeqCst), 3);
}

/// Goal: a grant whose answer was lost costs one ttl, not the campaign.
#[tokio::test]
async fn a_lost_answer_is_waited_out() {
    let assembly = Assembly::new();
    assembly.flaky.spoil(EngineCall::Acquire, EngineFault::Indeterminate, 1);
    let ada = spawn(assembly.election("ada").campaign()).await;
    assembly.pass(TTL + secs(1)).await;
    assert!(ada.await.unwrap().unwrap().is_safe());
}

#[tokio::test]
async fn patience_ends_a_campaign_with_what_was_said_last() {
    let assembly = Assembly::new();
    let _ada = assembly.lead("ada").await;
    let bob = spawn(assembly.election("bob").patience(secs(20)).campaign()).await;
    assembly.pass(secs(19)).await;
    assert!(!bob.is_finished());
    assembly.pass(secs(1)).await;
    let error = bob.await.unwrap().unwrap_err();
    assert!(matches!(&error, Error::Refused(Refusal::Held { holder: Some(ada), .. }) if ada == "ada"), "{error}");
}

/// Goal: a campaign outlives the longest wait of one claim, and is not a busy loop.
#[tokio::test]
async fn a_campaign_outlives_the_wait_of_one_claim() {
    let assembly = Assembly::new();
    let ada = assembly.lead("ada").await;
    let bob = spawn(assembly.election("bob").claim_wait(secs(10)).campaign()).await;
    assembly.pass(secs(35)).await;
    assert_eq!(assembly.flaky.calls(EngineCall::Acquire), 1 + 4);
    ada.resign().await.unwrap();
    assert_eq!(bob.await.unwrap().unwrap().value(), "bob");
}

#[tokio::test]
async fn what_can_never_be_granted_ends_the_campaign() {
    let assembly = Assembly::new();
    let error = assembly.election(&"x".repeat(300)).campaign().await.unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
}

/// Goal: an observer of an engine without a watch tells every leader, its new value and the empty chair, by looking
/// every third of the ttl.
#[tokio::test]
async fn an_observer_without_a_watch_looks_every_third_of_the_ttl() {
    let assembly = Assembly::new();
    let mut observer = assembly.election("").observe();
    assert!(observer.next().await.unwrap().is_none(), "nobody leads yet");
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let _observing = spawn(async move {
        loop {
            tell.send(observer.next().await.unwrap().map(|leader| (leader.value, leader.token))).unwrap();
        }
    })
    .await;
    let ada = assembly.lead("ada").await;
    let token = Some(ada.token());
    assembly.pass(secs(5)).await;
    assert_eq!(told.try_recv().unwrap(), Some(("ada".to_owned(), token)));
    ada.proclaim("ada:9001").await.unwrap();
    assert_eq!(ada.value(), "ada:9001");
    assembly.pass(secs(5)).await;
    assert_eq!(told.try_recv().unwrap(), Some(("ada:9001".to_owned(), token)));
    ada.resign().await.unwrap();
    let looks = assembly.flaky.calls(EngineCall::Inspect);
    assembly.pass(secs(30)).await;
    assert_eq!(told.try_recv().unwrap(), None);
    assert!(told.try_recv().is_err(), "told once");
    assert_eq!(assembly.flaky.calls(EngineCall::Inspect) - looks, 6, "30 s, a look each 5 s");
}

/// Goal: an observer says when it cannot see, does not ask in a busy loop, and goes on.
#[tokio::test]
async fn an_observer_survives_an_engine_that_is_away() {
    let assembly = Assembly::new();
    let _ada = assembly.lead("ada").await;
    assembly.flaky.spoil(EngineCall::Inspect, EngineFault::Unavailable, 2);
    let mut observer = assembly.election("").observe();
    assert!(matches!(observer.next().await, Err(Error::Unavailable { .. })));
    let next = spawn(async move { (observer.next().await.is_err(), observer.next().await.unwrap()) }).await;
    assert_eq!(assembly.flaky.calls(EngineCall::Inspect), 1, "no second look at once");
    assembly.pass(secs(11)).await;
    let (failed, leader) = next.await.unwrap();
    assert!(failed);
    assert_eq!(leader.map(|leader| leader.value).as_deref(), Some("ada"));
}

/// Goal: law 3: a look that shows an earlier term (from a replica that is behind) is not told.
#[tokio::test]
async fn an_observer_never_goes_back() {
    let assembly = Assembly::new();
    let mut observer = Observer::new(assembly.leasehold.clone(), "election/scheduler".into(), secs(5));
    let term = |token: u64, value: &str| {
        Some(ElectedLeader { value: value.into(), token: Token::new(token), since: Duration::ZERO })
    };
    let mut told = Vec::new();
    for seen in [term(4, "ada"), term(7, "bob"), term(4, "ada"), None, term(4, "ada"), term(7, "bob"), term(9, "cleo")]
    {
        if observer.is_news(seen.as_ref()) {
            told.push(seen.as_ref().map_or(0, |leader| leader.token.unwrap().get()));
            observer.tell(seen);
        }
    }
    assert_eq!(told, [4, 7, 0, 7, 9]);
}
