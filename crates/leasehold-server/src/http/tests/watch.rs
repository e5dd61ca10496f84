//! Server-sent events: gapless, resumable, honest about gaps.

use serde_json::json;

use super::super::resources::MAX_PAGE_RESOURCES;
use super::*;

/// A watch that is read event by event.
struct Events {
    client: Client,
    text: String,
}

#[derive(Debug)]
struct Told {
    id: String,
    event: String,
    data: Value,
}

impl Events {
    async fn open(server: &Server, path: &str, headers: &[(&str, &str)]) -> Self {
        let mut client = server.client().await;
        client.send("GET", path, headers, None).await;
        let (status, headers) = client.head().await;
        assert_eq!(status, 200);
        let header = |name: &str| headers.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str());
        assert_eq!((header("content-type"), header("cache-control")), (Some("text/event-stream"), Some("no-store")));
        Self { client, text: String::new() }
    }

    /// The next event; none at the end of the stream.
    async fn next(&mut self) -> Option<Told> {
        loop {
            while let Some((block, rest)) = self.text.split_once("\n\n") {
                let block = block.to_owned();
                self.text = rest.to_owned();
                let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
                let Some(event) = field("event: ") else { continue };
                let data = serde_json::from_str(&field("data: ").unwrap()).unwrap();
                return Some(Told { id: field("id: ").unwrap_or_default(), event, data });
            }
            self.text.push_str(&self.client.chunk().await?);
        }
    }

    async fn reset(&mut self) -> Told {
        let told = self.next().await.unwrap();
        assert_eq!(told.event, "reset");
        schema::holds(&told.data, "Snapshot");
        assert_eq!(told.data["id"], told.id);
        told
    }
}

/// Goal: a picture that is not the whole says so, and one that is does not.
#[tokio::test(flavor = "multi_thread")]
async fn the_whole_says_whether_it_is_the_whole() {
    let server = Server::start().await;
    for number in 0..MAX_PAGE_RESOURCES {
        server.take(&format!("row/{number}"), 600_000, "ada").await;
    }
    let seen = async || {
        let reset = Events::open(&server, "/v1/watch?prefix=row%2F", &[]).await.reset().await;
        (reset.data["resources"].as_array().unwrap().len(), reset.data["truncated"] == true)
    };
    assert_eq!(seen().await, (MAX_PAGE_RESOURCES, false));
    server.take("row/one more", 600_000, "ada").await;
    assert_eq!(seen().await, (MAX_PAGE_RESOURCES, true));
    server.end().await;
}

/// Goal: a watch begins with the whole, then tells each thing under its prefix once, in order, chained by `prev`.
#[tokio::test(flavor = "multi_thread")]
async fn what_happens_is_told_without_a_gap() {
    let server = Server::start().await;
    server.take("row/0", 30_000, "ada").await;
    let mut events = Events::open(&server, "/v1/watch?prefix=row%2F", &[]).await;
    let reset = events.reset().await;
    assert_eq!((reset.data["resources"][0]["name"].as_str(), &reset.data["truncated"]), (Some("row/0"), &json!(false)));

    let one = server.take("row/1", 30_000, "ada").await;
    server.take("elsewhere", 30_000, "ada").await;
    server.post("/v1/leases/release", &json!({"lease_id": one["lease_id"]})).await.with(204);
    let body = json!({"resources": ["row/2", "hidden"], "ttl_ms": 30, "holder": "bob"});
    let two = server.post("/v1/leases", &body).await.with(201).json();
    let why = json!({"reason": "say \"why\"\nin two lines"});
    server.client().await.ask("DELETE", "/v1/resources/row%2F0", &[], Some(&why)).await;
    let (mut prev, mut kinds) = (reset.id, Vec::new());
    for _ in 0..5 {
        let told = events.next().await.unwrap();
        schema::holds(&told.data, "Event");
        assert_eq!((&told.data["id"], &told.data["prev"]), (&json!(told.id), &json!(prev)), "no gap");
        assert_eq!(told.data["kind"], told.event);
        prev = told.id;
        if told.event == "revoked" {
            assert_eq!(told.data["reason"], why["reason"]);
        }
        if told.data["token"] == two["token"] {
            assert_eq!((&told.data["resources"], &told.data["holder"]), (&json!(["row/2"]), &json!("bob")));
        }
        kinds.push(told.event);
    }
    kinds[3..].sort();
    assert_eq!(kinds, ["granted", "released", "granted", "lapsed", "revoked"]);
    drop(events);
    server.end().await;
}

