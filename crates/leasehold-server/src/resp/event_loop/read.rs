//! Reads from sockets into the input of connections.

use std::io::ErrorKind;

use super::EventLoop;
use crate::resp::transport::Transport;

/// Bytes read from one connection in one round.
pub(super) const READ_CHUNK_BYTES: usize = 64 << 10;

impl EventLoop {
    /// Bytes of one connection that may wait on either side before it is not read from.
    pub(super) fn max_waiting_bytes(&self) -> usize {
        self.shared.config.sizes.command + READ_CHUNK_BYTES
    }

    pub(super) fn read(&mut self, slot: u32) {
        let entry = self.slots.get_mut(slot as usize);
        let Some(connection) = entry.and_then(|entry| entry.connection.as_deref_mut()) else { return };
        loop {
            match connection.transport.read(&mut self.read_buffer) {
                Ok(0) => {
                    connection.state.peer_closed();
                    break;
                }
                Ok(count) => {
                    if connection.state.bytes_arrived() {
                        connection.incomplete_since = Some(self.now);
                    }
                    connection.input.extend_from_slice(&self.read_buffer[..count]);
                    // TLS may buffer more than one read returns. Epoll reports the rest of a plain socket again.
                    let is_plain = matches!(connection.transport, Transport::Plain(_));
                    if is_plain || connection.input.len() >= READ_CHUNK_BYTES {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    connection.state.kill();
                    break;
                }
            }
        }
        if connection.state.is_dead() {
            self.dead.push(slot);
        } else {
            self.mark_ready(slot);
        }
    }

    /// A client left that is not read from: epoll reports its `RDHUP`.
    pub(super) fn peer_closed(&mut self, slot: u32) {
        let Some(connection) = self.connection(slot) else { return };
        connection.state.peer_closed();
        if connection.state.is_dead() {
            self.dead.push(slot);
        } else {
            self.mark_dirty(slot);
        }
    }
}
