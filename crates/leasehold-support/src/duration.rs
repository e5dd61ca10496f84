//! Durations as people write them: `500ms`, `30s`, `5m`, `1h`, `1h30m`.
//!
//! A bare number is refused: thirty what? So is a sign, a fraction and anything that overflows. Zero is
//! a duration; where it makes no sense, the option that takes it says so.

use std::time::Duration;

/// What we understand, and how many milliseconds each is.
const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];

/// Reads a duration.
///
/// # Errors
///
/// A sentence that says what to type instead.
pub fn parse(text: &str) -> Result<Duration, String> {
    if text.is_empty() {
        return Err("a duration is not empty: say e.g. 30s".into());
    }
    if text.starts_with('-') {
        return Err("a duration is not negative: say e.g. 30s".into());
    }
    if text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("say the unit, e.g. {text}s"));
    }
    let mut rest = text;
    let mut total_ms: u64 = 0;
    // Units come once each and from large to small, so that `5m1h` is seen as the typo it probably is.
    let mut largest = u64::MAX;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at(digits);
        let letters = after.bytes().take_while(|b| !b.is_ascii_digit()).count();
        let (unit, next) = after.split_at(letters);
        let known = UNITS.iter().find(|(name, _)| *name == unit).filter(|_| digits > 0);
        let &(_, unit_ms) = known.ok_or("not a duration: say e.g. 500ms, 30s, 5m, 1h or 1h30m")?;
        if unit_ms >= largest {
            return Err("units of a duration go from large to small: say e.g. 1h30m".into());
        }
        largest = unit_ms;
        let part_ms = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_ms));
        total_ms = part_ms.and_then(|ms| total_ms.checked_add(ms)).ok_or("longer than any duration we can count")?;
        rest = next;
    }
    Ok(Duration::from_millis(total_ms))
}

/// A duration as we print it: exact to the millisecond, units only where they are not zero.
pub fn human(duration: Duration) -> String {
    let mut ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for (name, unit_ms) in UNITS.iter().rev() {
        if ms >= *unit_ms {
            text.push_str(&format!("{}{name}", ms / unit_ms));
            ms %= unit_ms;
        }
    }
    if text.is_empty() { "0s".into() } else { text }
}

/// A duration for a listing, where the eye compares: `9.5s`, not `9s500ms`.
pub fn brief(duration: Duration) -> String {
    match duration.as_secs() {
        0 => format!("{}ms", duration.as_millis()),
        1..60 => format!("{:.1}s", duration.as_secs_f64()),
        seconds => human(Duration::from_secs(seconds)),
    }
}

/// Whole milliseconds, as JSON says durations.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_is_understood() {
        let table = [
            ("0s", 0),
            ("1ms", 1),
            ("500ms", 500),
            ("30s", 30_000),
            ("5m", 300_000),
            ("1h", 3_600_000),
            ("1h30m", 5_400_000),
            ("1h2m3s4ms", 3_723_004),
            ("007s", 7_000),
            ("24h", 86_400_000),
        ];
        for (text, ms) in table {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_gets_a_sentence() {
        let table = [
            ("", "not empty"),
            ("-5s", "not negative"),
            ("30", "say the unit, e.g. 30s"),
            ("0", "say the unit"),
            ("s", "not a duration"),
            ("5x", "not a duration"),
            ("5 s", "not a duration"),
            (" 5s", "not a duration"),
            ("+5s", "not a duration"),
            ("1.5h", "not a duration"),
            ("5s5", "not a duration"),
            ("5S", "not a duration"),
            ("5µs", "not a duration"),
            ("5m1h", "large to small"),
            ("5s5s", "large to small"),
            ("18446744073709551615h", "longer than any"),
            ("99999999999999999999s", "longer than any"),
        ];
        for (text, part) in table {
            let sentence = parse(text).expect_err(text);
            assert!(sentence.contains(part), "{text}: {sentence}");
        }
    }

    #[test]
    fn what_we_print_can_be_read_back() {
        for ms in [0, 1, 999, 1000, 61_001, 3_600_000, 5_400_000, 86_399_999] {
            let duration = Duration::from_millis(ms);
            assert_eq!(parse(&human(duration)), Ok(duration), "{ms}");
        }
    }

    #[test]
    fn a_listing_shows_what_the_eye_can_compare() {
        let table = [(250, "250ms"), (9_500, "9.5s"), (60_000, "1m"), (3_661_200, "1h1m1s")];
        for (ms, text) in table {
            assert_eq!(brief(Duration::from_millis(ms)), text);
        }
    }
}
