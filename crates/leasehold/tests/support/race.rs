//! Races with lock clients that nobody here wrote: ours and theirs want one name at once, and no two are inside.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::engine::{Claim, Engine, Want};
use leasehold::{Error, Refusal};

/// The name that all want.
pub const NAME: &str = "race";

/// The witness: a number in a file, a file that must not be there twice, and the last token.
#[derive(Clone)]
pub struct Witness(pub PathBuf);

impl Witness {
    pub fn new(dir: &Path) -> Self {
        let counter = dir.join("counter");
        std::fs::write(&counter, "0").expect("a file");
        std::fs::write(counter.with_extension("token"), "0").expect("a file");
        Self(counter)
    }

    /// What everybody does inside. Tokens rise from each to the next.
    pub async fn enter(&self, token: Option<u64>) {
        let inside = self.0.with_extension("inside");
        let made = std::fs::OpenOptions::new().write(true).create_new(true).open(&inside);
        made.expect("nobody else is inside");
        let number = self.count();
        if let Some(token) = token {
            let file = self.0.with_extension("token");
            let last: u64 = std::fs::read_to_string(&file).expect("read").trim().parse().expect("a number");
            assert!(token > last, "tokens rise: {token} came after {last}");
            std::fs::write(&file, token.to_string()).expect("written");
        }
        tokio::time::sleep(Duration::from_micros(500)).await;
        std::fs::write(&self.0, (number + 1).to_string()).expect("written");
        std::fs::remove_file(&inside).expect("removed");
    }

    pub fn count(&self) -> u64 {
        std::fs::read_to_string(&self.0).expect("read").trim().parse().expect("a number")
    }
}

/// How many of our grants each kind of worker had.
#[derive(Debug, Default)]
pub struct OurGrants {
    pub waited: AtomicU64,
    pub tried: AtomicU64,
    /// Released by another engine than the one that was asked.
    pub released_elsewhere: AtomicU64,
}

/// One of ours: until it has had so many rounds. It asks by one engine, and releases by that one or the other in turn.
async fn contend(
    engines: [Arc<dyn Engine>; 2],
    witness: Witness,
    grants: Arc<OurGrants>,
    rounds: u64,
    waits: bool,
    elsewhere: bool,
) {
    let mut done = 0;
    while done < rounds {
        let wait = if waits { Duration::from_secs(60) } else { Duration::ZERO };
        let claim = Claim { wait, ..Claim::new(vec![Want::exclusive(NAME)], Duration::from_secs(30), "ours") };
        match engines[0].acquire(claim).await {
            Ok(grant) => {
                let token = grant.token.expect("a token").get();
                witness.enter(Some(token)).await;
                let other = elsewhere && done % 2 == 1;
                assert!(engines[usize::from(other)].release(&grant.lease_id).await.expect("released"));
                let kind = if waits { &grants.waited } else { &grants.tried };
                kind.fetch_add(1, Ordering::Relaxed);
                grants.released_elsewhere.fetch_add(u64::from(other), Ordering::Relaxed);
                done += 1;
            }
            Err(Error::Refused(Refusal::Held { .. })) => tokio::time::sleep(Duration::from_millis(2)).await,
            Err(error) => panic!("ours: {error:?}"),
        }
    }
}

/// A process of another client.
pub struct Contender(pub Child);

impl Contender {
    pub fn start(mut command: Command) -> Self {
        Self(command.spawn().expect("the client runs"))
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

/// Rounds of each side, by the variable of scripts/test-clients.
pub fn rounds() -> u64 {
    std::env::var("LEASEHOLD_RACE_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2_000)
}

/// Six of ours, four that wait and two that try, over two engines; beside them whatever the caller started.
pub async fn race_ours(
    engines: [Arc<dyn Engine>; 2],
    witness: &Witness,
    rounds: u64,
    elsewhere: bool,
) -> Arc<OurGrants> {
    let grants = Arc::new(OurGrants::default());
    // The first that panics ends the race: it holds the name until its ttl ends.
    let mut ours = tokio::task::JoinSet::new();
    for worker in 0..6 {
        let mut engines = engines.clone();
        engines.rotate_left(worker % 2);
        ours.spawn(contend(engines, witness.clone(), grants.clone(), rounds.div_ceil(6), worker % 3 != 2, elsewhere));
    }
    while let Some(task) = ours.join_next().await {
        task.expect("ours are never inside with another");
    }
    grants
}

/// Waits for the others, which tell by their exit code whether they were alone.
pub async fn join(foreign: Vec<Contender>) {
    for mut contender in foreign {
        let ended = tokio::task::spawn_blocking(move || contender.0.wait().expect("it ends").success()).await;
        assert!(ended.expect("it is waited for"), "theirs are never inside with another");
    }
}

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

/// A program or place of scripts/test-clients.
#[allow(dead_code, reason = "etcd's clients are in the distribution")]
pub fn from_env(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is set by scripts/test-clients races"))
}
