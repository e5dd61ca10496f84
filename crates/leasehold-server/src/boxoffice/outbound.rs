//! Outgoing HTTP requests: webhooks, requests to the payment provider, callbacks of the demo provider.
//!
//! # Laws
//!
//! 1. A name is resolved once, each of its addresses must be allowed, and the connection goes to one of them.
//! 2. Redirects are not followed, every request has a timeout, and at most [`MAX_RESPONSE_BYTES`] of a response are
//!    read.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http_body_util::{BodyExt, Limited};
use hyper::client::conn::http1;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use leasehold_boxoffice::webhook::guard::{TargetGuard, TargetRefused, WebhookTarget};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// For the whole request, from the name lookup to the last byte of the response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a response body.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;

/// A client for outgoing requests.
pub struct Outbound {
    guard: TargetGuard,
    tls: TlsConnector,
}

/// Why a request failed. No variant shows the URL: its path may contain a secret.
#[derive(Debug, thiserror::Error)]
pub enum OutboundError {
    /// The target is not allowed.
    #[error("{0}")]
    Refused(#[source] TargetRefused),
    /// The connection failed or broke off.
    #[error("the receiver could not be reached: {0}")]
    Broken(String),
    /// The timeout passed.
    #[error("the receiver did not answer within {} s", REQUEST_TIMEOUT.as_secs())]
    Slow,
}

/// The response.
#[derive(Debug)]
pub struct OutboundResponse {
    /// The status.
    pub status: u16,
    /// The body; empty if it was too long.
    pub body: Vec<u8>,
}

impl OutboundResponse {
    /// Whether the status is 2xx.
    pub const fn is_success(&self) -> bool {
        self.status >= 200 && self.status < 300
    }
}

impl Outbound {
    /// A client that connects where the guard allows it.
    ///
    /// # Errors
    ///
    /// TLS cannot be set up.
    pub fn new(guard: TargetGuard) -> anyhow::Result<Arc<Self>> {
        Ok(Arc::new(Self { guard, tls: TlsConnector::from(leasehold_support::tls::client_config()?) }))
    }

    /// The rules for targets.
    pub const fn guard(&self) -> TargetGuard {
        self.guard
    }

    /// Posts JSON.
    ///
    /// # Errors
    ///
    /// The request failed.
    pub async fn post(
        &self,
        url: &str,
        headers: &[(&'static str, &str)],
        body: Vec<u8>,
    ) -> Result<OutboundResponse, OutboundError> {
        self.send(Method::POST, url, headers, body).await
    }

    /// Gets.
    ///
    /// # Errors
    ///
    /// The request failed.
    pub async fn get(&self, url: &str, headers: &[(&'static str, &str)]) -> Result<OutboundResponse, OutboundError> {
        self.send(Method::GET, url, headers, Vec::new()).await
    }

    async fn send(
        &self,
        method: Method,
        url: &str,
        headers: &[(&'static str, &str)],
        body: Vec<u8>,
    ) -> Result<OutboundResponse, OutboundError> {
        let target = self.guard.target(url).map_err(OutboundError::Refused)?;
        let request = build_request(method, &target, headers, body)?;
        timeout(REQUEST_TIMEOUT, self.connect_and_exchange(&target, request)).await.unwrap_or(Err(OutboundError::Slow))
    }

    async fn connect_and_exchange(
        &self,
        target: &WebhookTarget,
        request: Request<Body>,
    ) -> Result<OutboundResponse, OutboundError> {
        let stream = self.connect(target).await?;
        let _ = stream.set_nodelay(true);
        if !target.tls {
            return exchange_http(stream, request).await;
        }
        let name =
            ServerName::try_from(target.host.clone()).map_err(|_| broken_error("its name is no name for TLS"))?;
        let stream = self.tls.connect(name, stream).await.map_err(|error| broken_error(error.to_string()))?;
        exchange_http(stream, request).await
    }

    async fn connect(&self, target: &WebhookTarget) -> Result<TcpStream, OutboundError> {
        let found = tokio::net::lookup_host((target.host.as_str(), target.port)).await.map_err(connect_error)?;
        let found: Vec<SocketAddr> = found.collect();
        // One address that is not allowed refuses the whole name: it may be a rebinding attack.
        if found.iter().any(|address| !self.guard.allows(address.ip())) {
            return Err(OutboundError::Refused(TargetRefused::Private));
        }
        let mut last = broken_error("its name stands for no address");
        for address in found {
            match TcpStream::connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = connect_error(error),
            }
        }
        Err(last)
    }
}

fn broken_error(why: impl Into<String>) -> OutboundError {
    OutboundError::Broken(why.into())
}

fn connect_error(error: io::Error) -> OutboundError {
    OutboundError::Broken(error.kind().to_string())
}

fn build_request(
    method: Method,
    target: &WebhookTarget,
    headers: &[(&'static str, &str)],
    body: Vec<u8>,
) -> Result<Request<Body>, OutboundError> {
    let value = |text: &str| HeaderValue::from_str(text).map_err(|_| broken_error("a header cannot be written"));
    let length = body.len();
    let mut request = Request::new(Body::from(body));
    *request.method_mut() = method;
    *request.uri_mut() = target.path.parse().map_err(|_| broken_error("its path cannot be written"))?;
    // As in the URL: IPv6 in brackets, the port only where it is not the default.
    let host = target.url.host_str().unwrap_or_default();
    let host = target.url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
    let fields = request.headers_mut();
    fields.insert(header::HOST, value(&host)?);
    fields.insert(header::USER_AGENT, HeaderValue::from_static(concat!("leasehold/", env!("CARGO_PKG_VERSION"))));
    fields.insert(header::CONNECTION, HeaderValue::from_static("close"));
    if length > 0 {
        fields.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    for (name, text) in headers {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| broken_error("a header cannot be named"))?;
        fields.insert(name, value(text)?);
    }
    Ok(request)
}

async fn exchange_http(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Body>,
) -> Result<OutboundResponse, OutboundError> {
    let broken_by = |error: hyper::Error| broken_error(error.to_string());
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken_by)?;
    let talk = async {
        let response = sender.send_request(request).await.map_err(broken_by)?;
        let status = response.status().as_u16();
        // A body over the limit is not read: the status is enough.
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await;
        Ok(OutboundResponse { status, body: body.map(|body| body.to_bytes().into()).unwrap_or_default() })
    };
    tokio::pin!(talk);
    tokio::select! {
        answer = &mut talk => answer,
        // The connection may end together with the response.
        _ = connection => talk.await,
    }
}
