//! A TCP proxy between an engine and its server, which loses, delays and cuts on order.
//!
//! It has threads of its own, so that a test of any runtime can use it, and it ends with the test.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// How often a direction that must not pass anything checks whether it may again.
const POLL_EVERY: Duration = Duration::from_millis(1);

/// A proxy on a free port. See the module.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<ProxyState>,
}

#[derive(Debug, Default)]
struct ProxyState {
    /// Requests are read and thrown away.
    swallow_requests: AtomicBool,
    /// Replies are read and thrown away.
    swallow_replies: AtomicBool,
    /// Replies are kept, and arrive later.
    hold_replies: AtomicBool,
    /// Nothing is read: what is sent stays in socket buffers, and arrives later.
    black_hole: AtomicBool,
    /// As `black_hole`, for the connections up to this number only.
    stalled_up_to: AtomicU64,
    accepted: AtomicU64,
    /// A connection whose client sends these bytes passes nothing any more.
    mute_after: Mutex<Option<Vec<u8>>>,
    /// These bytes in requests are replaced by those.
    rewrite: Mutex<Option<(Vec<u8>, Vec<u8>)>>,
    /// New connections are closed at once.
    refuse: AtomicBool,
    stopped: AtomicBool,
    delay_micros: AtomicU64,
    connections: Mutex<ProxyConnections>,
}

/// The connections there are, and which of them must not pass anything.
#[derive(Default)]
struct ProxyConnections {
    open: Vec<ProxyConnection>,
    is_held: Option<PortTest>,
}

impl fmt::Debug for ProxyConnections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyConnections").field("open", &self.open).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct ProxyConnection {
    client: TcpStream,
    server: TcpStream,
    /// The port that the client dialled from.
    from_port: u16,
    /// As `black_hole`, for this one only.
    held: Arc<AtomicBool>,
}

/// Tells by the port that a client dialled from whether its connection is meant.
type PortTest = Box<dyn Fn(u16) -> bool + Send>;

impl Proxy {
    /// A proxy in front of this port of the loopback interface.
    ///
    /// # Panics
    ///
    /// If there is no free port.
    #[must_use]
    pub fn start(target_port: u16) -> Self {
        Self::try_start(target_port).expect("a free port")
    }

    /// As [`Proxy::start`].
    ///
    /// # Errors
    ///
    /// If there is no free port.
    pub fn try_start(target_port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(ProxyState::default());
        let state = shared.clone();
        thread::spawn(move || accept_connections(&listener, target_port, &state));
        Ok(Self { port, shared })
    }

    /// Where it listens.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Throws requests away, or passes them on again.
    pub fn swallow_requests(&self, on: bool) {
        self.shared.swallow_requests.store(on, Ordering::SeqCst);
    }

    /// Throws replies away, or passes them on again. After a swallowed reply a connection is out of step: cut it.
    pub fn swallow_replies(&self, on: bool) {
        self.shared.swallow_replies.store(on, Ordering::SeqCst);
    }

    /// Holds back replies, while requests pass; or passes on what was held back.
    pub fn hold_replies(&self, on: bool) {
        self.shared.hold_replies.store(on, Ordering::SeqCst);
    }

    /// Holds back everything in both directions, or lets it go on.
    pub fn black_hole(&self, on: bool) {
        self.shared.black_hole.store(on, Ordering::SeqCst);
    }

    /// Holds back everything on the connections of now, and passes what comes over new ones; or lets everything go on.
    pub fn stall_current(&self, on: bool) {
        let last = if on { self.shared.accepted.load(Ordering::SeqCst) } else { 0 };
        self.shared.stalled_up_to.store(last, Ordering::SeqCst);
    }

    /// Holds back everything on the connections of some clients, those of now and those to come; or lets everything go on.
    /// Clients are told apart by the port that they dialled from.
    ///
    /// # Panics
    ///
    /// If a thread panicked with the list.
    pub fn hold_clients(&self, is_held: Option<Box<dyn Fn(u16) -> bool + Send>>) {
        let mut connections = self.shared.connections.lock().expect("nobody panics with it");
        connections.is_held = is_held;
        for connection in &connections.open {
            let held = connections.is_held.as_ref().is_some_and(|is_held| is_held(connection.from_port));
            connection.held.store(held, Ordering::SeqCst);
        }
    }

    /// A connection whose client sends this word stays open, and passes nothing from then on; or none does.
    ///
    /// # Panics
    ///
    /// If a thread panicked with the word.
    pub fn mute_after(&self, word: Option<&'static str>) {
        self.mute_after_bytes(word.map(Into::into));
    }

    /// As [`Proxy::mute_after`], for what is no text.
    ///
    /// # Panics
    ///
    /// If a thread panicked with the bytes.
    pub fn mute_after_bytes(&self, bytes: Option<Vec<u8>>) {
        *self.shared.mute_after.lock().expect("nobody panics with it") = bytes;
    }

    /// Replaces these bytes in requests by as many others, where they arrive in one piece.
    ///
    /// # Panics
    ///
    /// If the lengths differ, or a thread panicked with the bytes.
    pub fn rewrite_requests(&self, from: Vec<u8>, to: Vec<u8>) {
        assert_eq!(from.len(), to.len(), "what follows must stay in its place");
        *self.shared.rewrite.lock().expect("nobody panics with it") = Some((from, to));
    }

