//! The accept loop. It is our own because axum's has no limit on time: half-open connections would stay for ever.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tower_service::Service as _;

use super::guard::{self, Arrival};
use super::io::{Guarded, Pulse, Told};
use super::problem::Problem;
use super::routes;
use super::socket::{Socket, Wire};
use super::{App, Config};
use crate::service::Peer;
use crate::service::connection_limit::{ConnectionPermit, LimitReached, Port};

const WRONG_PORT: &[u8] = b"-ERR this port speaks HTTP, RESP is spoken on another\r\n";
/// How many that found no place are seen off at a time, and how long they may take to hear it. The others are told, and cut
/// off.
const FAREWELLS: usize = 16;
const FAREWELL: Duration = Duration::from_secs(1);

/// How often somebody looks whether the client of a request that is being answered is still there: whoever waits in line
/// and hangs up leaves it within a second.
const LOOK: Duration = Duration::from_millis(400);

/// Accepts until the server stops, then waits for what is under way.
///
/// # Errors
///
/// The listener cannot be used.
pub async fn run(listener: TcpListener, app: App) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let connection_limiter = app.config.connection_limiter.clone();
    let tls = app.config.tls.as_deref().map(acceptor);
    let router = routes::router(&app);
    let mut open = JoinSet::new();
    let farewells = Arc::new(Semaphore::new(FAREWELLS));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = open.join_next() => continue,
            () = app.stop.cancelled() => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of files, or the client was quicker than we: neither is a reason to stop listening.
                tracing::warn!(target: "leasehold::http", %error, "a connection was not accepted");
                sleep_until(Instant::now() + Duration::from_millis(20)).await;
                continue;
            }
        };
        match connection_limiter.try_acquire(Port::Http, peer.ip()) {
            Ok(permit) => {
                let line = Line { app: app.clone(), router: router.clone(), tls: tls.clone(), peer };
                open.spawn(line.run(stream, permit));
            }
            Err(full) if tls.is_none() => match farewells.clone().try_acquire_owned() {
                Ok(place) => drop(open.spawn(turn_away(stream, full, place))),
                Err(_) => drop(stream.try_write(&no_place(full))),
            },
            Err(_) => {}
        }
    }
    drop(listener);
    let drained = timeout(app.config.drain, async { while open.join_next().await.is_some() {} }).await;
    if drained.is_err() {
        tracing::warn!(target: "leasehold::http", left = open.len(), "connections were cut off at the end");
        open.shutdown().await;
    }
    Ok(())
}

