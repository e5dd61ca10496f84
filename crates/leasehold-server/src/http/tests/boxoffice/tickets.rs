//! What a buyer's ticket opens, and what it does not.

use super::super::access::{Keys, as_key};
use super::*;
use crate::service::Role;

async fn ticket(server: &Server, key: &str, event: &str, buyer: Option<&str>) -> Value {
    let body = json!({"event": event, "buyer": buyer});
    let made = as_key(server, key, "POST", "/v1/tickets", Some(&body)).await.with(201).json();
    schema::holds(&made, "Ticket");
    made
}

fn bearer(ticket: &Value) -> String {
    format!("Bearer {}", ticket["ticket"].as_str().unwrap())
}

/// Goal: a ticket acts for its buyer at its event, and for nobody and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_acts_for_its_buyer_alone() {
    let keys = Keys::of(&[(&[Role::Boxoffice], &[]), (&[Role::Lease], &[])]);
    let server = keys.server().await;
    let staff = &keys.shown[0];
    let make = async || {
        as_key(&server, staff, "POST", "/v1/events", Some(&hall())).await.with(201).json()["event_id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let (event, other) = (make().await, make().await);
    let ada = bearer(&ticket(&server, staff, &event, Some("ada")).await);
    let bob = bearer(&ticket(&server, staff, &event, Some("bob")).await);
    let as_ada =
        async |method: &str, path: &str, body: Option<Value>| as_key(&server, &ada, method, path, body.as_ref()).await;

    as_ada("GET", &format!("/v1/events/{event}/map"), None).await.with(200);
    as_ada("GET", &format!("/v1/events/{other}/map"), None).await.problem(404, "not_found");
    let listed = as_ada("GET", "/v1/events", None).await.with(200).json();
    assert_eq!(listed["events"].as_array().unwrap().len(), 1);
    let holds = format!("/v1/events/{event}/holds");
    let hold = Hold::of(&as_ada("POST", &holds, Some(json!({"seats": ["A-1"]}))).await.with(201).json());
    assert_eq!(hold.whole["buyer"], json!("ada"));
    as_ada("POST", &holds, Some(json!({"seats": ["A-2"], "buyer": "bob"}))).await.problem(403, "forbidden");
    as_ada("POST", &format!("/v1/events/{other}/holds"), Some(json!({"seats": ["A-2"]})))
        .await
        .problem(404, "not_found");

    let path = format!("/v1/holds/{}", hold.id);
    let with = async |who: &str, method: &str, path: &str, body: Option<&Value>| {
        let headers = [("Authorization", who), ("Leasehold-Hold-Key", hold.key.as_str())];
        server.client().await.ask(method, path, &headers, body).await
    };
    with(&ada, "GET", &path, None).await.with(200);
    // Bob has even the key of the hold, and still it is not his.
    with(&bob, "GET", &path, None).await.problem(404, "not_found");
    let pay = json!({"payment_ref": "pi"});
    with(&bob, "POST", &format!("{path}/confirm"), Some(&pay)).await.problem(404, "not_found");
    // Nor is a ticket money: before and after `pay` it takes somebody else's word that it came.
    with(&ada, "POST", &format!("{path}/confirm"), Some(&pay)).await.problem(403, "not_paid");
    with(&ada, "POST", &format!("{path}/pay"), Some(&pay)).await.problem(403, "forbidden");
    let paying = with(&ada, "POST", &format!("{path}/pay"), Some(&json!({}))).await.with(200).json();
    let pay = json!({"payment_ref": paying["payment_ref"]});
    with(&ada, "POST", &format!("{path}/confirm"), Some(&pay)).await.problem(403, "not_paid");
    let order = with(staff, "POST", &format!("{path}/confirm"), Some(&pay)).await.with(201).json();
    let again = with(&ada, "POST", &format!("{path}/confirm"), Some(&pay)).await.with(201).json();
    assert_eq!(again, order, "what is sold can be asked for");
    let order = format!("/v1/orders/{}", order["order_id"].as_str().unwrap());
    as_ada("GET", &order, None).await.with(200);
    as_key(&server, &bob, "GET", &order, None).await.problem(404, "not_found");
    as_key(&server, staff, "GET", &order, None).await.with(200);

    for (method, path, body) in [
        ("POST", "/v1/events".to_owned(), Some(hall())),
        ("PUT", format!("/v1/events/{event}/blocks"), Some(json!({"block": ["A-2"], "reason": "x"}))),
        ("GET", format!("/v1/events/{event}/audit"), None),
        ("GET", format!("/v1/events/{event}/report"), None),
        ("GET", format!("/v1/events/{event}/availability?detail=1"), None),
        ("POST", "/v1/tickets".to_owned(), Some(json!({"event": event}))),
        ("POST", format!("{order}/void"), Some(json!({"reason": "x"}))),
        ("GET", "/v1/webhooks".to_owned(), None),
        ("GET", "/v1/resources".to_owned(), None),
        ("POST", "/v1/leases".to_owned(), Some(json!({"resources": ["a"], "ttl_ms": 5}))),
        ("GET", "/v1/status".to_owned(), None),
    ] {
        as_ada(method, &path, body).await.problem(403, "forbidden");
    }
    server.end().await;
}

/// Goal: tickets are minted by staff, or at a demo by anybody; forged ones open nothing.
#[tokio::test(flavor = "multi_thread")]
async fn who_may_mint_and_what_is_forged() {
    let keys = Keys::of(&[(&[Role::Boxoffice], &[]), (&[Role::Lease], &[])]);
    let server = keys.server().await;
    let body = json!({"event": "none"});
    server.post("/v1/tickets", &body).await.problem(401, "unauthorized");
    as_key(&server, &keys.shown[1], "POST", "/v1/tickets", Some(&body)).await.problem(403, "forbidden");
    as_key(&server, &keys.shown[0], "POST", "/v1/tickets", Some(&body)).await.problem(404, "not_found");
    let front = server.get("/v1/boxoffice").await.with(200).json();
    assert_eq!(front, json!({"demo": false, "default_event": null}));
    server
        .post("/v1/demo/pay", &json!({"hold_id": "h", "payment_ref": "p", "outcome": "approve"}))
        .await
        .problem(404, "invalid");

    let event = server.demo().await;
    let made = server.post("/v1/tickets", &json!({"event": event})).await.with(201).json();
    schema::holds(&made, "Ticket");
    assert!(made["buyer"].as_str().unwrap().len() > 8 && made["expires_in_ms"].as_u64().unwrap() > 0);
    let keyed = |key: &'static str| {
        let body = json!({"event": event});
        let server = &server;
        async move {
            server
                .client()
                .await
                .ask("POST", "/v1/tickets", &[("Idempotency-Key", key)], Some(&body))
                .await
                .with(201)
                .json()
        }
    };
    assert_eq!(keyed("page-1").await["buyer"], keyed("page-1").await["buyer"], "a retry is the same buyer");
    assert_ne!(keyed("page-1").await["buyer"], keyed("page-2").await["buyer"]);
    let seen = as_key(&server, &bearer(&made), "GET", &format!("/v1/events/{event}/availability"), None)
        .await
        .with(200)
        .json();
    assert_eq!(seen["totals"]["seats"], json!(400));
    server.get(&format!("/v1/events/{event}/map")).await.problem(401, "unauthorized");

    let mut forged = bearer(&made);
    let last = forged.pop();
    forged.push(if last == Some('0') { '1' } else { '0' });
    let told = as_key(&server, &forged, "GET", "/v1/events", None).await;
    if told.status == 200 {
        panic!("a forged ticket was let in: {}", told.text());
    }
    for bad in ["Bearer lht1_", "Bearer lht1_00_00"] {
        as_key(&server, bad, "GET", "/v1/events", None).await.problem(401, "unauthorized");
    }
    server.end().await;
}

