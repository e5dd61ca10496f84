//! What an operator of seat holds watches: each figure moves when its event happens.

use leasehold_boxoffice::provider::CallbackOutcome;

use super::payments::{callback, paying, tell};
use super::*;

const ALERTS: &str = include_str!("../../../../../../packaging/prometheus-alerts.yml");
const DASHBOARD: &str = include_str!("../../../../../../packaging/grafana-dashboard.json");

impl Server {
    /// A sample of `/metrics`; none if there is no such line.
    async fn sample(&self, name: &str) -> Option<f64> {
        let text = self.get("/metrics").await.with(200).text();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("leasehold_{name} ")).map(str::to_owned));
        line.map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
    }

    async fn until_sample(&self, name: &str, wanted: impl Fn(f64) -> bool) -> f64 {
        let end = Instant::now() + PATIENCE;
        loop {
            let found = self.sample(name).await.unwrap_or_else(|| panic!("there is no {name}"));
            if wanted(found) {
                return found;
            }
            assert!(Instant::now() < end, "{name} stays {found}");
            moment().await;
        }
    }
}

/// Goal: no figure that an operator relies on stands still: each moves by its event, and by one.
#[tokio::test(flavor = "multi_thread")]
async fn each_figure_moves_when_its_event_happens() {
    let server = Server::start().await;
    let event = server.event(&hall_with(json!({"ttl_ms": 60_000, "pay_ms": 60_000}))).await;
    let at = async |name: &str| server.sample(name).await.unwrap_or_else(|| panic!("there is no {name}"));

    assert_eq!(at("hold_request_seconds_count").await, 0.0);
    let ada = server.hold(&event, &["A-1"], "ada").await;
    assert_eq!((at("hold_request_seconds_count").await, at("holds{state=\"active\"}").await), (1.0, 1.0));
    server.ask_hold(&event, &["A-1"], "bob").await.with(409);
    assert_eq!(
        (at("hold_request_seconds_count").await, at("hold_conflicts_total{reason=\"taken\"}").await),
        (2.0, 1.0)
    );

    let wrong = Hold { id: ada.id.clone(), key: "of nobody".into(), whole: json!({}) };
    server.of_hold(&wrong, "renew", &json!({})).await.problem(404, "not_found");
    assert_eq!(at("hold_renew_failures_total").await, 1.0);

    server.of_hold(&ada, "pay", &json!({"payment_ref": "pi-ada"})).await.with(200);
    assert_eq!((at("holds{state=\"active\"}").await, at("holds{state=\"paying\"}").await), (0.0, 1.0));
    server.of_hold(&ada, "confirm", &json!({"payment_ref": "pi-ada"})).await.with(201);
    assert_eq!((at("sale_seconds_count").await, at("sales_total").await), (1.0, 1.0));

    // Too little: it goes back. For another hold: it is stuck. Authorised and too little: cancelled.
    let bob = paying(&server, &event, &["A-2"], "bob").await;
    tell(&server, &Callback { amount: 1, ..callback(&bob, "cb-1", CallbackOutcome::Captured) }).await.with(200);
    assert_eq!(at("late_money_total{outcome=\"goes_back\"}").await, 1.0);
    assert_eq!(at("refunds_due").await, 1.0);
    server.until_sample("refund_due_seconds", |age| age > 0.0).await;
    let cleo = paying(&server, &event, &["A-3"], "cleo").await;
    let stray =
        Callback { payment_ref: format!("pi-{}", bob.id), ..callback(&cleo, "cb-2", CallbackOutcome::Captured) };
    tell(&server, &stray).await.with(200);
    assert_eq!((at("late_money_total{outcome=\"stuck\"}").await, at("stuck_payments").await), (1.0, 1.0));
    tell(&server, &Callback { amount: 1, ..callback(&cleo, "cb-3", CallbackOutcome::Authorised) }).await.with(200);
    assert_eq!((at("late_money_total{outcome=\"cancelled\"}").await, at("refunds_due").await), (1.0, 2.0));

    // Time runs out: expired, a sale that comes too late, and late money that finds its seats, or others.
    let brief = server.event(&hall_with(json!({"ttl_ms": 200, "pay_ms": 200}))).await;
    let gone = server.hold(&brief, &["A-1"], "dan").await;
    server.until_hold_is(&gone, "lapsed").await;
    server.until_sample("holds_expired_total", |count| count == 1.0).await;
    let before = at("sale_conflicts_total{reason=\"expired\"}").await;
    server.of_hold(&gone, "confirm", &json!({"payment_ref": "pi"})).await.problem(410, "expired");
    assert_eq!(at("sale_conflicts_total{reason=\"expired\"}").await, before + 1.0);
    let same = paying(&server, &brief, &["A-2"], "eve").await;
    server.until_hold_is(&same, "lapsed").await;
    tell(&server, &callback(&same, "cb-4", CallbackOutcome::Captured)).await.with(200);
    assert_eq!(at("late_money_total{outcome=\"same_seats\"}").await, 1.0);
    let lost = paying(&server, &brief, &["A-3"], "fay").await;
    server.until_hold_is(&lost, "lapsed").await;
    server.buy(&brief, &["A-3"], "gil").await;
    let path = format!("/v1/events/{brief}");
    server.client().await.ask("PUT", &path, &[], Some(&json!({"pay_ms": 60_000}))).await.with(200);
    let told = tell(&server, &callback(&lost, "cb-5", CallbackOutcome::Captured)).await.with(200).json();
    assert_eq!(at("late_money_total{outcome=\"offered\"}").await, 1.0);
    let offer =
        Hold { id: told["resolution"]["offer"].as_str().unwrap().into(), key: lost.key.clone(), whole: json!({}) };
    let payment = json!({"payment_ref": format!("pi-{}", lost.id)});
    server.of_hold(&offer, "confirm", &payment).await.with(201);
    assert_eq!(at("late_money_total{outcome=\"offer_taken\"}").await, 1.0);

    // A receiver that takes nothing.
    assert_eq!(at("webhook_lag_seconds").await, 0.0);
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    server.post("/v1/webhooks", &json!({"url": format!("http://{nobody}/"), "event": event})).await.with(201);
    server.hold(&event, &["B-4"], "hal").await;
    server.until_sample("webhook_lag_seconds", |lag| lag > 0.0).await;
    server.end().await;
}

