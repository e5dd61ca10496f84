//! What staff does, and what is written down of it.

use super::*;

/// Goal: blocks, force release, void and move do what they say; each is in the audit with its reason, and in the report.
#[tokio::test(flavor = "multi_thread")]
async fn staff_acts_and_it_is_written_down() {
    let server = Server::start().await;
    let event = server.event(&hall()).await;
    let path = |end: &str| format!("/v1/events/{event}/{end}");
    let put = async |body: Value| server.client().await.ask("PUT", &path("blocks"), &[], Some(&body)).await;
    let blocked = put(json!({"block": ["B-3", "B-4"], "reason": "camera"})).await.with(200).json();
    schema::holds(&blocked, "Blocked");
    assert_eq!(blocked["blocked"], json!(["B-3", "B-4"]));
    put(json!({"unblock": ["B-4"], "reason": "moved"})).await.with(200);
    assert_eq!(
        (server.state_of(&event, "B-3").await, server.state_of(&event, "B-4").await),
        ("blocked".into(), "free".into())
    );
    for (body, word) in [
        (json!({"reason": "x"}), "block"),
        (json!({"block": ["B-4"]}), "reason"),
        (json!({"block": ["B-4"], "reason": " "}), "reason"),
    ] {
        let told = put(body).await.problem(400, "invalid");
        assert!(told["detail"].as_str().unwrap().contains(word), "{told}");
    }
    put(json!({"block": ["Z-1"], "reason": "x"})).await.problem(404, "not_found");

    let hold = server.hold(&event, &["A-1", "A-2"], "ada").await;
    put(json!({"block": ["A-1"], "reason": "x"})).await.problem(409, "conflict");
    let detail = server.get(&path("availability?detail=1")).await.with(200).json();
    schema::holds(&detail, "Availability");
    let seat = detail["seats"].as_array().unwrap().iter().find(|seat| seat["id"] == "A-1").unwrap();
    assert_eq!((&seat["hold_id"], &seat["buyer"], &seat["renewals"]), (&json!(hold.id), &json!("ada"), &json!(0)));
    assert!(seat["age_ms"].is_u64() && seat["remaining_ms"].is_u64(), "{seat}");
    let ended = server.post(&path("seats/A-1/release"), &json!({"reason": "fraud"})).await.with(200).json();
    schema::holds(&ended, "Hold");
    assert_eq!((&ended["state"], server.state_of(&event, "A-2").await.as_str()), (&json!("released"), "free"));
    server.of_hold(&hold, "renew", &json!({})).await.problem(410, "released");

    let order = server.buy(&event, &["A-3", "A-4"], "bob").await;
    let of = |verb: &str| format!("/v1/orders/{}/{verb}", order["order_id"].as_str().unwrap());
    let moved = json!({"moves": [{"from": "A-4", "to": "B-1"}], "reason": "broken chair"});
    let moved = server.post(&of("move"), &moved).await.with(200).json();
    schema::holds(&moved, "Order");
    assert_eq!((&moved["owed"], &moved["total"]), (&json!(1500), &json!(7500)));
    let voided = server.post(&of("void"), &json!({"seats": ["A-3"], "reason": "ill"})).await.with(200).json();
    schema::holds(&voided, "Order");
    assert_eq!((&voided["owed"], &voided["state"]), (&json!(4500), &json!("sold")));
    assert_eq!(
        (server.state_of(&event, "A-3").await, server.state_of(&event, "B-1").await),
        ("free".into(), "sold".into())
    );
    server.post(&of("void"), &json!({})).await.problem(400, "invalid");
    server.lawful(&event).await;
    check_report(&server, &event).await;
    check_audit(&server, &event).await;
    server.end().await;
}

async fn check_report(server: &Server, event: &str) {
    let path = |end: &str| format!("/v1/events/{event}/{end}");
    let report = server.get(&path("report")).await.with(200).json();
    schema::holds(&report, "Report");
    assert_eq!((&report["totals"]["sold"], &report["takings"]["revenue"]), (&json!(1), &json!(3000)));
    assert_eq!(report["by_section"][0]["section"], json!("Stalls"));
    assert!(report["conflict_rate"].is_number() && report["sweeper_lag_ms"].is_u64(), "{report}");
    let csv = server.get(&path("report?format=csv")).await.with(200);
    assert_eq!(csv.header("content-type"), "text/csv; charset=utf-8");
    assert_eq!(csv.text().lines().count(), 2, "{}", csv.text());
    server.get(&path("report?format=pdf")).await.problem(400, "invalid");
}

