//! Nothing goes around the gate.

use serde_json::json;

use super::*;
use crate::http::routes::{ROUTES, Route};

async fn call(server: &Server, route: &Route, headers: &[(&str, &str)]) -> u16 {
    let path = route.path.replace("{*name}", "seat").replace("{*file}", "docs.js");
    let body = match route.path {
        "/v1/leases" => Some(json!({"resources": ["a"], "ttl_ms": 1000})),
        "/v1/leases/renew" | "/v1/leases/release" => Some(json!({"lease_id": "none"})),
        _ => (route.method == hyper::Method::DELETE).then(|| json!({"reason": "test"})),
    };
    let mut client = server.client().await;
    client.send(route.method.as_str(), &path, headers, body.as_ref()).await;
    client.head().await.0
}

/// Goal: every route that asks something of the service is admitted by it exactly once, and no other route is.
/// Method: the table of routes; before and after each call, how often the gate let each verb through.
#[tokio::test(flavor = "multi_thread")]
async fn every_route_passes_the_gate_once() {
    let server = Server::start().await;
    let count = |verb| server.service.metrics.admitted_so_far(verb);
    for route in ROUTES {
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
