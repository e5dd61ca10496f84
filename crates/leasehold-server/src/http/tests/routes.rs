//! The happy path of every route.

use serde_json::json;

use super::*;

/// Goal: a lease is taken, seen, renewed and released, and every answer is as described.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_from_grant_to_release() {
    let server = Server::start().await;
    let body = json!({"resources": ["seat-14", {"name": "pool", "mode": "permits", "permits": 2, "capacity": 5}],
                      "ttl_ms": 30_000, "max_hold_ms": 60_000, "holder": "ada"});
    let reply = server.post("/v1/leases", &body).await.with(201);
    assert_eq!(reply.header("content-type"), "application/json");
    assert_eq!(reply.header("cache-control"), "no-store");
    let grant = reply.json();
    schema::holds(&grant, "Grant");
    assert_eq!(grant["resources"], json!(["seat-14", "pool"]));
    assert!(grant["token"].as_str().unwrap().parse::<u64>().unwrap() > 0, "a decimal text: {grant}");
    assert!((29_000..=30_000).contains(&grant["remaining_ms"].as_u64().unwrap()), "{grant}");
    assert!((59_000..=60_000).contains(&grant["renewable_ms"].as_u64().unwrap()), "{grant}");
    assert!(grant["expires_at"].as_str().unwrap().ends_with('Z'));

    let seat = server.get("/v1/resources/seat-14").await.with(200).json();
    schema::holds(&seat, "Resource");
    assert_eq!((&seat["mode"], &seat["holders"][0]["holder"]), (&json!("exclusive"), &json!("ada")));
    assert_eq!(seat["holders"][0]["token"], grant["token"]);
    let pool = server.get("/v1/resources/pool").await.with(200).json();
    schema::holds(&pool, "Resource");
    assert_eq!((&pool["mode"], &pool["permits_used"], &pool["capacity"]), (&json!("permits"), &json!(2), &json!(5)));

    let renewed = json!({"lease_id": grant["lease_id"], "ttl_ms": 40_000});
    let renewed = server.post("/v1/leases/renew", &renewed).await.with(200).json();
    schema::holds(&renewed, "Renewal");
    assert!((39_000..=40_000).contains(&renewed["remaining_ms"].as_u64().unwrap()), "{renewed}");

    let relabel = json!({"lease_id": grant["lease_id"], "holder": "ada at 10.0.0.7"});
    assert_eq!(server.post("/v1/leases/relabel", &relabel).await.with(204).text(), "");
    let seat = server.get("/v1/resources/seat-14").await.with(200).json();
    assert_eq!(seat["holders"][0]["holder"], "ada at 10.0.0.7");
    let unlabelled = json!({"lease_id": grant["lease_id"]});
    server.post("/v1/leases/relabel", &unlabelled).await.problem(400, "invalid");

    let lease = json!({"lease_id": grant["lease_id"]});
    for _ in 0..2 {
        let released = server.post("/v1/leases/release", &lease).await.with(204);
        assert_eq!(released.text(), "");
    }
    server.post("/v1/leases/relabel", &relabel).await.problem(409, "stale");
    let seat = server.get("/v1/resources/seat-14").await.with(200).json();
    schema::holds(&seat, "Resource");
    assert_eq!((&seat["mode"], &seat["holders"]), (&json!(null), &json!([])));
    server.end().await;
}

/// Goal: a name may be anything: slashes, unicode, percent signs, a query's own letters.
#[tokio::test(flavor = "multi_thread")]
async fn names_with_slashes_and_unicode_come_back_whole() {
    let server = Server::start().await;
    for (path, name) in [
        ("a/b/c", "a/b/c"),
        ("a%2Fb%2Fd", "a/b/d"),
        ("/leading", "/leading"),
        ("trailing/", "trailing/"),
        ("%E5%BA%A7%E5%B8%AD%20%F0%9F%8E%AB", "座席 🎫"),
        ("100%25%3F%23%26%3D", "100%?#&="),
        ("..%2F..%2Fetc", "../../etc"),
        ("renew", "renew"),
    ] {
        server.take(name, 30_000, "ada").await;
        let seen = server.get(&format!("/v1/resources/{path}")).await.with(200).json();
        assert_eq!((&seen["name"], &seen["holders"][0]["holder"]), (&json!(name), &json!("ada")), "{path}");
        let (path, why) = (format!("/v1/resources/{path}"), json!({"reason": "over"}));
        let delete = server.client().await.ask("DELETE", &path, &[], Some(&why)).await;
        assert_eq!(delete.with(200).json(), json!({"revoked": 1}), "{path}");
    }
    server.end().await;
}

