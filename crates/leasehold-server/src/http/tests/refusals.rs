//! Every no has its status, its code, and a sentence that helps.

use leasehold::{Error, Refusal};
use leasehold_core::Limits;
use serde_json::json;

use super::*;
use crate::http::problem::Problem;
use crate::service::Denial;

/// Goal: what the engine refuses comes with the status and code of the contract, and *held* says by whom.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_engine_refuses() {
    let limits = Limits { leases: 2, waiters_per_resource: 1, ..Limits::default() };
    let server = Server::with(HttpConfig::default(), Options { limits, ..Options::default() }).await;
    let ada = server.take("seat", 30_000, "ada").await;
    let claim = |name: &str, wait_ms: u64| json!({"resources": [name], "ttl_ms": 1000, "wait_ms": wait_ms});

    let held = server.post("/v1/leases", &claim("seat", 0)).await.problem(409, "held");
    assert_eq!((&held["resource"], &held["holder"], &held["queue_len"]), (&json!("seat"), &json!("ada"), &json!(0)));
    assert!(held["remaining_ms"].as_u64().unwrap() > 20_000, "{held}");

    let held = server.post("/v1/leases", &claim("seat", 50)).await.problem(409, "held");
    assert_eq!(held["holder"], "ada", "the wait ran out");

    let mut waiter = server.client().await;
    waiter.send("POST", "/v1/leases", &[], Some(&claim("seat", 60_000))).await;
    server.until_queued("seat", 1).await;
    server.post("/v1/leases", &claim("seat", 1000)).await.problem(429, "queue_full");
    drop(waiter);

    let bob = server.take("short", 1, "bob").await;
    moment().await;
    let lease = json!({"lease_id": bob["lease_id"]});
    server.post("/v1/leases/renew", &lease).await.problem(409, "stale");
    server.post("/v1/leases/release", &lease).await.problem(409, "stale");
    for id in ["", "nonsense", "0", "42-00000000000000000000000000000000", "é"] {
        let lease = json!({"lease_id": id});
        server.post("/v1/leases/renew", &lease).await.problem(404, "not_held");
        server.post("/v1/leases/release", &lease).await.problem(404, "not_held");
    }
    server.take("second", 30_000, "bob").await;
    server.post("/v1/leases", &claim("third", 0)).await.problem(429, "quota");

    let lease = json!({"lease_id": ada["lease_id"], "ttl_ms": 86_400_001});
    server.post("/v1/leases/renew", &lease).await.problem(400, "invalid");
    server.service.close().await.unwrap();
    server.post("/v1/leases", &claim("fourth", 0)).await.problem(503, "unavailable");
    server.get("/readyz").await.problem(503, "unavailable");
    server.get("/healthz").await.with(200);
}

/// Goal: the rest of the table, which no healthy engine says, is told apart too; and causes come with it.
#[test]
fn what_only_a_sick_engine_says() {
    let told = |error| {
        let denial = Denial::Engine(error);
        let code = denial.code();
        (code.status, Problem::from(&denial).code(), Problem::from(&denial).detail().to_owned())
    };
    let attempt = || "acquire seat".to_owned();
    let (status, code, detail) =
        told(Error::Indeterminate { engine: "embedded", attempt: attempt(), source: "the disk failed".into() });
    assert_eq!((status, code), (504, "unknown_outcome"));
    assert!(detail.contains("the disk failed"), "{detail}");
    let corrupt = Error::Corrupt { engine: "embedded", law: "tokens rise".into(), at: "journal-1".into() };
    assert_eq!(told(corrupt).1, "corrupt");
    assert_eq!(told(Error::Refused(Refusal::Mismatch)).0, 422);
}

