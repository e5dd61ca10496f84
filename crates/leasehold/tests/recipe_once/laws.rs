//! What a caller sees: the first answer, replays, refusals, takeover, abandonment, expiry, limits.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::recipe::once::{Answer, Begun, First, OnceEnd, OnceRequest};
use leasehold::recipe::{RecipeError, RecipeRefusal, Store};

use crate::{Place, millis, secs};

async fn begin_first(store: &Store, request: &OnceRequest) -> First {
    match store.once_begin(request).await.unwrap() {
        Begun::First(first) => first,
        other => panic!("{other:?}"),
    }
}

async fn finish(store: &Store, first: &First, text: &str) -> bool {
    store.once_end(first, OnceEnd::Finish { status: 200, body: text.as_bytes() }).await.unwrap()
}

fn replay(text: &str) -> Begun {
    Begun::Replay(Answer { status: 200, body: text.into(), replayed: true })
}

/// Goal: the work runs once, and everybody gets its answer with its status; another body is refused.
#[tokio::test]
async fn the_first_answer_is_everybodys() {
    for place in Place::both().await {
        let store = place.store().await;
        let runs = AtomicU32::new(0);
        for round in 0..3 {
            let answer = store.once("payments", "order-7", "4200 EUR").run(async |first| {
                runs.fetch_add(1, Ordering::SeqCst);
                assert!(first.token() > 0);
                Ok(Answer::new(201, "charged"))
            });
            let answer = answer.await.unwrap();
            assert_eq!(answer, Answer { status: 201, body: b"charged".to_vec(), replayed: round > 0 });
        }
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        let other = store.once("payments", "order-7", "1 EUR").run(async |_| panic!("it does not run")).await;
        assert!(matches!(other, Err(RecipeError::Refused(RecipeRefusal::Mismatch))), "{other:?}");
        // Another scope is another key.
        let elsewhere = store.once("refunds", "order-7", "1 EUR").run(async |_| Ok(Answer::new(0, ""))).await.unwrap();
        assert!(!elsewhere.replayed);
    }
}

/// Goal: a second request while the first runs is told so with the time left; it may wait, and then gets the answer.
#[tokio::test]
async fn a_second_request_is_told_or_waits() {
    for place in Place::both().await {
        let store = place.store().await;
        let request = OnceRequest::new("s", "k", "b").ttl(secs(20));
        let first = begin_first(&store, &request).await;
        let Begun::InFlight { remaining } = store.once_begin(&request).await.unwrap() else { panic!("in flight") };
        assert!(remaining > secs(10) && remaining <= secs(20), "{remaining:?}");
        let asked = store.once("s", "k", "b").run(async |_| panic!("it does not run")).await;
        assert!(
            matches!(asked, Err(RecipeError::Refused(RecipeRefusal::InFlight { remaining: Some(_) }))),
            "{asked:?}"
        );

        let waiter = tokio::spawn({
            let store = store.clone();
            async move { store.once("s", "k", "b").wait(secs(15)).run(async |_| Ok(Answer::new(1, "mine"))).await }
        });
        tokio::time::sleep(millis(60)).await;
        assert!(finish(&store, &first, "first").await);
        let waited = waiter.await.unwrap().unwrap();
        assert_eq!(waited, Answer { status: 200, body: b"first".to_vec(), replayed: true });
    }
}

/// Goal: a first try that is silent for its ttl is taken over with a higher token, and cannot write any more: not its
/// answer, not a renewal, not an abandonment.
#[tokio::test]
async fn a_late_first_try_cannot_overwrite() {
    for place in Place::both().await {
        let store = place.store().await;
        let request = OnceRequest::new("s", "k", "b").ttl(secs(60));
        let slow = begin_first(&store, &request).await;
        place.pass(secs(61)).await;
        let next = begin_first(&store, &request).await;
        assert!(next.token() > slow.token());
        assert!(!store.once_end(&slow, OnceEnd::Renew { ttl: secs(60) }).await.unwrap());
        assert!(!store.once_end(&slow, OnceEnd::Abandon).await.unwrap());
        assert!(!finish(&store, &slow, "slow").await);
        assert!(matches!(store.once_begin(&request).await.unwrap(), Begun::InFlight { .. }));
        assert!(finish(&store, &next, "next").await);
        assert!(!finish(&store, &slow, "slow").await && !finish(&store, &next, "again").await);
        assert_eq!(store.once_begin(&request).await.unwrap(), replay("next"));
    }
}

