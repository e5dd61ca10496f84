//! Nothing goes around the gate.

use serde_json::json;

use super::*;
use crate::http::routes::{ROUTES, Route};
use crate::service::keys::file::KeyFile;
use crate::service::keys::secret::NewKey;
use crate::service::{Role, Roles};

/// Its proof is a signature, not a key: see the tests of payments.
const CALLBACK: &str = "/v1/payments/callback";

async fn call(server: &Server, route: &Route, headers: &[(&str, &str)]) -> u16 {
    let path = route.path.replace("{*name}", "seat").replace("{*file}", "docs.js");
    // Names of nothing: behind the gate the answer is that there is no such thing.
    let path =
        ["{e}", "{h}", "{o}", "{s}", "{w}", "{q}", "{n}"].iter().fold(path, |path, name| path.replace(name, "none"));
    let body = match route.path {
        "/v1/tickets" => Some(json!({"event": "none"})),
        "/v1/events" if route.method == hyper::Method::POST => Some(json!({"name": "An evening"})),
        "/v1/events/{e}/import" => Some(json!({"areas": [{"id": "floor", "capacity": 5, "price": 1}]})),
        "/v1/events/{e}/holds" => Some(json!({"seats": ["A-1"], "buyer": "b"})),
        "/v1/events/{e}/blocks" => Some(json!({"block": ["A-1"], "reason": "test"})),
        "/v1/events/{e}/seats/{s}/release"
        | "/v1/events/{e}/payments/{r}/refund"
        | "/v1/events/{e}/payments/{r}/close"
        | "/v1/orders/{o}/void" => Some(json!({"reason": "test"})),
        "/v1/orders/{o}/move" => Some(json!({"moves": [{"from": "A-1", "to": "A-2"}], "reason": "test"})),
        "/v1/holds/{h}/seats" => Some(json!({"add": ["A-1"]})),
        "/v1/holds/{h}/pay" | "/v1/holds/{h}/confirm" => Some(json!({"payment_ref": "pi_1"})),
        "/v1/webhooks" if route.method == hyper::Method::POST => Some(json!({"url": "http://127.0.0.1:9/"})),
        "/v1/demo/pay" => Some(json!({"hold_id": "h", "payment_ref": "p", "outcome": "approve"})),
        path if path.ends_with("freeze") => Some(json!({"reason": "test"})),
        "/v1/events/{e}" if route.method == hyper::Method::PUT => Some(json!({"on_sale": true})),
        "/v1/leases" => Some(json!({"resources": ["a"], "ttl_ms": 3_600_000})),
        "/v1/leases/relabel" => Some(json!({"lease_id": "none", "holder": "x"})),
        "/v1/leases/renew" | "/v1/leases/release" => Some(json!({"lease_id": "none"})),
        "/v1/webhooks/{w}" => None,
        path if path.starts_with("/v1/once/")
            || path.starts_with("/v1/queues/")
            || path.starts_with("/v1/schedules/") =>
        {
            (route.method == hyper::Method::POST).then(|| recipes::valid_body(path))
        }
        _ => (route.method == hyper::Method::DELETE).then(|| json!({"reason": "test"})),
    };
    let mut headers = headers.to_vec();
    headers.push(("Leasehold-Hold-Key", "of nobody"));
    let mut client = server.client().await;
    client.send(route.method.as_str(), &path, &headers, body.as_ref()).await;
    client.head().await.0
}

/// Goal: every route that asks something of the service is admitted by it exactly once, and no other route is.
/// Method: the table of routes; before and after each call, how often the gate let each verb through.
#[tokio::test(flavor = "multi_thread")]
async fn every_route_passes_the_gate_once() {
    let server = Server::start().await;
    let count = |verb| server.service.metrics.calls_so_far(verb);
    for route in ROUTES.iter().filter(|route| route.path != CALLBACK) {
        let before: Vec<u64> = crate::service::Verb::ALL.map(count).to_vec();
        let status = call(&server, route, &[]).await;
        assert!(status < 500 && !matches!(status, 400 | 401 | 403 | 405), "{} {}: {status}", route.method, route.path);
        for (verb, before) in crate::service::Verb::ALL.into_iter().zip(before) {
            let risen = count(verb) - before;
            // A watch that begins also shows the whole.
            let list_of_watch = route.verb == Some(crate::service::Verb::Watch) && verb == crate::service::Verb::List;
            if !list_of_watch {
                assert_eq!(
                    risen,
                    u64::from(route.verb == Some(verb)),
                    "{} {} {}",
                    route.method,
                    route.path,
                    verb.word()
                );
            }
        }
    }
    server.end().await;
}

/// Keys as `leasehold key create` makes them.
pub(super) struct Keys {
    pub(super) ring: Arc<KeyRing>,
    pub(super) shown: Vec<String>,
}