/// Goal: a body that is not as described is refused with the name of the field, and never with its value.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_are_wrong() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let wrong = [
        (json!({}), "resources"),
        (json!({"resources": ["a"]}), "ttl_ms"),
        (json!({"resources": "a", "ttl_ms": 1}), "resources"),
        (json!({"resources": [], "ttl_ms": 1}), "at least one resource"),
        (json!({"resources": ["a", "a"], "ttl_ms": 1}), "twice"),
        (json!({"resources": [""], "ttl_ms": 1}), "not empty"),
        (json!({"resources": ["a\nb"], "ttl_ms": 1}), "control"),
        (json!({"resources": [7], "ttl_ms": 1}), "a resource"),
        (json!({"resources": [{"mode": "shared"}], "ttl_ms": 1}), "name"),
        (json!({"resources": [{"name": "a", "mode": "hunter2"}], "ttl_ms": 1}), "mode"),
        (json!({"resources": [{"name": "a", "permits": 1}], "ttl_ms": 1}), "permits"),
        (json!({"resources": [{"name": "a", "mode": "permits"}], "ttl_ms": 1}), "capacity"),
        (json!({"resources": [{"name": "a", "mode": "permits", "permits": 3, "capacity": 2}], "ttl_ms": 1}), "permits"),
        (json!({"resources": [{"name": "a", "mode": "permits", "capacity": 4294967296u64}], "ttl_ms": 1}), "capacity"),
        (json!({"resources": [{"name": "a", "ttl": 1}], "ttl_ms": 1}), "\"ttl\""),
        (json!({"resources": ["a"], "ttl_ms": 1, "wiat_ms": 1}), "\"wiat_ms\""),
        (json!({"resources": ["a"], "ttl_ms": 1, "holder": 7}), "holder"),
        (json!({"resources": ["a"], "ttl_ms": 1, "holder": "h".repeat(257)}), "holder"),
        (json!({"resources": ["a"], "ttl_ms": 1, "wait_ms": 3_600_001}), "wait"),
        (json!({"resources": ["a"], "ttl_ms": 1, "max_hold_ms": 0}), "max_hold"),
        (json!({"resources": ["n".repeat(10_000)], "ttl_ms": 1}), "512 bytes"),
        (json!({"resources": (0..65).map(|n| n.to_string()).collect::<Vec<_>>(), "ttl_ms": 1}), "at most 64"),
        (json!([]), "object"),
    ];
    for (body, says) in wrong {
        let problem = client.ask("POST", "/v1/leases", &[], Some(&body)).await.problem(400, "invalid");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(says), "{detail} should speak of {says}");
        assert!(!detail.contains("hunter2"), "{detail}");
    }
    // One reader would see `a`, another `b`: also inside.
    for body in [
        r#"{"resources": ["a"], "ttl_ms": 1000, "resources": ["b"]}"#,
        r#"{"resources": [{"name": "a", "name": "b"}], "ttl_ms": 1000}"#,
        r#"{"resources": [{"name": "a", "na\u006de": "b"}], "ttl_ms": 1000}"#,
    ] {
        let length = body.len();
        let head = format!("POST /v1/leases HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n");
        client.raw(format!("{head}Content-Type: application/json\r\n\r\n{body}").as_bytes()).await;
        let problem = client.reply(false).await.problem(400, "invalid");
        assert!(problem["detail"].as_str().unwrap().contains("twice"), "{body}: {problem}");
    }
    assert_eq!(server.get("/v1/resources").await.json()["resources"], json!([]), "nothing was taken");
    drop(client);
    server.end().await;
}

