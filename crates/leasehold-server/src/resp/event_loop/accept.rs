//! Who comes in, and who finds no room.

use std::io::{self, ErrorKind};
use std::sync::atomic::Ordering;

use rustix::event::epoll::{self, EventData, EventFlags};

use super::{ACCEPT_EVENTS, ConnectionSlot, EventLoop, LISTENER_EVENT};
use crate::resp::connection::ClientConnection;
use crate::resp::transport::Transport;
use crate::service::Peer;
use crate::service::seats::{Door, Seat};

impl EventLoop {
    pub(super) fn accept(&mut self) {
        // A few at a time: those who are here have their turn too.
        for _ in 0..256 {
            let Some(listener) = &self.listener else { return };
            let (stream, address) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => {
                    // Out of file descriptors: those who wait at the door stay there until somebody leaves.
                    if !matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) {
                        tracing::warn!(%error, "a connection cannot be accepted");
                        // The poll would tell of them again and again meanwhile.
                        let _ = epoll::delete(&self.poll, listener);
                        self.listening = false;
                    }
                    return;
                }
            };
            let Ok(seat) = self.shared.config.seats.take(Door::Resp, address.ip()) else {
                self.refused_connections += 1;
                let _ = stream.set_nonblocking(true);
                let _ = io::Write::write(&mut &stream, b"-QUOTA too many connections\r\n");
                continue;
            };
            if let Err(error) = self.add(stream, address, seat) {
                tracing::debug!(%error, peer = %address, "a connection broke as it began");
            }
        }
    }

    pub(super) fn resume_accepting(&mut self) {
        if !self.listening
            && let Some(listener) = &self.listener
        {
            self.listening =
                epoll::add(&self.poll, listener, EventData::new_u64(LISTENER_EVENT), ACCEPT_EVENTS).is_ok();
        }
    }

    fn add(&mut self, stream: std::net::TcpStream, address: std::net::SocketAddr, seat: Seat) -> io::Result<()> {
        let transport = Transport::accept(stream, self.shared.config.tls.as_ref())?;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(ConnectionSlot::default());
            self.slots.len() as u32 - 1
        });
        if let Err(error) = epoll::add(&self.poll, &transport, EventData::new_u64(slot.into()), EventFlags::IN) {
            self.free.push(slot);
            return Err(error.into());
        }
        let peer = Peer(address);
        let caller = self.shared.service.enter_quietly(peer);
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let entry = &mut self.slots[slot as usize];
        entry.connection =
            Some(Box::new(ClientConnection::new(id, transport, peer, caller, entry.next, self.now, seat)));
        Ok(())
    }
}