/// Goal: the alert for a dead sweeper can fire: its lag comes from the rows, not from the sweeper.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_sweeper_is_seen() {
    let mut server = Server::start().await;
    let event = server.event(&hall_with(json!({"ttl_ms": 100}))).await;
    for task in ["sweeper", "sequencer", "follower", "settler", "webhooks"] {
        server.until_sample(&format!("task_idle_seconds{{task=\"{task}\"}}"), |idle| idle < 10.0).await;
    }
    server.until_sample("task_idle_seconds{task=\"sweeper\"}", |idle| idle < 0.5).await;
    server.chores.abort_all();
    while server.chores.join_next().await.is_some() {}
    let hold = server.hold(&event, &["A-1"], "ada").await;
    server.until_hold_is(&hold, "lapsed").await;
    server.until_sample("sweeper_lag_seconds", |lag| lag > 0.5).await;
    server.until_sample("task_idle_seconds{task=\"sweeper\"}", |idle| idle > 0.5).await;
    assert_eq!(server.sample("holds_expired_total").await, Some(0.0));
    server.end().await;
}

/// Goal: alerts and dashboard ask for figures that there are.
#[tokio::test(flavor = "multi_thread")]
async fn alerts_and_dashboard_name_figures_that_there_are() {
    let server = Server::start().await;
    let text = server.get("/metrics").await.with(200).text();
    let mut names = std::collections::BTreeSet::new();
    for source in [ALERTS, DASHBOARD] {
        for part in source.split("leasehold_").skip(1) {
            let name: String = part.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
            names.insert(name);
        }
    }
    assert!(names.len() > 15, "{names:?}");
    for name in names {
        let there = text.lines().any(|line| {
            line.strip_prefix(&format!("leasehold_{name}")).is_some_and(|rest| rest.starts_with(['{', ' ']))
        });
        assert!(there, "leasehold_{name} is on no page");
    }
    server.end().await;
}
