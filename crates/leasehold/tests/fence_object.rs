//! The fence on objects, against a small store that speaks like S3: the table of cases, stores that lie, bodies that come
//! again, and races over lost answers.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stderr, reason = "a server lives in real time")]

mod fence_support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fence_support::object_server::{ObjectServer, StoreHabits};
use fence_support::object_store::HttpStore;
use fence_support::race::{RaceBoard, RaceNote, RaceVerdict, RaceWriter, judge, parse_shown, race_size, refusal_only};
use fence_support::{lease_on, open_leases};
use leasehold::fence::object::{
    NewObject, ObjectFence, ObjectHead, ObjectStore, PutCondition, PutOutcome, StoreAnswer, StoreError, StoredObject,
};
use leasehold::fence::{FenceError, FenceRefusal, FenceSetting};
use leasehold::testkit::fence_cases::{FenceSubject, all_cases};
use tokio::sync::Semaphore;

const HASHES: StoreHabits = StoreHabits {
    unique_etags: false,
    ignores_if_match: false,
    ignores_if_none_match: false,
    creates_on_if_match: false,
    loses_metadata: false,
    keeps_old_metadata: false,
    loses_one_in: 0,
    slow_ms: 0,
};
const NUMBERS: StoreHabits = StoreHabits { unique_etags: true, ..HASHES };

async fn open_fence(server: &ObjectServer) -> ObjectFence<HttpStore> {
    ObjectFence::open(HttpStore { port: server.port() }, "/scratch/").await.expect("it opens")
}

struct ObjectSubject<'a>(&'a ObjectFence<HttpStore>, u64);

impl FenceSubject for ObjectSubject<'_> {
    async fn write(&mut self, resource: &str, shown: Option<&str>) -> Result<(), FenceRefusal> {
        let setting = parse_shown(resource, shown)?;
        let append = |old: Option<Vec<u8>>| Ok([old.unwrap_or_default(), b"x".to_vec()].concat());
        let answer = self.0.update_shown(&setting, resource, &format!("/{resource}"), append).await;
        self.1 += u64::from(answer.is_ok());
        refusal_only(answer)
    }
}

/// Goal: the conditional put answers as the rule does, and writes what it admits and only that.
#[tokio::test]
async fn the_table_of_cases() {
    for habits in [HASHES, NUMBERS] {
        let server = ObjectServer::start(habits).await;
        let fence = open_fence(&server).await;
        assert_eq!(fence.stamps_bodies(), !habits.unique_etags);
        for (at, case) in all_cases().iter().enumerate() {
            let resource = format!("seat-{at}");
            let mut subject = ObjectSubject(&fence, 0);
            case.run(&resource, &mut subject).await;
            let body = fence.read(&format!("/{resource}")).await.expect("read").unwrap_or_default();
            assert_eq!(body.len() as u64, subject.1, "{}", case.name);
        }
        assert!(!server.keys().iter().any(|key| key.starts_with("/scratch/")), "the probe tidies up");
    }
}

/// Goal: a store that does not keep its conditions is refused, whichever it breaks.
#[tokio::test]
async fn a_store_that_lies_is_refused() {
    let lies = [
        StoreHabits { ignores_if_match: true, ..HASHES },
        StoreHabits { ignores_if_match: true, ..NUMBERS },
        StoreHabits { ignores_if_none_match: true, ..HASHES },
        StoreHabits { creates_on_if_match: true, ..HASHES },
        StoreHabits { loses_metadata: true, ..NUMBERS },
        StoreHabits { keeps_old_metadata: true, ..NUMBERS },
    ];
    for habits in lies {
        let server = ObjectServer::start(habits).await;
        let refused = ObjectFence::open(HttpStore { port: server.port() }, "/scratch/").await.expect_err("refused");
        let says = |sentence: &str| sentence.contains("cannot be fenced");
        assert!(matches!(&refused, FenceError::Invalid(sentence) if says(sentence)), "{habits:?}: {refused:?}");
    }
    let gone = HttpStore { port: leasehold_harness::free_port() };
    let away = ObjectFence::open(gone, "/scratch/").await.expect_err("away");
    assert!(matches!(away, FenceError::Unavailable { .. }), "{away:?}");
}

