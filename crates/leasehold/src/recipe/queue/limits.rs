//! What a queue accepts, checked before anything is asked of the store.

use std::time::Duration;

use crate::recipe::error::RecipeError;

/// Bytes of the name of a queue.
pub const MAX_QUEUE_NAME_BYTES: usize = 128;
/// Bytes of a job, as JSON.
pub const MAX_JOB_BYTES: usize = 1 << 20;
/// Bytes of a key, and of a dedupe id.
pub const MAX_JOB_KEY_BYTES: usize = 512;
/// Jobs that one call claims.
pub const MAX_CLAIM_JOBS: usize = 1000;
/// How long a delivery may be kept without being extended.
pub const MAX_VISIBLE: Duration = Duration::from_secs(12 * 3600);
/// Tries of a job.
pub const MAX_JOB_ATTEMPTS: u16 = 1000;
/// The longest delay.
pub const MAX_JOB_DELAY: Duration = Duration::from_secs(366 * 24 * 3600);
/// Levels of priority.
pub const MAX_JOB_LEVELS: usize = 4;

/// Bytes of the label of a worker that are kept.
const MAX_WORKER_LABEL_BYTES: usize = 256;

/// A name without control characters, of 1 to 128 bytes.
pub(super) fn check_name(name: &str) -> Result<(), RecipeError> {
    if name.is_empty() || name.len() > MAX_QUEUE_NAME_BYTES || name.chars().any(char::is_control) {
        return invalid(format!("the name of a queue has 1 to {MAX_QUEUE_NAME_BYTES} bytes and no control characters"));
    }
    Ok(())
}

/// A job, as JSON.
pub(super) fn check_body(body: &str) -> Result<(), RecipeError> {
    if body.len() > MAX_JOB_BYTES {
        return invalid(format!(
            "a job has {} bytes, and at most {MAX_JOB_BYTES} are taken: store it elsewhere, and push where it is",
            body.len()
        ));
    }
    Ok(())
}

/// A key or a dedupe id. PostgreSQL's text cannot hold a zero.
pub(super) fn check_key(what: &str, key: &str) -> Result<(), RecipeError> {
    if key.is_empty() || key.len() > MAX_JOB_KEY_BYTES || key.contains('\0') {
        return invalid(format!("{what} has 1 to {MAX_JOB_KEY_BYTES} bytes, and none of them is zero"));
    }
    Ok(())
}

/// A span of at least a millisecond and at most `most`.
pub(super) fn check_span(what: &str, span: Duration, most: Duration) -> Result<(), RecipeError> {
    if span < Duration::from_millis(1) || span > most {
        return invalid(format!("{what} is 1 ms to {} s", most.as_secs()));
    }
    Ok(())
}

/// The longest delay before a job is ready.
pub(super) fn check_delay(delay: Duration) -> Result<(), RecipeError> {
    if delay > MAX_JOB_DELAY {
        return invalid("a job is delayed by a year at most".to_owned());
    }
    Ok(())
}

/// How often a job is tried.
pub(super) fn check_attempts(attempts: u16) -> Result<(), RecipeError> {
    if attempts == 0 || attempts > MAX_JOB_ATTEMPTS {
        return invalid(format!("a job is tried 1 to {MAX_JOB_ATTEMPTS} times"));
    }
    Ok(())
}

/// The levels of a queue: served in this order.
pub(super) fn check_levels(levels: &[i16]) -> Result<(), RecipeError> {
    let repeated = levels.iter().enumerate().any(|(at, level)| levels[..at].contains(level));
    if levels.is_empty() || levels.len() > MAX_JOB_LEVELS || repeated {
        return invalid(format!("a queue has 1 to {MAX_JOB_LEVELS} levels of priority, each of them once"));
    }
    Ok(())
}

/// How many jobs, or keys, are worked on at a time.
pub(super) fn check_slots(slots: usize) -> Result<(), RecipeError> {
    if slots == 0 || slots > MAX_CLAIM_JOBS {
        return invalid(format!("a worker has 1 to {MAX_CLAIM_JOBS} jobs at a time"));
    }
    Ok(())
}

/// How many jobs, or keys, one call names.
pub(super) fn check_count(count: usize) -> Result<(), RecipeError> {
    if count > MAX_CLAIM_JOBS {
        return invalid(format!("one call is about {MAX_CLAIM_JOBS} jobs at most"));
    }
    Ok(())
}

/// The label of a worker, cut to what is kept, without what PostgreSQL cannot store.
pub(super) fn fit_label(label: &str) -> String {
    let mut label = label.replace('\0', "");
    label.truncate(label.floor_char_boundary(MAX_WORKER_LABEL_BYTES));
    label
}

/// Whole milliseconds, rounded up: a span that was asked for is never shortened.
pub(super) fn to_millis(span: Duration) -> i64 {
    let rounded = span.saturating_add(Duration::from_nanos(999_999)).as_millis();
    i64::try_from(rounded).unwrap_or(i64::MAX)
}

fn invalid<T>(sentence: String) -> Result<T, RecipeError> {
    Err(RecipeError::Invalid(sentence))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each limit refuses the first value beyond it, and takes the last one within.
    #[test]
    fn limits_are_where_they_are_said_to_be() {
        let text = |bytes| "x".repeat(bytes);
        assert!(check_name(&text(128)).is_ok() && check_name(&text(129)).is_err());
        assert!(check_name("").is_err() && check_name("a\nb").is_err());
        assert!(check_body(&text(1 << 20)).is_ok() && check_body(&text((1 << 20) + 1)).is_err());
        assert!(check_key("a key", &text(512)).is_ok() && check_key("a key", &text(513)).is_err());
        assert!(check_key("a key", "").is_err() && check_key("a key", "a\0").is_err());
        let span = Duration::from_millis;
        assert!(check_span("it", span(1), MAX_VISIBLE).is_ok() && check_span("it", span(0), MAX_VISIBLE).is_err());
        assert!(check_span("it", MAX_VISIBLE, MAX_VISIBLE).is_ok());
        assert!(check_span("it", MAX_VISIBLE + span(1), MAX_VISIBLE).is_err());
        assert!(check_delay(MAX_JOB_DELAY).is_ok() && check_delay(MAX_JOB_DELAY + span(1)).is_err());
        assert!(check_attempts(1000).is_ok() && check_attempts(1001).is_err() && check_attempts(0).is_err());
        assert!(check_levels(&[1, 2, 3, 4]).is_ok() && check_levels(&[1, 2, 3, 4, 5]).is_err());
        assert!(check_levels(&[]).is_err() && check_levels(&[2, 2]).is_err());
        assert!(check_slots(1000).is_ok() && check_slots(1001).is_err() && check_slots(0).is_err());
        assert_eq!(to_millis(Duration::from_micros(1)), 1);
        assert_eq!(fit_label(&"é".repeat(200)).len(), 256);
    }
}
