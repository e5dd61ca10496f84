//! Clients that mean harm, or cannot help it.

use serde_json::json;

use super::*;

const HEAD: &str = "POST /v1/leases HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
const FINE: &str = "{\"resources\":[\"a\"],\"ttl_ms\":1000}";

/// Closed, and not before its time. That it is closed at all is for whoever waits for it to say.
#[track_caller]
fn not_early(began: Instant) {
    let took = began.elapsed();
    assert!(took >= SHORT * 9 / 10, "{took:?}");
}

/// Goal: who says nothing, half a head, or a head byte by byte is closed in time; so is an idle connection.
#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_are_closed() {
    let server = Server::with(hasty(), Options::default()).await;
    let began = Instant::now();
    let silent = server.client().await;
    let mut half = server.client().await;
    half.raw(b"GET / HTTP/1.1\r\nHost: local").await;
    let mut idle = server.client().await;
    idle.ask("GET", "/healthz", &[], None).await.with(200);
    let mut drip = server.client().await;
    let dripping = tokio::spawn(async move {
        drip.raw(b"GET / HTTP/1.1\r\n").await;
        while tokio::io::AsyncWriteExt::write_all(&mut drip.socket, b"X: y\r\n").await.is_ok() {
            sleep_until(Instant::now() + Duration::from_millis(40)).await;
        }
    });
    for client in [silent, half, idle] {
        client.until_closed().await;
        not_early(began);
    }
    timeout(PATIENCE, dripping).await.expect("dripping is no way to stay").unwrap();
    not_early(began);
    server.end().await;
}

/// Goal: between two requests the whole idle time is granted, not only the time for a head.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_is_kept_for_its_time() {
    let config = HttpConfig { idle: Duration::from_secs(60), ..hasty() };
    let server = Server::with(config, Options::default()).await;
    let mut client = server.client().await;
    for _ in 0..2 {
        client.ask("GET", "/healthz", &[], None).await.with(200);
        sleep_until(Instant::now() + SHORT * 3 / 2).await;
    }
    client.ask("GET", "/healthz", &[], None).await.with(200);
    // And half a second head on a kept connection has the time for a head again.
    let began = Instant::now();
    client.raw(b"GET / HT").await;
    client.until_closed().await;
    not_early(began);
    server.end().await;
}

/// Goal: a body that does not come is a 408 and the end of the connection; nothing was done.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_body_is_refused() {
    let server = Server::with(hasty(), Options::default()).await;
    let began = Instant::now();
    let mut client = server.client().await;
    client.raw(format!("{HEAD}Content-Length: {}\r\n\r\n{}", FINE.len(), &FINE[..10]).as_bytes()).await;
    client.reply(false).await.problem(408, "invalid");
    client.until_closed().await;
    not_early(began);
    assert_eq!(server.get("/v1/resources").await.json()["resources"], json!([]));
    server.end().await;
}