/// Goal: objects are written, edited, removed and read under a lease, and a tombstone keeps the fence.
#[tokio::test]
async fn a_tombstone_remembers() {
    for habits in [HASHES, NUMBERS] {
        let server = ObjectServer::start(habits).await;
        let fence = open_fence(&server).await;
        let (_dir, leasehold) = open_leases().await;
        let late = lease_on(&leasehold, &["seat"]).await;
        fence.write(&late, "seat", "/seat", "free").await.expect("admitted");
        leasehold.release(late.lease_id()).await.expect("released");
        let newer = lease_on(&leasehold, &["seat"]).await;
        let shout = |old: Option<Vec<u8>>| Ok(old.unwrap_or_default().to_ascii_uppercase());
        fence.update(&newer, "seat", "/seat", shout).await.expect("admitted");
        assert_eq!(fence.read("/seat").await.expect("read").as_deref(), Some(b"FREE".as_slice()));
        assert!(server.bytes("/seat").expect("there").starts_with(b"FREE"), "the stamp is at the end");
        assert_eq!(server.bytes("/seat").expect("there").len() == 4, habits.unique_etags, "a stamp only where needed");
        fence.remove(&newer, "seat", "/seat").await.expect("admitted");
        assert_eq!(fence.read("/seat").await.expect("read"), None);
        let refused = fence.write(&late, "seat", "/seat", "back").await.expect_err("refused");
        let stale = FenceRefusal::Stale { resource: "seat".into(), presented: late.token(), highest: newer.token() };
        assert!(matches!(refused, FenceError::Refused(refusal) if refusal == stale));
        fence.write(&newer, "seat", "/seat", "again").await.expect("admitted");
        let uncovered = fence.write(&newer, "row", "/row", "x").await.expect_err("refused");
        assert!(matches!(uncovered, FenceError::Refused(FenceRefusal::NotCovered { .. })), "{uncovered:?}");
        let failed = fence.update(&newer, "seat", "/seat", |_| Err("no".into())).await.expect_err("it failed");
        assert!(matches!(failed, FenceError::Work(_)), "{failed:?}");
        assert_eq!(fence.read("/seat").await.expect("read").as_deref(), Some(b"again".as_slice()));
    }
}

/// A store whose next put waits until it is let go: a writer that pauses between its decision and its write.
#[derive(Clone)]
struct PausingStore {
    inner: HttpStore,
    reached: Arc<Semaphore>,
    go: Arc<Semaphore>,
}

impl ObjectStore for PausingStore {
    fn get<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<StoredObject>> {
        self.inner.get(key)
    }

    fn head<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<ObjectHead>> {
        self.inner.head(key)
    }