/// Goal: a try that lapsed and was not taken over may still answer: its work is done, and nobody else's is.
#[tokio::test]
async fn a_lapsed_try_that_nobody_took_over_may_answer() {
    for place in Place::both().await {
        let store = place.store().await;
        let request = OnceRequest::new("s", "k", "b").ttl(secs(60));
        let first = begin_first(&store, &request).await;
        place.pass(secs(61)).await;
        assert!(!store.once_end(&first, OnceEnd::Renew { ttl: secs(60) }).await.unwrap(), "it is not ours for certain");
        assert!(finish(&store, &first, "late").await);
        assert_eq!(store.once_begin(&request).await.unwrap(), replay("late"));
    }
}

/// Goal: work that fails is not stored, and the next request runs at once.
#[tokio::test]
async fn failed_work_is_abandoned() {
    for place in Place::both().await {
        let store = place.store().await;
        let failed = store.once("s", "k", "b").run(async |_| Err("the provider is away".into())).await;
        let Err(RecipeError::Work(error)) = failed else { panic!("{failed:?}") };
        assert_eq!(error.to_string(), "the provider is away");
        let too_long = store.once("s", "k", "b").run(async |_| Ok(Answer::new(0, vec![0; (1 << 20) + 1]))).await;
        assert!(matches!(too_long, Err(RecipeError::Invalid(_))), "{too_long:?}");
        let longest = store.once("s", "k", "b").run(async |_| Ok(Answer::new(-1, vec![0xff; 1 << 20]))).await.unwrap();
        assert_eq!((longest.replayed, longest.status), (false, -1));
        let replayed = store.once("s", "k", "b").run(async |_| panic!("stored")).await.unwrap();
        assert_eq!((replayed.replayed, replayed.status, replayed.body.len()), (true, -1, 1 << 20));
    }
}

/// Goal: work that takes several ttls keeps its try, because it is renewed.
#[tokio::test]
async fn long_work_is_renewed() {
    for place in Place::both().await {
        let store = place.store().await;
        let work = tokio::spawn({
            let store = store.clone();
            async move {
                let once = store.once("s", "k", "b").ttl(secs(2));
                once.run(async |_| {
                    tokio::time::sleep(millis(5_500)).await;
                    Ok(Answer::new(200, "long"))
                })
                .await
            }
        });
        tokio::time::sleep(millis(4_000)).await;
        let request = OnceRequest::new("s", "k", "b").ttl(secs(2));
        let asked = store.once_begin(&request).await.unwrap();
        assert!(matches!(asked, Begun::InFlight { .. }), "{asked:?}");
        assert_eq!(work.await.unwrap().unwrap().body, b"long");
    }
}

/// Goal: work that was taken over is dropped when a renewal finds out, and its answer is not told.
#[tokio::test]
async fn work_that_was_taken_over_is_dropped() {
    for place in Place::both().await {
        let store = place.store().await;
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let work = tokio::spawn({
            let store = store.clone();
            async move {
                let once = store.once("s", "k", "b").ttl(secs(3));
                once.run(async |_| {
                    begun.send(()).unwrap();
                    std::future::pending::<()>().await;
                    Ok(Answer::new(200, "slow"))
                })
                .await
            }
        });
        has_begun.await.unwrap();
        place.pass(secs(4)).await;
        let request = OnceRequest::new("s", "k", "b");
        let next = begin_first(&store, &request).await;
        let dropped = tokio::time::timeout(secs(20), work).await.expect("a renewal finds out").unwrap();
        assert!(matches!(dropped, Err(RecipeError::Refused(RecipeRefusal::Stale { .. }))), "{dropped:?}");
        assert!(finish(&store, &next, "next").await);
    }
}

