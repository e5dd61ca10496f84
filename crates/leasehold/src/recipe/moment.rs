//! Instants as text: RFC 3339 in UTC, with milliseconds, as servers say them.

use std::time::{Duration, SystemTime};

const DAY_SECONDS: u64 = 86_400;
/// The first second of the year 10000, from 1970 on.
const YEAR_10000_SECONDS: u64 = 253_402_300_800;

/// `2026-11-18T03:00:00.000Z`. Instants before 1970 are the beginning of 1970, those after 9999 its end.
#[must_use]
pub fn format_moment(at: SystemTime) -> String {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let since = since.min(Duration::from_millis(YEAR_10000_SECONDS * 1000 - 1));
    let (days, seconds) = (since.as_secs() / DAY_SECONDS, since.as_secs() % DAY_SECONDS);
    let (year, month, day) = civil_from_days(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since.subsec_millis())
}

/// Reads what [`format_moment`] writes, with any number of digits after the second, or none. Only UTC.
#[must_use]
pub fn parse_moment(text: &str) -> Option<SystemTime> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let [hour, minute, second] = numbers(time, ':', [2, 2, 2])?;
    let is_digits = !fraction.is_empty() && fraction.len() <= 9 && fraction.bytes().all(|byte| byte.is_ascii_digit());
    if year < 1970 || !(1..=12).contains(&month) || hour > 23 || minute > 59 || second > 59 || !is_digits {
        return None;
    }
    let days = days_from_civil(year, month, day);
    // A day that its month does not have would be another date.
    if civil_from_days(days) != (year, month, day) {
        return None;
    }
    let nanos = format!("{fraction:0<9}").parse().ok()?;
    let seconds = days * DAY_SECONDS + hour * 3600 + minute * 60 + second;
    Some(SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos))
}

/// Three numbers of so many digits each.
fn numbers(text: &str, separator: char, digits: [usize; 3]) -> Option<[u64; 3]> {
    let mut parts = text.split(separator);
    let mut numbers = [0; 3];
    for (number, digits) in numbers.iter_mut().zip(digits) {
        let part = parts.next()?;
        if part.len() != digits || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(numbers)
}

/// Days since 1970 of a date; years begin in March, so that the leap day is the last one.
fn days_from_civil(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day.saturating_sub(1);
    (era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year).saturating_sub(719_468)
}

fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let (day, month) = (of_year - (153 * shifted + 2) / 5 + 1, (shifted + 2) % 12 + 1);
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn moments_are_written_and_read() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00.000Z", 0),
            ("2000-02-29T23:59:59.000Z", 951_868_799),
            ("2026-11-18T03:00:00.000Z", 1_794_970_800),
            ("9999-12-31T23:59:59.000Z", YEAR_10000_SECONDS - 1),
        ] {
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!((format_moment(at).as_str(), parse_moment(text)), (text, Some(at)));
        }
        let half = SystemTime::UNIX_EPOCH + Duration::from_millis(500);
        assert_eq!(parse_moment("1970-01-01T00:00:00.5Z"), Some(half));
        assert_eq!(parse_moment("1970-01-01T00:00:00Z"), Some(SystemTime::UNIX_EPOCH));
        for bad in [
            "",
            "Z",
            "1970-01-01",
            "1970-01-01T00:00:00",
            "1970-01-01T00:00:00+01:00",
            "1969-12-31T23:59:59Z",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-01-00T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:60:00Z",
            "2026-1-01T00:00:00Z",
            "2026-01-01T00:00:00.Z",
            "+026-01-01T00:00:00Z",
            "2026-01-01T00:00:00.0000000001Z",
            "12026-01-01T00:00:00Z",
            "é",
        ] {
            assert_eq!(parse_moment(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn every_millisecond_comes_back(millis in 0..YEAR_10000_SECONDS * 1000) {
            let at = SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
            prop_assert_eq!(parse_moment(&format_moment(at)), Some(at));
        }

        #[test]
        fn any_text_is_survived(text in ".{0,40}") {
            let _ = parse_moment(&text);
        }
    }
}
