//! Older requests that are still with the upstream, and crashes.

use std::thread;
use std::time::Duration;

use crate::common::{Site, now, pause};
use crate::process::{GateProcess, shown};
use crate::upstream::{Entry, Upstream};

/// Goal: a newer request waits until the older one is answered, a third of a still newer lease overtakes it, and the
/// second then learns that it is stale.
#[test]
fn a_newer_request_waits_for_the_answer_to_the_older_one() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    thread::scope(|scope| {
        let first = scope.spawn(|| gate.post("/hold/first", &shown(1, &["a"])));
        upstream.wait_for_began(1);
        let second = scope.spawn(|| gate.post("/second", &shown(2, &["a"])));
        crate::common::wait_until("the raise is durable", || {
            gate.metric("leasehold_gate_raise_sync_seconds_count") >= 2.0
        });
        // The older lease is out from the moment the newer one was shown.
        assert_eq!(gate.post("/late", &shown(1, &["a"])).verdict(), (409, "stale".into()));
        // Another resource is not concerned.
        assert_eq!(gate.post("/other", &shown(1, &["b"])).status, 200);
        let third = scope.spawn(|| gate.post("/third", &shown(3, &["a"])));
        assert_eq!(second.join().unwrap().verdict(), (409, "stale".into()));
        assert_eq!(upstream.began().len(), 2, "{:?}", upstream.entries());
        crate::common::wait_until("its raise is durable", || {
            gate.metric("leasehold_gate_raise_sync_seconds_count") >= 4.0
        });
        pause(Duration::from_millis(50));
        upstream.release("first");
        assert_eq!(first.join().unwrap().status, 200);
        assert_eq!(third.join().unwrap().status, 200);
    });
    assert_eq!(upstream.judge(), Ok(3));
    // The second waited, too.
    assert_eq!(gate.metric("leasehold_gate_drain_seconds_count"), 2.0);
}

/// Goal: requests of one lease do not wait for each other.
#[test]
fn requests_of_one_lease_fly_together() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    thread::scope(|scope| {
        let all: Vec<_> = (0..4).map(|_| scope.spawn(|| gate.post("/hold/all", &shown(7, &["a"])))).collect();
        upstream.wait_for_began(4);
        (0..4).for_each(|_| upstream.release("all"));
        all.into_iter().for_each(|one| assert_eq!(one.join().unwrap().status, 200));
    });
}

/// Goal: with `refuse`, a stuck older request keeps newer ones out, and the order is kept.
#[test]
fn a_stuck_request_keeps_newer_ones_out() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &upstream.url(), &["--drain", "300ms"]);
    thread::scope(|scope| {
        let stuck = scope.spawn(|| gate.post("/hold/stuck", &shown(1, &["a"])));
        upstream.wait_for_began(1);
        let busy = gate.post("/newer", &shown(2, &["a"]));
        assert_eq!(busy.verdict(), (503, "fence_busy".into()));
        assert!(busy.head.to_ascii_lowercase().contains("\r\nretry-after: 1\r\n"), "{}", busy.head);
        assert_eq!(busy.json()["resource"], "a");
        assert_eq!(gate.metric("leasehold_gate_drain_seconds_count"), 1.0, "it waited for nothing");
        assert_eq!(upstream.began().len(), 1);
        upstream.release("stuck");
        assert_eq!(stuck.join().unwrap().status, 200);
    });
    assert_eq!(gate.post("/newer", &shown(2, &["a"])).status, 200);
    assert_eq!(upstream.judge(), Ok(2));
    assert_eq!(gate.metric("leasehold_gate_busy_total"), 1.0);
    assert_eq!(gate.metric("leasehold_gate_unsettled_total"), 0.0);
}

