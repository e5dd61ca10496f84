//! The description is what is served, no more and no less; and Prometheus can read the metrics.

use std::collections::BTreeSet;

use serde_json::json;

use super::*;
use crate::http::problem::PROBLEM_TITLES;
use crate::http::routes::ROUTES;

/// Goal: every route is described, and everything described is a route.
#[test]
fn routes_and_description_agree() {
    let api = schema::description();
    let described: BTreeSet<(String, String)> = api["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, methods)| {
            methods.as_object().unwrap().keys().map(|method| (path.clone(), method.to_uppercase()))
        })
        .collect();
    let served = ROUTES.iter().map(|route| (route.path.replace("{*", "{"), route.method.to_string())).collect();
    assert_eq!(described, served);
    assert_eq!(api["openapi"], "3.1.0");
    assert_eq!(api["info"]["version"], env!("CARGO_PKG_VERSION"));
    let codes: Vec<&str> = PROBLEM_TITLES.iter().map(|(code, _)| *code).collect();
    assert_eq!(api["components"]["schemas"]["Problem"]["properties"]["code"]["enum"], json!(codes));
    for route in ROUTES {
        let keyless =
            api["paths"][route.path.replace("{*", "{")][route.method.as_str().to_lowercase()]["security"] == json!([]);
        assert_eq!(keyless, route.verb.is_none(), "{} says whether it needs a key", route.path);
    }
}

/// Goal: the description is served as it is, and every reference in it leads somewhere.
#[tokio::test(flavor = "multi_thread")]
async fn the_description_is_whole() {
    let server = Server::start().await;
    let api = server.get("/openapi.json").await.with(200).json();
    fn visit(api: &Value, value: &Value) {
        if let Some(reference) = value.get("$ref").and_then(Value::as_str) {
            assert!(api.pointer(&reference[1..]).is_some(), "{reference} leads nowhere");
        }
        value.as_object().into_iter().flat_map(|object| object.values()).for_each(|inner| visit(api, inner));
        value.as_array().into_iter().flatten().for_each(|inner| visit(api, inner));
    }
    visit(&api, &api);
    server.end().await;
}

/// Goal: a generated client can read both kinds of 400 that a layout gets: with a list of problems, and without.
/// Method: each answer against the schema of its own operation, since the list is required in one kind only.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_layout_is_what_its_operation_describes() {
    let server = Server::start().await;
    let seat = json!({"id": "A", "section": "S", "row": "R", "number": 1, "price": 1});
    let same_seat_twice = json!([seat, seat]);
    let made = server.post("/v1/events", &json!({"name": "Gala"})).await.with(201).json();
    let import = format!("/v1/events/{}/import", made["event_id"].as_str().unwrap());
    for (path, operation, twice, query) in [
        ("/v1/events", "POST /v1/events", json!({"name": "Gala", "seats": same_seat_twice}), ""),
        (&import, "POST /v1/events/{e}/import", json!({"seats": same_seat_twice}), "?dry_run=perhaps"),
    ] {
        let layout = server.post(path, &twice).await.problem(400, "bad_layout");
        assert_eq!(layout["problems"][0]["code"], "duplicate_id");
        schema::answers(&layout, operation, 400);
        let other = server.post(&format!("{path}{query}"), &json!({"name": ""})).await.problem(400, "invalid");
        assert!(other.get("problems").is_none(), "{other}");
        schema::answers(&other, operation, 400);
    }
    server.end().await;
}

/// Goal: the metrics are in the text format, with every name of the contract, and no resource is a label.
#[tokio::test(flavor = "multi_thread")]
async fn prometheus_can_read_the_metrics() {
    let server = Server::start().await;
    let grant = server.take("seat-of-nobody-else", 30_000, "ada").await;
    server.post("/v1/leases", &json!({"resources": ["seat-of-nobody-else"], "ttl_ms": 5})).await.with(409);
    // One waits in line, and has it after all: it met somebody, too.
    let waits = json!({"resources": ["seat-of-nobody-else"], "ttl_ms": 30_000, "wait_ms": 20_000});
    let mut waiter = server.client().await;
    waiter.send("POST", "/v1/leases", &[], Some(&waits)).await;
    server.until_queued("seat-of-nobody-else", 1).await;
    let lease = json!({"lease_id": grant["lease_id"]});
    server.post("/v1/leases/release", &lease).await.with(204);
    waiter.reply(false).await.with(201);
    let reply = server.get("/metrics").await.with(200);
    assert_eq!(reply.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    let text = reply.text();
    assert!(!text.contains("seat-of") && !text.contains(grant["lease_id"].as_str().unwrap()));
    let samples = samples(&text);
    let value = |name: &str| samples.iter().find(|(sample, _)| sample == name).map(|(_, value)| *value);
    assert_eq!(value("leasehold_acquire_total{outcome=\"granted\"}"), Some(2.0));
    assert_eq!(value("leasehold_acquire_total{outcome=\"held\"}"), Some(1.0));
    assert_eq!(value("leasehold_contended_total"), Some(2.0));
    assert_eq!(value("leasehold_released_total"), Some(1.0));
    assert_eq!(value("leasehold_wait_seconds_count"), Some(2.0));
    assert_eq!(value("leasehold_hold_seconds_count"), Some(1.0));
    for name in [
        "leases",
        "waiters",
        "lapsed_total",
        "revoked_total",
        "fence_admitted_total{kind=\"postgres\"}",
        "fence_rejected_total{kind=\"gate\"}",
        "commit_seconds_sum",
        "commit_batch_sum",
        "renew_failures_total{reason=\"stale\"}",
    ] {
        assert!(value(&format!("leasehold_{name}")).is_some(), "{name} is missing");
    }
    server.end().await;
}

/// Reads the text format, strictly: types before samples, buckets that rise to their count.
fn samples(text: &str) -> Vec<(String, f64)> {
    assert!(text.ends_with('\n'));
    let (mut family, mut found) = (("", ""), Vec::<(String, f64)>::new());
    for line in text.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let words: Vec<&str> = comment.splitn(3, ' ').collect();
            match words[..] {
                ["HELP", _, _] => {}
                ["TYPE", name, kind @ ("counter" | "gauge" | "histogram")] => family = (name, kind),
                _ => panic!("not a comment of the format: {line}"),
            }
            continue;
        }
        let (sample, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("not a sample: {line}"));
        let name = sample.split('{').next().unwrap();
        let of = match family.1 {
            "histogram" => ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name),
            _ => name,
        };
        assert_eq!(of, family.0, "a sample without its type: {line}");
        assert!(found.iter().all(|(earlier, _)| earlier != sample), "twice: {line}");
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("not a number: {line}"));
        let both_buckets =
            name.ends_with("_bucket") && found.last().is_some_and(|(last, _)| last.starts_with(&format!("{name}{{")));
        if both_buckets {
            assert!(found.last().unwrap().1 <= value, "buckets only rise: {line}");
        }
        if let Some(family) = name.strip_suffix("_count") {
            let all = found.iter().find(|(sample, _)| *sample == format!("{family}_bucket{{le=\"+Inf\"}}"));
            assert_eq!(all.map(|(_, all)| *all), Some(value), "{line}");
        }
        found.push((sample.to_owned(), value));
    }
    assert!(found.len() > 50, "{}", found.len());
    found
}
