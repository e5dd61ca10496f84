//! Acquire, renew, relabel and release.

use axum::body::Body;
use hyper::{Response, StatusCode};
use leasehold::engine::{Claim, LeaseId, Mode, Want};
use serde_json::Value;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::App;
use super::call::{HttpCall, run_detached};
use super::fields::{Fields, missing_field};
use super::problem::Problem;
use super::respond;
use crate::api::leases::{GrantJson, RenewalJson};
use crate::service::metrics::AcquireOutcome;
use crate::service::{Caller, Denial};

/// The holder of a claim that names none, on a server without keys.
const ANONYMOUS_HOLDER: &str = "anonymous";

/// `POST /v1/leases`
pub async fn acquire(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    let request = call.single_header("idempotency-key", "Idempotency-Key")?.map(str::to_owned);
    call.query_params([])?;
    let claim = parse_claim(call.json_fields().await?, request, &caller)?;
    let resources: Vec<String> = claim.wants.iter().map(|want| want.name.clone()).collect();
    let grant = acquire_detached(call.app.clone(), caller.clone(), claim)
        .await?
        .map_err(|denial| call.denial_problem(&denial, &caller))?;
    Ok(respond::json_response(StatusCode::CREATED, &GrantJson::new(&grant, &resources)))
}

type GrantResult = Result<leasehold::engine::Grant, Denial>;

/// Acquires on a task of its own. A hang-up drops the receiver: the task then drops the engine's future, and the claim
/// leaves the queue.
async fn acquire_detached(app: App, caller: Caller, claim: Claim) -> Result<GrantResult, Problem> {
    let (reply, reply_received) = oneshot::channel();
    let (waits, can_be_repeated) = (!claim.wait.is_zero(), claim.request.is_some());
    tokio::spawn(async move {
        let mut reply = reply;
        let answer = tokio::select! {
            biased;
            answer = app.service.acquire(&caller, claim) => Ok(answer),
            () = reply.closed() => {
                app.service.metrics.record_refusal(AcquireOutcome::Left);
                return;
            }
            // A claim that does not wait is answered at once, even while the server stops.
            () = app.stop.cancelled(), if waits => {
                // A grant at this moment is kept for a retry with the request id; without one it is released.
                let (outcome, problem) = if can_be_repeated {
                    (AcquireOutcome::Unknown, Problem::shutting_down_while_queued())
                } else {
                    (AcquireOutcome::Unavailable, Problem::shutting_down())
                };
                app.service.metrics.record_refusal(outcome);
                Err(problem)
            }
        };
        let lease = answer.as_ref().ok().and_then(|answer| answer.as_ref().ok()).map(|grant| grant.lease_id.clone());
        // With a request id the client can ask for the grant again.
        let unclaimed = UnclaimedGrant { app, caller, lease: lease.filter(|_| !can_be_repeated) };
        let _ = reply.send((answer, unclaimed));
    });
    match reply_received.await {
        Ok((answer, mut unclaimed)) => {
            unclaimed.lease = None;
            answer
        }
        Err(_) => Err(Problem::unknown("the server gave up on this request: it may have happened")),
    }
}

/// A grant between the task and the handler. If the handler is gone, nobody knows the lease id: dropping this releases
/// the lease.
struct UnclaimedGrant {
    app: App,
    caller: Caller,
    lease: Option<LeaseId>,
}

impl Drop for UnclaimedGrant {
    fn drop(&mut self) {
        if let (Some(lease), Ok(runtime)) = (self.lease.take(), Handle::try_current()) {
            let (service, caller) = (self.app.service.clone(), self.caller.clone());
            runtime.spawn(async move { service.release(&caller, &lease).await });
        }
    }
}

