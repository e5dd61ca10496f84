//! A raised floor and the identity, after a kill, a power failure, and the loss of one of the ceiling's two homes.

use std::sync::Arc;
use std::time::Duration;

use leasehold::Error;
use leasehold::engine::embedded::journal::frame::{self, FRAME_ALIGN_BYTES};
use leasehold::engine::embedded::journal::{JournalSizes, segment};
use leasehold::engine::embedded::storage::Storage;
use leasehold::engine::embedded::{Embedded, Options};
use leasehold::engine::{Claim, Engine, Token, Want};
use leasehold_torture::disk::{Faults, SimDisk};

/// Beyond every token that an engine reserves by itself.
const FAR_TOKEN: u64 = 1 << 50;

fn token(number: u64) -> Token {
    Token::new(number).expect("a token")
}

async fn open_with(disk: &SimDisk, options: Options) -> Arc<Embedded> {
    let storage: Arc<dyn Storage> = Arc::new(disk.clone());
    Embedded::open_on(storage, options).await.expect("it opens")
}

async fn open(disk: &SimDisk) -> Arc<Embedded> {
    open_with(disk, Options::default()).await
}

async fn take(engine: &Embedded, name: &str) -> Token {
    let claim = Claim::new(vec![Want::exclusive(name)], Duration::from_secs(3600), "ada");
    engine.acquire(claim).await.expect("it is free").token.expect("fencing")
}

async fn identity(engine: &Embedded) -> String {
    engine.identity().await.expect("it runs").expect("it has one")
}

/// What a power failure leaves that loses everything which was not synced.
fn unplugged(disk: &SimDisk) -> SimDisk {
    let choices = disk.choices();
    disk.after_crash(0, &vec![0; choices.writes.len()])
}

/// The disk without the last frame of its journal: its bytes are garbage, as a torn write leaves them.
fn torn(disk: &SimDisk) -> SimDisk {
    let name = disk.names().into_iter().filter(|name| segment::id_of(name).is_some()).max().expect("a segment");
    let mut bytes = disk.bytes(&name);
    let (mut at, mut last) = (FRAME_ALIGN_BYTES, None);
    while let Some(frame) = bytes.get(at..).and_then(frame::decode) {
        last = Some(at..at + frame.size);
        at += frame.size;
    }
    let last = last.expect("a frame");
    bytes[last.start + 4..last.end].fill(0x5a);
    disk.with_bytes(&name, bytes)
}

/// Goal: a floor that was answered holds in the next life, whatever ended the first.
/// Method: floors below and beyond what is reserved, with and without a grant before; kill, power failure, a torn last
/// frame, the ceiling file lost, an orderly close.
#[tokio::test]
async fn a_raised_floor_survives_whatever_ends_the_engine() {
    for (floor, granted) in [(50, false), (50, true), (131_072, false), (FAR_TOKEN, false), (FAR_TOKEN, true)] {
        let disk = SimDisk::default();
        let engine = open(&disk).await;
        if granted {
            take(&engine, "seat").await;
        }
        let kept = engine.raise_floor(Some(token(floor))).await.expect("it is raised");
        assert!(kept.get() >= floor);
        let ends = [
            ("kill", disk.after_kill()),
            ("power failure", unplugged(&disk)),
            ("torn", torn(&disk.after_kill())),
            ("no ceiling file", disk.after_kill().with_bytes("ceiling", vec![0; 8192])),
        ];
        engine.close().await.expect("it closes");
        for (what, left) in ends.into_iter().chain([("close", disk.after_kill())]) {
            let engine = open(&left).await;
            let kept = engine.raise_floor(None).await.expect("it runs");
            assert!(kept.get() >= floor, "{what}: raised to {floor}, {kept} afterwards");
            let next = take(&engine, "next").await;
            assert!(next.get() > floor, "{what}: raised to {floor}, and then token {next}");
            engine.close().await.expect("it closes");
        }
    }
}

