//! The upstream: where it is, and connections to it, kept alive between requests.
//!
//! # Laws
//!
//! 1. A connection is used again only after a whole answer to a whole request.
//! 2. Nothing is sent twice: a connection that broke is no reason for another try.
//! 3. Of the URL only the host is shown in errors and logs.
//! 4. When a connection is closed in the middle of a request, what the kernel has not sent is thrown away and the upstream
//!    sees a reset, even if the gate is killed. Otherwise an upstream that reads slowly would get the rest of an older
//!    request after a newer one.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::HeaderValue;
use hyper::http::uri::PathAndQuery;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use leasehold_support::sync::lock;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use super::body::RequestBody;
use crate::http::SharedSocket;

/// For name lookup, connection and TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections that stay open without a request.
const MAX_IDLE_CONNECTIONS: usize = 256;
/// Common servers close an idle connection after five seconds. A request that meets the close fails, and is not repeated.
const MAX_IDLE_TIME: Duration = Duration::from_secs(4);
/// A dead host is noticed after about this long without a packet: requests without an answer end with it.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);

/// Where requests go.
pub struct Upstream {
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    /// The Host header.
    host_header: HeaderValue,
    /// Before the path of each request; without a slash at its end.
    base_path: String,
    idle: Mutex<Vec<(Instant, UpstreamConnection)>>,
}

/// One connection. Its task reads and writes; aborting the task closes the socket.
pub struct UpstreamConnection {
    /// For requests.
    pub sender: SendRequest<RequestBody>,
    task: JoinHandle<()>,
    /// The task has the only strong reference: aborting it closes the socket.
    socket: Weak<Mutex<TcpStream>>,
    /// hyper has bytes that the socket did not take yet.
    unsent: Arc<AtomicBool>,
}

/// Closes a connection from elsewhere.
#[derive(Debug)]
pub struct CloseHandle(AbortHandle);

impl CloseHandle {
    /// Closes it.
    pub fn close_now(&self) {
        self.0.abort();
    }
}

impl Upstream {
    /// Reads `http://host:port/path` or `https://…`. Nothing is connected yet.
    ///
    /// # Errors
    ///
    /// A sentence without the URL: it may have a password in it.
    pub fn parse(url: &str) -> Result<Self, String> {
        let url = url::Url::parse(url).map_err(|error| format!("--upstream is no URL: {error}"))?;
        let secure = match url.scheme() {
            "http" => false,
            "https" => true,
            _ => return Err("--upstream begins with http:// or https://".into()),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err("--upstream has no credentials: requests bring their own".into());
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err("--upstream has no query and no fragment".into());
        }
        let shown_host = url.host_str().filter(|host| !host.is_empty()).ok_or("--upstream names a host")?;
        let host = shown_host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let authority = url.port().map_or_else(|| shown_host.to_owned(), |port| format!("{shown_host}:{port}"));
        let host_header = HeaderValue::from_str(&authority).map_err(|_| "the host of --upstream is no host")?;
        let tls = secure.then(|| tls_connector(&host)).transpose()?;
        let port = url.port_or_known_default().ok_or("--upstream names a port")?;
        let base_path = url.path().trim_end_matches('/').to_owned();
        Ok(Self { host, port, tls, host_header, base_path, idle: Mutex::default() })
    }

    /// The same upstream, with idle connections of its own.
    pub fn with_own_connections(&self) -> Self {
        Self {
            host: self.host.clone(),
            port: self.port,
            tls: self.tls.clone(),
            host_header: self.host_header.clone(),
            base_path: self.base_path.clone(),
            idle: Mutex::default(),
        }
    }

    /// The host and port, for people.
    pub fn authority(&self) -> &str {
        self.host_header.to_str().unwrap_or_default()
    }

    /// The Host header of requests.
    pub const fn host_header(&self) -> &HeaderValue {
        &self.host_header
    }

    /// The target of a request, under the path of the upstream.
    pub fn target_of(&self, asked: Option<&PathAndQuery>) -> Option<PathAndQuery> {
        let asked = asked.map_or("/", PathAndQuery::as_str);
        if self.base_path.is_empty() || asked == "*" {
            return asked.parse().ok();
        }
        format!("{}{asked}", self.base_path).parse().ok()
    }

    /// A connection that is ready for a request: an idle one, or a new one.
    ///
    /// # Errors
    ///
    /// No connection could be made. Nothing was sent.
    pub async fn connect(&self) -> io::Result<UpstreamConnection> {
        while let Some(mut connection) = self.take_idle() {
            // It waits only for the last bytes of the answer before to be noticed.
            if connection.sender.ready().await.is_ok() {
                return Ok(connection);
            }
        }
        timeout(CONNECT_TIMEOUT, self.connect_new())
            .await
            .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no connection in time")))
    }

    /// Keeps a connection for the next request. Only after a whole answer to a whole request.
    pub fn keep_idle(&self, connection: UpstreamConnection) {
        if connection.sender.is_closed() {
            return;
        }
        let mut idle = lock(&self.idle);
        if idle.len() < MAX_IDLE_CONNECTIONS {
            idle.push((Instant::now(), connection));
        } else {
            connection.close_in_order();
        }
    }

