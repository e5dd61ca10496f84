//! Upgrades: a connection that client and upstream use for another protocol. Never under a fence: it has no end to wait
//! for.

use std::sync::Arc;

use axum::body::Body;
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use super::body::{Answering, RequestBody, SendProgress};
use super::forward::{Gate, pass_answer};
use crate::http::{Arrival, PhaseTracker, Problem};

/// Passes an upgrade on. If the upstream agrees, both ends are connected until one of them closes.
///
/// # Errors
///
/// The upstream cannot be reached, or does not answer.
pub async fn open_tunnel(
    gate: &Gate,
    arrival: Arrival,
    phases: &Arc<PhaseTracker>,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Problem> {
    let client = hyper::upgrade::on(&mut request);
    let protocol = request.headers().get(header::UPGRADE).cloned();
    gate.prepare_head(arrival, &mut request)?;
    put_upgrade(request.headers_mut(), protocol);
    let unreachable = |_| Problem::unavailable("the upstream could not be reached: nothing was sent");
    let mut connection = gate.upstream.connect().await.map_err(unreachable)?;
    let (head, incoming) = request.into_parts();
    let (progress, idle_limit) = (SendProgress::new(), gate.times.body_idle);
    let body = RequestBody::new(incoming, phases.clone(), progress.clone(), idle_limit);
    let sent = connection.sender.send_request(Request::from_parts(head, body));
    let Ok(Ok(mut response)) = timeout(gate.times.answer, sent).await else {
        return Err(Problem::unknown("the upstream did not answer"));
    };
    let upstream = hyper::upgrade::on(&mut response);
    let protocol = response.headers().get(header::UPGRADE).cloned();
    let status = response.status();
    let answering = Answering {
        upstream: gate.upstream.clone(),
        connection,
        flight: None,
        progress,
        idle_limit,
        metrics: gate.metrics.clone(),
    };
    if status != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(pass_answer(response, answering));
    }
    answering.connection.end_in_order();
    phases.start_tunnel(tokio::spawn(async move {
        // The answer is sent when this function has returned; until then both ends are pending.
        if let (Ok(client), Ok(upstream)) = (client.await, upstream.await) {
            let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
            let _ = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
        }
        drop(answering);
    }));
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = status;
    *answer.headers_mut() = std::mem::take(response.headers_mut());
    super::headers::remove_hop_by_hop(answer.headers_mut());
    put_upgrade(answer.headers_mut(), protocol);
    Ok(answer)
}

fn put_upgrade(headers: &mut hyper::HeaderMap, protocol: Option<HeaderValue>) {
    if let Some(protocol) = protocol {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, protocol);
    }
}
