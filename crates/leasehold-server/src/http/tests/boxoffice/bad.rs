//! Whatever is wrong gets a clear problem with a stable code, and nothing is lost.

use super::*;

/// Goal: unknown things are not found, by seat, area, event, hold and order, in whatever spelling.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_not_found() {
    let server = Server::start().await;
    let event = server.event(&hall()).await;
    let lost = server.ask_hold(&event, &["A-1", "Z-99"], "ada").await.problem(404, "not_found");
    assert!(lost["detail"].as_str().unwrap().contains("Z-99"), "{lost}");
    assert_eq!(server.state_of(&event, "A-1").await, "free");
    let area = json!({"areas": [{"id": "attic", "qty": 1}], "buyer": "ada"});
    server.post(&format!("/v1/events/{event}/holds"), &area).await.problem(404, "not_found");
    for path in ["/v1/events/none", "/v1/events/none/map", "/v1/events/none/availability", "/v1/events/none/stream"] {
        server.get(path).await.problem(404, "not_found");
    }
    for path in ["/v1/events/none/audit", "/v1/events/none/report", "/v1/events/none/invariants", "/v1/orders/none"] {
        server.get(path).await.problem(404, "not_found");
    }
    for path in ["/v1/events/%2e%2e/map", "/v1/events/a%2Fb/map", "/v1/events/%00/map"] {
        server.get(path).await.problem(404, "not_found");
    }
    server.get("/v1/events/%FF/map").await.problem(400, "invalid");
    let nobody = Hold { id: "none".into(), key: "x".into(), whole: Value::Null };
    for verb in ["renew", "release"] {
        server.of_hold(&nobody, verb, &json!({})).await.problem(404, "not_found");
    }
    server.end().await;
}

/// Goal: the hold of another buyer is nobody's without its key; and no key is asked for by a text that tells.
#[tokio::test(flavor = "multi_thread")]
async fn the_hold_of_another_buyer_stays_theirs() {
    let server = Server::start().await;
    let event = server.event(&hall()).await;
    let ada = server.hold(&event, &["A-1"], "ada").await;
    let bob = server.hold(&event, &["A-2"], "bob").await;
    let thief = Hold { id: ada.id.clone(), key: bob.key.clone(), whole: Value::Null };
    let pay = json!({"payment_ref": "pi"});
    for (verb, body) in [("renew", json!({})), ("release", json!({})), ("pay", pay.clone()), ("confirm", pay)] {
        let told = server.of_hold(&thief, verb, &body).await.problem(404, "not_found");
        assert!(!told.to_string().contains(&ada.key), "{told}");
    }
    let path = format!("/v1/holds/{}", ada.id);
    server.get(&path).await.problem(403, "forbidden");
    let twice = [("Leasehold-Hold-Key", ada.key.as_str()), ("Leasehold-Hold-Key", bob.key.as_str())];
    server.client().await.ask("GET", &path, &twice, None).await.problem(400, "invalid");
    assert_eq!(server.show_hold(&ada).await["state"], json!("active"), "nothing is lost");
    server.end().await;
}

