//! What a bench prints, looked at by path.

use serde_json::Value;

/// The figures of the contract, for whatever is measured.
pub const FIGURES: &[&str] = &[
    "/seconds",
    "/pairs",
    "/pairs_per_s",
    "/acquire_us/p50",
    "/acquire_us/p99",
    "/acquire_us/max",
    "/pair_us/p50",
    "/pair_us/p99",
    "/pair_us/max",
    "/fdatasync_us/p50",
];

/// The number at a path.
#[track_caller]
pub fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path} is a number in {value}"))
}

/// Something was measured at each of these paths.
#[track_caller]
pub fn positive(value: &Value, paths: &[&str]) {
    for path in paths {
        assert!(number(value, path) > 0.0, "{path} in {value}");
    }
}