/// Goal: an answer is kept as long as was asked for, and not longer; what expired is removed after an hour.
#[tokio::test]
async fn answers_expire() {
    for place in Place::both().await {
        let store = place.store().await;
        let request = OnceRequest::new("s", "k", "b").ttl(secs(60)).keep(secs(600));
        let first = begin_first(&store, &request).await;
        assert!(finish(&store, &first, "one").await);
        place.pass(secs(590)).await;
        assert_eq!(store.once_begin(&request).await.unwrap(), replay("one"));
        place.pass(secs(11)).await;
        // Expired: even another body may use the key now.
        let other = OnceRequest::new("s", "k", "other").keep(secs(600));
        let again = begin_first(&store, &other).await;
        assert!(again.token() > first.token());
        assert!(finish(&store, &again, "two").await);

        store.forget_expired().await.unwrap();
        place.pass(secs(600 + 3590)).await;
        store.forget_expired().await.unwrap();
        assert_eq!(place.rows("SELECT key FROM leasehold.once").await.len(), 1, "not an hour ago");
        place.pass(secs(20)).await;
        store.forget_expired().await.unwrap();
        assert_eq!(place.rows("SELECT key FROM leasehold.once").await.len(), 0);
    }
}

/// Goal: a try that runs longer than its answer would be kept is not removed under its feet.
#[tokio::test]
async fn what_still_runs_is_not_forgotten() {
    for place in Place::both().await {
        let store = place.store().await;
        let request = OnceRequest::new("s", "k", "b").ttl(secs(60)).keep(secs(60));
        let first = begin_first(&store, &request).await;
        place.execute("UPDATE leasehold.once SET expires_at = until").await;
        place.pass(secs(50)).await;
        assert!(store.once_end(&first, OnceEnd::Renew { ttl: secs(3600) }).await.unwrap());
        place.pass(secs(3590)).await;
        assert!(store.once_end(&first, OnceEnd::Renew { ttl: secs(3600) }).await.unwrap());
        place.pass(secs(100)).await;
        store.forget_expired().await.unwrap();
        assert!(finish(&store, &first, "long").await, "it is still there");
    }
}

/// Goal: of many who ask at once, exactly one runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_at_once_one_runs() {
    for place in Place::both().await {
        let stores = [place.store().await, place.store().await];
        for key in 0..10 {
            let runs = std::sync::Arc::new(AtomicU32::new(0));
            let tasks: Vec<_> = (0..12_usize)
                .map(|at| {
                    let (store, runs) = (stores[at % 2].clone(), runs.clone());
                    tokio::spawn(async move {
                        let once = store.once("s", format!("k{key}"), "b").wait(secs(30));
                        once.run(async |first| {
                            runs.fetch_add(1, Ordering::SeqCst);
                            tokio::time::sleep(Duration::from_millis(5)).await;
                            Ok(Answer::new(0, first.token().to_string()))
                        })
                        .await
                        .unwrap()
                        .body
                    })
                })
                .collect();
            let mut bodies = Vec::new();
            for task in tasks {
                bodies.push(task.await.unwrap());
            }
            bodies.dedup();
            assert_eq!((bodies.len(), runs.load(Ordering::SeqCst)), (1, 1));
        }
    }
}

/// Goal: limits are checked before anything is asked, and a closed store says so.
#[tokio::test]
async fn limits_and_a_closed_store() {
    for place in Place::both().await {
        let store = place.store().await;
        let long = store.once("s", "k".repeat(256), "b").run(async |_| Ok(Answer::new(0, ""))).await;
        assert!(matches!(long, Err(RecipeError::Invalid(_))), "{long:?}");
        let first = First::from_parts("s", "k", 1);
        let end = store.once_end(&first, OnceEnd::Renew { ttl: secs(3601) }).await;
        assert!(matches!(end, Err(RecipeError::Invalid(_))), "{end:?}");
        store.close().await;
        let closed = store.once("s", "k", "b").run(async |_| Ok(Answer::new(0, ""))).await;
        assert!(matches!(closed, Err(RecipeError::Unavailable { .. })), "{closed:?}");
    }
}