/// Goal: who comes back with the last id it saw misses nothing; after a restart it is told to begin anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_goes_on_where_it_was() {
    let server = Server::start().await;
    let mut events = Events::open(&server, "/v1/watch", &[]).await;
    events.reset().await;
    server.take("a", 30_000, "ada").await;
    let seen = events.next().await.unwrap();
    drop(events);
    server.take("b", 30_000, "ada").await;
    server.take("c", 30_000, "ada").await;
    for (path, headers) in [
        ("/v1/watch".to_owned(), vec![("Last-Event-ID", seen.id.as_str())]),
        (format!("/v1/watch?since={}", seen.id), vec![]),
    ] {
        let mut events = Events::open(&server, &path, &headers).await;
        let (b, c) = (events.next().await.unwrap(), events.next().await.unwrap());
        assert_eq!((&b.data["resources"], &b.data["prev"]), (&json!(["b"]), &json!(seen.id)));
        assert_eq!((&c.data["resources"], &c.data["prev"]), (&json!(["c"]), &json!(b.id)));
    }

    let (home, at) = server.end().await;
    let server = Server::on(home, at, HttpConfig::default(), Options::default(), KeyRing::open()).await;
    let mut events = Events::open(&server, "/v1/watch", &[("Last-Event-ID", &seen.id)]).await;
    let reset = events.reset().await;
    let names: Vec<&str> =
        reset.data["resources"].as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b", "c"], "the whole, from disk");
    server.take("d", 30_000, "ada").await;
    assert_eq!(events.next().await.unwrap().data["prev"], reset.id);
    drop(events);
    server.end().await;
}

/// Goal: a quiet watch says that it is alive, outlives the limits of idle connections, and ends with the server.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_beats_and_ends_with_the_server() {
    let config = HttpConfig { heartbeat: Duration::from_millis(150), ..hasty() };
    let server = Server::with(config, Options::default()).await;
    let mut events = Events::open(&server, "/v1/watch", &[]).await;
    events.reset().await;
    for _ in 0..5 {
        let beat = events.client.chunk().await.unwrap();
        assert!(beat.starts_with(": "), "{beat}");
    }
    server.end().await;
    let end = events.next().await.unwrap();
    schema::holds(&end.data, "End");
    assert_eq!((end.event.as_str(), &end.data["code"]), ("end", &json!("unavailable")));
    assert!(events.next().await.is_none());
}

/// Goal: a watcher that does not read is cut off, and costs nobody else anything.
#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_that_does_not_read_is_cut_off() {
    let config = HttpConfig { write_stall: SHORT, ..HttpConfig::default() };
    let server = Server::with(config, Options::default()).await;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stuck = socket.connect(server.at).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stuck, b"GET /v1/watch HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await
        .unwrap();
    let holder = "h".repeat(256);
    let end = Instant::now() + PATIENCE;
    let mut client = server.client().await;
    // News until the socket is full and the server has hung up, which the socket says by an error or an end.
    let names: Vec<String> = (0..64).map(|at| format!("{at:0>500}")).collect();
    let cut = async {
        loop {
            let body = json!({"resources": names, "ttl_ms": 30_000, "holder": holder});
            let grant = client.ask("POST", "/v1/leases", &[], Some(&body)).await.with(201).json();
            let lease = json!({"lease_id": grant["lease_id"]});
            client.ask("POST", "/v1/leases/release", &[], Some(&lease)).await.with(204);
            if is_cut(&stuck) {
                return;
            }
            assert!(Instant::now() < end, "it was never cut off");
        }
    };
    cut.await;
    drop(client);
    server.end().await;
}

/// Whether the other side has closed: the kernel says so in the state of the socket.
fn is_cut(socket: &tokio::net::TcpStream) -> bool {
    let local = socket.local_addr().unwrap().port();
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let mine = format!(":{local:04X}");
    // Of each socket: a number, its own end, the other end, its state; 01 is established.
    !table.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.len() > 3 && fields[2].ends_with(&mine) && fields[3] == "01"
    })
}
