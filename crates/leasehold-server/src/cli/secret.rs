//! The lease_id as an argument. It is a secret, so `-` reads it from stdin: arguments show in `ps`.

use std::io::Read;

use anyhow::Context;
use leasehold::engine::LeaseId;

use leasehold_support::exit::Failure;

/// Bytes read from stdin: more than any lease_id has.
const MAX_LEASE_ID_BYTES: u64 = 1024;

/// The lease_id that was typed, or piped in when `-` was typed.
pub fn read_lease_id(argument: &str) -> anyhow::Result<LeaseId> {
    let piped;
    let text = if argument == "-" {
        let mut text = Vec::new();
        std::io::stdin()
            .lock()
            .take(MAX_LEASE_ID_BYTES)
            .read_to_end(&mut text)
            .context("read the lease_id from stdin")?;
        piped = String::from_utf8(text).map_err(|_| Failure::usage("what came on stdin is no lease_id"))?;
        piped.trim()
    } else {
        argument.trim()
    };
    if text.is_empty() {
        return Err(Failure::usage("the lease_id is empty: give what acquire printed, or - and pipe it in"));
    }
    Ok(LeaseId::new(text))
}
