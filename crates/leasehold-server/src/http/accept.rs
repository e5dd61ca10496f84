//! The accept loop, and one task for each connection. Not axum's: that one has no timeouts, and half-open connections
//! would stay for ever.

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
use super::io::{PhaseTracker, TimeoutStream, TrackedBody};
use super::problem::Problem;
use super::routes;
use super::socket::{HangupProbe, ProbedSocket};
use super::{App, HttpConfig};
use crate::service::PeerAddress;
use crate::service::connection_limit::{ConnectionPermit, LimitReached, Port};

const WRONG_PORT: &[u8] = b"-ERR this port speaks HTTP, RESP is spoken on another\r\n";
/// Connections over the limit that get a full refusal at a time, and its timeout. Further ones get one write and are
/// closed.
const MAX_REFUSALS_UNDER_WAY: usize = 16;
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// How often the task of a busy connection checks whether its client hung up. A waiting claim leaves the queue within a
/// second of the hang-up.
const HANGUP_CHECK_EVERY: Duration = Duration::from_millis(400);

/// Accepts until the server stops, then waits for open connections.
///
/// # Errors
///
/// The listener cannot be used.
pub async fn accept_connections(listener: TcpListener, app: App) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let connection_limiter = app.config.connection_limiter.clone();
    let tls = app.config.tls.as_deref().map(tls_acceptor);
    let router = routes::build_router(&app);
    let mut open = JoinSet::new();
    let refusals = Arc::new(Semaphore::new(MAX_REFUSALS_UNDER_WAY));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = open.join_next() => continue,
            () = app.stop.cancelled() => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, or the client hung up first: neither is a reason to stop listening.
                tracing::warn!(target: "leasehold::http", %error, "a connection was not accepted");
                sleep_until(Instant::now() + Duration::from_millis(20)).await;
                continue;
            }
        };
        match connection_limiter.try_acquire(Port::Http, peer.ip()) {
            Ok(permit) => {
                let connection = HttpConnection { app: app.clone(), router: router.clone(), tls: tls.clone(), peer };
                open.spawn(connection.run(stream, permit));
            }
            Err(reached) if tls.is_none() => match refusals.clone().try_acquire_owned() {
                Ok(permit) => drop(open.spawn(refuse_connection(stream, reached, permit))),
                Err(_) => drop(stream.try_write(&refusal_bytes(reached))),
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

/// Sends the refusal and reads what the client sends meanwhile: closing a socket with unread bytes resets the
/// connection and loses the response.
async fn refuse_connection(mut stream: TcpStream, reached: LimitReached, _permit: OwnedSemaphorePermit) {
    let refusal = async {
        stream.write_all(&refusal_bytes(reached)).await?;
        stream.shutdown().await?;
        let mut discarded = [0; 1024];
        while stream.read(&mut discarded).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = timeout(REFUSAL_TIMEOUT, refusal).await;
}

fn refusal_bytes(reached: LimitReached) -> Vec<u8> {
    let body = Problem::too_many_connections(reached == LimitReached::PerAddress).body();
    let answer = format!(
        "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/problem+json\r\nCache-Control: no-store\r\n\
         Retry-After: 1\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    answer.into_bytes()
}

fn tls_acceptor(config: &rustls::ServerConfig) -> TlsAcceptor {
    let mut config = config.clone();
    // Only HTTP/1.1: the timeouts of this module assume one request after the other.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

/// One accepted connection.
struct HttpConnection {
    app: App,
    router: Router,
    tls: Option<TlsAcceptor>,
    peer: SocketAddr,
}

impl HttpConnection {
    async fn run(self, stream: TcpStream, _permit: ConnectionPermit) {
        // A response is one small write: Nagle's algorithm would only delay it.
        let _ = stream.set_nodelay(true);
        let Ok(local) = stream.local_addr() else { return };
        let arrival = Arrival { peer: PeerAddress(self.peer), local: local.ip() };
        let stop = self.app.stop.clone();
        let phases = PhaseTracker::new(&self.app.config);
        match &self.tls {
            None => {
                let first_bytes = tokio::select! {
                    first_bytes = peek_protocol(&stream, &self.app.config) => first_bytes,
                    () = stop.cancelled() => return,
                };
                match first_bytes {
                    FirstBytes::Http => {
                        phases.head_started();
                        let (socket, probe) = ProbedSocket::new(stream);
                        self.serve_requests(socket, &probe, arrival, phases).await;
                    }
                    FirstBytes::Resp => drop(stream.try_write(WRONG_PORT)),
                    FirstBytes::Nothing => {}
                }
            }
            Some(tls) => {
                let (socket, probe) = ProbedSocket::new(stream);
                let handshake = tokio::select! {
                    handshake = timeout(self.app.config.header, tls.accept(socket)) => handshake,
                    () = stop.cancelled() => return,
                };
                if let Ok(Ok(stream)) = handshake {
                    self.serve_requests(stream, &probe, arrival, phases).await;
                }
            }
        }
    }

    async fn serve_requests<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
        probe: &HangupProbe,
        arrival: Arrival,
        phases: Arc<PhaseTracker>,
    ) {
        let stream_with_timeouts = TimeoutStream::new(stream, phases.clone(), self.app.config.write_stall);
        let service = service_fn(|request: Request<Incoming>| {
            phases.request_started();
            let (router, app, phases) = (self.router.clone(), self.app.clone(), phases.clone());
            async move {
                let response = handle_request(app, router, arrival, request).await;
                Ok::<_, Infallible>(response.map(|body| TrackedBody::new(body, phases)))
            }
        });
        let connection = http1::Builder::new()
            .header_read_timeout(None) // ours is in `io`: hyper's would also end idle connections
            .max_buf_size(self.app.config.header_bytes.max(8192))
            .serve_connection(TokioIo::new(stream_with_timeouts), service);
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            // `stop` first: a response sent after it says `Connection: close`.
            biased;
            () = self.app.stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
            ended = connection.as_mut() => ended,
            // The client is gone: dropping the connection drops its handler.
            () = until_hangup(probe, &phases) => return,
        };
        if let Err(error) = ended {
            tracing::debug!(target: "leasehold::http", peer = %self.peer, %error, "a connection ended early");
        }
    }
}

async fn handle_request(
    app: App,
    mut router: Router,
    arrival: Arrival,
    mut request: Request<Incoming>,
) -> Response<Body> {
    let method = request.method().clone();
    let is_api = guard::is_api(request.uri().path());
    let response = match guard::check_request(&app.config, arrival, &request) {
        Err(problem) => problem.response(),
        Ok(()) => {
            request.extensions_mut().insert(arrival);
            let Ok(response) = router.call(request.map(Body::new)).await;
            response
        }
    };
    // Neither path nor query is logged: names are private, and clients put secrets where they do not belong.
    tracing::debug!(target: "leasehold::http", peer = %arrival.peer, %method, status = response.status().as_u16());
    guard::set_security_headers(response, is_api)
}

/// Resolves when a request is being handled and its client has hung up.
async fn until_hangup(probe: &HangupProbe, phases: &PhaseTracker) {
    loop {
        // Idle connections are not polled.
        phases.until_busy().await;
        sleep_until(Instant::now() + HANGUP_CHECK_EVERY).await;
        while phases.is_busy() {
            if probe.is_hung_up() {
                return;
            }
            sleep_until(Instant::now() + HANGUP_CHECK_EVERY).await;
        }
    }
}

enum FirstBytes {
    Http,
    Resp,
    Nothing,
}

/// Peeks at the first bytes to tell HTTP from RESP.
async fn peek_protocol(stream: &TcpStream, config: &HttpConfig) -> FirstBytes {
    let mut first = [0; 4];
    match timeout(config.first_byte, stream.peek(&mut first)).await {
        Ok(Ok(read @ 1..)) => {
            let first = &first[..read];
            let resp = matches!(first[0], b'*' | b'$') || first.eq_ignore_ascii_case(b"PING");
            if resp { FirstBytes::Resp } else { FirstBytes::Http }
        }
        _ => FirstBytes::Nothing,
    }
}
