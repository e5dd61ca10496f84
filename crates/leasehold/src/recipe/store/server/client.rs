//! A client of HTTP/1.1: some connections that are kept, and an error that says whether the request was sent.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;

use crate::clock::{Clock, Time, until};
use crate::engine::remote::{Connector, NoConnection, Options};
use crate::error::{BoxError, Error};

/// Connections that are kept while nobody uses them.
const MAX_IDLE_CONNECTIONS: usize = 8;
/// A connection that was idle for longer is not used again: the server may be about to close it.
const MAX_IDLE: Duration = Duration::from_secs(20);
/// The longest answer: as many jobs as one claim gives, each as long as may be.
const MAX_ANSWER_BYTES: usize = 80 << 20;

const CLOSED: &str = "the store was closed";

/// What came back.
#[derive(Debug)]
pub(super) struct ReceivedAnswer {
    pub status: u16,
    pub body: Vec<u8>,
}

/// Why nothing came back.
#[derive(Debug)]
pub(super) enum SendError {
    /// No byte of it was sent.
    NotSent(BoxError),
    /// It was sent, at least in part, and there is no answer.
    NoAnswer(BoxError),
    /// It can never be sent.
    Never(String),
}

type Sender = SendRequest<Full<Bytes>>;

/// A client of one server.
pub(super) struct HttpClient {
    connector: Connector,
    clock: Arc<dyn Clock>,
    host: HeaderValue,
    /// `Bearer KEY`; marked as a secret.
    key: Option<HeaderValue>,
    idle: Mutex<Vec<(Sender, Time)>>,
    closed: AtomicBool,
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient").field("at", &self.connector.options.at()).finish_non_exhaustive()
    }
}

impl HttpClient {
    /// A client; nothing is connected yet.
    ///
    /// # Errors
    ///
    /// Invalid for files that are no certificates, and for a key that no header can carry.
    pub fn new(options: Options, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let host = HeaderValue::from_str(&options.at());
        let host = host.map_err(|_| Error::Invalid("the host in the url fits into no header".into()))?;
        let bearer = |key: &String| {
            let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
                .map_err(|_| Error::Invalid("the key in the url fits into no header".into()))?;
            value.set_sensitive(true);
            Ok::<_, Error>(value)
        };
        let key = options.key.as_ref().map(bearer).transpose()?;
        let connector = Connector::new(options)?;
        Ok(Self { connector, clock, host, key, idle: Mutex::default(), closed: AtomicBool::new(false) })
    }

    /// Sends a request, and waits so long for its answer.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
        timeout: Duration,
    ) -> Result<ReceivedAnswer, SendError> {
        let mut request = self.request(method, path, body)?;
        let end = self.clock.now().plus(timeout);
        loop {
            if self.closed.load(Ordering::Relaxed) {
                return Err(SendError::NotSent(CLOSED.into()));
            }
            let (mut sender, kept) = match self.take_idle() {
                Some(sender) => (sender, true),
                None => (self.connect().await?, false),
            };
            let talk = async {
                let response = match sender.try_send_request(request).await {
                    Ok(response) => response,
                    // The connection ended before it was used: nothing of the request is on it.
                    Err(mut error) => match error.take_message() {
                        Some(unsent) => return Ok(Err((unsent, error.into_error()))),
                        None => return Err(SendError::NoAnswer(error.into_error().into())),
                    },
                };
                let status = response.status().as_u16();
                let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
                let body = body.map_err(SendError::NoAnswer)?.to_bytes().into();
                Ok(Ok(ReceivedAnswer { status, body }))
            };
            let late = || SendError::NoAnswer(io::Error::from(io::ErrorKind::TimedOut).into());
            match until(&*self.clock, end, talk).await.ok_or_else(late)?? {
                Ok(answer) => {
                    self.keep(sender);
                    return Ok(answer);
                }
                Err((unsent, _)) if kept => request = unsent,
                Err((_, error)) => return Err(SendError::NotSent(error.into())),
            }
        }
    }

    fn request(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Request<Full<Bytes>>, SendError> {
        let has_body = method == Method::POST;
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = method;
        let path = path.parse().map_err(|_| SendError::Never("the name fits into no path".into()))?;
        *request.uri_mut() = path;
        let headers = request.headers_mut();
        headers.insert(header::HOST, self.host.clone());
        headers.insert(header::USER_AGENT, HeaderValue::from_static(concat!("leasehold/", env!("CARGO_PKG_VERSION"))));
        if has_body {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(key) = &self.key {
            headers.insert(header::AUTHORIZATION, key.clone());
        }
        Ok(request)
    }

    async fn connect(&self) -> Result<Sender, SendError> {
        let stream = self.connector.dial_in_time(&self.clock).await.map_err(|error| match error {
            NoConnection::Away(away) => SendError::NotSent(Box::new(away)),
            NoConnection::Never(error) => SendError::Never(error.to_string()),
        })?;
        let hands = handshake(TokioIo::new(stream)).await;
        let (sender, connection) = hands.map_err(|error| SendError::NotSent(error.into()))?;
        // It ends with its sender, or with the server; whoever waits for an answer is told by the sender.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    fn take_idle(&self) -> Option<Sender> {
        let now = self.clock.now();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(sender, since)| !sender.is_closed() && now.since(*since) < MAX_IDLE);
        let ready = idle.iter().rposition(|(sender, _)| sender.is_ready())?;
        Some(idle.swap_remove(ready).0)
    }

    fn keep(&self, sender: Sender) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE_CONNECTIONS && !sender.is_closed() && !self.closed.load(Ordering::Relaxed) {
            idle.push((sender, self.clock.now()));
        }
    }

    /// Closes the connections that nobody uses; later requests are not sent.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
