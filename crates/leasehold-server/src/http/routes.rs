//! The table of routes. The router is built from it, so every route is in it.

use std::future::Future;
use std::pin::Pin;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::routing::{MethodFilter, MethodRouter};
use hyper::header::{self, HeaderValue};
use hyper::{Method, Response, StatusCode};

use super::boxoffice::{events, holds, orders, payments, staff, stream, tickets, webhooks};
use super::call::HttpCall;
use super::guard::Arrival;
use super::problem::Problem;
use super::recipes::{cron, elections, lanes, once, queue, queues};
use super::{App, leases, openapi, pages, resources, respond, status, watch};
use crate::service::Verb;

/// The future of a handler.
pub type HandlerFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Problem>> + Send>>;

/// One route.
pub struct Route {
    /// The method.
    pub method: Method,
    /// The path. `{*name}` is the rest of the path.
    pub path: &'static str,
    /// The verb that the handler authorises; none for a route without credentials.
    #[cfg_attr(not(test), expect(dead_code, reason = "the table says it, and the tests hold the routes to it"))]
    pub verb: Option<Verb>,
    run: fn(HttpCall) -> HandlerFuture,
}

macro_rules! route {
    ($method:ident $path:literal, $verb:expr, $handler:path) => {
        Route { method: Method::$method, path: $path, verb: $verb, run: |call| Box::pin($handler(call)) }
    };
}

/// Every route.
pub static ROUTES: &[Route] = &[
    route!(POST "/v1/leases", Some(Verb::Acquire), leases::acquire),
    route!(POST "/v1/leases/renew", Some(Verb::Renew), leases::renew),
    route!(POST "/v1/leases/relabel", Some(Verb::Relabel), leases::relabel),
    route!(POST "/v1/leases/release", Some(Verb::Release), leases::release),
    route!(GET "/v1/resources/{*name}", Some(Verb::Inspect), resources::inspect),
    route!(GET "/v1/resources", Some(Verb::List), resources::list),
    route!(DELETE "/v1/resources/{*name}", Some(Verb::Revoke), resources::revoke),
    route!(GET "/v1/watch", Some(Verb::Watch), watch::watch),
    route!(GET "/v1/status", Some(Verb::Status), status::status),
    route!(GET "/v1/boxoffice", None, tickets::public_info),
    route!(POST "/v1/tickets", Some(Verb::RunEvent), tickets::create),
    route!(POST "/v1/events", Some(Verb::RunEvent), events::create),
    route!(GET "/v1/events", Some(Verb::SeeEvent), events::list),
    route!(GET "/v1/events/{e}", Some(Verb::SeeEvent), events::show),
    route!(PUT "/v1/events/{e}", Some(Verb::RunEvent), events::configure),
    route!(POST "/v1/events/{e}/import", Some(Verb::RunEvent), events::import),
    route!(GET "/v1/events/{e}/map", Some(Verb::SeeEvent), events::map),
    route!(GET "/v1/events/{e}/availability", Some(Verb::SeeEvent), events::availability),
    route!(GET "/v1/events/{e}/stream", Some(Verb::SeeEvent), stream::stream),
    route!(POST "/v1/events/{e}/freeze", Some(Verb::RunEvent), events::freeze),
    route!(POST "/v1/events/{e}/unfreeze", Some(Verb::RunEvent), events::unfreeze),
    route!(POST "/v1/events/{e}/holds", Some(Verb::Buy), holds::create),
    route!(PUT "/v1/events/{e}/blocks", Some(Verb::RunEvent), staff::blocks),
    route!(POST "/v1/events/{e}/seats/{s}/release", Some(Verb::RunEvent), staff::force_release),
    route!(POST "/v1/events/{e}/payments/{r}/refund", Some(Verb::RunEvent), staff::refund),
    route!(POST "/v1/events/{e}/payments/{r}/close", Some(Verb::RunEvent), staff::close),
    route!(GET "/v1/events/{e}/audit", Some(Verb::OverseeEvent), staff::audit),
    route!(GET "/v1/events/{e}/report", Some(Verb::OverseeEvent), staff::report),
    route!(GET "/v1/events/{e}/invariants", Some(Verb::OverseeEvent), staff::invariants),
    route!(GET "/v1/holds/{h}", Some(Verb::Buy), holds::show),
    route!(POST "/v1/holds/{h}/renew", Some(Verb::Buy), holds::renew),
    route!(POST "/v1/holds/{h}/seats", Some(Verb::Buy), holds::change),
    route!(POST "/v1/holds/{h}/pay", Some(Verb::Buy), holds::pay),
    route!(POST "/v1/holds/{h}/pay/cancel", Some(Verb::Buy), holds::cancel_payment),
    route!(POST "/v1/holds/{h}/confirm", Some(Verb::Buy), holds::confirm),
    route!(POST "/v1/holds/{h}/release", Some(Verb::Buy), holds::release),
    route!(GET "/v1/orders/{o}", Some(Verb::Buy), orders::show),
    route!(POST "/v1/orders/{o}/void", Some(Verb::RunEvent), orders::void),
    route!(POST "/v1/orders/{o}/move", Some(Verb::RunEvent), orders::relocate),
    route!(POST "/v1/payments/callback", None, payments::callback),
    route!(POST "/v1/demo/pay", None, payments::demo_pay),
    route!(POST "/v1/webhooks", Some(Verb::RunEvent), webhooks::create),
    route!(GET "/v1/webhooks", Some(Verb::RunEvent), webhooks::list),
    route!(DELETE "/v1/webhooks/{w}", Some(Verb::RunEvent), webhooks::remove),
    route!(POST "/v1/once/begin", Some(Verb::Once), once::begin),
    route!(POST "/v1/once/end", Some(Verb::Once), once::end),
    route!(GET "/v1/queues", Some(Verb::SeeQueue), queues::list),
    route!(GET "/v1/queues/{q}", Some(Verb::SeeQueue), queue::show),
    route!(GET "/v1/queues/{q}/dead", Some(Verb::SeeQueue), queues::dead),
    route!(POST "/v1/queues/{q}/make", Some(Verb::MakeQueue), queue::make),
    route!(POST "/v1/queues/{q}/push", Some(Verb::PushJob), queue::push),
    route!(POST "/v1/queues/{q}/turn", Some(Verb::WorkQueue), queue::turn),
    route!(POST "/v1/queues/{q}/ack", Some(Verb::WorkQueue), queue::ack),
    route!(POST "/v1/queues/{q}/nack", Some(Verb::WorkQueue), queue::nack),
    route!(POST "/v1/queues/{q}/extend", Some(Verb::WorkQueue), queue::extend),
    route!(POST "/v1/queues/{q}/lanes/claim", Some(Verb::WorkQueue), lanes::claim),
    route!(POST "/v1/queues/{q}/lanes/ack", Some(Verb::WorkQueue), lanes::ack),
    route!(POST "/v1/queues/{q}/lanes/nack", Some(Verb::WorkQueue), lanes::nack),
    route!(POST "/v1/queues/{q}/lanes/extend", Some(Verb::WorkQueue), lanes::extend),
    route!(POST "/v1/queues/{q}/retry", Some(Verb::RunQueue), queues::retry),
    route!(POST "/v1/queues/{q}/drop", Some(Verb::RunQueue), queues::drop_dead),
    route!(POST "/v1/queues/{q}/pause", Some(Verb::RunQueue), queues::pause),
    route!(GET "/v1/schedules", Some(Verb::SeeSchedule), cron::list),
    route!(GET "/v1/schedules/{n}", Some(Verb::SeeSchedule), cron::show),
    route!(GET "/v1/schedules/{n}/runs", Some(Verb::SeeSchedule), cron::runs),
    route!(POST "/v1/schedules/{n}/begin", Some(Verb::RunSchedule), cron::begin),
    route!(POST "/v1/schedules/{n}/finish", Some(Verb::RunSchedule), cron::finish),
    route!(GET "/v1/elections", Some(Verb::List), elections::list),
    route!(GET "/metrics", Some(Verb::Metrics), status::metrics),
    route!(GET "/healthz", None, status::health),
    route!(GET "/readyz", None, status::ready),
    route!(GET "/openapi.json", None, openapi::openapi_json),
    route!(GET "/docs", None, pages::docs),
    route!(GET "/docs/{*file}", None, pages::docs_file),
    route!(GET "/", None, pages::buy),
    route!(GET "/admin", None, pages::staff),
    route!(GET "/locks", None, pages::locks),
    route!(GET "/assets/{*file}", None, pages::asset),
];

