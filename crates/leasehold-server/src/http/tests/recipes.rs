//! Routes of recipes: what they answer, and what they refuse, one by one.

use leasehold::recipe::moment::format_moment;
use leasehold_support::time::wall_ms;
use serde_json::json;
use sha2::Digest as _;

use super::access::{Keys, as_key};
use super::*;
use crate::http::routes::ROUTES;
use crate::service::Role;

/// The smallest body that a route of recipes takes.
pub(super) fn valid_body(path: &str) -> Value {
    let begin = json!({"scope": "s", "key": "k", "request": "r"});
    let end = json!({"scope": "s", "key": "k", "token": "1", "how": "abandon"});
    match path.rsplit_once('/').unwrap().1 {
        "begin" if path.starts_with("/v1/once") => begin,
        "end" => end,
        "make" => json!({}),
        "push" => json!({"body": {"to": "ada"}}),
        "turn" => json!({"jobs": 1}),
        "claim" => json!({"keys": 1}),
        "ack" if path.contains("lanes") => json!({"key": "k", "token": "1", "jobs": ["1"]}),
        "nack" if path.contains("lanes") => json!({"key": "k", "token": "1", "job": "1"}),
        "extend" if path.contains("lanes") => json!({"key": "k", "token": "1", "visible_ms": 1000}),
        "ack" => json!({"jobs": ["1"], "token": "1"}),
        "nack" => json!({"job": "1", "token": "1"}),
        "extend" => json!({"jobs": ["1"], "token": "1", "visible_ms": 1000}),
        "retry" | "drop" => json!({"jobs": ["1"]}),
        "pause" => json!({"paused": true}),
        "begin" => json!({"tick": "2026-11-18T03:00:00Z", "machine": "m", "spec": "0 3 * * *"}),
        "finish" => json!({"tick": "2026-11-18T03:00:00Z", "token": "1", "code": 0}),
        other => panic!("no body for {other}"),
    }
}

/// The routes of recipes that take a body, with names filled in.
fn posts() -> Vec<(String, &'static str)> {
    let of_recipes = |path: &str| ["/v1/once/", "/v1/queues/", "/v1/schedules/"].iter().any(|at| path.starts_with(at));
    let posts = ROUTES.iter().filter(|route| route.method == hyper::Method::POST && of_recipes(route.path));
    posts.map(|route| (route.path.replace("{q}", "mail").replace("{n}", "report"), route.path)).collect()
}

/// Goal: whatever is wrong with a body is told, and nothing is done: an unknown field, a missing one, one of another type,
/// one that is too long.
#[tokio::test(flavor = "multi_thread")]
async fn bad_bodies_are_refused() {
    let server = Server::start().await;
    let posts = posts();
    assert_eq!(posts.len(), 17, "every route with a body");
    for (path, route) in &posts {
        let mut unknown = valid_body(route);
        unknown["colour"] = json!("red");
        let said = server.post(path, &unknown).await.problem(400, "invalid");
        assert!(said["detail"].as_str().unwrap().contains("colour"), "{path}: {said}");
        let whole = valid_body(route);
        for field in whole.as_object().unwrap().keys() {
            let mut without = whole.clone();
            without.as_object_mut().unwrap().remove(field);
            server.post(path, &without).await.problem(400, "invalid");
            if field != "body" {
                let mut odd = whole.clone();
                odd[field] = json!({"hunter2": 1});
                let said = server.post(path, &odd).await.problem(400, "invalid");
                assert!(!said.to_string().contains("hunter2"), "{path} {field}: no value is shown");
            }
        }
        let mut client = server.client().await;
        let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n");
        // By its length alone: not one byte of it is read.
        client.raw(format!("{head}Content-Length: {}\r\n\r\n", 3 << 20).as_bytes()).await;
        client.reply(false).await.problem(413, "invalid");
    }
    // Only jobs and answers may be longer than 64 KiB.
    let long = |bytes: usize| "x".repeat(bytes);
    server.post("/v1/queues/mail/make", &json!({"by_key": false, "x": long(70_000)})).await.problem(413, "invalid");
    server.post("/v1/queues/mail/make", &json!({})).await.with(200);
    server.post("/v1/queues/mail/push", &json!({"body": long((1 << 20) - 2)})).await.with(201);
    server.post("/v1/queues/mail/push", &json!({"body": long((1 << 20) - 1)})).await.problem(400, "invalid");
    for path in ["/v1/queues/mail/dead?limit=101", "/v1/queues?keys=101", "/v1/schedules/report/runs?limit=0"] {
        server.get(path).await.problem(400, "invalid");
    }
    server.end().await;
}

