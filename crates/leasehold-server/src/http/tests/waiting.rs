//! Long polls: they are granted in turn, retried, and told when the server ends. Who hangs up is in `leaving`.

use serde_json::json;

use super::*;

pub(super) fn patient(name: &str, holder: &str) -> Value {
    json!({"resources": [name], "ttl_ms": 30_000, "wait_ms": 600_000, "holder": holder})
}

/// Goal: a waiter has its grant as soon as the holder lets go, with a higher token.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_is_granted_when_the_holder_releases() {
    // Longer than every limit of a connection: waiting is not idling.
    let server = Server::with(hasty(), Options::default()).await;
    let ada = server.take("seat", 30_000, "ada").await;
    let mut bob = server.client().await;
    bob.send("POST", "/v1/leases", &[], Some(&patient("seat", "bob"))).await;
    server.until_queued("seat", 1).await;
    let seen = server.get("/v1/resources/seat").await.json();
    schema::holds(&seen, "Resource");
    assert_eq!(seen["waiters"][0]["holder"], "bob");
    sleep_until(Instant::now() + SHORT * 3 / 2).await;
    server.post("/v1/leases/release", &json!({"lease_id": ada["lease_id"]})).await.with(204);
    let grant = bob.reply(false).await.with(201).json();
    let token = |grant: &Value| grant["token"].as_str().unwrap().parse::<u64>().unwrap();
    assert!(token(&grant) > token(&ada));
    drop(bob);
    server.end().await;
}

/// Goal: a repeat with the same Idempotency-Key has one effect and the same answer; another body under it is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_retried_acquire_has_one_effect() {
    let server = Server::start().await;
    let key = [("Idempotency-Key", "order-7")];
    let body = json!({"resources": ["seat"], "ttl_ms": 30_000});
    let ask = async |body: &Value| server.client().await.ask("POST", "/v1/leases", &key, Some(body)).await;
    let first = ask(&body).await.with(201).json();
    let again = ask(&body).await.with(201).json();
    assert_eq!((&first["lease_id"], &first["token"]), (&again["lease_id"], &again["token"]));
    ask(&json!({"resources": ["seat-2"], "ttl_ms": 30_000})).await.problem(422, "idempotency_mismatch");
    server.post("/v1/leases/release", &json!({"lease_id": first["lease_id"]})).await.with(204);
    let late = ask(&body).await.with(201).json();
    assert_eq!((&late["lease_id"], &late["remaining_ms"]), (&first["lease_id"], &json!(0)), "it has ended");
    server.end().await;
}

/// Goal: at the end waiters are told that the server goes, idle connections are closed, and nothing keeps the end.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_are_told_when_the_server_ends() {
    let server = Server::start().await;
    server.take("seat", 30_000, "ada").await;
    let mut bob = server.client().await;
    bob.send("POST", "/v1/leases", &[], Some(&patient("seat", "bob"))).await;
    server.until_queued("seat", 1).await;
    // A retry could find what was granted to this one at the last moment: nobody can say that nothing was changed.
    let mut cy = server.client().await;
    cy.send("POST", "/v1/leases", &[("Idempotency-Key", "order-9")], Some(&patient("seat", "cy"))).await;
    server.until_queued("seat", 2).await;
    let mut idle = server.client().await;
    idle.ask("GET", "/healthz", &[], None).await.with(200);
    let silent = server.client().await;
    let at = server.at;
    server.end().await;
    let reply = bob.reply(false).await;
    assert_eq!((reply.header("retry-after"), reply.header("connection")), ("1", "close"));
    let problem = reply.problem(503, "unavailable");
    assert!(problem["detail"].as_str().unwrap().contains("shutting down"), "{problem}");
    let reply = cy.reply(false).await;
    assert_eq!((reply.header("retry-after"), reply.header("connection")), ("1", "close"));
    let problem = reply.problem(504, "unknown_outcome");
    assert!(problem["detail"].as_str().unwrap().contains("same Idempotency-Key"), "{problem}");
    assert_eq!(idle.until_closed().await, "");
    assert_eq!(silent.until_closed().await, "");
    assert!(tokio::net::TcpStream::connect(at).await.is_err(), "the port is free");
}
