//! Tells a service manager that asked (`NOTIFY_SOCKET`, as systemd does) when the server is ready and when it ends.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Both ports answer.
pub fn ready() {
    send_state("READY=1");
}

/// It is ending.
pub fn stopping() {
    send_state("STOPPING=1");
}

fn send_state(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    // Nothing depends on it but the manager's own patience.
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