/// Goal: a queue that is not there is told so by every call that does not make it, and none makes it.
#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_queue_is_not_found() {
    let server = Server::start().await;
    for (path, route) in posts().iter().filter(|(path, _)| path.contains("/queues/") && !path.ends_with("make")) {
        let said = server.post(path, &valid_body(route)).await.problem(404, "not_found");
        assert_eq!(said["detail"], "there is no queue mail", "{path}");
    }
    for path in ["/v1/queues/mail", "/v1/queues/mail/dead"] {
        server.get(path).await.problem(404, "not_found");
    }
    assert_eq!(server.get("/v1/queues").await.with(200).json(), json!({"queues": []}));
    server.get("/v1/schedules/report").await.problem(404, "not_found");
    server.end().await;
}

/// Goal: a prefix is compared with `queue/Q`, `once/SCOPE` and `cron/NAME`; what is outside is neither touched nor seen.
#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_bounds_recipes() {
    let mine: &[&str] = &["queue/mine-", "once/mine-", "cron/mine-", "election/mine-"];
    let keys = Keys::of(&[(&[Role::Admin], mine), (&[Role::Admin], &[])]);
    let server = keys.server().await;
    let (bound, free) = (&keys.shown[0], &keys.shown[1]);
    let post = async |key: &str, path: &str, body: &Value| as_key(&server, key, "POST", path, Some(body)).await;
    let get = async |key: &str, path: &str| as_key(&server, key, "GET", path, None).await;
    for (path, route) in posts() {
        post(bound, &path, &valid_body(route)).await.problem(403, "forbidden");
    }
    for path in ["/v1/queues/mail", "/v1/queues/mail/dead", "/v1/schedules/report", "/v1/queues?name=mail"] {
        get(bound, path).await.problem(403, "forbidden");
    }
    for queue in ["mine-1", "other-1"] {
        post(free, &format!("/v1/queues/{queue}/make"), &json!({})).await.with(200);
        post(free, &format!("/v1/schedules/{queue}/begin"), &valid_body("/v1/schedules/{n}/begin")).await.with(200);
        let lease = json!({"resources": [format!("election/{queue}")], "ttl_ms": 60_000, "holder": "ada"});
        post(free, "/v1/leases", &lease).await.with(201);
    }
    for path in ["/v1/queues", "/v1/schedules", "/v1/elections"] {
        let seen = get(bound, path).await.with(200).text();
        assert!(seen.contains("mine-1") && !seen.contains("other-1"), "{path}: {seen}");
        assert!(get(free, path).await.with(200).text().contains("other-1"), "{path}");
    }
    // Tokens and ids are no secrets: what is in another queue cannot be reached through one's own.
    let job = post(free, "/v1/queues/other-1/push", &json!({"body": 1})).await.with(201).json()["job_id"].clone();
    let taken = post(free, "/v1/queues/other-1/turn", &json!({"jobs": 1})).await.with(200).json();
    let token = taken["jobs"][0]["token"].clone();
    let through = async |call: &str, body: Value| post(bound, &format!("/v1/queues/mine-1/{call}"), &body).await;
    let stale = through("ack", json!({"jobs": [job], "token": token})).await.with(200).json();
    assert_eq!(stale, json!({"stale": [job], "locked": []}));
    let turned = through("turn", json!({"jobs": 1, "done": [job], "done_token": token})).await.with(200).json();
    assert_eq!((&turned["stale"], &turned["jobs"]), (&json!([job]), &json!([])));
    through("nack", json!({"job": job, "token": token})).await.problem(409, "stale");
    let ours = through("extend", json!({"jobs": [job], "token": token, "visible_ms": 1000})).await.with(200).json();
    assert_eq!(ours, json!({"ours": [], "locked": []}));
    let ours = post(free, "/v1/queues/other-1/ack", &json!({"jobs": [job], "token": token})).await.with(200).json();
    assert_eq!(ours, json!({"stale": [], "locked": []}), "its own queue ends it");
    server.end().await;
}

