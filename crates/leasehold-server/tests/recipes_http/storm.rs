//! A server that is killed again and again, with clients of a queue and of once: nothing is lost, and nothing is told twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold::recipe::once::Answer;
use leasehold::recipe::queue::calls::{SINCE_EVER, TurnAsk};
use leasehold::recipe::queue::{Delivery, Nack};
use leasehold::recipe::{RecipeError, Store};

use crate::served::Server;

const JOBS: i64 = 150;
/// Jobs that a paused worker has.
const LATE_JOBS: i64 = 5;
const KEYS: usize = 30;
const KILLS: usize = 5;
/// Longer than anything here should take, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Opens the store of a server that may be away at the moment.
async fn open_store(url: &str) -> Store {
    loop {
        match Store::open(url).await {
            Ok(store) => return store,
            Err(RecipeError::Unavailable { .. }) => tokio::time::sleep(Duration::from_millis(50)).await,
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// What is tried again until the server has answered it; others are errors of the test.
async fn insist<T>(mut ask: impl AsyncFnMut() -> Result<T, RecipeError>) -> T {
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(RecipeError::Unavailable { .. } | RecipeError::Indeterminate { .. } | RecipeError::Refused(_)) => {
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// Status and body.
type StoredAnswer = (i32, Vec<u8>);

/// Goal: no job is lost, and each key has one answer, although the server is killed.
/// Method: kill -9 and start again on the same directory, while two workers take jobs that are pushed with a dedupe id each,
/// and clients of once repeat their requests. At the end the queue is empty, each job was seen, and all answers of a key
/// are the same. A paused worker acknowledges jobs that others have ended, and is told that they are stale.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_that_is_killed_loses_nothing() {
    let mut server = Server::start();
    let url = server.url();
    let store = open_store(&url).await;
    let queue = store
        .queue("storm")
        .visible(Duration::from_secs(3))
        .backoff(Duration::from_millis(5))
        .backoff_cap(Duration::from_millis(20));
    let queue = queue.max_attempts(1000).open().await.unwrap();
    let seen: Mutex<BTreeMap<i64, usize>> = Mutex::default();
    let answers: Mutex<BTreeMap<usize, BTreeSet<StoredAnswer>>> = Mutex::default();
    let (pushed_all, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let began = Instant::now();
    let push = async {
        for number in 0..JOBS {
            // Pushed again where the answer is missing: the dedupe id makes it one job while it waits or runs.
            insist(async || queue.push(&number).dedupe(&format!("job-{number}")).await).await;
        }
        pushed_all.store(true, Ordering::SeqCst);
    };
    let until_over = async || {
        while !over.load(Ordering::SeqCst) {
            assert!(began.elapsed() < PATIENCE, "it did not end");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let work = async || {
        let handler = async |job: Delivery<i64>| {
            tokio::time::sleep(Duration::from_millis(5)).await;
            *seen.lock().unwrap().entry(*job.body()).or_default() += 1;
            Ok::<(), Nack>(())
        };
        queue.work(4, handler).poll(Duration::from_millis(500)).until(until_over()).await.unwrap()
    };
    let ask_once = async |client: usize| {
        for key in 0..KEYS {
            let request = || store.once("storm", format!("key-{key}"), "body").ttl(Duration::from_secs(2));
            let work = async |first: &leasehold::recipe::once::First| {
                tokio::time::sleep(Duration::from_millis(3)).await;
                Ok(Answer::new(client as i32, format!("by try {}", first.token())))
            };
            let answer = insist(async || request().wait(Duration::from_secs(1)).run(work).await).await;
            answers.lock().unwrap().entry(key).or_default().insert((answer.status, answer.body));
        }
    };
    let kill = async {
        for _ in 0..KILLS {
            tokio::time::sleep(Duration::from_millis(400)).await;
            tokio::task::block_in_place(|| {
                server.kill();
                server.start_again();
            });
        }
        // Until all is done: then the workers may stop.
        loop {
            assert!(began.elapsed() < PATIENCE, "{:?}", queue.status().await);
            let empty = insist(async || queue.status().await).await;
            if pushed_all.load(Ordering::SeqCst) && empty.ready + empty.delayed + empty.taken == 0 {
                assert_eq!(empty.dead, 0, "{empty:?}");
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        over.store(true, Ordering::SeqCst);
    };
    // A worker that takes jobs and is paused until others have ended them.
    let calls = store.queue_calls("storm").unwrap();
    for number in 0..LATE_JOBS {
        queue.push(&number).dedupe(&format!("job-{number}")).await.unwrap();
    }
    let ask = TurnAsk {
        jobs: LATE_JOBS as usize,
        done: Vec::new(),
        done_token: 0,
        visible: Some(Duration::from_millis(200)),
        worker: "late".into(),
        since: SINCE_EVER,
        levels: None,
    };
    let taken = calls.turn(ask).await.unwrap().jobs;
    assert_eq!(taken.len(), LATE_JOBS as usize);
    let stale = async {
        let had = |body: &str| seen.lock().unwrap().contains_key(&body.parse().unwrap());
        while !taken.iter().all(|job| had(&job.body)) {
            assert!(began.elapsed() < PATIENCE, "others never had the jobs");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let ids: Vec<i64> = taken.iter().map(|job| job.job_id).collect();
        insist(async || calls.ack(ids.clone(), taken[0].token).await).await.stale.len()
    };
    let (one, two, (), (), (), (), refused) = tokio::join!(work(), work(), push, ask_once(1), ask_once(2), kill, stale);
    let seen = seen.into_inner().unwrap();
    assert_eq!(seen.keys().copied().collect::<Vec<_>>(), (0..JOBS).collect::<Vec<_>>(), "every job was worked on");
    let answers = answers.into_inner().unwrap();
    assert_eq!(answers.len(), KEYS);
    for (key, told) in &answers {
        assert_eq!(told.len(), 1, "key {key} has one answer: {told:?}");
    }
    let repeated = seen.values().filter(|count| **count > 1).count();
    assert_eq!(refused, LATE_JOBS as usize, "jobs that others have ended are stale");
    println!("{KILLS} kills, {one:?}, {two:?}, {repeated} jobs ran again, {refused} late acknowledgements refused");
}
