//! RESP bytes: [`frame`] reads commands, [`reply`] writes replies.

pub mod frame;
pub mod reply;
