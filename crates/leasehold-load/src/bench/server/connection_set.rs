//! Many connections on one thread: sockets that do not block, and epoll.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::event::{Timespec, epoll};

use super::ServerAddress;
use super::resp_codec::{self, RespReply};

/// How many ready connections one look can find; the rest is found by the next.
const LOOK: usize = 256;

/// Enough for one answer.
const CHUNK: usize = 1 << 10;

/// Connections, and who of them has something to read.
pub struct ConnectionSet {
    epoll: OwnedFd,
    callers: Vec<PolledConnection>,
    events: Vec<epoll::Event>,
    /// Whom the last look found.
    ready: Vec<usize>,
    outgoing: Vec<u8>,
    shown: String,
}

struct PolledConnection {
    stream: TcpStream,
    /// What was received and not yet taken.
    incoming: Vec<u8>,
    /// How much of it the last answer was.
    taken: usize,
}

impl ConnectionSet {
    /// Connects this many.
    pub fn connect(address: &ServerAddress, count: usize) -> anyhow::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("make an epoll")?;
        let mut callers = Vec::with_capacity(count);
        for number in 0..count {
            let stream = address.connect()?;
            stream.set_nonblocking(true).context("make a socket that does not block")?;
            let data = epoll::EventData::new_u64(number as u64);
            epoll::add(&epoll, &stream, data, epoll::EventFlags::IN).context("watch a socket")?;
            callers.push(PolledConnection { stream, incoming: Vec::with_capacity(CHUNK), taken: 0 });
        }
        let (events, ready) = (Vec::with_capacity(LOOK), Vec::with_capacity(LOOK));
        Ok(Self { epoll, callers, events, ready, outgoing: Vec::new(), shown: address.shown.clone() })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.callers.len()
    }

    /// Waits until somebody can read, at most this long. Says how many.
    pub fn look(&mut self, patience: Duration) -> anyhow::Result<usize> {
        let timeout = Timespec { tv_sec: patience.as_secs().try_into()?, tv_nsec: patience.subsec_nanos().into() };
        self.events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("wait for answers"),
        }
        self.ready.clear();
        self.ready.extend(self.events.iter().map(|event| usize::try_from(event.data.u64()).unwrap_or(usize::MAX)));
        Ok(self.ready.len())
    }

    /// The caller that the last look found in this place.
    pub fn found(&self, place: usize) -> usize {
        self.ready[place]
    }

    /// Reads what has come for a caller.
    pub fn receive(&mut self, caller: usize) -> anyhow::Result<()> {
        let caller = &mut self.callers[caller];
        match read_more(&mut caller.stream, &mut caller.incoming) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                Err(error).with_context(|| format!("read from {}", self.shown))
            }
            _ => Ok(()),
        }
    }

    /// The next whole answer for a caller. It is gone at the next call.
    pub fn answer(&mut self, caller: usize) -> anyhow::Result<Option<RespReply<'_>>> {
        let caller = &mut self.callers[caller];
        caller.incoming.drain(..caller.taken);
        caller.taken = 0;
        let Some((answer, length)) = resp_codec::answer(&caller.incoming)? else { return Ok(None) };
        caller.taken = length;
        Ok(Some(answer))
    }

    /// Sends a command for a caller.
    pub fn send(&mut self, caller: usize, arguments: &[&str]) -> anyhow::Result<()> {
        resp_codec::command(&mut self.outgoing, arguments);
        // A caller asks again only when it was answered, so that a full socket means a server that does not read.
        let sent = self.callers[caller].stream.write(&self.outgoing);
        match sent.with_context(|| format!("write to {}", self.shown))? {
            length if length == self.outgoing.len() => Ok(()),
            _ => bail!("{} does not read what is sent to it", self.shown),
        }
    }
}

/// Reads once, to the end of what is there. The end of the stream is an error: nobody hangs up on us.
pub fn read_more(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<()> {
    let old = buffer.len();
    buffer.resize(old + CHUNK, 0);
    let read = stream.read(&mut buffer[old..]);
    buffer.truncate(old + read.as_ref().map_or(0, |length| *length));
    match read? {
        0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")),
        _ => Ok(()),
    }
}
