//! The clocks of the command line. Leases are never decided here: the engine has its own clock.
//!
//! The wall clock is asked to show people when a lease ends (`expires_at`) or when something happened (`watch`), and by
//! others who compare their clock with it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// When something that lasts this much longer ends, as RFC 3339 in UTC: for people, never for deciding.
#[allow(clippy::disallowed_methods, reason = "people read expires_at on their wall clock; nothing is decided by it")]
pub fn rfc3339_in(remaining: Duration) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    rfc3339(since.saturating_add(remaining))
}

/// When something happened that is this long ago, as RFC 3339 in UTC: for people, never for deciding.
#[allow(
    clippy::disallowed_methods,
    reason = "people read when it happened on their wall clock; nothing is decided by it"
)]
pub fn rfc3339_ago(ago: Duration) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    rfc3339(since.saturating_sub(ago))
}

/// Milliseconds since 1970: the stamp of what is signed for others, who compare it with their own wall clock.
#[allow(clippy::disallowed_methods, reason = "receivers of signed messages know no other clock of ours")]
pub fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Microseconds since 1970: clients compare their own wall clock with it.
#[allow(clippy::disallowed_methods, reason = "it is what a client asks for; nothing is decided by it")]
pub fn wall_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// A wall clock moment in milliseconds since 1970, as RFC 3339 in UTC.
pub fn rfc3339_at(wall_ms: u64) -> String {
    rfc3339(Duration::from_millis(wall_ms))
}

/// A stopwatch's now: for measuring how long something took.
#[allow(clippy::disallowed_methods, reason = "a stopwatch for bench; nothing is decided by it")]
pub fn stopwatch() -> Instant {
    Instant::now()
}

/// A moment since the epoch as RFC 3339 in UTC, to the millisecond.
fn rfc3339(since_epoch: Duration) -> String {
    let seconds = since_epoch.as_secs();
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    let millis = since_epoch.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// Year, month and day of a day since 1970-01-01: Howard Hinnant's `civil_from_days`, whose years begin
/// in March so that the leap day is the last.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: dates are right at the edges of months, years and leap days. (Checked against `date -u -d @N`.)
    #[test]
    fn moments_are_written_as_rfc_3339() {
        let table = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_200_000, "2024-03-01T00:00:00.000Z"),
            (1_798_761_599_001, "2026-12-31T23:59:59.001Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ];
        for (ms, text) in table {
            assert_eq!(rfc3339(Duration::from_millis(ms)), text);
        }
    }
}
