//! Random requests of stale and current leases on many connections, judged by the upstream's own record.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use crate::common::Site;
use crate::process::{GateProcess, HttpClient, shown};
use crate::upstream::Upstream;

const CONNECTIONS: usize = 12;
const RESOURCES: [&str; 3] = ["a", "b", "c"];

/// How many requests in all: `LEASEHOLD_GATE_REQUESTS`.
fn request_count() -> usize {
    let text = std::env::var("LEASEHOLD_GATE_REQUESTS").ok();
    text.map_or(2_000, |text| text.parse().expect("LEASEHOLD_GATE_REQUESTS is a number"))
}

#[derive(Default)]
struct Tally {
    next_token: AtomicU64,
    /// The highest token that was ever shown for a resource, raised before it is sent.
    shown: [AtomicU64; RESOURCES.len()],
    forwarded: AtomicUsize,
    refused: AtomicUsize,
    current_refused: AtomicUsize,
    other: AtomicUsize,
}

/// One client: takes a new lease now and then, and writes under its own ones, the late ones too.
fn run_client(address: SocketAddr, seed: u64, requests: usize, tally: &Tally) {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut roll = |sides: u64| {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % sides
    };
    let mut client = HttpClient::connect(address);
    // A lease: its token, and its resources as a range.
    let mut leases: Vec<(u64, std::ops::Range<usize>)> = Vec::new();
    let mut wants_lease = true;
    for _ in 0..requests {
        if std::mem::take(&mut wants_lease) || roll(40) == 0 {
            let first = roll(RESOURCES.len() as u64) as usize;
            let last = (first + 1 + roll(2) as usize).min(RESOURCES.len());
            leases.push((tally.next_token.fetch_add(1, Ordering::SeqCst) + 1, first..last));
        }
        let late = roll(4).min(leases.len() as u64 - 1) as usize;
        let (token, range) = leases[leases.len() - 1 - late].clone();
        for at in range.clone() {
            tally.shown[at].fetch_max(token, Ordering::SeqCst);
        }
        let path = if roll(20) == 0 { "/slow/15".to_owned() } else { format!("/slow/{}", roll(3)) };
        let answer = client.post(&path, &shown(token, &RESOURCES[range.clone()]), b"x");
        match answer.verdict() {
            (200, _) => tally.forwarded.fetch_add(1, Ordering::SeqCst),
            (409, code) if code == "stale" => {
                let newer = range.clone().any(|at| tally.shown[at].load(Ordering::SeqCst) > token);
                tally.current_refused.fetch_add(usize::from(!newer), Ordering::SeqCst);
                // Most go on with what they have, as a holder that does not notice.
                wants_lease = roll(8) == 0;
                tally.refused.fetch_add(1, Ordering::SeqCst)
            }
            other => {
                println!("{other:?}");
                tally.other.fetch_add(1, Ordering::SeqCst)
            }
        };
    }
}

fn run_race(address: SocketAddr, requests: usize) -> Tally {
    let tally = Tally::default();
    thread::scope(|scope| {
        for seed in 0..CONNECTIONS as u64 {
            let tally = &tally;
            scope.spawn(move || run_client(address, seed + 1, requests.div_ceil(CONNECTIONS), tally));
        }
    });
    tally
}

/// Goal: 0 older after newer, 0 overlaps of two tokens, 0 current refused.
#[test]
fn random_requests_reach_the_upstream_in_order() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    let requests = request_count();
    let tally = run_race(gate.address, requests);
    let load = |counter: &AtomicUsize| counter.load(Ordering::SeqCst);
    let (forwarded, refused) = (load(&tally.forwarded), load(&tally.refused));
    println!("{forwarded} forwarded, {refused} refused, judged: {:?}", upstream.judge());
    assert_eq!(load(&tally.current_refused), 0, "current refused");
    assert_eq!(load(&tally.other), 0, "neither forwarded nor stale");
    assert_eq!(upstream.judge(), Ok(forwarded));
    assert!(forwarded > requests / 100 && refused > requests / 100, "{forwarded} forwarded, {refused} refused");
    assert_eq!(gate.metric("leasehold_gate_flying"), 0.0);
}

/// Goal: the race is one: without the gate its requests are out of order, and the judge sees it.
#[test]
fn without_a_gate_the_judge_sees_disorder() {
    let upstream = Upstream::start();
    let tally = run_race(upstream.address, 600);
    assert!(tally.forwarded.load(Ordering::SeqCst) >= 600);
    let seen = upstream.judge().unwrap_err();
    println!("{seen}");
}
