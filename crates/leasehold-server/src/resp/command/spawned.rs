//! The spawned path: a tokio task executes a call through the service. It serves rare calls, and every call when the
//! engine is not embedded.

use std::sync::Arc;
use std::time::Duration;

use leasehold::engine::{Claim, Mode, Want};

use super::OwnedCall;
use crate::resp::codec::reply::{ReplyWriter, RespVersion};
use crate::service::{Caller, Service};

/// Executes the call and writes its reply.
pub async fn execute(service: Arc<Service>, caller: Caller, call: impl OwnedCall, version: RespVersion) -> Vec<u8> {
    let mut out = Vec::new();
    let mut reply = ReplyWriter::new(&mut out, version);
    if let Err(denial) = call.execute(&service, &caller, &mut reply).await {
        reply.denial(&denial);
    }
    out
}

/// An exclusive claim on these names. The service adds the principal.
pub fn exclusive_claim<'n>(names: impl IntoIterator<Item = &'n str>, ttl_ms: u64, holder: &str) -> Claim {
    Claim {
        wants: names.into_iter().map(|name| Want { name: name.into(), mode: Mode::Exclusive }).collect(),
        ttl: Duration::from_millis(ttl_ms),
        wait: Duration::ZERO,
        max_hold: None,
        delay: Duration::ZERO,
        holder: holder.into(),
        request: None,
        principal: String::new(),
    }
}

/// Copies names out of the input buffer.
pub fn owned_names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Borrows names again.
pub fn borrowed_names(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}
