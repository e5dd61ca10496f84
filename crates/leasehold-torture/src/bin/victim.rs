//! A busy process to be killed: takes, renews and releases leases as fast as it can, and says so on its output.
//!
//! ```text
//! victim DIR CALLERS SECONDS
//!   ? id acquire NAME     about to ask
//!   ! id granted NAME TOKEN
//!   ? id release NAME TOKEN
//!   ! id released NAME TOKEN
//!   ! id unavailable | unknown
//! ```
//!
//! Each line is one write to a pipe, so what was said before a kill is read after it.
#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::engine::embedded::{Embedded, Options};
use leasehold::engine::{Claim, Engine, Mode, Want};
use leasehold::{Error, clock::SystemClock};

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Nobody listens any more: then there is nothing left to do.
    if out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

fn outcome<T>(result: Result<T, Error>, ok: impl FnOnce(T) -> String) -> (String, bool) {
    match result {
        Ok(value) => (ok(value), false),
        Err(Error::Refused(_)) => ("refused".into(), false),
        Err(Error::Indeterminate { .. }) => ("unknown".into(), true),
        Err(_) => ("unavailable".into(), true),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dir, callers, seconds] = arguments.as_slice() else { return Err("victim DIR CALLERS SECONDS".into()) };
    let engine = Embedded::open(dir, Options::default()).await?;
    say("ready");
    let next = Arc::new(AtomicU64::new(0));
    let clock = SystemClock::shared();
    let until = clock.now().plus(Duration::from_secs(seconds.parse()?));
    let mut tasks = Vec::new();
    for caller in 0..callers.parse::<u64>()? {
        let (engine, next, clock) = (engine.clone(), next.clone(), clock.clone());
        tasks.push(tokio::spawn(async move {
            let mut round = caller;
            while clock.now() < until {
                round = round.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                // Half of the names are everybody's.
                let name = if round >> 63 == 0 {
                    format!("hot-{}", (round >> 40) % 8)
                } else {
                    format!("own-{caller}-{}", round >> 48)
                };
                let id = next.fetch_add(1, Ordering::Relaxed);
                say(&format!("? {id} acquire {name}"));
                let claim = Claim {
                    wait: Duration::from_millis(20),
                    ..Claim::new(
                        vec![Want { name: name.clone(), mode: Mode::Exclusive }],
                        Duration::from_secs(3600),
                        format!("victim-{caller}"),
                    )
                };
                let mut kept = None;
                let (text, stop) = outcome(engine.acquire(claim).await, |grant| {
                    let token = grant.token.map_or(0, leasehold::Token::get);
                    kept = Some((grant.lease_id, token));
                    format!("granted {name} {token}")
                });
                say(&format!("! {id} {text}"));
                if stop {
                    return;
                }
                // Some are kept, so that there is something to find afterwards.
                if let Some((lease, token)) = kept.filter(|_| (round >> 50) % 8 != 0) {
                    let id = next.fetch_add(1, Ordering::Relaxed);
                    say(&format!("? {id} release {name} {token}"));
                    let (text, stop) = outcome(engine.release(&lease).await, |_| format!("released {name} {token}"));
                    say(&format!("! {id} {text}"));
                    if stop {
                        return;
                    }
                }
            }
        }));
    }
    for task in tasks {
        task.await?;
    }
    engine.close().await?;
    Ok(())
}
