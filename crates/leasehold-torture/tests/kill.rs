//! Real kill -9 of a real busy process on a real disk, again and again. `LEASEHOLD_KILLS` sets how often.

use std::collections::HashMap;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use leasehold::clock::SystemClock;
use leasehold::engine::embedded::{Embedded, Options};
use leasehold::engine::{Engine, Query};
use leasehold_torture::rng::Rng;
use leasehold_torture::witness::Testimony;

async fn held(dir: &std::path::Path) -> HashMap<String, u64> {
    let engine = Embedded::open(dir, Options::default()).await.expect("the directory opens after a kill");
    let query = Query { prefix: String::new(), after: None, limit: usize::MAX };
    let all = engine.list(query).await.expect("a listing");
    engine.close().await.expect("closes");
    all.into_iter().map(|r| (r.name, r.holders[0].token.expect("fencing").get())).collect()
}

/// Goal: what was answered before a kill is there after it, exactly; and no token comes twice over all lives.
/// Method: 16 callers, killed after a random while; hear what it said; open and compare; repeat on the same directory.
#[tokio::test]
async fn nothing_answered_is_lost_to_kill_9() {
    let kills: u64 = std::env::var("LEASEHOLD_KILLS").map_or(12, |text| text.parse().expect("a number"));
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let clock = SystemClock::shared();
    let mut rng = Rng::new(kills);
    let mut testimony = Testimony::default();
    for life in 0..kills {
        let mut child = Command::new(env!("CARGO_BIN_EXE_victim"))
            .args([dir.path().to_str().expect("UTF-8"), "16", "20"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the victim starts");
        let mut pipe = child.stdout.take().expect("piped");
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            pipe.read_to_string(&mut text).map(|_| text)
        });
        clock.sleep_until(clock.now().plus(Duration::from_millis(20 + rng.below(250)))).await;
        child.kill().expect("kill -9");
        child.wait().expect("dead");
        let said = reader.join().expect("read").expect("UTF-8");
        testimony.read_lines(&said).unwrap_or_else(|why| panic!("life {life}: {why}"));
        testimony.compare(&held(dir.path()).await).unwrap_or_else(|why| panic!("life {life}: {why}"));
    }
    println!("{kills} kills, {} answers, {} leases held at the end", testimony.answered, testimony.held.len());
    assert!(testimony.answered >= kills * 10, "too little happened: {}", testimony.answered);
}

/// Goal: a failed sync under load stops the engine, and what it answered before is there.
/// Method: the same process under strace, its n-th fdatasync fails; it ends by itself; compare as after a kill.
#[tokio::test]
async fn nothing_answered_is_lost_to_a_failed_sync() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let mut testimony = Testimony::default();
    for n in [9, 14, 33, 60, 101] {
        let output = Command::new("timeout")
            .args(["60", "strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync"])
            .args(["-e", &format!("inject=fdatasync:error=EIO:when={n}"), env!("CARGO_BIN_EXE_victim")])
            .args([dir.path().to_str().expect("UTF-8"), "16", "20"])
            .stderr(Stdio::null())
            .output()
            .expect("strace is installed: apt-get install strace");
        let said = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(said.contains("unknown"), "sync {n} did not fail: {} lines", said.lines().count());
        testimony.read_lines(&said).unwrap_or_else(|why| panic!("sync {n}: {why}"));
        testimony.compare(&held(dir.path()).await).unwrap_or_else(|why| panic!("sync {n}: {why}"));
    }
    assert!(testimony.answered >= 100, "too little happened: {}", testimony.answered);
}
