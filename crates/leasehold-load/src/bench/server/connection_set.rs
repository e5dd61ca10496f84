//! A set of non-blocking connections, polled with epoll on one thread.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::event::{Timespec, epoll};

use super::ServerAddress;
use super::resp_codec::{self, RespReply};

/// Ready connections that one epoll wait can return. The next wait returns the rest.
const EVENTS_PER_WAIT: usize = 256;

/// Bytes per read: enough for one reply.
const READ_CHUNK_BYTES: usize = 1 << 10;

/// Connections, and which of them are readable.
pub struct ConnectionSet {
    epoll: OwnedFd,
    connections: Vec<PolledConnection>,
    events: Vec<epoll::Event>,
    /// Indexes of the connections that the last wait found readable.
    ready: Vec<usize>,
    write_buffer: Vec<u8>,
    display_url: String,
}

struct PolledConnection {
    stream: TcpStream,
    /// Bytes received and not yet consumed.
    read_buffer: Vec<u8>,
    /// The length of the last reply, at the front of the read buffer.
    consumed: usize,
}

impl ConnectionSet {
    /// Opens `count` connections.
    pub fn connect(address: &ServerAddress, count: usize) -> anyhow::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("make an epoll")?;
        let mut connections = Vec::with_capacity(count);
        for number in 0..count {
            let stream = address.connect()?;
            stream.set_nonblocking(true).context("make a socket that does not block")?;
            let data = epoll::EventData::new_u64(number as u64);
            epoll::add(&epoll, &stream, data, epoll::EventFlags::IN).context("watch a socket")?;
            connections.push(PolledConnection {
                stream,
                read_buffer: Vec::with_capacity(READ_CHUNK_BYTES),
                consumed: 0,
            });
        }
        let (events, ready) = (Vec::with_capacity(EVENTS_PER_WAIT), Vec::with_capacity(EVENTS_PER_WAIT));
        Ok(Self {
            epoll,
            connections,
            events,
            ready,
            write_buffer: Vec::new(),
            display_url: address.display_url.clone(),
        })
    }

    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Waits until a connection is readable, for at most `max_wait`. Returns how many are.
    pub fn wait_readable(&mut self, max_wait: Duration) -> anyhow::Result<usize> {
        let timeout = Timespec { tv_sec: max_wait.as_secs().try_into()?, tv_nsec: max_wait.subsec_nanos().into() };
        self.events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("wait for answers"),
        }
        self.ready.clear();
        self.ready.extend(self.events.iter().map(|event| usize::try_from(event.data.u64()).unwrap_or(usize::MAX)));
        Ok(self.ready.len())
    }

    /// The index of the n-th connection that the last wait found readable.
    pub fn ready_at(&self, nth: usize) -> usize {
        self.ready[nth]
    }

    /// Reads the bytes that have arrived on a connection.
    pub fn read_available(&mut self, index: usize) -> anyhow::Result<()> {
        let connection = &mut self.connections[index];
        match read_more(&mut connection.stream, &mut connection.read_buffer) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                Err(error).with_context(|| format!("read from {}", self.display_url))
            }
            _ => Ok(()),
        }
    }

    /// The next complete reply on a connection. The next call discards it.
    pub fn next_reply(&mut self, index: usize) -> anyhow::Result<Option<RespReply<'_>>> {
        let connection = &mut self.connections[index];
        connection.read_buffer.drain(..connection.consumed);
        connection.consumed = 0;
        let Some((reply, length)) = resp_codec::parse_reply(&connection.read_buffer)? else { return Ok(None) };
        connection.consumed = length;
        Ok(Some(reply))
    }

    /// Writes one command to a connection.
    pub fn send_command(&mut self, index: usize, arguments: &[&str]) -> anyhow::Result<()> {
        resp_codec::encode_command(&mut self.write_buffer, arguments);
        // A client sends only after it got its reply, so a full socket means a server that does not read.
        let sent = self.connections[index].stream.write(&self.write_buffer);
        match sent.with_context(|| format!("write to {}", self.display_url))? {
            length if length == self.write_buffer.len() => Ok(()),
            _ => bail!("{} does not read what is sent to it", self.display_url),
        }
    }
}

/// Reads at most one chunk into the buffer. End of file is an error: the server should not close the connection.
pub fn read_more(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<()> {
    let old = buffer.len();
    buffer.resize(old + READ_CHUNK_BYTES, 0);
    let read = stream.read(&mut buffer[old..]);
    buffer.truncate(old + read.as_ref().map_or(0, |length| *length));
    match read? {
        0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")),
        _ => Ok(()),
    }
}