impl Keys {
    pub(super) fn of(rights: &[(&[Role], &[&str])]) -> Self {
        let made: Vec<NewKey> = rights.iter().map(|_| NewKey::random().unwrap()).collect();
        let records = made.iter().zip(rights).map(|(key, (roles, prefixes))| key.record(roles, prefixes));
        let ring = KeyRing::from_file(&KeyFile { keys: records.collect() });
        Self { ring, shown: made.iter().map(|key| format!("Bearer {}", key.expose())).collect() }
    }

    pub(super) async fn server(&self) -> Server {
        let home = Arc::new(tempfile::tempdir().unwrap());
        let at = "127.0.0.1:0".parse().unwrap();
        Server::on(home, at, HttpConfig::default(), Options::default(), self.ring.clone()).await
    }
}

pub(super) async fn as_key(server: &Server, key: &str, method: &str, path: &str, body: Option<&Value>) -> Reply {
    server.client().await.ask(method, path, &[("Authorization", key)], body).await
}

/// Goal: every route asks for a key and for the role of its verb; whoever lacks it changes nothing and is not counted.
/// Method: the whole table of routes, by every role, by nobody, and by keys that are wrong.
#[tokio::test(flavor = "multi_thread")]
async fn every_route_asks_for_its_role() {
    let keys = Keys::of(&Role::ALL.map(role_alone));
    let server = keys.server().await;
    let admin = &keys.shown[3];
    let held = async || {
        let seen = as_key(&server, admin, "GET", "/v1/resources", None).await.with(200).json();
        let names =
            seen["resources"].as_array().unwrap().iter().map(|resource| resource["name"].as_str().unwrap().into());
        // What the box office does by itself begins when there is an event, whenever that is.
        names.filter(|name: &String| !name.starts_with("boxoffice-")).collect::<Vec<String>>()
    };
    let wrong = format!("{}x", keys.shown[3]);
    for route in ROUTES.iter().filter(|route| route.path != CALLBACK) {
        let Some(verb) = route.verb else {
            let status = call(&server, route, &[]).await;
            assert!(!matches!(status, 401 | 403), "{} needs no key: {status}", route.path);
            continue;
        };
        let claim = json!({"resources": ["seat"], "ttl_ms": 3_600_000});
        as_key(&server, admin, "POST", "/v1/leases", Some(&claim)).await;
        let before = held().await;
        for shown in [
            &[][..],
            &[("Authorization", wrong.as_str())],
            &[("Authorization", "Basic YTpi")],
            &[("Authorization", "Bearer ")],
        ] {
            let status = call(&server, route, shown).await;
            // Wrong keys are told so only so often from one address.
            let too_often = status == 429 && shown.iter().any(|(_, key)| *key == wrong);
            assert!(status == 401 || too_often, "{} {} {shown:?}: {status}", route.method, route.path);
        }
        for (role, key) in Role::ALL.into_iter().zip(&keys.shown) {
            if Roles::from_roles([role]).allow(verb.role()) {
                continue;
            }
            let admitted = server.service.metrics.calls_so_far(verb);
            assert_eq!(call(&server, route, &[("Authorization", key)]).await, 403, "{} by {}", route.path, role.word());
            assert_eq!(server.service.metrics.calls_so_far(verb), admitted);
        }
        assert_eq!(held().await, before, "{} {}: nothing was changed", route.method, route.path);
        for (role, key) in Role::ALL.into_iter().zip(&keys.shown) {
            if !Roles::from_roles([role]).allow(verb.role()) {
                continue;
            }
            let admitted = server.service.metrics.calls_so_far(verb);
            let status = call(&server, route, &[("Authorization", key)]).await;
            assert!(
                !matches!(status, 400 | 401 | 403 | 405) && status < 500,
                "{} by {}: {status}",
                route.path,
                role.word()
            );
            assert_eq!(server.service.metrics.calls_so_far(verb), admitted + 1);
        }
    }
    let refused = server.get("/v1/status").await;
    assert_eq!(refused.header("www-authenticate"), "Bearer realm=\"leasehold\"");
    refused.problem(401, "unauthorized");
    let status = as_key(&server, &keys.shown[0], "GET", "/v1/status", None).await.with(200).json();
    assert_eq!((&status["auth"], &status["role"]), (&json!("required"), &json!(["read"])));
    server.end().await;
}