/// Goal: once from begin to replay, as the description says it.
#[tokio::test(flavor = "multi_thread")]
async fn once_from_begin_to_replay() {
    let server = Server::start().await;
    let begin = json!({"scope": "payments", "key": "order-7", "request": "14 EUR", "ttl_ms": 60_000});
    let begun = server.post("/v1/once/begin", &begin).await.with(200).json();
    schema::holds(&begun, "OnceBegun");
    assert_eq!(begun["outcome"], "first");
    let flying = server.post("/v1/once/begin", &begin).await.problem(409, "in_flight");
    assert!((1..=60_000).contains(&flying["remaining_ms"].as_u64().unwrap()), "{flying}");
    let mut other = begin.clone();
    other["request"] = json!("15 EUR");
    server.post("/v1/once/begin", &other).await.problem(422, "idempotency_mismatch");
    let end = |how: &str, token: &Value| json!({"scope": "payments", "key": "order-7", "token": token, "how": how});
    server.post("/v1/once/end", &end("ask", &begun["token"])).await.problem(409, "stale");
    let mut renew = end("renew", &begun["token"]);
    renew["ttl_ms"] = json!(30_000);
    server.post("/v1/once/end", &renew).await.with(204);
    let mut finish = end("finish", &json!("999"));
    (finish["status"], finish["body"]) = (json!(201), json!("charged"));
    server.post("/v1/once/end", &finish).await.problem(409, "stale");
    finish["token"] = begun["token"].clone();
    server.post("/v1/once/end", &finish).await.with(204);
    server.post("/v1/once/end", &end("ask", &begun["token"])).await.with(204);
    server.post("/v1/once/end", &end("abandon", &begun["token"])).await.problem(409, "stale");
    let replayed = server.post("/v1/once/begin", &begin).await.with(200).json();
    schema::holds(&replayed, "OnceBegun");
    assert_eq!(replayed, json!({"outcome": "replay", "status": 201, "body": "charged"}));
    // The same request, by its digest.
    let digest = leasehold_support::hex::encode(&sha2::Sha256::digest("14 EUR"));
    let by_digest = json!({"scope": "payments", "key": "order-7", "asked_sha256": digest});
    assert_eq!(server.post("/v1/once/begin", &by_digest).await.with(200).json(), replayed);
    let short = json!({"scope": "payments", "key": "order-7", "asked_sha256": &digest[2..]});
    server.post("/v1/once/begin", &short).await.problem(400, "invalid");
    let text = server.get("/metrics").await.with(200).text();
    for line in [
        "leasehold_once_total{outcome=\"first\"} 1",
        "leasehold_once_total{outcome=\"replay\"} 2",
        "leasehold_once_total{outcome=\"in_flight\"} 1",
        "leasehold_once_total{outcome=\"mismatch\"} 1",
        "leasehold_once_total{outcome=\"finished\"} 1",
        "leasehold_once_total{outcome=\"stale\"} 2",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    server.end().await;
}

/// Goal: a job from push to dead letter and back, with the JSON that the page reads; jobs keep their text.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_from_push_to_dead_letter() {
    let server = Server::start().await;
    let post = async |call: &str, body: Value| server.post(&format!("/v1/queues/mail/{call}"), &body).await;
    schema::holds(&post("make", json!({"max_attempts": 5})).await.with(200).json(), "QueueFacts");
    let mut client = server.client().await;
    let text = "{\"body\":{\"z\":1,\"a\":12345678901234567890123,\"n\":1.50}}";
    let length = text.len();
    let head = "POST /v1/queues/mail/push HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    client.raw(format!("{head}Content-Length: {length}\r\n\r\n{text}").as_bytes()).await;
    schema::holds(&client.reply(false).await.with(201).json(), "PushedJob");
    let claimed = post("turn", json!({"jobs": 2, "worker": "w"})).await.with(200);
    assert!(
        claimed.text().contains("\"body\":{\"z\":1,\"a\":12345678901234567890123,\"n\":1.50}"),
        "{}",
        claimed.text()
    );
    schema::holds(&claimed.json(), "TurnAnswer");
    let job = claimed.json()["jobs"][0].clone();
    assert_eq!(job["attempt"], 1);
    let extended = post("extend", json!({"jobs": [job["job_id"]], "token": job["token"], "visible_ms": 9000})).await;
    assert_eq!(extended.with(200).json()["ours"], json!([job["job_id"]]));
    let nack = json!({"job": job["job_id"], "token": job["token"], "why": "no route", "kill": true});
    assert_eq!(post("nack", nack.clone()).await.with(200).json(), json!({"state": "dead"}));
    post("nack", nack).await.problem(409, "stale");
    let dead = server.get("/v1/queues/mail/dead?limit=100").await.with(200).json();
    schema::holds(&dead, "DeadJobs");
    assert_eq!((&dead["dead"][0]["error"], &dead["dead"][0]["key"]), (&json!("no route"), &Value::Null));
    let listed = server.get("/v1/queues").await.with(200).json();
    schema::holds(&listed, "QueueList");
    assert_eq!((&listed["queues"][0]["dead"], &listed["queues"][0]["oldest_ms"]), (&json!(1), &Value::Null));
    let ids = json!({"jobs": [dead["dead"][0]["job_id"]]});
    assert_eq!(post("retry", ids.clone()).await.with(200).json(), json!({"count": 1}));
    assert_eq!(post("drop", ids).await.with(200).json(), json!({"count": 0}));
    post("pause", json!({"paused": true})).await.with(204);
    assert_eq!(post("turn", json!({"jobs": 1})).await.with(200).json()["jobs"], json!([]));
    post("pause", json!({"paused": false})).await.with(204);
    let job = post("turn", json!({"jobs": 1})).await.with(200).json()["jobs"][0].clone();
    let done = json!({"jobs": 1, "done": [job["job_id"], "4711"], "done_token": job["token"]});
    assert_eq!(post("turn", done).await.with(200).json()["stale"], json!(["4711"]));
    schema::holds(&server.get("/v1/queues/mail").await.with(200).json(), "QueueInfo");
    let text = server.get("/metrics").await.with(200).text();
    for line in [
        "leasehold_queue_ended_total{queue=\"mail\",how=\"ack\"} 1",
        "leasehold_queue_ended_total{queue=\"mail\",how=\"dead\"} 1",
        "leasehold_queue_ended_total{queue=\"mail\",how=\"stale\"} 2",
        "leasehold_queue_depth{queue=\"mail\",state=\"dead\"} 0",
        "leasehold_queue_oldest_seconds{queue=\"mail\"} 0",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    server.end().await;
}

/// Goal: a claim that waits is answered by a push, and one of a worker that sleeps by the number of rings.
#[tokio::test(flavor = "multi_thread")]
async fn a_push_answers_a_claim_that_waits() {
    let server = Server::start().await;
    server.post("/v1/queues/mail/make", &json!({})).await.with(200);
    let rings = server.get("/v1/queues/mail").await.with(200).json()["rings"].clone();
    let mut waiter = server.client().await;
    waiter.send("POST", "/v1/queues/mail/turn", &[], Some(&json!({"jobs": 1, "wait_ms": 30_000}))).await;
    let sleeping = async || server.get("/v1/queues").await.with(200).json()["queues"][0]["sleepers"] == 1;
    while !sleeping().await {
        moment().await;
    }
    server.post("/v1/queues/mail/push", &json!({"body": 7})).await.with(201);
    assert_eq!(waiter.reply(false).await.with(200).json()["jobs"][0]["body"], 7);
    // The number is another one: answered at once, although nothing is there.
    let sleeps = json!({"jobs": 0, "wait_ms": 30_000, "rings": rings});
    let answer = server.post("/v1/queues/mail/turn", &sleeps).await.with(200).json();
    assert_ne!(answer["rings"], rings);
    // A delayed job rings too, and the wait ends when it is ready.
    let mut waiter = server.client().await;
    waiter.send("POST", "/v1/queues/mail/turn", &[], Some(&json!({"jobs": 1, "wait_ms": 30_000}))).await;
    while !sleeping().await {
        moment().await;
    }
    server.post("/v1/queues/mail/push", &json!({"body": 8, "delay_ms": 300})).await.with(201);
    assert_eq!(waiter.reply(false).await.with(200).json()["jobs"][0]["body"], 8);
    assert!(server.get("/metrics").await.with(200).text().contains("leasehold_queue_rings_total 2"));
    server.end().await;
}

/// Goal: a queue by key, over its own routes.
#[tokio::test(flavor = "multi_thread")]
async fn keys_are_claimed_and_freed() {
    let server = Server::start().await;
    let post = async |call: &str, body: Value| server.post(&format!("/v1/queues/orders/{call}"), &body).await;
    post("make", json!({"by_key": true})).await.with(200);
    for number in 0..3 {
        post("push", json!({"body": number, "key": "ada"})).await.with(201);
    }
    let claimed = post("lanes/claim", json!({"keys": 2, "jobs_per_key": 2})).await.with(200).json();
    schema::holds(&claimed, "LanesAnswer");
    let (first, second) = (&claimed["jobs"][0], &claimed["jobs"][1]);
    assert_eq!((&first["key"], &first["body"], &second["body"]), (&json!("ada"), &json!(0), &json!(1)));
    let token = &first["token"];
    post("lanes/extend", json!({"key": "ada", "token": token, "visible_ms": 9000})).await.with(204);
    post("lanes/extend", json!({"key": "ada", "token": "1", "visible_ms": 9000})).await.problem(409, "stale");
    post("lanes/ack", json!({"key": "ada", "token": "1", "jobs": [first["job_id"]]})).await.problem(409, "stale");
    let ack = json!({"key": "ada", "token": token, "jobs": [first["job_id"]], "free": false});
    post("lanes/ack", ack).await.with(204);
    let nack = json!({"key": "ada", "token": token, "job": second["job_id"], "why": "later", "after_ms": 0});
    assert_eq!(post("lanes/nack", nack.clone()).await.with(200).json(), json!({"state": "retry"}));
    post("lanes/nack", nack).await.problem(409, "stale");
    let hot = server.get("/v1/queues?keys=1").await.with(200).json()["queues"][0]["hot_keys"].clone();
    assert_eq!((&hot[0]["key"], &hot[0]["jobs"]), (&json!("ada"), &json!(2)));
    post("lanes/claim", json!({"keys": 13, "jobs_per_key": 5})).await.problem(400, "invalid");
    server.end().await;
}

/// Goal: a fleet that is dead is noticed, though nobody writes to the ledger any more.
/// Method: three schedules of every hour. One began this hour's tick. One died six hours ago. One was at work until now: what
/// came meanwhile is not waited for.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_fleet_is_noticed() {
    let server = Server::start().await;
    let now = wall_ms();
    let tick = |hours_ago: u64| {
        let hour = now / 3_600_000 - hours_ago;
        format_moment(std::time::SystemTime::UNIX_EPOCH + Duration::from_millis(hour * 3_600_000))
    };
    for (name, hours_ago) in [("alive", 0), ("dead", 6), ("long", 6)] {
        let begin = json!({"tick": tick(hours_ago), "token": "5", "machine": "m1", "spec": "0 * * * * UTC"});
        server.post(&format!("/v1/schedules/{name}/begin"), &begin).await.with(200);
    }
    let end = json!({"tick": tick(6), "token": "5", "code": 0, "tail": ""});
    server.post("/v1/schedules/long/finish", &end).await.with(204);
    let listed = server.get("/v1/schedules").await.with(200).json();
    schema::holds(&listed, "ScheduleList");
    let overdue: Vec<(&str, Option<u64>)> = listed["schedules"]
        .as_array()
        .unwrap()
        .iter()
        .map(|seen| (seen["name"].as_str().unwrap(), seen["overdue_ms"].as_u64()))
        .collect();
    let [("alive", None), ("dead", Some(age)), ("long", None)] = overdue[..] else { panic!("{overdue:?}") };
    assert!((5 * 3_600_000..7 * 3_600_000).contains(&age), "since the tick of five hours ago: {age}");
    let one = server.get("/v1/schedules/dead").await.with(200).json();
    schema::holds(&one, "Schedule");
    assert!(one["overdue_ms"].as_u64().is_some_and(|later| later >= age) && one.get("runs").is_none(), "{one}");
    assert!(server.get("/v1/schedules/long").await.with(200).json()["overdue_ms"].is_null());
    let text = server.get("/metrics").await.with(200).text();
    assert!(text.contains("\nleasehold_cron_overdue 1\n"), "{text}");
}