/// Goal: a ttl at its limits passes, and everything beyond or beside is refused with a sentence about it.
/// Method: raw JSON text, for numbers that no JSON library would write.
#[tokio::test(flavor = "multi_thread")]
async fn a_ttl_is_a_whole_number_of_milliseconds() {
    let server = Server::start().await;
    let ask = async |ttl: &str| {
        let body = format!("{{\"resources\":[\"ttl {}\"],\"ttl_ms\":{ttl}}}", ttl.replace('"', ""));
        let mut client = server.client().await;
        let head = "POST /v1/leases HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json; charset=utf-8";
        client.raw(format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).await;
        client.reply(false).await
    };
    for ttl in ["1", "86400000"] {
        ask(ttl).await.with(201);
    }
    for ttl in [
        "0",
        "-1",
        "-9223372036854775808",
        "1.5",
        "1.0",
        "1e3",
        "1e300",
        "-0.0",
        "\"30000\"",
        "true",
        "[]",
        "{}",
        "86400001",
        "1073741824",
        "2147483648",
        "68719476736",
        "9007199254740993",
        "9223372036854775807",
        "18446744073709551615",
        "18446744073709551616",
        "99999999999999999999999999",
    ] {
        let problem = ask(ttl).await.problem(400, "invalid");
        assert!(problem["detail"].as_str().unwrap().contains("ttl"), "{ttl}: {problem}");
    }
    for ttl in ["NaN", "Infinity", "01", "+1", "0x10", "1,\"ttl_ms\":2", ""] {
        ask(ttl).await.problem(400, "invalid");
    }
    server.end().await;
}

/// Goal: what is wrong around the body has its own status, in the same form.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_wrong() {
    let server = Server::start().await;
    let post = async |headers: &str, body: &str| {
        let mut client = server.client().await;
        let length = body.len();
        client
            .raw(
                format!(
                    "POST /v1/leases HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
                )
                .as_bytes(),
            )
            .await;
        client.reply(false).await
    };
    let fine = "{\"resources\":[\"a\"],\"ttl_ms\":1000}";
    for kind in [
        "",
        "Content-Type: text/plain\r\n",
        "Content-Type: application/x-www-form-urlencoded\r\n",
        "Content-Type: application/jsonp\r\n",
    ] {
        post(kind, fine).await.problem(415, "invalid");
    }
    let json_type = "Content-Type: application/json\r\n";
    for body in [
        "",
        "{",
        "nonsense",
        "null",
        "{\"resources\":[\"a\"],\"ttl_ms\":1}x",
        &"[".repeat(60_000),
        "\u{feff}{}",
        "{\"a\":1,\"a\":2}",
    ] {
        post(json_type, body).await.problem(400, "invalid");
    }
    let two = format!("{json_type}Idempotency-Key: a\r\nIdempotency-Key: b\r\n");
    post(&two, fine).await.problem(400, "invalid");
    post(&format!("{json_type}Idempotency-Key: {}\r\n", "k".repeat(129)), fine).await.problem(400, "invalid");
    post(&format!("{json_type}Idempotency-Key: \r\n"), fine).await.problem(400, "invalid");
    post(json_type, fine).await.with(201);
    server.end().await;
}

/// Goal: what is wrong in a path, a query or the reason of a revoke is refused, and no value is shown.
#[tokio::test(flavor = "multi_thread")]
async fn paths_and_queries_that_are_wrong() {
    let server = Server::start().await;
    for path in [
        "/v1/resources?limit=0",
        "/v1/resources?limit=1001",
        "/v1/resources?limit=x",
        "/v1/resources?lmit=5",
        "/v1/resources/%zz",
        "/v1/resources/%ff",
        "/v1/watch?since=nonsense",
        "/v1/watch?prefix=%zz",
        "/v1/status?key=hunter2",
    ] {
        let problem = server.get(path).await.problem(400, "invalid");
        assert!(!problem.to_string().contains("hunter2"));
    }
    let name = "n".repeat(10_000);
    server.get(&format!("/v1/resources/{name}")).await.problem(400, "invalid");
    let delete =
        server.client().await.ask("DELETE", &format!("/v1/resources/{name}"), &[], Some(&json!({"reason": "x"}))).await;
    delete.problem(400, "invalid");
    for body in [
        json!({}),
        json!({"reason": ""}),
        json!({"reason": "  "}),
        json!({"reason": 1}),
        json!({"reason": "r".repeat(300)}),
    ] {
        server.client().await.ask("DELETE", "/v1/resources/a", &[], Some(&body)).await.problem(400, "invalid");
    }
    server.end().await;
}