/// Goal: a key that is limited to some events sees no others.
#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_hides_other_events() {
    let keys = Keys::of(&[(&[Role::Boxoffice], &[]), (&[Role::Boxoffice], &["box/nothing-of-this-name/"])]);
    let server = keys.server().await;
    let made = as_key(&server, &keys.shown[0], "POST", "/v1/events", Some(&hall())).await.with(201).json();
    let event = made["event_id"].as_str().unwrap();
    let limited = &keys.shown[1];
    let listed = as_key(&server, limited, "GET", "/v1/events", None).await.with(200).json();
    assert_eq!(listed["events"], json!([]));
    // Nor does it make what it could not see.
    as_key(&server, limited, "POST", "/v1/events", Some(&hall())).await.problem(403, "forbidden");
    for path in ["map", "availability", "audit", "report", "invariants", "stream"] {
        as_key(&server, limited, "GET", &format!("/v1/events/{event}/{path}"), None).await.problem(404, "not_found");
    }
    let hold = json!({"seats": ["A-1"], "buyer": "b"});
    as_key(&server, limited, "POST", &format!("/v1/events/{event}/holds"), Some(&hold)).await.problem(404, "not_found");
    as_key(&server, limited, "POST", "/v1/tickets", Some(&json!({"event": event}))).await.problem(404, "not_found");
    server.end().await;
}
