//! Law 24: The news are what happened, in order, each once and without a gap; they add up to what is held, and begin
//! anew with each life of the engine.

use super::seen;
use crate::history::History;

/// The simulator watches: it compares the news of each durable batch with its facts, and their sum with the model.
pub fn check(history: &History) -> Result<(), String> {
    seen(history, "watch_stream")
}
