//! Notifies the service manager (`NOTIFY_SOCKET`, systemd) when the server is ready and when it stops.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The server is ready: both ports answer.
pub fn ready() {
    send_state("READY=1");
}

/// The server is stopping.
pub fn stopping() {
    send_state("STOPPING=1");
}

fn send_state(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    // A failure is ignored: only the manager's own timeout depends on it.
    let _ = send(name.as_encoded_bytes(), state);
}

fn send(name: &[u8], state: &str) -> std::io::Result<()> {
    let address = match name {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(String::from_utf8_lossy(path).as_ref())?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.as_bytes(), &address).map(drop)
}
