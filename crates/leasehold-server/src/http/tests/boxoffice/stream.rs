//! What happens, in order, without a gap.

use super::*;

struct Listener(Client);

impl Listener {
    async fn at(server: &Server, event: &str, headers: &[(&str, &str)]) -> Self {
        let mut client = server.client().await;
        client.send("GET", &format!("/v1/events/{event}/stream"), headers, None).await;
        let (status, headers) = client.head().await;
        assert_eq!(status, 200);
        assert!(headers.iter().any(|(name, value)| name == "content-type" && value == "text/event-stream"));
        assert_eq!(client.chunk().await.unwrap(), "retry: 1000\n\n");
        Self(client)
    }

    /// The next events: id, kind, data.
    async fn next(&mut self) -> Vec<(u64, String, Value)> {
        loop {
            let chunk = self.0.chunk().await.expect("the stream goes on");
            let found: Vec<_> = chunk.split("\n\n").filter(|text| text.contains("data: ")).map(read).collect();
            if !found.is_empty() {
                return found;
            }
        }
    }

    /// So many events.
    async fn take(&mut self, many: usize) -> Vec<(u64, String, Value)> {
        let mut found = Vec::new();
        while found.len() < many {
            found.extend(self.next().await);
        }
        found
    }
}

fn read(text: &str) -> (u64, String, Value) {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    (field("id: ").parse().unwrap_or(0), field("event: ").to_owned(), serde_json::from_str(field("data: ")).unwrap())
}

/// Goal: a listener begins with the whole, hears everything after it once, goes on where it was, and never hears whose
/// it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_has_no_gap_and_goes_on() {
    let server = Server::start().await;
    let event = server.event(&hall()).await;
    server.until_seq(&event, 1).await;
    let mut live = Listener::at(&server, &event, &[]).await;
    let first = live.take(1).await;
    assert_eq!(first[0].1, "reset");
    schema::holds(&first[0].2, "Availability");
    let begin = first[0].0;
    let hold = server.hold(&event, &["A-1", "A-2"], "secret-buyer").await;
    server.of_hold(&hold, "release", &json!({})).await.with(200);
    server.buy(&event, &["B-1"], "secret-buyer").await;
    let told = live.take(4).await;
    let numbers: Vec<u64> = told.iter().map(|(id, ..)| *id).collect();
    assert_eq!(numbers, (begin + 1..=begin + 4).collect::<Vec<_>>());
    assert!(told.iter().all(|(id, kind, data)| kind == "seats" && data["seq"] == *id && data["at"].is_string()));
    assert_eq!(told[0].2["seats"], json!([{"id": "A-1", "state": "held"}, {"id": "A-2", "state": "held"}]));
    assert_eq!((&told[0].2["kind"], &told[0].2["hold_id"]), (&json!("held"), &json!(hold.id)));
    assert!(told[3].2["order_id"].is_string(), "{told:?}");
    let text = format!("{told:?}");
    assert!(!text.contains("secret-buyer") && !text.contains(&hold.key) && !text.contains("pi-"), "{text}");

    let mut back = Listener::at(&server, &event, &[("Last-Event-ID", &(begin + 2).to_string())]).await;
    let missed = back.take(2).await;
    assert_eq!(missed.iter().map(|(id, ..)| *id).collect::<Vec<_>>(), [begin + 3, begin + 4]);
    let mut early = Listener::at(&server, &event, &[("Last-Event-ID", "0")]).await;
    assert_eq!(early.take(begin as usize + 4).await[0].0, 1, "from the beginning");
    let mut future = Listener::at(&server, &event, &[("Last-Event-ID", "999999")]).await;
    assert_eq!(future.take(1).await[0].1, "reset");
    server.get(&format!("/v1/events/{event}/stream?since=abc")).await.problem(400, "invalid");
    server.stop.cancel();
    assert!(live.0.chunk().await.unwrap().contains("event: end"), "told that it ends");
    drop((back, early, future));
    server.end().await;
}

/// Goal: two windows see the same, also one that was opened on another connection much later, after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_goes_on_after_a_restart() {
    let server = Server::start().await;
    let event = server.event(&hall()).await;
    server.hold(&event, &["A-1"], "ada").await;
    let seq = server.until_seq(&event, 2).await["seq"].as_u64().unwrap();
    let (home, at) = server.end().await;
    let server = Server::on(home, at, HttpConfig::default(), Options::default(), KeyRing::open()).await;
    let mut back = Listener::at(&server, &event, &[("Last-Event-ID", &seq.to_string())]).await;
    server.hold(&event, &["A-2"], "bob").await;
    let told = back.take(1).await;
    assert_eq!((told[0].0, &told[0].2["seats"]), (seq + 1, &json!([{"id": "A-2", "state": "held"}])));
    drop(back);
    server.end().await;
}
