//! What the server, the command line and the load generators share. A leaf: it knows no protocol and no command.
//!
//! - [`exit`]: which exit code says what, and [`exit::Failure`].
//! - [`output`]: the only place that writes to the terminal.
//! - [`duration`]: `30s` and `1h30m`, read and written.
//! - [`time`]: wall-clock times for people, and a stopwatch.
//! - [`tls`]: TLS as a client.
//! - [`signals`]: TERM, INT and HUP as a stream.
//! - [`sync`]: a mutex lock that ignores poisoning.
//! - [`net`]: an address to connect to, for a listener.
//! - [`hex`]: bytes as hexadecimal digits.

pub mod duration;
pub mod exit;
pub mod hex;
pub mod net;
pub mod output;
pub mod signals;
pub mod sync;
pub mod time;
pub mod tls;
