//! Why a directory cannot be opened.

use std::io;

/// Why the record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// The disk did not answer.
    #[error("{0}")]
    Io(String, #[source] io::Error),
    /// What is there breaks a law.
    #[error("{file} at offset {offset}: {law}")]
    Broken {
        /// The file.
        file: String,
        /// Where in it.
        offset: u64,
        /// The law.
        law: &'static str,
    },
}