/// Goal: what is too big is refused by its own word, or as soon as it is too big.
#[tokio::test(flavor = "multi_thread")]
async fn oversized_requests_are_refused() {
    let server = Server::start().await;
    let mut client = server.client().await;
    client.raw(format!("{HEAD}Content-Length: 65537\r\n\r\n").as_bytes()).await;
    client.reply(false).await.problem(413, "invalid");
    client.until_closed().await;

    let mut client = server.client().await;
    client.raw(format!("{HEAD}Content-Length: 18446744073709551615\r\n\r\n").as_bytes()).await;
    let (status, _) = client.head().await;
    assert!(matches!(status, 400 | 413 | 431), "{status}");

    let mut client = server.client().await;
    client.raw(format!("{HEAD}Transfer-Encoding: chunked\r\n\r\n").as_bytes()).await;
    let chunk = format!("1000\r\n{}\r\n", " ".repeat(4096));
    for _ in 0..17 {
        if tokio::io::AsyncWriteExt::write_all(&mut client.socket, chunk.as_bytes()).await.is_err() {
            break;
        }
    }
    client.reply(false).await.problem(413, "invalid");

    let exactly = format!("{FINE}{}", " ".repeat(65_536 - FINE.len()));
    let mut client = server.client().await;
    client.raw(format!("{HEAD}Content-Length: 65536\r\n\r\n{exactly}").as_bytes()).await;
    client.reply(false).await.with(201);

    let mut client = server.client().await;
    let _ = tokio::io::AsyncWriteExt::write_all(
        &mut client.socket,
        format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(40_000)).as_bytes(),
    )
    .await;
    assert_eq!(client.head().await.0, 431);
    let mut client = server.client().await;
    let many = "X: y\r\n".repeat(2000);
    let _ = tokio::io::AsyncWriteExt::write_all(&mut client.socket, format!("GET / HTTP/1.1\r\n{many}\r\n").as_bytes())
        .await;
    assert_eq!(client.head().await.0, 431);
    server.end().await;
}

