//! Random requests of stale and current leases on many connections, judged by the upstream's own record.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{Site, pause};
use crate::process::{GateProcess, HttpClient, shown};
use crate::upstream::{Entry, Upstream};

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

/// Where the gate listens now; it is another port after each kill.
type GateAddress = std::sync::Mutex<SocketAddr>;

/// Ends the clients, even if the test fails in the middle.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// One client of the race with kills. It asks again on a new connection when the gate dies.
fn run_client_over_kills(address: &GateAddress, stop: &AtomicBool, tally: &Tally, seed: usize) {
    let (mut token, mut late, mut client) = (0, 0, None);
    while !stop.load(Ordering::SeqCst) {
        if token == 0 || late > seed / 3 {
            (token, late) = (tally.next_token.fetch_add(1, Ordering::SeqCst) + 1, 0);
        }
        let at = (token as usize + seed) % RESOURCES.len();
        tally.shown[at].fetch_max(token, Ordering::SeqCst);
        let open = client.take().or_else(|| {
            let address = *address.lock().unwrap();
            std::net::TcpStream::connect(address).ok().map(HttpClient::over)
        });
        let Some(mut open) = open else {
            pause(Duration::from_millis(2));
            continue;
        };
        let head = format!(
            "POST /slow/{} HTTP/1.1\r\nHost: a\r\nFencing-Token: {token}\r\nFencing-Resource: {}\r\n\
             Content-Length: 1\r\n\r\nx",
            seed % 3,
            RESOURCES[at]
        );
        let answer = if open.try_write(head.as_bytes()) { open.read_answer() } else { None };
        let Some(answer) = answer else {
            tally.other.fetch_add(1, Ordering::SeqCst);
            continue;
        };
        client = Some(open);
        match answer.verdict() {
            (200, _) => tally.forwarded.fetch_add(1, Ordering::SeqCst),
            (409, code) if code == "stale" => {
                let newer = tally.shown[at].load(Ordering::SeqCst) > token;
                tally.current_refused.fetch_add(usize::from(!newer), Ordering::SeqCst);
                late += 1;
                tally.refused.fetch_add(1, Ordering::SeqCst)
            }
            _ => tally.other.fetch_add(1, Ordering::SeqCst),
        };
    }
}

/// Goal: kills of the gate let no older request in after a newer one, and refuse no current one.
/// Method: the race, while the gate is killed and started again. A kill closes the connections to the service, which
/// gives up what was open on them; only then the next gate starts.
#[test]
fn a_race_over_kills_reaches_the_upstream_in_order() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    let (address, tally) = (GateAddress::new(gate.address), Tally::default());
    let (stop, requests) = (AtomicBool::new(false), request_count());
    let load = |counter: &AtomicUsize| counter.load(Ordering::SeqCst);
    let (gate, kills) = thread::scope(|scope| {
        let (mut gate, mut kills, _stop) = (gate, 0, StopOnDrop(&stop));
        for seed in 0..CONNECTIONS {
            let (address, tally, stop) = (&address, &tally, &stop);
            scope.spawn(move || run_client_over_kills(address, stop, tally, seed));
        }
        while load(&tally.forwarded) + load(&tally.refused) < requests || kills < 4 {
            pause(Duration::from_millis(100 + 13 * (kills % 11)));
            gate.kill();
            kills += 1;
            upstream.wait_for("what was open is given up", |entries| {
                let began = entries.iter().filter(|entry| matches!(entry, Entry::Began(_))).count();
                let ended = entries.iter().filter(|entry| matches!(entry, Entry::Answered(_) | Entry::Gone(_))).count();
                began == ended
            });
            gate = GateProcess::start(&site, &upstream.url(), &[]);
            *address.lock().unwrap() = gate.address;
        }
        (gate, kills)
    });
    let (forwarded, refused, lost) = (load(&tally.forwarded), load(&tally.refused), load(&tally.other));
    let judged = upstream.judge();
    println!("{kills} kills: {forwarded} answered, {refused} refused, {lost} lost; judged: {judged:?}");
    assert_eq!(load(&tally.current_refused), 0, "current refused");
    assert!(judged.unwrap() >= forwarded && refused > 0, "{forwarded} answered, {refused} refused");
    // The newest token that was forwarded is remembered by the last gate.
    for resource in RESOURCES {
        let of_resource = upstream.began().into_iter().filter(|seen| seen.resources == [resource]);
        let newest = of_resource.map(|seen| seen.token).max().unwrap_or(0);
        assert!(newest > 1, "{resource} was hardly tried");
        assert_eq!(gate.post("/late", &shown(newest - 1, &[resource])).verdict(), (409, "stale".into()), "{resource}");
    }
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