    /// Closes new connections at once, or accepts them again.
    pub fn refuse(&self, on: bool) {
        self.shared.refuse.store(on, Ordering::SeqCst);
    }

    /// Delays every piece, in each direction.
    pub fn delay(&self, span: Duration) {
        let micros = u64::try_from(span.as_micros()).expect("a short delay");
        self.shared.delay_micros.store(micros, Ordering::SeqCst);
    }

    /// Cuts the connections there are.
    ///
    /// # Panics
    ///
    /// If a thread panicked with the list.
    pub fn cut_all(&self) {
        self.shared.cut_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        self.shared.cut_all();
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], self.port)));
    }
}

impl ProxyState {
    fn cut_all(&self) {
        for connection in self.connections.lock().expect("nobody panics with it").open.drain(..) {
            let _ = connection.client.shutdown(Shutdown::Both);
            let _ = connection.server.shutdown(Shutdown::Both);
        }
    }

    fn is(&self, flag: &AtomicBool) -> bool {
        flag.load(Ordering::SeqCst)
    }

    fn holds_back(&self, number: u64, requests: bool) -> bool {
        let held = self.is(&self.black_hole)
            || (!requests && self.is(&self.hold_replies))
            || number <= self.stalled_up_to.load(Ordering::SeqCst);
        held && !self.is(&self.stopped)
    }

    fn is_muted_by(&self, bytes: &[u8]) -> bool {
        let word = self.mute_after.lock().expect("nobody panics with it");
        word.as_ref().is_some_and(|word| bytes.windows(word.len()).any(|part| part == word))
    }

    fn rewrite(&self, bytes: &mut [u8]) {
        if let Some((from, to)) = &*self.rewrite.lock().expect("nobody panics with it")
            && let Some(at) = bytes.windows(from.len()).position(|part| part == from)
        {
            bytes[at..at + to.len()].copy_from_slice(to);
        }
    }
}

fn accept_connections(listener: &TcpListener, target_port: u16, state: &Arc<ProxyState>) {
    for client in listener.incoming() {
        if state.is(&state.stopped) {
            return;
        }
        let Ok(client) = client else { continue };
        let Ok(from_port) = client.peer_addr().map(|address| address.port()) else { continue };
        if state.is(&state.refuse) {
            continue;
        }
        let Ok(server) = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], target_port))) else { continue };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let copies = (client.try_clone(), server.try_clone(), client.try_clone(), server.try_clone());
        let (Ok(from_client), Ok(to_server), Ok(to_client), Ok(from_server)) = copies else { continue };
        let held = Arc::new(AtomicBool::new(false));
        let mut connections = state.connections.lock().expect("nobody panics with it");
        if connections.is_held.as_ref().is_some_and(|is_held| is_held(from_port)) {
            held.store(true, Ordering::SeqCst);
        }
        connections.open.push(ProxyConnection { client, server, from_port, held: held.clone() });
        drop(connections);
        let number = state.accepted.fetch_add(1, Ordering::SeqCst) + 1;
        let requests = Flow { state: state.clone(), number, muted: Arc::default(), held };
        let replies = requests.clone();
        thread::spawn(move || copy_bytes(from_client, to_server, &requests, true));
        thread::spawn(move || copy_bytes(from_server, to_client, &replies, false));
    }
}

/// One direction of one connection.
#[derive(Clone)]
struct Flow {
    state: Arc<ProxyState>,
    number: u64,
    muted: Arc<AtomicBool>,
    held: Arc<AtomicBool>,
}

impl Flow {
    fn is_held_back(&self, requests: bool) -> bool {
        let held = self.state.is(&self.held) && !self.state.is(&self.state.stopped);
        held || self.state.holds_back(self.number, requests)
    }
}

fn copy_bytes(mut from: TcpStream, mut to: TcpStream, flow: &Flow, requests: bool) {
    let state = &flow.state;
    let swallow = if requests { &state.swallow_requests } else { &state.swallow_replies };
    let mut bytes = [0; 64 << 10];
    loop {
        while flow.is_held_back(requests) {
            pause(POLL_EVERY);
        }
        let read = match from.read(&mut bytes) {
            Ok(0) | Err(_) => break,
            Ok(read) => read,
        };
        let micros = state.delay_micros.load(Ordering::SeqCst);
        if micros > 0 {
            pause(Duration::from_micros(micros));
        }
        // What arrived or was on its way while nothing may pass waits here.
        while flow.is_held_back(requests) {
            pause(POLL_EVERY);
        }
        if requests && state.is_muted_by(&bytes[..read]) {
            flow.muted.store(true, Ordering::SeqCst);
        }
        if requests {
            state.rewrite(&mut bytes[..read]);
        }
        if !state.is(swallow) && !state.is(&flow.muted) && to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

fn pause(span: Duration) {
    #[expect(clippy::disallowed_methods, reason = "a proxy between two processes lives in real time")]
    thread::sleep(span);
}