/// Goal: pages of a listing hold everything under the prefix once, in order, and the last one says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_listing_is_read_page_by_page() {
    let server = Server::start().await;
    for at in 0..7 {
        server.take(&format!("row/{at}"), 30_000, "ada").await;
    }
    server.take("other", 30_000, "ada").await;
    let (mut names, mut after) = (Vec::new(), String::new());
    for pages in 1.. {
        let page = server.get(&format!("/v1/resources?prefix=row%2F&limit=3&after={after}")).await.with(200).json();
        schema::holds(&page, "Page");
        names.extend(page["resources"].as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => after = next.to_owned(),
            None => {
                assert_eq!(pages, 3);
                break;
            }
        }
    }
    assert_eq!(names, (0..7).map(|at| format!("row/{at}")).collect::<Vec<_>>());
    let all = server.get("/v1/resources").await.with(200).json();
    assert_eq!((all["resources"].as_array().unwrap().len(), &all["next"]), (8, &json!(null)));
    server.end().await;
}

/// Goal: status, health and readiness are as described, and losses show in the status with the operator's reason.
#[tokio::test(flavor = "multi_thread")]
async fn the_server_speaks_of_itself() {
    let server = Server::start().await;
    let grant = server.take("seat", 30_000, "ada").await;
    let mut client = server.client().await;
    let why = json!({"reason": "stuck"});
    client.ask("DELETE", "/v1/resources/seat", &[], Some(&why)).await.with(200);
    let status = client.ask("GET", "/v1/status", &[], None).await.with(200).json();
    schema::holds(&status, "Status");
    assert_eq!((&status["engine"], &status["auth"]), (&json!("embedded"), &json!("none")));
    let loss = &status["recent"][0];
    assert_eq!((&loss["kind"], &loss["reason"], &loss["token"]), (&json!("revoked"), &json!("stuck"), &grant["token"]));
    for (path, word) in [("/healthz", "up"), ("/readyz", "ready")] {
        let health = client.ask("GET", path, &[], None).await.with(200).json();
        schema::holds(&health, "Health");
        assert_eq!(health["status"], word);
    }
    drop(client);
    server.end().await;
}

/// Goal: pages and assets come with the headers that keep browsers in line, and are not sent twice.
#[tokio::test(flavor = "multi_thread")]
async fn pages_are_served_from_the_binary() {
    let server = Server::start().await;
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/admin", "text/html; charset=utf-8"),
        ("/locks", "text/html; charset=utf-8"),
        ("/docs", "text/html; charset=utf-8"),
        ("/docs/docs.js", "text/javascript; charset=utf-8"),
        ("/docs/docs.css", "text/css; charset=utf-8"),
    ] {
        let page = server.get(path).await.with(200);
        assert_eq!(page.header("content-type"), kind, "{path}");
        assert!(page.header("content-security-policy").contains("default-src 'self'"), "{path}");
        assert!(page.header("content-security-policy").contains("frame-ancestors 'none'"), "{path}");
        assert_eq!(page.header("x-content-type-options"), "nosniff");
        assert_eq!(page.header("referrer-policy"), "no-referrer");
        assert_eq!(page.header("access-control-allow-origin"), "", "no CORS");
        let tag = page.header("etag").to_owned();
        let again = server.client().await.ask("GET", path, &[("If-None-Match", &tag)], None).await.with(304);
        assert_eq!(again.header("etag"), tag);
        assert!(!page.text().contains("://"), "{path} works without any other server");
    }
    for path in ["/assets/none.js", "/assets/../index.html", "/assets/%2e%2e/index.html", "/docs/../mod.rs", "/nowhere"]
    {
        server.get(path).await.problem(404, "invalid");
    }
    server.end().await;
}

/// Goal: HEAD is GET without its body, OPTIONS says what there is, and other methods are refused with what is allowed.
#[tokio::test(flavor = "multi_thread")]
async fn other_methods() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let get = client.ask("GET", "/v1/resources/x", &[], None).await.with(200);
    let head = client.ask("HEAD", "/v1/resources/x", &[], None).await.with(200);
    assert_eq!(head.header("content-length"), get.header("content-length"));
    client.ask("HEAD", "/v1/watch", &[], None).await.with(200);
    let options = client.ask("OPTIONS", "/v1/resources/x", &[], None).await.with(204);
    assert_eq!(options.header("allow"), "DELETE, GET, HEAD, OPTIONS");
    for (method, path, allow) in [
        ("GET", "/v1/leases", "OPTIONS, POST"),
        ("POST", "/v1/resources/x", "DELETE, GET, HEAD, OPTIONS"),
        ("TRACE", "/v1/status", "GET, HEAD, OPTIONS"),
        ("DELETE", "/v1/resources", "GET, HEAD, OPTIONS"),
    ] {
        let reply = client.ask(method, path, &[], None).await;
        assert_eq!(reply.header("allow"), allow, "{method} {path}");
        reply.problem(405, "invalid");
    }
    drop(client);
    server.end().await;
}
