//! Accepts connections, and refuses those that find no room.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering;

use rustix::event::epoll::{self, EventData, EventFlags};

use super::{ConnectionSlot, EventLoop, LISTENER_EVENT};
use crate::resp::connection::ClientConnection;
use crate::resp::transport::Transport;
use crate::service::PeerAddress;
use crate::service::connection_limit::{ConnectionPermit, Port};

/// What the listener is polled for. Of several event loops only one is woken for a new connection.
pub(super) const ACCEPT_EVENTS: EventFlags = EventFlags::IN.union(EventFlags::EXCLUSIVE);
/// Connections accepted in one round, so that open connections get their turn.
const MAX_ACCEPTS_PER_ROUND: usize = 256;

impl EventLoop {
    pub(super) fn accept(&mut self) {
        for _ in 0..MAX_ACCEPTS_PER_ROUND {
            let Some(listener) = &self.listener else { return };
            let (stream, address) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => {
                    // Out of file descriptors: new connections stay in the kernel's queue until one is closed.
                    if !matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) {
                        tracing::warn!(%error, "a connection cannot be accepted");
                        // Epoll would report them again and again meanwhile.
                        let _ = epoll::delete(&self.poll, listener);
                        self.accepting = false;
                    }
                    return;
                }
            };
            let Ok(permit) = self.shared.config.connection_limiter.try_acquire(Port::Resp, address.ip()) else {
                self.refused_connections += 1;
                let _ = stream.set_nonblocking(true);
                let _ = io::Write::write(&mut &stream, b"-QUOTA too many connections\r\n");
                continue;
            };
            if let Err(error) = self.add_connection(stream, address, permit) {
                tracing::debug!(%error, peer = %address, "a connection broke as it began");
            }
        }
    }

    /// Polls the listener again after it could not accept.
    pub(super) fn resume_accepting(&mut self) {
        if !self.accepting
            && let Some(listener) = &self.listener
        {
            self.accepting =
                epoll::add(&self.poll, listener, EventData::new_u64(LISTENER_EVENT), ACCEPT_EVENTS).is_ok();
        }
    }

    fn add_connection(&mut self, stream: TcpStream, address: SocketAddr, permit: ConnectionPermit) -> io::Result<()> {
        let transport = Transport::accept(stream, self.shared.config.tls.as_ref())?;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(ConnectionSlot::default());
            self.slots.len() as u32 - 1
        });
        if let Err(error) = epoll::add(&self.poll, &transport, EventData::new_u64(slot.into()), EventFlags::IN) {
            self.free.push(slot);
            return Err(error.into());
        }
        let peer = PeerAddress(address);
        let caller = self.shared.service.anonymous_caller(peer);
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let entry = &mut self.slots[slot as usize];
        let connection = ClientConnection::new(id, transport, peer, caller, entry.next_number, self.now, permit);
        entry.connection = Some(Box::new(connection));
        Ok(())
    }
}