/// Says that there is no place. What the client says meanwhile is read: closing on unread bytes resets the connection, and
/// with it the answer.
async fn turn_away(mut stream: TcpStream, full: LimitReached, _place: OwnedSemaphorePermit) {
    let told = async {
        stream.write_all(&no_place(full)).await?;
        stream.shutdown().await?;
        let mut unheard = [0; 1024];
        while stream.read(&mut unheard).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = timeout(FAREWELL, told).await;
}

fn no_place(full: LimitReached) -> Vec<u8> {
    let body = Problem::crowded(full == LimitReached::PerAddress).body();
    let answer = format!(
        "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/problem+json\r\nCache-Control: no-store\r\n\
         Retry-After: 1\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    answer.into_bytes()
}

fn acceptor(config: &rustls::ServerConfig) -> TlsAcceptor {
    let mut config = config.clone();
    // The limits of this module are those of HTTP/1.1, one request after the other.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

/// One connection.
struct Line {
    app: App,
    router: Router,
    tls: Option<TlsAcceptor>,
    peer: SocketAddr,
}

impl Line {
    async fn run(self, stream: TcpStream, _permit: ConnectionPermit) {
        // An answer is one small write: waiting for a second one only delays it.
        let _ = stream.set_nodelay(true);
        let Ok(local) = stream.local_addr() else { return };
        let arrival = Arrival { peer: Peer(self.peer), local: local.ip() };
        let stop = self.app.stop.clone();
        let pulse = Pulse::new(&self.app.config);
        match &self.tls {
            None => {
                let speaks = tokio::select! {
                    speaks = first_words(&stream, &self.app.config) => speaks,
                    () = stop.cancelled() => return,
                };
                match speaks {
                    Speaks::Http => {
                        pulse.begin();
                        let (socket, wire) = Socket::new(stream);
                        self.talk(socket, &wire, arrival, pulse).await;
                    }
                    Speaks::Resp => drop(stream.try_write(WRONG_PORT)),
                    Speaks::Nothing => {}
                }
            }
            Some(tls) => {
                let (socket, wire) = Socket::new(stream);
                let shaken = tokio::select! {
                    shaken = timeout(self.app.config.header, tls.accept(socket)) => shaken,
                    () = stop.cancelled() => return,
                };
                if let Ok(Ok(stream)) = shaken {
                    self.talk(stream, &wire, arrival, pulse).await;
                }
            }
        }
    }

    async fn talk<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
        wire: &Wire,
        arrival: Arrival,
        pulse: Arc<Pulse>,
    ) {
        let guarded = Guarded::new(stream, pulse.clone(), self.app.config.write_stall);
        let service = service_fn(|request: Request<Incoming>| {
            pulse.busy();
            let (router, app, pulse) = (self.router.clone(), self.app.clone(), pulse.clone());
            async move {
                let response = answer(app, router, arrival, request).await;
                Ok::<_, Infallible>(response.map(|body| Told::new(body, pulse)))
            }
        });
        let connection = http1::Builder::new()
            .header_read_timeout(None) // ours is in `io`: hyper's would also end idle connections
            .max_buf_size(self.app.config.header_bytes.max(8192))
            .serve_connection(TokioIo::new(guarded), service);
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            // The end first: an answer that comes with it says that the connection closes.
            biased;
            () = self.app.stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
            ended = connection.as_mut() => ended,
            // Dropped with all that waits for it.
            () = cut(wire, &pulse) => return,
        };
        if let Err(error) = ended {
            tracing::debug!(target: "leasehold::http", peer = %self.peer, %error, "a connection ended early");
        }
    }
}

async fn answer(app: App, mut router: Router, arrival: Arrival, mut request: Request<Incoming>) -> Response<Body> {
    let method = request.method().clone();
    let is_api = guard::is_api(request.uri().path());
    let response = match guard::check(&app.config, arrival, &request) {
        Err(problem) => problem.response(),
        Ok(()) => {
            request.extensions_mut().insert(arrival);
            let Ok(response) = router.call(request.map(Body::new)).await;
            response
        }
    };
    // Never the path or the query: names are their owners' business, and people put secrets where they do not belong.
    tracing::debug!(target: "leasehold::http", peer = %arrival.peer, %method, status = response.status().as_u16());
    guard::seal(response, is_api)
}

/// Comes to its end when a request is being answered and nobody is there any more to be told.
async fn cut(wire: &Wire, pulse: &Pulse) {
    loop {
        // Thousands of idle connections look at nothing.
        pulse.until_busy().await;
        sleep_until(Instant::now() + LOOK).await;
        while pulse.is_busy() {
            if wire.is_cut() {
                return;
            }
            sleep_until(Instant::now() + LOOK).await;
        }
    }
}

enum Speaks {
    Http,
    Resp,
    Nothing,
}

/// Looks at the first bytes without taking them.
async fn first_words(stream: &TcpStream, config: &Config) -> Speaks {
    let mut first = [0; 4];
    match timeout(config.first_byte, stream.peek(&mut first)).await {
        Ok(Ok(read @ 1..)) => {
            let first = &first[..read];
            let resp = matches!(first[0], b'*' | b'$') || first.eq_ignore_ascii_case(b"PING");
            if resp { Speaks::Resp } else { Speaks::Http }
        }
        _ => Speaks::Nothing,
    }
}