    /// The one that was used last: others may close when they are not needed.
    fn take_idle(&self) -> Option<UpstreamConnection> {
        let mut idle = lock(&self.idle);
        loop {
            let (since, connection) = idle.pop()?;
            if since.elapsed() > MAX_IDLE_TIME {
                connection.close_in_order();
                // All that are left are older.
                idle.drain(..).for_each(|(_, connection)| connection.close_in_order());
                return None;
            }
            if !connection.sender.is_closed() {
                return Some(connection);
            }
        }
    }

    async fn connect_new(&self) -> io::Result<UpstreamConnection> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        let _ = stream.set_nodelay(true);
        // Law 4. On the socket from the beginning: a gate that is killed cannot do it at the end.
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
        let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
        let _ = rustix::net::sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE);
        let stream = Arc::new(Mutex::new(stream));
        let weak = Arc::downgrade(&stream);
        let stream = SharedSocket::new(stream);
        match &self.tls {
            None => start_connection(TokioIo::new(stream), weak).await,
            Some((connector, name)) => {
                start_connection(TokioIo::new(connector.connect(name.clone(), stream).await?), weak).await
            }
        }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        lock(&self.idle).drain(..).for_each(|(_, connection)| connection.close_in_order());
    }
}

impl UpstreamConnection {
    /// Closes it from elsewhere.
    pub fn close_handle(&self) -> CloseHandle {
        CloseHandle(self.task.abort_handle())
    }

    /// Whether a part of the request was handed over and is not with the kernel yet. An upstream that answers before it
    /// read the request leaves such bytes behind.
    pub fn has_unsent_bytes(&self) -> bool {
        self.unsent.load(Ordering::Acquire)
    }

    /// From here on its end is an end in good order, not a reset: there is no request on it, or it is a tunnel.
    pub fn end_in_order(&self) {
        if let Some(socket) = self.socket.upgrade() {
            let _ = rustix::net::sockopt::set_socket_linger(&*lock(&socket), None);
        }
    }

    /// Closes it while it is idle.
    fn close_in_order(self) {
        self.end_in_order();
    }

    /// Closes it. When this returns, no byte leaves any more.
    pub async fn close(self) {
        self.close_handle().close_now();
        let _ = self.task.await;
    }
}

/// A stream that knows whether hyper has bytes left to write: hyper flushes when it has none.
struct FlushTracker<S> {
    stream: S,
    unsent: Arc<AtomicBool>,
}

impl<S: Read + Unpin> Read for FlushTracker<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: Write + Unpin> Write for FlushTracker<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.unsent.store(true, Ordering::Release);
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.unsent.store(true, Ordering::Release);
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            self.unsent.store(false, Ordering::Release);
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

async fn start_connection(
    stream: impl Read + Write + Unpin + Send + 'static,
    socket: Weak<Mutex<TcpStream>>,
) -> io::Result<UpstreamConnection> {
    let unsent = Arc::new(AtomicBool::new(false));
    let stream = FlushTracker { stream, unsent: unsent.clone() };
    let (sender, connection) = http1::handshake(stream).await.map_err(io::Error::other)?;
    let task = tokio::spawn(async move {
        // Whoever waits for an answer learns of the error there.
        let _ = connection.with_upgrades().await;
    });
    Ok(UpstreamConnection { sender, task, socket, unsent })
}

fn tls_connector(host: &str) -> Result<(TlsConnector, ServerName<'static>), String> {
    let name = ServerName::try_from(host.to_owned()).map_err(|_| "the host of --upstream is no name for TLS")?;
    let config = leasehold_support::tls::client_config().map_err(|error| format!("TLS cannot be set up: {error:#}"))?;
    let mut config = Arc::unwrap_or_clone(config);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok((TlsConnector::from(Arc::new(config)), name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: requests go under the path of the upstream, and nothing of the URL is lost or shown.
    #[test]
    fn targets_are_under_the_path_of_the_upstream() {
        let target = |upstream: &str, asked: &str| {
            let upstream = Upstream::parse(upstream).unwrap();
            upstream.target_of(Some(&asked.parse().unwrap())).unwrap().to_string()
        };
        assert_eq!(target("http://a.example:81", "/x?y=1"), "/x?y=1");
        assert_eq!(target("http://a.example/base/", "/x?y=1"), "/base/x?y=1");
        assert_eq!(target("http://a.example/base", "*"), "*");
        let upstream = Upstream::parse("http://[::1]:81/secret").unwrap();
        assert_eq!((upstream.authority(), upstream.host.as_str(), upstream.port), ("[::1]:81", "::1", 81));
        for (url, part) in [
            ("ftp://a", "http://"),
            ("a.example", "URL"),
            ("http://u:hunter2@a", "credentials"),
            ("http://a/?q=hunter2", "query"),
        ] {
            let sentence = Upstream::parse(url).err().unwrap();
            assert!(sentence.contains(part) && !sentence.contains("hunter2"), "{sentence}");
        }
    }
}