/// Builds the router from the table.
pub fn build_router(app: &App) -> Router {
    let mut router = Router::new();
    let mut paths: Vec<&str> = ROUTES.iter().map(|route| route.path).collect();
    paths.sort_unstable();
    paths.dedup();
    for path in paths {
        let here = ROUTES.iter().filter(|route| route.path == path);
        let mut methods = MethodRouter::new();
        for route in here.clone() {
            let app = app.clone();
            let run = move |request: Request| handle_route(app.clone(), route, request);
            let filter = MethodFilter::try_from(route.method.clone()).expect("the table has plain methods only");
            methods = methods.on(filter, run);
        }
        let allow = allow_header(here);
        methods = methods.fallback(move |request: Request| {
            let allow = allow.clone();
            async move { not_allowed(request.method(), allow) }
        });
        router = router.route(path, methods);
    }
    router.fallback(|| async {
        Problem::invalid_with_status(StatusCode::NOT_FOUND, "there is nothing at this path").response()
    })
}

async fn handle_route(app: App, route: &'static Route, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let Some(arrival) = parts.extensions.get::<Arrival>().copied() else {
        return Problem::unavailable("the connection is not known").response();
    };
    let call = HttpCall { app, parts, arrival, body: Some(body) };
    (route.run)(call).await.unwrap_or_else(Problem::response)
}

fn allow_header<'a>(routes: impl Iterator<Item = &'a Route>) -> HeaderValue {
    let mut methods: Vec<&str> = vec!["OPTIONS"];
    for route in routes {
        methods.push(route.method.as_str());
        if route.method == Method::GET {
            methods.push("HEAD");
        }
    }
    methods.sort_unstable();
    HeaderValue::from_str(&methods.join(", ")).expect("names of methods are plain text")
}

fn not_allowed(method: &Method, allow: HeaderValue) -> Response<Body> {
    let mut response = if method == Method::OPTIONS {
        respond::no_content()
    } else {
        Problem::invalid_with_status(StatusCode::METHOD_NOT_ALLOWED, "this path does not take this method: see Allow")
            .response()
    };
    response.headers_mut().insert(header::ALLOW, allow);
    response
}