/// Goal: a request whose end two readers could see in two places is never answered as if it had one.
#[tokio::test(flavor = "multi_thread")]
async fn smuggled_requests_are_refused() {
    let server = Server::start().await;
    let hidden = "GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let corpus = [
        format!("{HEAD}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("{HEAD}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n{hidden}"),
        format!("{HEAD}Content-Length: 0\r\nContent-Length: 44\r\n\r\n{hidden}"),
        format!("{HEAD}Content-Length: 0, 44\r\n\r\n{hidden}"),
        format!("{HEAD}Content-Length: +0\r\n\r\n{hidden}"),
        format!("{HEAD}Content-Length: 0x0\r\n\r\n{hidden}"),
        format!("{HEAD}Transfer-Encoding: identity\r\n\r\n{hidden}"),
        format!("{HEAD}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{hidden}"),
        format!("{HEAD}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("{HEAD} Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("{HEAD}Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n{hidden}"),
        format!("{HEAD}X: y\rContent-Length: 44\r\n\r\n{hidden}"),
        "POST /v1/leases HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n".to_owned(),
        "GET /v1/status HTTP/1.1\r\n\r\n".to_owned(),
    ];
    for bytes in corpus {
        let mut client = server.client().await;
        client.raw(bytes.as_bytes()).await;
        // Says that nothing more comes; what was answered is read to the end.
        let _ = tokio::io::AsyncWriteExt::shutdown(&mut client.socket).await;
        let answers = client.until_closed().await;
        assert!(!answers.contains("200 OK"), "the hidden request was answered:\n{bytes}\n---\n{answers}");
        assert!(answers.is_empty() || answers.starts_with("HTTP/1.1 4"), "{bytes}\n---\n{answers}");
    }
    server.end().await;
}

/// Goal: pages of other origins and names that are not ours can do nothing; our own pages and curl can.
#[tokio::test(flavor = "multi_thread")]
async fn foreign_pages_are_refused() {
    let server = Server::start().await;
    let body = json!({"resources": ["a"], "ttl_ms": 1000});
    let own = format!("http://{}", server.at);
    let foreign = [
        ("Host", "evil.example"),
        ("Host", "localhost.evil.example:7400"),
        ("Origin", "http://evil.example"),
        ("Origin", "null"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Site", "same-site"),
    ];
    for header in foreign {
        let mut client = server.client().await;
        client.ask("POST", "/v1/leases", &[header], Some(&body)).await.problem(403, "forbidden");
        let refused = client.ask("GET", "/v1/resources", &[header], None).await;
        assert_eq!(refused.header("access-control-allow-origin"), "");
        refused.problem(403, "forbidden");
        client.ask("GET", "/v1/watch", &[header], None).await.problem(403, "forbidden");
        client.ask("OPTIONS", "/v1/leases", &[header], None).await.problem(403, "forbidden");
    }
    assert_eq!(server.get("/v1/resources").await.json()["resources"], json!([]), "nothing was taken");
    // Anybody may link to a page; its name must be ours all the same.
    let mut client = server.client().await;
    client.ask("GET", "/locks", &[("Sec-Fetch-Site", "cross-site")], None).await.with(200);
    client.ask("GET", "/locks", &[("Host", "evil.example")], None).await.problem(403, "forbidden");
    client.ask("GET", "http://evil.example/v1/status", &[], None).await.problem(403, "forbidden");
    client.raw(b"GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").await;
    client.reply(false).await.with(200);
    client.raw(b"GET /v1/status HTTP/1.0\r\nOrigin: http://evil.example\r\nConnection: keep-alive\r\n\r\n").await;
    client.reply(false).await.problem(403, "forbidden");
    let ours = [("Origin", own.as_str()), ("Sec-Fetch-Site", "same-origin")];
    client.ask("POST", "/v1/leases", &ours, Some(&body)).await.with(201);
    drop(client);
    server.end().await;
}

/// Goal: a Redis client that found the wrong port is cut off at once, and told so in its own language.
#[tokio::test(flavor = "multi_thread")]
async fn resp_is_cut_off() {
    // Whoever were merely waited for would stay longer than this test is patient.
    let long = PATIENCE * 3;
    let config = HttpConfig { first_byte: long, header: long, idle: long, ..HttpConfig::default() };
    let server = Server::with(config, Options::default()).await;
    for words in ["*1\r\n$4\r\nPING\r\n", "$4\r\nPING\r\n", "PING\r\n", "ping\r\n", "*3\r\n$3\r\nSET\r\n"] {
        let mut client = server.client().await;
        client.raw(words.as_bytes()).await;
        let answer = client.until_closed().await;
        assert!(answer.is_empty() || answer.starts_with("-ERR this port speaks HTTP"), "{words}: {answer}");
    }
    for words in ["SET a b\r\n", "HELLO 3\r\n", "\u{16}\u{3}\u{1}"] {
        let mut client = server.client().await;
        client.raw(words.as_bytes()).await;
        let _ = tokio::io::AsyncWriteExt::shutdown(&mut client.socket).await;
        let answer = client.until_closed().await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{words}: {answer}");
    }
    server.end().await;
}

/// Goal: there are only so many connections, and a place is free again when one closes.
#[tokio::test(flavor = "multi_thread")]
async fn connections_are_counted() {
    let config = HttpConfig {
        connection_limiter: crate::service::connection_limit::ConnectionLimiter::new(8, 3),
        ..HttpConfig::default()
    };
    let server = Server::with(config, Options::default()).await;
    let mut places = Vec::new();
    for _ in 0..3 {
        let mut client = server.client().await;
        client.ask("GET", "/healthz", &[], None).await.with(200);
        places.push(client);
    }
    // Whoever is turned away hears why, also if it had asked already.
    let mut refused = server.client().await;
    refused.ask("GET", "/healthz", &[], None).await.problem(429, "quota");
    places.pop();
    let end = Instant::now() + PATIENCE;
    loop {
        let mut client = server.client().await;
        client.send("GET", "/healthz", &[], None).await;
        if client.until_closed_or_head().await == Some(200) {
            break;
        }
        assert!(Instant::now() < end, "the place never came back");
    }
    drop(places);
    server.end().await;
}

/// Goal: with thousands of half-open connections others are served, and all of them are closed in time.
#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_of_half_open_connections_hinders_nobody() {
    let server = Server::with(HttpConfig::default(), Options::default()).await;
    let mut crowd = Vec::new();
    for _ in 0..400 {
        let mut client = server.client().await;
        client.raw(b"GET /v1/st").await;
        crowd.push(client);
    }
    server.get("/v1/status").await.with(200);
    for client in crowd {
        client.until_closed().await;
    }
    server.end().await;
}