fn role_alone(role: Role) -> (&'static [Role], &'static [&'static str]) {
    let at = Role::ALL.iter().position(|other| *other == role).unwrap();
    const EACH: [[Role; 1]; 4] = [[Role::Read], [Role::Lease], [Role::Boxoffice], [Role::Admin]];
    (&EACH[at], &[])
}

/// Goal: a key with a prefix neither touches nor sees anything outside it: not in listings, losses, counts or a watch.
#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_hides_everything_else() {
    let keys = Keys::of(&[(&[Role::Lease], &["mine/"]), (&[Role::Admin], &[])]);
    let server = keys.server().await;
    let (mine, admin) = (&keys.shown[0], &keys.shown[1]);
    let take = async |key: &str, names: &[&str]| {
        as_key(&server, key, "POST", "/v1/leases", Some(&json!({"resources": names, "ttl_ms": 60_000}))).await
    };
    take(mine, &["other/1"]).await.problem(403, "forbidden");
    take(mine, &["mine/1", "other/1"]).await.problem(403, "forbidden");
    take(mine, &["mine/1"]).await.with(201);
    take(admin, &["mine/2", "other/2"]).await.with(201);
    as_key(&server, mine, "GET", "/v1/resources/other%2F2", None).await.problem(403, "forbidden");
    let why = json!({"reason": "over"});
    as_key(&server, mine, "DELETE", "/v1/resources/mine%2F1", Some(&why)).await.problem(403, "forbidden");
    as_key(&server, admin, "DELETE", "/v1/resources/other%2F2", Some(&why)).await.with(200);
    let listed = as_key(&server, mine, "GET", "/v1/resources", None).await.with(200).text();
    let status = as_key(&server, mine, "GET", "/v1/status", None).await.with(200);
    assert_eq!(
        status.json()["recent"][0]["resources"],
        json!(["mine/2"]),
        "of a loss over several, those that are theirs"
    );
    // How busy others are is not theirs either.
    schema::holds(&status.json(), "Status");
    for field in ["leases", "waiters", "rates"] {
        assert_eq!(status.json()[field], Value::Null, "{field}");
    }
    as_key(&server, mine, "GET", "/metrics", None).await.problem(403, "forbidden");
    let whole = as_key(&server, admin, "GET", "/v1/status", None).await.with(200).json();
    assert!(whole["leases"].is_u64() && whole["rates"].is_object(), "{whole}");
    let mut watch = server.client().await;
    watch.send("GET", "/v1/watch", &[("Authorization", mine)], None).await;
    watch.head().await;
    watch.chunk().await.unwrap();
    let reset = watch.chunk().await.unwrap();
    take(admin, &["other/3", "mine/3"]).await.with(201);
    let told = watch.chunk().await.unwrap();
    assert!(told.contains("mine/3"), "{told}");
    for text in [listed, status.text(), reset, told] {
        assert!(!text.contains("other/"), "{text}");
    }
    drop(watch);
    server.end().await;
}

/// Goal: metrics count everything, so no role reads them with a key that may see only some of it; and no role needs more
/// than that there is no prefix.
#[tokio::test(flavor = "multi_thread")]
async fn metrics_take_a_key_without_prefixes() {
    let roles = Role::ALL.map(|role| role_alone(role).0);
    let rights: Vec<(&[Role], &[&str])> =
        roles.iter().flat_map(|role| [(*role, &[][..]), (*role, &["mine/"])]).collect();
    let keys = Keys::of(&rights);
    let server = keys.server().await;
    for ((role, prefixes), key) in rights.iter().zip(&keys.shown) {
        let admitted = server.service.metrics.calls_so_far(crate::service::Verb::Metrics);
        let reply = as_key(&server, key, "GET", "/metrics", None).await;
        let may = prefixes.is_empty();
        if may {
            assert!(reply.with(200).text().contains("leasehold_leases"), "{role:?}");
        } else {
            let problem = reply.problem(403, "forbidden");
            assert!(!problem.to_string().contains("leasehold_"), "{role:?}: {problem}");
        }
        let now = server.service.metrics.calls_so_far(crate::service::Verb::Metrics);
        assert_eq!(now - admitted, u64::from(may), "{role:?}");
        // What is filtered by name they may all see.
        as_key(&server, key, "GET", "/v1/status", None).await.with(200);
    }
    server.end().await;
}

/// Goal: a key that is revoked ends the watch and the wait that it began, at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_key_ends_what_it_began() {
    let keys = Keys::of(&[(&[Role::Admin], &[])]);
    let server = keys.server().await;
    let key = [("Authorization", keys.shown[0].as_str())];
    let claim = json!({"resources": ["seat"], "ttl_ms": 60_000, "wait_ms": 60_000});
    server.client().await.ask("POST", "/v1/leases", &key, Some(&claim)).await.with(201);
    let mut waiter = server.client().await;
    waiter.send("POST", "/v1/leases", &key, Some(&claim)).await;
    let mut watch = server.client().await;
    watch.send("GET", "/v1/watch", &key, None).await;
    watch.head().await;
    watch.chunk().await.unwrap();
    watch.chunk().await.unwrap();
    let _ = keys.ring.replace(&KeyFile { keys: Vec::new() });
    let end = watch.chunk().await.unwrap();
    assert!(end.contains("event: end") && end.contains("unauthorized"), "{end}");
    assert!(watch.chunk().await.is_none());
    waiter.reply(false).await.problem(401, "unauthorized");
    server.end().await;
}