/// Goal: a run from begin to end, and the JSON that the page reads.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_from_begin_to_end() {
    let server = Server::start().await;
    let post = async |call: &str, body: Value| server.post(&format!("/v1/schedules/report/{call}"), &body).await;
    let begin = json!({"tick": "2026-11-17T03:00:00Z", "token": "5", "machine": "m1", "spec": "0 3 * * *"});
    let begun = post("begin", begin.clone()).await.with(200).json();
    schema::holds(&begun, "RunBegun");
    assert_eq!(begun, json!({"outcome": "first", "token": "5", "skipped": 0, "missed": 0, "lost": 0}));
    assert_eq!(post("begin", begin).await.with(200).json(), json!({"outcome": "done"}));
    let end = |token: &str| json!({"tick": "2026-11-17T03:00:00Z", "token": token, "code": 1, "tail": "no space"});
    post("finish", end("6")).await.problem(409, "stale");
    post("finish", end("5")).await.with(204);
    let skipped = json!({"from": "2026-11-17T04:00:00Z", "upto": "2026-11-17T05:00:00Z", "count": 2});
    let next = json!({"tick": "2026-11-17T06:00:00Z", "token": "7", "machine": "m2", "spec": "0 3 * * *",
        "seen": "2026-11-17T03:00:00Z", "missed": [skipped]});
    let begun = post("begin", next).await.with(200).json();
    schema::holds(&begun, "RunBegun");
    assert_eq!(begun, json!({"outcome": "first", "token": "7", "skipped": 2, "missed": 0, "lost": 0}));
    let listed = server.get("/v1/schedules").await.with(200).json();
    schema::holds(&listed, "ScheduleList");
    let seen = &listed["schedules"][0];
    assert_eq!((&seen["name"], &seen["last_tick"]), (&json!("report"), &json!("2026-11-17T06:00:00.000Z")));
    let states: Vec<&Value> = seen["runs"].as_array().unwrap().iter().map(|run| &run["state"]).collect();
    // A run ended after them: it was in the way.
    assert_eq!(states, ["running", "skipped", "failed"]);
    let runs = server.get("/v1/schedules/report/runs?limit=2").await.with(200).json();
    schema::holds(&runs, "RunList");
    assert_eq!(runs["runs"].as_array().unwrap().len(), 2);
    schema::holds(&server.get("/v1/schedules/report").await.with(200).json(), "Schedule");
    // The run of 03:00 never ends, and nobody begins three ticks: a fleet that is dead.
    let dead = async |body: Value| server.post("/v1/schedules/dead/begin", &body).await.with(200).json();
    dead(json!({"tick": "2026-11-17T03:00:00Z", "token": "5", "machine": "m1", "spec": "0 * * * * UTC"})).await;
    let missed = json!({"from": "2026-11-17T04:00:00Z", "upto": "2026-11-17T06:00:00Z", "count": 3});
    let begun = dead(json!({"tick": "2026-11-17T07:00:00Z", "token": "6", "machine": "m2", "spec": "0 * * * * UTC",
        "seen": "2026-11-17T03:00:00Z", "missed": [missed]}))
    .await;
    assert_eq!(begun, json!({"outcome": "first", "token": "6", "skipped": 0, "missed": 3, "lost": 1}));
    let text = server.get("/metrics").await.with(200).text();
    for line in [
        "leasehold_cron_runs_total{state=\"running\"} 4",
        "leasehold_cron_runs_total{state=\"failed\"} 1",
        "leasehold_cron_runs_total{state=\"lost\"} 1",
        "leasehold_cron_missed_total 3",
        "leasehold_cron_skipped_total 2",
        "leasehold_cron_late_seconds_count 4",
        "leasehold_election_terms_total ",
        "leasehold_flight_total{outcome=\"hit\"} ",
        "leasehold_optimistic_conflicts_total ",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    server.end().await;
}

/// Goal: who leads, as the page reads it.
#[tokio::test(flavor = "multi_thread")]
async fn elections_are_listed() {
    let server = Server::start().await;
    server.take("election/scheduler", 60_000, "10.0.0.7:9000").await;
    server.take("electio", 60_000, "x").await;
    let listed = server.get("/v1/elections").await.with(200).json();
    schema::holds(&listed, "ElectionList");
    let leader = &listed["elections"][0];
    assert_eq!((&leader["name"], &leader["value"]), (&json!("scheduler"), &json!("10.0.0.7:9000")));
    assert_eq!((listed["elections"].as_array().unwrap().len(), &leader["queue_len"]), (1, &json!(0)));
    server.end().await;
}

/// Goal: a store that does not answer makes the server not ready, and every call unavailable.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_is_told() {
    let server = Server::start().await;
    server.get("/readyz").await.with(200);
    server.post("/v1/queues/mail/make", &json!({})).await.with(200);
    std::fs::remove_file(server.home.path().join("recipes.db")).unwrap();
    server.service.close_recipes().await;
    server.post("/v1/queues/mail/push", &json!({"body": 1})).await.problem(503, "unavailable");
    server.get("/readyz").await.problem(503, "unavailable");
    server.end().await;
}