/// Goal: with `cut`, the older connection is closed, its client learns that the outcome is unknown, and the newer request
/// goes on after the time to settle.
#[test]
fn a_stuck_request_is_cut_where_the_operator_wants_that() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let arguments = ["--drain", "200ms", "--settle", "500ms", "--on-stuck", "cut"];
    let gate = GateProcess::start(&site, &upstream.url(), &arguments);
    thread::scope(|scope| {
        let stuck = scope.spawn(|| gate.post("/hold/stuck", &shown(1, &["a"])));
        upstream.wait_for_began(1);
        let began = now();
        let newer = scope.spawn(|| gate.post("/newer", &shown(2, &["a"])));
        assert_eq!(stuck.join().unwrap().verdict(), (504, "unknown_outcome".into()));
        upstream.wait_for("the cut connection is seen", |entries| entries.contains(&Entry::Gone(1)));
        assert_eq!(upstream.began().len(), 1, "the newer request did not wait for the time to settle");
        assert_eq!(newer.join().unwrap().status, 200);
        assert!(began.elapsed() >= Duration::from_millis(700), "{:?}", began.elapsed());
    });
    assert_eq!(upstream.judge(), Ok(2));
    assert_eq!(gate.metric("leasehold_gate_unsettled_total"), 1.0);
    assert_eq!(gate.metric("leasehold_gate_flying"), 0.0);
}

/// Goal: a crash between the sync of a raise and its forwarding lets no older request in.
/// Method: the newer request waits for the older one when the gate is killed: its token is on disk, and nothing of it
/// was sent.
#[test]
fn a_kill_between_sync_and_forward_keeps_the_older_lease_out() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    let mut older = gate.connect();
    older.send("POST", "/hold/older", &shown(1, &["a"]).headers(), b"x");
    upstream.wait_for_began(1);
    let mut newer = gate.connect();
    newer.send("POST", "/newer", &shown(2, &["a"]).headers(), b"x");
    crate::common::wait_until("the raise is durable", || gate.metric("leasehold_gate_raise_sync_seconds_count") >= 2.0);
    gate.kill();
    assert!(newer.read_answer().is_none());
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    assert_eq!(gate.post("/again", &shown(1, &["a"])).verdict(), (409, "stale".into()));
    assert_eq!(upstream.began().len(), 1, "the newer one was never sent");
    assert_eq!(gate.post("/again", &shown(2, &["a"])).status, 200);
    assert_eq!(upstream.judge(), Ok(2));
}

/// Goal: kills at any moment let no older request in after a newer one was forwarded.
/// Method: two leases take turns under traffic while the gate is killed and started again; the upstream's record is
/// judged, and each new gate is asked about the newest token that was ever forwarded.
#[test]
fn kills_at_any_moment_keep_the_order() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let mut token = 0;
    for round in 0..8 {
        let gate = GateProcess::start(&site, &upstream.url(), &[]);
        let newest = upstream.began().iter().map(|seen| seen.token).max().unwrap_or(0);
        if newest > 1 {
            let late = gate.post("/late", &shown(newest - 1, &["a"]));
            assert_eq!(late.verdict(), (409, "stale".into()), "round {round}: {newest} was forwarded");
        }
        let address = gate.address;
        let traffic = thread::spawn(move || {
            let mut token = token;
            while let Ok(stream) = std::net::TcpStream::connect(address) {
                let mut client = crate::process::HttpClient::over(stream);
                for late in 0..20 {
                    token += 1;
                    let shown_token = if late % 3 == 2 { token - 1 } else { token };
                    let headers = shown(shown_token, &["a"]).headers();
                    let mut request = "POST /slow/1 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n".to_owned();
                    headers.iter().for_each(|(name, value)| request.push_str(&format!("{name}: {value}\r\n")));
                    request.push_str("\r\n");
                    if !client.try_write(request.as_bytes()) || client.read_answer().is_none() {
                        return token;
                    }
                }
            }
            token
        });
        pause(Duration::from_millis(150 + 37 * round));
        gate.kill();
        token = traffic.join().unwrap();
    }
    let judged = upstream.judge();
    println!("{judged:?} requests were forwarded over 8 kills");
    assert!(judged.unwrap() > 50);
}
