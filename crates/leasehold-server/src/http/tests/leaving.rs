//! Who hangs up while it waits: it leaves the queue within a second, and has no lease that it never heard of for longer
//! than its ttl.
//!
//! Time stands still here, the engine's and tokio's, but where a test moves it: no law is measured by how busy the
//! machine is.

use std::sync::mpsc;

use leasehold::testkit::ManualClock;
use rustix::net::sockopt::set_socket_linger;
use tokio::io::AsyncWriteExt;
use tokio::time::advance;

use super::waiting::patient;
use super::*;

/// Less than a second.
const A_MOMENT: Duration = Duration::from_millis(999);
/// How long a lease lives here that is to lapse.
const TTL: Duration = Duration::from_secs(60);

/// Runs a test on a server whose clocks stand still. Only the machine's own clock goes on, and ends what hangs: the thread
/// that watches it also keeps tokio from moving its clock to the next timer whenever there is nothing to do.
async fn standing_still(test: impl AsyncFnOnce(&Server, &ManualClock)) {
    let (done, patience) = mpsc::channel::<()>();
    let watch = tokio::task::spawn_blocking(move || patience.recv_timeout(PATIENCE));
    let work = async {
        let clock = ManualClock::new();
        let options = Options { clock: clock.shared(), ..Options::default() };
        let server = Server::with(HttpConfig::default(), options).await;
        test(&server, &clock).await;
        server.end().await;
    };
    tokio::select! {
        () = work => drop(done),
        _ = watch => panic!("waited in vain"),
    }
}

/// Asks until the answer is yes: `standing_still` ends it otherwise.
async fn until(mut holds: impl AsyncFnMut() -> bool) {
    while !holds().await {
        tokio::task::yield_now().await;
    }
}

impl Server {
    async fn stands_in_line(&self, name: &str, many: u64) {
        until(async || self.queue_len(name).await == many).await;
    }

    /// Waits until so many have asked for something and gone away before there was an answer.
    async fn have_left(&self, many: u64) {
        let line = format!("leasehold_acquire_total{{outcome=\"left\"}} {many}\n");
        until(async || self.get("/metrics").await.text().contains(&line)).await;
    }

    async fn is_free(&self, name: &str) -> bool {
        let seen = self.get(&format!("/v1/resources/{name}")).await.json();
        seen["holders"] == json!([]) && seen["queue_len"] == 0
    }

    async fn release(&self, grant: &Value) {
        self.post("/v1/leases/release", &json!({"lease_id": grant["lease_id"]})).await.with(204);
    }
}

fn token(grant: &Value) -> u64 {
    grant["token"].as_str().unwrap().parse().unwrap()
}

/// Goal: a client that hangs up while it waits leaves the queue within a second, whatever it sent behind its request.
/// Method: all would wait for ten minutes. Time moves on by less than a second after each farewell, and never else.
#[tokio::test(start_paused = true)]
async fn a_hang_up_leaves_the_queue_within_a_second() {
    standing_still(async |server, _| {
        let ada = server.take("seat", 30_000, "ada").await;
        let next = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(1000);
        // What follows the request keeps hyper from reading on, and so from noticing the end.
        let id = [("Idempotency-Key", "order-8")];
        let ways = [(&[][..], &b""[..]), (&id, b""), (&[], b"\r\n"), (&[], b"G"), (&[], &next)];
        let mut left = 0;
        for (headers, behind) in ways {
            for reset in [false, true] {
                let mut bob = server.client().await;
                bob.send("POST", "/v1/leases", headers, Some(&patient("seat", "bob"))).await;
                bob.raw(behind).await;
                server.stands_in_line("seat", 1).await;
                if reset {
                    set_socket_linger(&bob.socket, Some(Duration::ZERO)).unwrap();
                }
                drop(bob);
                advance(A_MOMENT).await;
                server.stands_in_line("seat", 0).await;
                left += 1;
                // Whoever was let in has an outcome, also who did not stay for it.
                server.have_left(left).await;
            }
        }
        server.release(&ada).await;
        assert!(server.is_free("seat").await, "no ghost took it");
    })
    .await;
}

