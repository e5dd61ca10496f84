//! What the differential fuzz needs besides: claims read back.

use super::claim_text::ClaimText;
use crate::engine::{Mode, Resource, Want};

pub(super) fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

pub(super) fn sorted(mut resource: Resource) -> Resource {
    resource.holders.sort_by(|one, other| one.holder.cmp(&other.holder));
    resource.holders.iter_mut().for_each(|holding| holding.token = None);
    resource
}

pub(super) fn parse_wants(text: &ClaimText) -> Vec<Want> {
    let mode = |word: &str| match word {
        "x" => Mode::Exclusive,
        "s" => Mode::Shared,
        permits => {
            let (count, capacity) = permits[1..].split_once('/').expect("permits");
            Mode::Permits { count: count.parse().expect("a count"), capacity: capacity.parse().expect("a capacity") }
        }
    };
    let lines = text.static_part.lines().skip(2);
    lines
        .map(|line| line.split_once(' ').expect("a want"))
        .map(|(word, key)| Want { name: key.into(), mode: mode(word) })
        .collect()
}

/// Ttl, cap and delay.
pub(super) fn parse_numbers(text: &ClaimText) -> Vec<u64> {
    let head = text.static_part.lines().next().expect("a head");
    head.split(' ').skip(1).take(3).map(|word| word.parse().expect("a number")).collect()
}
