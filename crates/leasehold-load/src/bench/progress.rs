//! Progress bars on stderr. They are shown on a terminal only, so that a pipe gets nothing but results.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

pub fn time_bar(total: Duration, what: &str) -> ProgressBar {
    let millis = u64::try_from(total.as_millis()).unwrap_or(u64::MAX);
    styled(ProgressBar::new(millis), "{msg} {wide_bar} {elapsed}", what)
}

pub fn count_bar(total: u64, what: &str) -> ProgressBar {
    styled(ProgressBar::new(total), "{msg} {wide_bar} {human_pos}/{human_len} {eta}", what)
}

/// A spinner for work of unknown length.
pub fn spinner(what: &str) -> ProgressBar {
    styled(ProgressBar::new_spinner(), "{msg} {spinner}", what)
}

fn styled(bar: ProgressBar, template: &str, what: &str) -> ProgressBar {
    // A bad template only changes how the bar looks.
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style).with_message(what.to_owned())
}
