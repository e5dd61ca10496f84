//! A POST with a key has one effect and one answer.

use super::*;

async fn with_key(server: &Server, path: &str, key: &str, body: &Value) -> Reply {
    server.client().await.ask("POST", path, &[("Idempotency-Key", key)], Some(body)).await
}

/// Goal: the same key and body have one effect and the same answer, also after a restart; another body is refused;
/// refusals are not stored.
#[tokio::test(flavor = "multi_thread")]
async fn one_effect_and_one_answer_over_a_restart() {
    let server = Server::start().await;
    let first = with_key(&server, "/v1/events", "make", &hall()).await.with(201).json();
    let second = with_key(&server, "/v1/events", "make", &hall()).await.with(201).json();
    assert_eq!(first["event_id"], second["event_id"]);
    with_key(&server, "/v1/events", "make", &hall_with(json!({"name": "Other"})))
        .await
        .problem(422, "idempotency_mismatch");
    let event = first["event_id"].as_str().unwrap().to_owned();
    let path = format!("/v1/events/{event}/holds");
    let body = json!({"seats": ["A-1", "A-2"], "buyer": "ada"});
    let held = Hold::of(&with_key(&server, &path, "hold-1", &body).await.with(201).json());
    let again = Hold::of(&with_key(&server, &path, "hold-1", &body).await.with(201).json());
    assert_eq!((&held.id, &held.key, &held.whole["seats"]), (&again.id, &again.key, &again.whole["seats"]));
    let other = json!({"seats": ["A-1", "A-3"], "buyer": "ada"});
    with_key(&server, &path, "hold-1", &other).await.problem(422, "idempotency_mismatch");

    let lost = json!({"seats": ["A-1"], "buyer": "bob"});
    with_key(&server, &path, "bob-1", &lost).await.problem(409, "conflict");
    let (home, at) = server.end().await;
    let server = Server::on(home, at, HttpConfig::default(), Options::default(), KeyRing::open()).await;
    let after = Hold::of(&with_key(&server, &path, "hold-1", &body).await.with(201).json());
    assert_eq!((&held.id, &held.key, &held.whole["seats"]), (&after.id, &after.key, &after.whole["seats"]));
    server.of_hold(&held, "release", &json!({})).await.with(200);
    with_key(&server, &path, "bob-1", &lost).await.with(201);
    server.lawful(&event).await;
    server.end().await;
}

/// Goal: pay, confirm, release, renew and change under a key answer the same again; the key is its caller's alone.
#[tokio::test(flavor = "multi_thread")]
async fn every_post_takes_a_key() {
    let server = Server::start().await;
    let event = server.event(&hall()).await;
    let hold = server.hold(&event, &["A-1", "A-2"], "ada").await;
    let keyed = async |verb: &str, key: &str, body: &Value| {
        let path = format!("/v1/holds/{}/{verb}", hold.id);
        let headers = [("Leasehold-Hold-Key", hold.key.as_str()), ("Idempotency-Key", key)];
        server.client().await.ask("POST", &path, &headers, Some(body)).await
    };
    let (pay, confirm) = (json!({"payment_ref": "pi"}), json!({"payment_ref": "pi"}));
    for (verb, body, status) in [
        ("renew", json!({}), 200),
        ("seats", json!({"remove": ["A-2"]}), 200),
        ("pay", pay, 200),
        ("confirm", confirm, 201),
    ] {
        let first = keyed(verb, verb, &body).await.with(status).json();
        let second = keyed(verb, verb, &body).await.with(status).json();
        for field in ["hold_id", "order_id", "seats", "total", "state"] {
            assert_eq!(first[field], second[field], "{verb} {field}");
        }
    }
    assert_eq!(server.show_hold(&hold).await["renewals"], json!(1), "renewed once");
    keyed("confirm", "renew", &json!({"payment_ref": "pi"})).await.problem(422, "idempotency_mismatch");
    for bad in ["", &"k".repeat(129)] {
        keyed("renew", bad, &json!({})).await.problem(400, "invalid");
    }
    let order = server.show_hold(&hold).await["order_id"].as_str().unwrap().to_owned();
    let path = format!("/v1/orders/{order}/void");
    let why = json!({"reason": "mistake"});
    let first = with_key(&server, &path, "void", &why).await.with(200).json();
    assert_eq!(with_key(&server, &path, "void", &why).await.with(200).json(), first);
    server.lawful(&event).await;
    server.end().await;
}