/// Goal: bodies of the wrong shape or size are refused by field, and change nothing.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_are_read_strictly() {
    let server = Server::start().await;
    let event = server.event(&hall()).await;
    let path = format!("/v1/events/{event}/holds");
    let many: Vec<String> = (0..65).map(|at| format!("A-{at}")).collect();
    for (body, word) in [
        (json!({"seats": ["A-1"]}), "buyer"),
        (json!({"seats": [], "buyer": "b"}), "at least one"),
        (json!({"buyer": "b"}), "say what is wanted"),
        (json!({"seats": "A-1", "buyer": "b"}), "seats is a list"),
        (json!({"seats": [1], "buyer": "b"}), "seats is a list"),
        (json!({"seats": ["A-1"], "best": {"qty": 1}, "buyer": "b"}), "say what is wanted"),
        (json!({"seats": ["A-1"], "buyer": "b", "ttl_ms": 5}), "ttl_ms"),
        (json!({"seats": ["A-1"], "buyer": ""}), "buyer"),
        (json!({"seats": ["A-1"], "buyer": "a\u{0}b"}), "buyer"),
        (json!({"seats": ["A-1"], "buyer": "x".repeat(129)}), "buyer"),
        (json!({"seats": ["A-1", "A-1"], "buyer": "b"}), "A-1"),
        (json!({"seats": many, "buyer": "b"}), "at most 64"),
        (json!({"areas": [{"id": "floor", "qty": 0}], "buyer": "b"}), "qty"),
        (json!({"areas": [{"id": "floor"}], "buyer": "b"}), "qty"),
        (json!({"best": {"qty": 0}, "buyer": "b"}), "qty"),
        (json!({"best": {"qty": 1, "row": "A"}, "buyer": "b"}), "row"),
    ] {
        let told = server.post(&path, &body).await.problem(400, "invalid");
        assert!(told["detail"].as_str().unwrap().contains(word), "{body}: {told}");
    }
    for (body, word) in [
        (json!({}), "name"),
        (json!({"name": "x", "currency": "euro"}), "currency"),
        (json!({"name": "x", "ttl_ms": 0}), "ttl_ms"),
        (json!({"name": "x", "ttl_ms": -5}), "ttl_ms"),
        (json!({"name": "x", "max_hold_ms": 1e300}), "max_hold_ms"),
        (json!({"name": "x", "ttl_ms": 5000, "max_hold_ms": 100}), "max_hold_ms"),
        (json!({"name": "x", "per_buyer": 0}), "per_buyer"),
        (json!({"name": "x", "on_sale": "yes"}), "on_sale"),
    ] {
        let told = server.post("/v1/events", &body).await.problem(400, "invalid");
        assert!(told["detail"].as_str().unwrap().contains(word), "{body}: {told}");
    }
    let big = json!({"seats": ["A-1"], "buyer": "b".repeat(70_000)});
    server.post(&path, &big).await.problem(413, "invalid");
    let mut client = server.client().await;
    client
        .raw(
            format!(
                "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{{}}",
                server.at
            )
            .as_bytes(),
        )
        .await;
    client.reply(false).await.problem(415, "invalid");
    let hold = server.hold(&event, &["A-1"], "ada").await;
    for (verb, body) in [
        ("pay", json!({"payment_ref": ""})),
        ("pay", json!({"return_url": "not a page"})),
        ("pay/cancel", json!({"why": "x"})),
        ("confirm", json!({})),
        ("confirm", json!({"payment_ref": "pi", "amount": -1})),
        ("confirm", json!({"payment_ref": "pi", "amount": 9_007_199_254_740_992_u64})),
        ("confirm", json!({"payment_ref": 5})),
        ("seats", json!({})),
        ("renew", json!({"ttl_ms": 5})),
    ] {
        server.of_hold(&hold, verb, &body).await.problem(400, "invalid");
    }
    server.lawful(&event).await;
    server.end().await;
}

/// Goal: a sale that was never on is refused as such, and a frozen one too, while what is held can still be bought.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_on_sale_is_not_sold() {
    let server = Server::start().await;
    let event = server.event(&hall_with(json!({"on_sale": false}))).await;
    let lost = server.ask_hold(&event, &["A-1"], "ada").await.problem(409, "conflict");
    assert_eq!(lost["conflicts"][0]["reason"], json!("not_on_sale"));
    let path = format!("/v1/events/{event}");
    let on = server.client().await.ask("PUT", &path, &[], Some(&json!({"on_sale": true}))).await.with(200).json();
    schema::holds(&on, "EventInfo");
    let hold = server.hold(&event, &["A-1"], "ada").await;
    let frozen = server.post(&format!("{path}/freeze"), &json!({"reason": "fire drill"})).await.with(200).json();
    assert_eq!(frozen["frozen"], json!(true));
    let lost = server.ask_hold(&event, &["A-2"], "bob").await.problem(409, "conflict");
    assert_eq!(lost["conflicts"][0]["reason"], json!("not_on_sale"));
    server.of_hold(&hold, "confirm", &json!({"payment_ref": "pi"})).await.with(201);
    server.post(&format!("{path}/unfreeze"), &json!({})).await.with(200);
    server.hold(&event, &["A-2"], "bob").await;
    server.end().await;
}

/// Goal: no clock but the server's counts: a buyer whose machine says next year has the same hold as everybody.
/// Method: everything that a wrong clock could put into a request, and times are spans in every answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_with_a_clock_of_next_year() {
    let server = Server::start().await;
    let event = server.event(&hall()).await;
    let next_year = [
        ("Date", "Tue, 16 Nov 2027 01:00:00 GMT"),
        ("If-Modified-Since", "Tue, 16 Nov 2027 01:00:00 GMT"),
        ("If-Unmodified-Since", "Tue, 16 Nov 2021 01:00:00 GMT"),
    ];
    let body = json!({"seats": ["A-1"], "buyer": "ada"});
    let path = format!("/v1/events/{event}/holds");
    let held = server.client().await.ask("POST", &path, &next_year, Some(&body)).await.with(201).json();
    let hold = Hold::of(&held);
    assert!((290_000..=300_000).contains(&held["remaining_ms"].as_u64().unwrap()), "{held}");
    let mut headers = next_year.to_vec();
    headers.push(("Leasehold-Hold-Key", &hold.key));
    for (verb, body) in
        [("renew", json!({})), ("pay", json!({"payment_ref": "p"})), ("confirm", json!({"payment_ref": "p"}))]
    {
        let path = format!("/v1/holds/{}/{verb}", hold.id);
        let reply = server.client().await.ask("POST", &path, &headers, Some(&body)).await;
        assert!(matches!(reply.status, 200 | 201), "{verb}: {}", reply.text());
    }
    server.lawful(&event).await;
    server.end().await;
}
