//! A proxy that breaks connections where it is told to: between a client and a real server.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What happens to bytes of one direction from the moment it is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// After so many more bytes to the server, the connection is cut.
    CutAsked(usize),
    /// After so many more bytes to the client, the connection is cut.
    CutAnswered(usize),
    /// After so many more bytes to the client, nothing more comes, and nothing is closed.
    Silence(usize),
}

/// The orders of the proxy: the number of the order, and the fault. It is for those connections that are there when
/// it is given; later ones are sound.
type Order = (usize, Fault);

/// What becomes of new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// They are let through.
    Open,
    /// They are turned away at once.
    Closed,
    /// They wait, connected, until the door is open.
    Held,
}

pub struct Proxy {
    at: SocketAddr,
    orders: watch::Sender<Order>,
    door: Arc<watch::Sender<Door>>,
    came: Arc<AtomicUsize>,
    accepted: Arc<AtomicUsize>,
    cut: Arc<watch::Sender<usize>>,
    given: Mutex<usize>,
}

impl Proxy {
    /// A proxy before this server.
    pub async fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let at = listener.local_addr().expect("it is bound");
        let (orders, _) = watch::channel((0, Fault::None));
        let door = Arc::new(watch::channel(Door::Open).0);
        let (came, accepted) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let cut = Arc::new(watch::channel(0).0);
        let proxy = Self { at, orders, door, came, accepted, cut, given: Mutex::new(0) };
        let (orders, mut door) = (proxy.orders.clone(), proxy.door.subscribe());
        let (came, accepted, cut) = (proxy.came.clone(), proxy.accepted.clone(), proxy.cut.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                came.fetch_add(1, Ordering::SeqCst);
                match door.wait_for(|door| *door != Door::Held).await.map(|door| *door) {
                    Ok(Door::Open) => {}
                    Ok(_) => continue,
                    Err(_) => return,
                }
                accepted.fetch_add(1, Ordering::SeqCst);
                let Ok(upstream) = TcpStream::connect(server).await else { continue };
                carry(client, upstream, orders.subscribe(), cut.subscribe());
            }
        });
        proxy
    }

    pub fn url(&self) -> String {
        format!("leasehold://{}", self.at)
    }

    /// Orders a fault for the connections there are.
    pub fn order(&self, fault: Fault) {
        let mut given = self.given.lock().expect("nobody panicked");
        *given += 1;
        self.orders.send_replace((*given, fault));
    }

    /// Cuts all connections there are.
    pub fn cut_all(&self) {
        self.cut.send_modify(|count| *count += 1);
    }

    /// What becomes of new connections from now on.
    pub fn door(&self, door: Door) {
        self.door.send_replace(door);
    }

    /// How many connections came, whatever became of them.
    pub fn came(&self) -> usize {
        self.came.load(Ordering::SeqCst)
    }

    /// How many connections were let through.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

fn carry(client: TcpStream, server: TcpStream, orders: watch::Receiver<Order>, mut cut: watch::Receiver<usize>) {
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let first = orders.borrow().0;
    tokio::spawn(async move {
        cut.mark_unchanged();
        // Whichever direction breaks takes the other with it; a silence waits for ever. A client that closes its
        // side only is heard to the end.
        let asked = pump(from_client, to_server, orders.clone(), first, true);
        let answered = pump(from_server, to_client, orders, first, false);
        tokio::pin!(asked, answered);
        tokio::select! {
            broken = &mut asked => if !broken {
                tokio::select! {
                    _ = &mut answered => {}
                    _ = cut.changed() => {}
                }
            },
            _ = &mut answered => {}
            _ = cut.changed() => {}
        }
    });
}

/// Carries bytes of one direction; `true` when the order was to cut it.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    orders: watch::Receiver<Order>,
    first: usize,
    asked: bool,
) -> bool {
    let mut buffer = vec![0; 16 << 10];
    let mut since = (first, 0);
    loop {
        let Ok(count @ 1..) = from.read(&mut buffer).await else {
            let _ = to.shutdown().await;
            return false;
        };
        let (number, fault) = *orders.borrow();
        if number != since.0 {
            since = (number, 0);
        }
        // Bytes count from the order on.
        let limit = match fault {
            _ if number == first => None,
            Fault::CutAsked(bytes) if asked => Some(bytes),
            Fault::CutAnswered(bytes) | Fault::Silence(bytes) if !asked => Some(bytes),
            _ => None,
        };
        let carried = limit.map_or(count, |limit| count.min(limit - since.1.min(limit)));
        if to.write_all(&buffer[..carried]).await.is_err() {
            return true;
        }
        since.1 += carried;
        if limit.is_some_and(|limit| since.1 >= limit && (carried < count || limit == since.1)) {
            if matches!(fault, Fault::Silence(_)) {
                std::future::pending::<()>().await;
            }
            return true;
        }
    }
}
