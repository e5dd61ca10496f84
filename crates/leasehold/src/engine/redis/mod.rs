//! The Redis engine.

mod claim_text;
mod decode;
mod scripts;

#[cfg(test)]
mod fuzz_tests;