/// Goal: a floor is kept when the frames that were there when it was raised are gone with their segments.
/// Method: small segments; raise; fill segments until snapshots have replaced them; kill; look.
#[tokio::test]
async fn a_raised_floor_survives_rotation_and_snapshots() {
    let sizes = JournalSizes { segment: 16 << 10, snapshot_after: 8 << 10, tokens: 16 };
    let options = || Options { sizes, ..Options::default() };
    let disk = SimDisk::default();
    let engine = open_with(&disk, options()).await;
    let first = disk.names().into_iter().find(|name| segment::id_of(name).is_some()).expect("a segment");
    engine.raise_floor(Some(token(FAR_TOKEN))).await.expect("it is raised");
    let mut last = token(FAR_TOKEN);
    for number in 0.. {
        let next = take(&engine, &format!("{number}-{}", "n".repeat(200))).await;
        assert!(next > last, "{next} after {last}");
        last = next;
        let names = disk.names();
        if names.iter().any(|name| name.starts_with("snapshot-")) && !names.contains(&first) {
            break;
        }
        // The thread that writes them may get no processor for a while.
        if number >= 1_000 {
            #[expect(clippy::disallowed_methods, reason = "a real thread is waited for")]
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(number < 5_000, "no snapshot comes: {names:?}");
    }
    let again = open_with(&disk.after_kill(), options()).await;
    let next = take(&again, "after the kill").await;
    assert!(next > last, "{next} after {last}");
}

/// Goal: nobody is refused while a floor is raised, and whoever asks after the answer gets a higher token.
/// Method: callers that take leases all the time; floors beyond what is reserved, again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_floor_is_raised_under_load() {
    let sizes = JournalSizes { tokens: 16, ..JournalSizes::default() };
    let engine = open_with(&SimDisk::default(), Options { sizes, ..Options::default() }).await;
    let callers = (0..4).map(|caller| {
        let engine = engine.clone();
        tokio::spawn(async move {
            for number in 0..300 {
                take(&engine, &format!("{caller}-{number}")).await;
            }
        })
    });
    let callers: Vec<_> = callers.collect();
    for round in 1..30 {
        let floor = token(round << 32);
        assert!(engine.raise_floor(Some(floor)).await.expect("it is raised") >= floor);
        let next = take(&engine, &format!("after {round}")).await;
        assert!(next > floor, "{next} after the floor {floor}");
    }
    for caller in callers {
        caller.await.expect("nobody was refused");
    }
}

/// Goal: a floor that could not be written is not answered as raised, and the engine stops.
#[tokio::test]
async fn a_floor_that_cannot_be_written_is_unknown() {
    let disk = SimDisk::default();
    let engine = open(&disk).await;
    disk.set_faults(Faults { fail_sync: true, ..Faults::default() });
    let answer = engine.raise_floor(Some(token(FAR_TOKEN))).await;
    assert!(matches!(answer, Err(Error::Indeterminate { .. })), "{answer:?}");
    let answer = engine.raise_floor(None).await;
    assert!(matches!(answer, Err(Error::Unavailable { .. })), "{answer:?}");
}

/// Goal: the highest floor leaves an engine that grants and starts again.
#[tokio::test]
async fn the_highest_floor_leaves_room() {
    let disk = SimDisk::default();
    let engine = open(&disk).await;
    engine.raise_floor(Some(Token::MAX_FLOOR)).await.expect("it is raised");
    let too_high = engine.raise_floor(Token::new(Token::MAX_FLOOR.get() + 1)).await;
    assert!(matches!(too_high, Err(Error::Invalid(_))), "{too_high:?}");
    for life in 0..3 {
        let engine = open(&disk.after_kill()).await;
        assert!(take(&engine, &format!("life {life}")).await > Token::MAX_FLOOR);
    }
}

/// Goal: an identity is made once, is durable before anybody is told, and two directories have two.
/// Method: stop the first opening at every disk operation; open what is left twice; compare.
#[tokio::test]
async fn an_identity_is_made_once() {
    let mut told = Vec::new();
    for stop in 0..40 {
        let disk = SimDisk::default();
        disk.set_faults(Faults { crash_in: Some(stop), ..Faults::default() });
        let storage: Arc<dyn Storage> = Arc::new(disk.clone());
        let opened = Embedded::open_on(storage, Options::default()).await;
        let before = match &opened {
            Ok(engine) => engine.identity().await.ok().flatten(),
            Err(_) => None,
        };
        let left = unplugged(&disk);
        let first = identity(&*open(&left).await).await;
        assert_eq!(identity(&*open(&unplugged(&left)).await).await, first, "stopped at {stop}");
        assert!(before.is_none_or(|before| before == first), "told before the stop at {stop}");
        assert!(first.len() == 32 && first.bytes().all(|byte| byte.is_ascii_hexdigit()), "{first}");
        assert!(!told.contains(&first), "two directories with one identity");
        told.push(first);
    }
}

/// Goal: a directory of an earlier version gets an identity at its next open and keeps what it held; a damaged identity
/// is refused, and not replaced by another.
#[tokio::test]
async fn an_old_directory_gets_an_identity_and_a_damaged_one_is_refused() {
    let disk = SimDisk::default();
    let engine = open(&disk).await;
    take(&engine, "seat").await;
    engine.close().await.expect("it closes");
    let old = disk.after_kill();
    Storage::remove(&old, "identity").expect("it is there");
    let engine = open(&old).await;
    let given = identity(&engine).await;
    let held = engine.inspect("seat").await.expect("it runs");
    assert!(held.is_some_and(|seat| seat.holders.len() == 1), "what it held is there");
    engine.close().await.expect("it closes");
    assert_eq!(identity(&*open(&old.after_kill()).await).await, given);

    let mut bytes = old.bytes("identity");
    bytes[3] ^= 1;
    let storage: Arc<dyn Storage> = Arc::new(old.with_bytes("identity", bytes));
    let answer = Embedded::open_on(storage, Options::default()).await.map(drop);
    assert!(matches!(answer, Err(Error::Corrupt { .. })), "{answer:?}");
}