async fn check_audit(server: &Server, event: &str) {
    let path = |end: &str| format!("/v1/events/{event}/{end}");
    server.until_audit(event, "voided", 1).await;
    let audit = server.get(&path("audit")).await.with(200).json();
    schema::holds(&audit, "AuditPage");
    let entries = audit["entries"].as_array().unwrap();
    let numbers: Vec<u64> = entries.iter().map(|entry| entry["seq"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>(), "from 1, without a gap");
    for (kind, reason) in
        [("blocked", "camera"), ("force_released", "fraud"), ("moved", "broken chair"), ("voided", "ill")]
    {
        assert!(entries.iter().any(|entry| entry["kind"] == kind && entry["reason"] == reason), "{kind} in {audit}");
    }
    let of_seat = server.get(&path("audit?seat=A-1")).await.with(200).json();
    let kinds: Vec<&str> =
        of_seat["entries"].as_array().unwrap().iter().map(|entry| entry["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["held", "force_released"], "why did I lose A-1?");
    let page = server.get(&path("audit?since=2&limit=1")).await.with(200).json();
    assert_eq!((&page["entries"][0]["seq"], &page["next"]), (&json!(3), &json!(3)));
    let csv = server.get(&path("audit?format=csv")).await.with(200).text();
    assert_eq!(csv.lines().count(), numbers.len() + 1);
    server.get(&path("audit?limit=0")).await.problem(400, "invalid");
}

/// Goal: metrics of the box office are there, and no event or buyer is a label.
#[tokio::test(flavor = "multi_thread")]
async fn the_box_office_is_counted() {
    let server = Server::start().await;
    let event = server.event(&hall_with(json!({"ttl_ms": 300}))).await;
    let hold = server.hold(&event, &["A-1"], "buyer-of-note").await;
    server.ask_hold(&event, &["A-1"], "bob").await.with(409);
    server.until_hold_is(&hold, "lapsed").await;
    let end = Instant::now() + PATIENCE;
    let text = loop {
        let text = server.get("/metrics").await.with(200).text();
        if text.contains("leasehold_holds_expired_total 1\n") && text.contains("leasehold_holds{state=\"active\"} 0\n")
        {
            break text;
        }
        assert!(Instant::now() < end, "{text}");
        moment().await;
    };
    for line in [
        "leasehold_holds{state=\"active\"} 0",
        "leasehold_holds{state=\"paying\"} 0",
        "leasehold_sale_conflicts_total{reason=\"expired\"}",
        "leasehold_sale_conflicts_total{reason=\"stale_token\"}",
        "leasehold_hold_conflicts_total{reason=\"taken\"} 1",
        "leasehold_sweeper_lag_seconds ",
        "leasehold_calls_total{verb=\"buy\"} ",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    assert!(!text.contains(&event) && !text.contains("buyer-of-note"));
    server.end().await;
}

/// Goal: a server whose ledger is gone is not ready, and says which of the two it is.
#[tokio::test(flavor = "multi_thread")]
async fn readiness_asks_the_ledger() {
    let server = Server::start().await;
    server.get("/readyz").await.with(200);
    server.boxoffice.office().ledger().close().await.unwrap();
    let told = server.get("/readyz").await.problem(503, "unavailable");
    assert!(told["detail"].as_str().unwrap().contains("ledger"), "{told}");
    server.get("/healthz").await.with(200);
    server.stop.cancel();
    timeout(PATIENCE, server.task).await.expect("the server ends").unwrap();
}

impl Server {
    /// The audit, once it has this many of a kind. Entries are numbered, and shown, a moment after what they tell of, and in
    /// its order: what came before the one that was waited for is there too.
    pub(super) async fn until_audit(&self, event: &str, kind: &str, many: usize) -> Vec<Value> {
        let end = Instant::now() + PATIENCE;
        loop {
            let audit = self.get(&format!("/v1/events/{event}/audit?limit=1000")).await.with(200).json();
            let entries = audit["entries"].as_array().unwrap();
            if entries.iter().filter(|entry| entry["kind"] == kind).count() >= many {
                return entries.clone();
            }
            assert!(Instant::now() < end, "never {many} of {kind}: {audit}");
            moment().await;
        }
    }
}

/// Goal: two who change an event at once lose nothing of each other's; who says what they saw is told when it is not so any
/// more, and has changed nothing; a retry has its answer.
#[tokio::test(flavor = "multi_thread")]
async fn changes_of_an_event_are_not_lost() {
    let server = Server::start().await;
    let event = server.event(&hall()).await;
    let path = format!("/v1/events/{event}");
    let put = async |headers: &[(&'static str, &str)], body: Value| {
        server.client().await.ask("PUT", &path, headers, Some(&body)).await
    };
    for round in 1..=20_u64 {
        let (one, two, three) = tokio::join!(
            put(&[], json!({"ttl_ms": 60_000 + round})),
            put(&[], json!({"pay_ms": 70_000 + round})),
            put(&[], json!({"per_buyer": round}))
        );
        for done in [one, two, three] {
            done.with(200);
        }
        let now = server.get(&path).await.with(200).json();
        let found = (&now["ttl_ms"], &now["pay_ms"], &now["per_buyer"]);
        assert_eq!(found, (&json!(60_000 + round), &json!(70_000 + round), &json!(round)), "round {round}");
    }
    let seen = server.get(&path).await.with(200).header("etag").to_owned();
    let mine = [("If-Match", seen.as_str()), ("Idempotency-Key", "once")];
    let changed = put(&mine, json!({"name": "Eve's"})).await.with(200);
    assert_ne!(changed.header("etag"), seen);
    put(&[("If-Match", &seen)], json!({"name": "Max's"})).await.problem(412, "changed");
    let again = put(&mine, json!({"name": "Eve's"})).await.with(200);
    assert_eq!(again.json(), changed.json(), "a retry is the same request");
    for stale in ["\"0\"", "W/\"1\"", "\"of somebody else\""] {
        put(&[("If-Match", stale)], json!({"name": "Max's"})).await.problem(412, "changed");
    }
    assert_eq!(server.get(&path).await.with(200).json()["name"], json!("Eve's"));
    let both = format!("\"0\", {}", changed.header("etag"));
    put(&[("If-Match", &both)], json!({"name": "Max's"})).await.with(200);
    put(&[("If-Match", "*")], json!({"name": "Anybody's"})).await.with(200);
    server.end().await;
}
