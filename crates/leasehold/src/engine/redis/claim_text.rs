//! A claim as the scripts take it: handle, secret, keys and the record's static part.
//!
//! # Laws
//!
//! 1. Every try of one acquire has the same handle and secret, so that all of them together have one effect.
//! 2. The handle of a request id depends on nothing but principal, id and the prefix of keys: any process finds the same
//!    record.

use std::fmt;
use std::fmt::Write as _;

use leasehold_core::Mode;
use leasehold_core::fact::fingerprint;
use sha2::{Digest, Sha256};

use super::scripts::{Layout, PREFIX};
use crate::engine::Claim;
use crate::engine::from_book::{millis, wants};

/// How long an ending is remembered, in milliseconds. The scripts have the same number.
const KEEP_MS: u64 = 600_000;

/// See the module. `Debug` hides the secret.
#[derive(Clone)]
pub(in crate::engine) struct ClaimText {
    /// Which lease: 32 hex digits.
    pub handle: String,
    /// What proves it: 32 hex digits.
    pub secret: String,
    /// Hash of the body, or `-` without a request id.
    pub fingerprint: String,
    /// The key of each name, in order.
    pub keys: Vec<String>,
    /// The part of the record that the client makes.
    pub static_part: String,
    /// Life of the lease: the ttl, within the cap.
    pub life_ms: u64,
    /// How long the keys live.
    px: u64,
    pub wait_ms: u64,
    pub cap_ms: Option<u64>,
    /// One exclusive name, no delay and no request id: a release may take the fast way.
    pub plain: bool,
    /// One exclusive name: an acquire may take the fast way.
    one_exclusive: bool,
}

impl fmt::Debug for ClaimText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClaimText").field("handle", &self.handle).field("keys", &self.keys).finish_non_exhaustive()
    }
}

impl ClaimText {
    /// The claim has passed `Limits::check`. The random bits are handle and secret.
    pub fn new(claim: &Claim, layout: &Layout, random: [u8; 32]) -> Self {
        let (ttl_ms, delay_ms) = (millis(claim.ttl), millis(claim.delay));
        let cap_ms = claim.max_hold.map(millis);
        let (drawn, secret) = random.split_at(16);
        let (handle, fingerprint) = match &claim.request {
            None => (to_hex(drawn), "-".to_owned()),
            Some(id) => (
                handle_of_request(&layout.key_prefix, &claim.principal, id),
                format!("{:016x}", fingerprint(&wants(claim), ttl_ms, cap_ms, delay_ms)),
            ),
        };
        let secret = to_hex(secret);
        let keys: Vec<String> = claim.wants.iter().map(|want| format!("{}{}", layout.key_prefix, want.name)).collect();
        let one_exclusive = matches!(claim.wants[..], [ref want] if want.mode == Mode::Exclusive);
        let plain = one_exclusive && delay_ms == 0 && claim.request.is_none();
        let mut static_part = format!(
            "{}{secret} {ttl_ms} {} {delay_ms} {fingerprint}\n{}\n",
            if plain { '1' } else { 'm' },
            cap_ms.unwrap_or(0),
            claim.holder
        );
        for (want, key) in claim.wants.iter().zip(&keys) {
            let written = match want.mode {
                Mode::Exclusive => writeln!(static_part, "x {key}"),
                Mode::Shared => writeln!(static_part, "s {key}"),
                Mode::Permits { count, capacity } => writeln!(static_part, "p{count}/{capacity} {key}"),
            };
            debug_assert!(written.is_ok(), "text grows");
        }
        let life_ms = ttl_ms.min(cap_ms.unwrap_or(u64::MAX));
        let px = life_ms.saturating_add(delay_ms).max(1);
        let wait_ms = millis(claim.wait);
        Self { handle, secret, fingerprint, keys, static_part, life_ms, px, wait_ms, cap_ms, plain, one_exclusive }
    }

    /// Keys and arguments of the acquire script.
    pub fn acquire(&self, wait_ms: u64, instance: &str, most_waiters: usize) -> (Vec<String>, Vec<String>) {
        let mut keys = vec![record_key(&self.handle)];
        keys.extend(self.keys.iter().cloned());
        // Exactly two keys allow the fast way.
        if keys.len() == 2 && !self.one_exclusive {
            keys.push(self.keys[0].clone());
        }
        let args = vec![
            (self.px - 1).max(1).to_string(),
            self.px.to_string(),
            self.px.saturating_add(KEEP_MS).to_string(),
            self.static_part.clone(),
            format!("{wait_ms} {instance} {most_waiters}"),
        ];
        (keys, args)
    }

    /// What the caller gets: the public handle and the secret.
    pub fn lease_id(&self, secret: &str) -> String {
        format!("{}-{secret}", self.handle)
    }
}

/// Keys and arguments of the release script. The key is passed for the fast way, the ban after a lost reply.
pub(in crate::engine) fn release(
    handle: &str,
    secret: &str,
    key: Option<&str>,
    ban_ms: Option<u64>,
) -> (Vec<String>, Vec<String>) {
    let mut keys = vec![record_key(handle)];
    keys.extend(key.map(str::to_owned));
    let mut args = vec![format!("L1{secret}"), handle[..4].to_owned(), format!("{handle}{secret}R")];
    args.extend(ban_ms.map(|ms| ms.max(1).to_string()));
    (keys, args)
}

/// Where the record of a lease is.
pub(in crate::engine) fn record_key(handle: &str) -> String {
    format!("{PREFIX}l:{handle}")
}

/// Handle and secret in a lease id of ours.
pub(in crate::engine) fn split_lease_id(text: &str) -> Option<(&str, &str)> {
    let (handle, secret) = text.split_once('-')?;
    (is_id(handle) && is_id(secret)).then_some((handle, secret))
}

fn is_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn handle_of_request(key_prefix: &str, principal: &str, id: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(principal);
    hash.update([0]);
    hash.update(id);
    // The same id on names of another prefix is another claim.
    if !key_prefix.is_empty() {
        hash.update([0]);
        hash.update(key_prefix);
    }
    to_hex(&hash.finalize()[..16])
}

pub(in crate::engine) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble & 15)]);
        text.extend([digit(byte >> 4), digit(*byte)]);
        text
    })
}