    fn put<'a>(&'a self, key: &'a str, object: &'a NewObject, when: &'a PutCondition) -> StoreAnswer<'a, PutOutcome> {
        Box::pin(async move {
            self.reached.add_permits(1);
            self.go.acquire().await.expect("let go").forget();
            self.inner.put(key, object, when).await
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, ()> {
        self.inner.delete(key)
    }
}

/// The late writer decides at a body, pauses, and writes after that very body came again under a newer token.
async fn write_after_the_body_came_again(stamps: bool) -> (Result<(), FenceError>, Vec<u8>) {
    let server = ObjectServer::start(HASHES).await;
    let plain = HttpStore { port: server.port() };
    let fence = ObjectFence::untried(plain.clone(), stamps);
    let shown = |token: u64| -> FenceSetting { format!("{token}:{token:016x}").parse().expect("a token") };
    let write = |token: u64, body: &'static str| {
        let (fence, setting) = (&fence, shown(token));
        async move { fence.update_shown(&setting, "seat", "/seat", |_| Ok(body.into())).await.expect("admitted") }
    };
    write(41, "free").await;
    let pausing = PausingStore { inner: plain, reached: Arc::new(Semaphore::new(0)), go: Arc::new(Semaphore::new(0)) };
    let late = ObjectFence::untried(pausing.clone(), stamps);
    let late_setting = shown(41);
    let late = tokio::spawn(async move {
        late.update_shown(&late_setting, "seat", "/seat", |_| Ok(b"sold to ada".to_vec())).await
    });
    pausing.reached.acquire().await.expect("it has decided").forget();
    write(42, "sold to bob").await;
    write(43, "free").await;
    pausing.go.add_permits(100);
    let answer = late.await.expect("no panic");
    (answer, fence.read("/seat").await.expect("read").expect("there"))
}

/// Goal: a version never comes twice, although the ETag is a hash and the body comes again.
#[tokio::test]
async fn a_body_that_comes_again_lets_nobody_in() {
    let (answer, body) = write_after_the_body_came_again(true).await;
    assert!(matches!(answer, Err(FenceError::Refused(FenceRefusal::Stale { .. }))), "{answer:?}");
    assert_eq!(body, b"free");
    // Planted: without the stamp the store has no way to see it.
    let (answer, body) = write_after_the_body_came_again(false).await;
    assert!(answer.is_ok() && body == b"sold to ada", "the hole that the stamp closes: {answer:?}");
}

/// A store that loses the answer to its first put: `applies` says whether the put took effect, `newer_follows` whether a newer
/// holder writes before anybody asks again.
struct LosingStore {
    inner: HttpStore,
    applies: bool,
    newer_follows: bool,
    /// The first write is sent twice, as a client with retries does.
    repeats: bool,
    lost: AtomicBool,
}

impl ObjectStore for LosingStore {
    fn get<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<StoredObject>> {
        self.inner.get(key)
    }

    fn head<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<ObjectHead>> {
        self.inner.head(key)
    }

    fn put<'a>(&'a self, key: &'a str, object: &'a NewObject, when: &'a PutCondition) -> StoreAnswer<'a, PutOutcome> {
        Box::pin(async move {
            if self.lost.swap(true, Ordering::SeqCst) {
                return self.inner.put(key, object, when).await;
            }
            if self.repeats {
                self.inner.put(key, object, when).await?;
                return self.inner.put(key, object, when).await;
            }
            if self.applies {
                self.inner.put(key, object, when).await?;
            }
            if self.newer_follows {
                let newer = ObjectFence::untried(self.inner.clone(), true);
                let shown = "42:bbbbbbbbbbbbbbbb".parse().expect("a token");
                newer.update_shown(&shown, "seat", key, |_| Ok(b"bob".to_vec())).await.expect("admitted");
            }
            Err(StoreError::Unknown("the answer was lost".into()))
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, ()> {
        self.inner.delete(key)
    }
}

/// Goal: what came of a write without an answer is read from its id: done once where that can be seen, unknown otherwise.
#[tokio::test]
async fn a_lost_answer_is_settled_by_the_id_of_the_write() {
    for (applies, newer_follows, body) in
        [(true, false, "free ada"), (false, false, "free ada"), (true, true, "bob"), (false, true, "bob")]
    {
        let server = ObjectServer::start(HASHES).await;
        let inner = HttpStore { port: server.port() };
        let plain = ObjectFence::untried(inner.clone(), true);
        let shown = "41:aaaaaaaaaaaaaaaa".parse().expect("a token");
        plain.update_shown(&shown, "seat", "/seat", |_| Ok(b"free".to_vec())).await.expect("admitted");
        let store = LosingStore { inner, applies, newer_follows, repeats: false, lost: AtomicBool::new(false) };
        let fence = ObjectFence::untried(store, true);
        let append = |old: Option<Vec<u8>>| Ok([old.unwrap_or_default(), b" ada".to_vec()].concat());
        let answer = fence.update_shown(&shown, "seat", "/seat", append).await;
        let at = format!("applies {applies}, newer follows {newer_follows}: {answer:?}");
        match newer_follows {
            false => assert!(answer.is_ok(), "{at}"),
            true => assert!(matches!(answer, Err(FenceError::Indeterminate { .. })), "{at}"),
        }
        assert_eq!(plain.read("/seat").await.expect("read").as_deref(), Some(body.as_bytes()), "{at}");
    }
}

/// Goal: a client of the store that sends a write twice, against the advice, does not make an edit twice.
#[tokio::test]
async fn a_write_that_meets_its_own_first_try_is_done() {
    let server = ObjectServer::start(HASHES).await;
    let inner = HttpStore { port: server.port() };
    let plain = ObjectFence::untried(inner.clone(), true);
    let shown = "41:aaaaaaaaaaaaaaaa".parse().expect("a token");
    plain.update_shown(&shown, "seat", "/seat", |_| Ok(b"free".to_vec())).await.expect("admitted");
    let lost = AtomicBool::new(false);
    let fence =
        ObjectFence::untried(LosingStore { inner, applies: true, newer_follows: false, repeats: true, lost }, true);
    let append = |old: Option<Vec<u8>>| Ok([old.unwrap_or_default(), b" ada".to_vec()].concat());
    fence.update_shown(&shown, "seat", "/seat", append).await.expect("admitted");
    assert_eq!(plain.read("/seat").await.expect("read").as_deref(), Some(&b"free ada"[..]));
}

async fn race(habits: StoreHabits, planted: bool, size: u64) -> RaceVerdict {
    let server = ObjectServer::start(habits).await;
    let board = Arc::new(RaceBoard::default());
    let mut writers = tokio::task::JoinSet::new();
    for at in 0..6_u64 {
        let store = HttpStore { port: server.port() };
        let fence = if planted || habits.loses_one_in > 0 {
            ObjectFence::untried(store, !habits.unique_etags)
        } else {
            open_fence(&server).await
        };
        let board = board.clone();
        writers.spawn(async move {
            let mut writer = RaceWriter::new(format!("w{at}"), 0xfeed + at * 104_729);
            while board.answers() < size {
                let resource = board.pick_resource(&mut writer.dice);
                let write = writer.choose(resource, || board.next_token(resource));
                if writer.dice.below(20) == 0 {
                    tokio::time::sleep(Duration::from_millis(writer.dice.below(5))).await;
                }
                board.note(RaceNote::Shown(write.clone()));
                let append = |old: Option<Vec<u8>>| {
                    Ok([old.unwrap_or_default(), format!("{}\n", write.id).into_bytes()].concat())
                };
                let name = write.resource_name();
                let answer = fence.update_shown(&write.setting(), &name, &format!("/log/{resource}"), append).await;
                board.note(RaceNote::from_answer(&write.id, &answer));
            }
        });
    }
    while let Some(writer) = writers.join_next().await {
        writer.expect("no writer panics");
    }
    let reader = ObjectFence::untried(HttpStore { port: server.port() }, !habits.unique_etags);
    let mut histories = BTreeMap::new();
    for resource in 0..size / 1500 + 4 {
        let body = reader.read(&format!("/log/{resource}")).await.expect("read").unwrap_or_default();
        let text = String::from_utf8(body).expect("the object is whole");
        histories.insert(resource, text.lines().map(str::to_owned).collect());
    }
    judge(&board.notes(), &histories)
}

/// Goal: no stale write after a newer one, no current writer refused, nothing acknowledged lost, over lost answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_race_over_lost_answers() {
    let size = race_size(1500);
    for habits in [HASHES, NUMBERS, StoreHabits { loses_one_in: 11, slow_ms: 2, ..HASHES }] {
        let verdict = race(habits, false, size).await;
        eprintln!("object, {habits:?}: {verdict:?}");
        verdict.assert_clean(size);
    }
}

/// Goal: the judge sees a store that does not look at `If-Match`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_without_its_condition_is_flagged() {
    let habits = StoreHabits { ignores_if_match: true, ignores_if_none_match: true, slow_ms: 2, ..HASHES };
    let verdict = race(habits, true, 800).await;
    eprintln!("object, planted: {verdict:?}");
    assert!(verdict.lost_or_uninvited > 0 || verdict.stale_admitted > 0, "{verdict:?}");
}