fn parse_claim(mut fields: Fields, request: Option<String>, caller: &Caller) -> Result<Claim, Problem> {
    let wants = match fields.take_value("resources").ok_or_else(|| missing_field("resources"))? {
        Value::Array(wants) => wants.into_iter().map(parse_want).collect::<Result<Vec<Want>, Problem>>()?,
        _ => return Err(Problem::invalid("resources is a list of names or objects")),
    };
    let ttl = fields.take_millis("ttl_ms")?.ok_or_else(|| missing_field("ttl_ms"))?;
    let wait = fields.take_millis("wait_ms")?.unwrap_or(Duration::ZERO);
    let max_hold = fields.take_millis("max_hold_ms")?;
    let delay = fields.take_millis("delay_ms")?.unwrap_or(Duration::ZERO);
    // Not the network address: a retry may come from another one, and must be the same claim.
    let default_holder = if caller.principal.id.is_empty() { ANONYMOUS_HOLDER } else { &caller.principal.id };
    let holder = fields.take_text("holder")?.unwrap_or_else(|| default_holder.to_owned());
    fields.deny_unknown()?;
    Ok(Claim { wants, ttl, wait, max_hold, delay, holder, request, principal: caller.principal.id.clone() })
}

fn parse_want(value: Value) -> Result<Want, Problem> {
    let mut fields = match value {
        Value::String(name) => return Ok(Want { name, mode: Mode::Exclusive }),
        Value::Object(object) => Fields::from_object("a resource", object),
        _ => return Err(Problem::invalid("a resource is a name, or an object with name and mode")),
    };
    let name = fields.take_text("name")?.ok_or_else(|| missing_field("name of a resource"))?;
    let word = fields.take_text("mode")?;
    let mut count = |name: &'static str| -> Result<Option<u32>, Problem> {
        let number = fields.take_number(name, "")?;
        number.map(|n| u32::try_from(n).map_err(|_| Problem::invalid(format!("{name} is too big")))).transpose()
    };
    let (permits, capacity) = (count("permits")?, count("capacity")?);
    fields.deny_unknown()?;
    let mode = match (word.as_deref(), permits, capacity) {
        (None | Some("exclusive"), None, None) => Mode::Exclusive,
        (Some("shared"), None, None) => Mode::Shared,
        (Some("permits"), count, Some(capacity)) => Mode::Permits { count: count.unwrap_or(1), capacity },
        (Some("permits"), _, None) => return Err(missing_field("capacity of a resource with mode permits")),
        (None | Some("exclusive" | "shared"), _, _) => {
            return Err(Problem::invalid("permits and capacity go with the mode permits"));
        }
        (Some(_), _, _) => return Err(Problem::invalid("mode is exclusive, shared or permits")),
    };
    Ok(Want { name, mode })
}

/// `POST /v1/leases/renew`
pub async fn renew(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    call.query_params([])?;
    let mut fields = call.json_fields().await?;
    let lease = parse_lease_id(&mut fields)?;
    let ttl = fields.take_millis("ttl_ms")?;
    fields.deny_unknown()?;
    let (service, who) = (call.app.service.clone(), caller.clone());
    let renewal = run_detached(async move { service.renew(&who, &lease, ttl).await }).await?;
    let renewal = renewal.map_err(|denial| call.denial_problem(&denial, &caller))?;
    Ok(respond::json_response(StatusCode::OK, &RenewalJson::new(&renewal)))
}

/// `POST /v1/leases/relabel`
pub async fn relabel(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    call.query_params([])?;
    let mut fields = call.json_fields().await?;
    let lease = parse_lease_id(&mut fields)?;
    let holder = fields.take_text("holder")?.ok_or_else(|| missing_field("holder"))?;
    fields.deny_unknown()?;
    let (service, who) = (call.app.service.clone(), caller.clone());
    let relabelled = run_detached(async move { service.relabel(&who, &lease, &holder).await }).await?;
    relabelled.map_err(|denial| call.denial_problem(&denial, &caller))?;
    Ok(respond::no_content())
}

/// `POST /v1/leases/release`
pub async fn release(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    call.query_params([])?;
    let mut fields = call.json_fields().await?;
    let lease = parse_lease_id(&mut fields)?;
    fields.deny_unknown()?;
    let (service, who) = (call.app.service.clone(), caller.clone());
    // For the owner a second release is the same as the first.
    let released = run_detached(async move { service.release(&who, &lease).await }).await?;
    released.map_err(|denial| call.denial_problem(&denial, &caller))?;
    Ok(respond::no_content())
}

fn parse_lease_id(fields: &mut Fields) -> Result<LeaseId, Problem> {
    Ok(LeaseId::new(fields.take_text("lease_id")?.ok_or_else(|| missing_field("lease_id"))?))
}