/// Goal: who left the queue is granted nothing, not even for a moment.
/// Method: a crowd around one who stays. All of the crowd hang up, the server has counted them as gone, and only then the
/// holder lets go: the very next token goes to the one who stayed, and the one after it is the next grant of all.
#[tokio::test(start_paused = true)]
async fn who_left_is_granted_nothing() {
    standing_still(async |server, _| {
        let ada = server.take("seat", 30_000, "ada").await;
        let mut line = Vec::new();
        for place in 0..21 {
            let mut waiter = server.client().await;
            waiter.send("POST", "/v1/leases", &[], Some(&patient("seat", "bob"))).await;
            server.stands_in_line("seat", place + 1).await;
            line.push(waiter);
        }
        let mut stays = line.remove(10);
        drop(line);
        advance(A_MOMENT).await;
        server.have_left(20).await;
        server.release(&ada).await;
        let grant = stays.reply(false).await.with(201).json();
        assert_eq!(token(&grant), token(&ada) + 1, "nobody was granted anything in between");
        server.release(&grant).await;
        assert_eq!(token(&server.take("other", 30_000, "cy").await), token(&ada) + 2, "nor afterwards");
    })
    .await;
}

/// Goal: whatever a race of grant and hang-up comes to, who knows of a lease keeps it, and one that nobody can know of is
/// gone at its ttl at the latest.
/// Method: many rounds of a waiter that hangs up at the moment the holder lets go. Who says goodbye and reads to the end
/// knows what it was told: if nothing, the lease is given back before its time moves. Who closes may have been sent a
/// grant a moment before: so time moves to the end of the ttl, and every one of them must be free.
#[tokio::test(start_paused = true)]
async fn a_race_of_grant_and_hang_up_strands_nothing_beyond_its_ttl() {
    standing_still(async |server, clock| {
        let (mut heard, mut given_back, mut closed) = (Vec::new(), 0, Vec::new());
        for round in 0..80 {
            let name = format!("seat-{round}");
            let ada = server.take(&name, 3_600_000, "ada").await;
            let mut bob = server.client().await;
            let ttl = TTL.as_millis() as u64;
            let claim = json!({"resources": [name], "ttl_ms": ttl, "wait_ms": 3_600_000, "holder": "bob"});
            bob.send("POST", "/v1/leases", &[], Some(&claim)).await;
            server.stands_in_line(&name, 1).await;
            let mut client = server.client().await;
            client.send("POST", "/v1/leases/release", &[], Some(&json!({"lease_id": ada["lease_id"]}))).await;
            for _ in 0..round / 2 % 8 {
                tokio::task::yield_now().await;
            }
            if round % 2 == 0 {
                bob.socket.shutdown().await.unwrap();
                let told = bob.until_closed().await;
                client.reply(false).await.with(204);
                if told.is_empty() {
                    until(async || server.is_free(&name).await).await;
                    given_back += 1;
                } else {
                    assert!(told.starts_with("HTTP/1.1 201 "), "{told}");
                    let grant = told.rsplit("\r\n\r\n").next().unwrap();
                    heard.push((name, serde_json::from_str::<Value>(grant).unwrap()));
                }
            } else {
                drop(bob);
                client.reply(false).await.with(204);
                closed.push(name);
            }
        }
        for (name, grant) in &heard {
            assert!(!server.is_free(name).await, "{name} was told of, and is kept");
            let renew = json!({"lease_id": grant["lease_id"], "ttl_ms": 3_600_000});
            server.post("/v1/leases/renew", &renew).await.with(200);
        }
        println!("{} heard of their lease, {given_back} gave it back, {} closed", heard.len(), closed.len());
        advance(A_MOMENT).await;
        clock.advance(TTL);
        for name in &closed {
            until(async || server.is_free(name).await).await;
        }
        for (name, _) in &heard {
            assert!(!server.is_free(name).await, "{name} was renewed, and is kept");
        }
    })
    .await;
}
