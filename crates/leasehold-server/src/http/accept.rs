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
use tokio_util::sync::CancellationToken;
use tower_service::Service as _;

use super::guard::{self, Arrival};
use super::io::{CloseGuard, PhaseTracker, TimeoutStream, TrackedBody};
use super::problem::Problem;
use super::routes;
use super::socket::{HangupProbe, SharedSocket};
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

/// What answers the requests of accepted connections.
pub trait RequestHandler: Clone + Send + Sync + 'static {
    /// Answers one request. The future is dropped when the client hangs up.
    fn handle_request(
        &self,
        arrival: Arrival,
        phases: &Arc<PhaseTracker>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Body>> + Send;
}

/// Serves the routes of the server: see [`accept_connections`].
///
/// # Errors
///
/// The listener cannot be used.
pub async fn accept_for_app(listener: TcpListener, app: App) -> io::Result<()> {
    let router = routes::build_router(&app);
    let (config, stop) = (app.config.clone(), app.stop.clone());
    accept_connections(listener, config, stop, RoutedApp { app, router }).await
}

/// Accepts until `stop`, then waits for open connections.
///
/// # Errors
///
/// The listener cannot be used.
pub async fn accept_connections<H: RequestHandler>(
    listener: TcpListener,
    config: Arc<HttpConfig>,
    stop: CancellationToken,
    handler: H,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let connection_limiter = config.connection_limiter.clone();
    let tls = config.tls.as_deref().map(tls_acceptor);
    let mut open = JoinSet::new();
    let refusals = Arc::new(Semaphore::new(MAX_REFUSALS_UNDER_WAY));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = open.join_next() => continue,
            () = stop.cancelled() => break,
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
                let (config, stop, handler) = (config.clone(), stop.clone(), handler.clone());
                let connection = HttpConnection { config, stop, handler, tls: tls.clone(), peer };
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
    let drained = timeout(config.drain, async { while open.join_next().await.is_some() {} }).await;
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
struct HttpConnection<H> {
    config: Arc<HttpConfig>,
    stop: CancellationToken,
    handler: H,
    tls: Option<TlsAcceptor>,
    peer: SocketAddr,
}

impl<H: RequestHandler> HttpConnection<H> {
    async fn run(self, stream: TcpStream, _permit: ConnectionPermit) {
        // A response is one small write: Nagle's algorithm would only delay it.
        let _ = stream.set_nodelay(true);
        let Ok(local) = stream.local_addr() else { return };
        let arrival = Arrival { peer: PeerAddress(self.peer), local: local.ip() };
        let stop = self.stop.clone();
        let phases = PhaseTracker::new(&self.config);
        match &self.tls {
            None => {
                let first_bytes = tokio::select! {
                    first_bytes = peek_protocol(&stream, &self.config) => first_bytes,
                    () = stop.cancelled() => return,
                };
                match first_bytes {
                    FirstBytes::Http => {
                        phases.head_started();
                        let (socket, probe) = SharedSocket::with_probe(stream);
                        self.serve_requests(socket, &probe, arrival, phases).await;
                    }
                    FirstBytes::Resp => drop(stream.try_write(WRONG_PORT)),
                    FirstBytes::Nothing => {}
                }
            }
            Some(tls) => {
                let (socket, probe) = SharedSocket::with_probe(stream);
                let handshake = tokio::select! {
                    handshake = timeout(self.config.header, tls.accept(socket)) => handshake,
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
        let stream_with_timeouts = TimeoutStream::new(stream, phases.clone(), self.config.write_stall);
        let service = service_fn(|request: Request<Incoming>| {
            phases.request_started();
            let (handler, phases) = (self.handler.clone(), phases.clone());
            async move {
                let response = handler.handle_request(arrival, &phases, request).await;
                Ok::<_, Infallible>(response.map(|body| TrackedBody::new(body, phases)))
            }
        });
        let connection = http1::Builder::new()
            .header_read_timeout(None) // ours is in `io`: hyper's would also end idle connections
            .max_buf_size(self.config.header_bytes.max(8192))
            .serve_connection(TokioIo::new(stream_with_timeouts), service)
            .with_upgrades();
        let mut connection = std::pin::pin!(connection);
        // Declared after the connection, so dropped before it, even by a panic.
        let _closed_first = CloseGuard::new(phases.clone());
        let ended = tokio::select! {
            // `stop` first: a response sent after it says `Connection: close`.
            biased;
            () = self.stop.cancelled() => {
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
        if let Some(mut tunnel) = phases.take_tunnel() {
            tokio::select! {
                _ = &mut tunnel => {}
                () = self.stop.cancelled() => tunnel.abort(),
            }
        }
    }
}

/// The routes of the server.
#[derive(Clone)]
struct RoutedApp {
    app: App,
    router: Router,
}

impl RequestHandler for RoutedApp {
    async fn handle_request(
        &self,
        arrival: Arrival,
        _: &Arc<PhaseTracker>,
        mut request: Request<Incoming>,
    ) -> Response<Body> {
        let method = request.method().clone();
        let is_api = guard::is_api(request.uri().path());
        let response = match guard::check_request(&self.app.config, arrival, &request) {
            Err(problem) => problem.response(),
            Ok(()) => {
                request.extensions_mut().insert(arrival);
                let Ok(response) = self.router.clone().call(request.map(Body::new)).await;
                response
            }
        };
        // Neither path nor query is logged: names are private, and clients put secrets where they do not belong.
        tracing::debug!(target: "leasehold::http", peer = %arrival.peer, %method, status = response.status().as_u16());
        guard::set_security_headers(response, is_api)
    }
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
