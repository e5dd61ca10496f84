//! A real HTTP service that records what reaches it, in order. Its record is what the gate is judged by.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use crate::common::wait_until;

/// One request as the upstream saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub id: u64,
    pub path: String,
    pub token: u64,
    pub resources: Vec<String>,
}

/// What happened, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The head came.
    Began(Seen),
    /// The whole body came.
    Whole(u64),
    /// The body broke off.
    Broken(u64),
    /// It is answered: its effect is complete.
    Answered(u64),
    /// The connection was closed before it was answered.
    Gone(u64),
}

#[derive(Default)]
struct Shared {
    entries: Mutex<Vec<Entry>>,
    headers: Mutex<Vec<HeaderMap>>,
    last_id: AtomicU64,
    connections: AtomicU64,
    holds: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// The service, until it is dropped.
pub struct Upstream {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Upstream {
    pub fn start() -> Self {
        Self::start_with(None)
    }

    pub fn start_with(tls: Option<TlsAcceptor>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = listener.local_addr().expect("bound");
        let shared = Arc::new(Shared::default());
        runtime.spawn(accept(listener, shared.clone(), tls));
        Self { address, shared, runtime: Some(runtime) }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn entries(&self) -> Vec<Entry> {
        self.shared.entries.lock().unwrap().clone()
    }

    /// The requests in the order in which they came.
    pub fn began(&self) -> Vec<Seen> {
        let began = |entry| if let Entry::Began(seen) = entry { Some(seen) } else { None };
        self.entries().into_iter().filter_map(began).collect()
    }

    pub fn headers_of(&self, at: usize) -> HeaderMap {
        self.shared.headers.lock().unwrap()[at].clone()
    }

    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Lets the request on `/hold/NAME` be answered, now or when it comes.
    pub fn release(&self, name: &str) {
        hold_of(&self.shared, name).add_permits(1);
    }

    #[track_caller]
    pub fn wait_for(&self, what: &str, seen: impl Fn(&[Entry]) -> bool) {
        wait_until(what, || seen(&self.entries()));
    }

    /// Waits until this many requests began.
    #[track_caller]
    pub fn wait_for_began(&self, count: usize) {
        wait_until(&format!("{count} requests reached the upstream"), || self.began().len() >= count);
    }

    /// Whether the record keeps the order: no lower token after a higher one, and never two tokens at a time.
    pub fn judge(&self) -> Result<usize, String> {
        judge(&self.entries())
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// See [`Upstream::judge`]. A request whose connection was closed is no longer there.
pub fn judge(entries: &[Entry]) -> Result<usize, String> {
    let mut highest: HashMap<&str, u64> = HashMap::new();
    let mut open: HashMap<u64, &Seen> = HashMap::new();
    let mut fenced = 0;
    for entry in entries {
        match entry {
            Entry::Began(seen) if seen.token > 0 => {
                fenced += 1;
                for resource in &seen.resources {
                    let highest = highest.entry(resource).or_default();
                    if seen.token < *highest {
                        return Err(format!("older after newer: {seen:?} after token {highest}"));
                    }
                    *highest = seen.token;
                    let beside =
                        open.values().find(|other| other.token != seen.token && other.resources.contains(resource));
                    if let Some(other) = beside {
                        return Err(format!("overlap: {seen:?} beside {other:?}"));
                    }
                }
                open.insert(seen.id, seen);
            }
            Entry::Answered(id) | Entry::Gone(id) => drop(open.remove(id)),
            Entry::Began(_) | Entry::Whole(_) | Entry::Broken(_) => {}
        }
    }
    Ok(fenced)
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, tls: Option<TlsAcceptor>) {
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        shared.connections.fetch_add(1, Ordering::SeqCst);
        let (shared, tls) = (shared.clone(), tls.clone());
        tokio::spawn(async move {
            match tls {
                None => serve(stream, shared).await,
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        serve(stream, shared).await;
                    }
                }
            }
        });
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, shared: Arc<Shared>) {
    let service = service_fn(|request| answer(request, shared.clone()));
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service).with_upgrades();
    // `/die` closes its connection without an answer: the handler fails.
    let _ = connection.await;
}

/// Records the end of a request, whichever comes first.
struct Tracked {
    id: u64,
    shared: Arc<Shared>,
    answered: bool,
}

impl Tracked {
    fn push(&self, entry: Entry) {
        self.shared.entries.lock().unwrap().push(entry);
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.push(if self.answered { Entry::Answered(self.id) } else { Entry::Gone(self.id) });
    }
}

fn seen_of(id: u64, request: &Request<Incoming>) -> Seen {
    let text = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let resources = request.headers().get_all("fencing-resource").iter();
    Seen {
        id,
        path: request.uri().to_string(),
        token: text("fencing-token").parse().unwrap_or_default(),
        resources: resources.map(|value| value.to_str().unwrap_or_default().to_owned()).collect(),
    }
}

async fn answer(mut request: Request<Incoming>, shared: Arc<Shared>) -> std::io::Result<Response<Body>> {
    let id = shared.last_id.fetch_add(1, Ordering::SeqCst) + 1;
    let seen = seen_of(id, &request);
    shared.headers.lock().unwrap().push(request.headers().clone());
    shared.entries.lock().unwrap().push(Entry::Began(seen.clone()));
    let mut tracked = Tracked { id, shared: shared.clone(), answered: false };
    let mut parts = seen.path.trim_start_matches('/').splitn(2, '/');
    let (verb, argument) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    if verb == "echo" {
        // Streams: the first bytes go back before the last ones came.
        tracked.answered = true;
        let body = request.into_body();
        return Ok(Response::new(Body::new(Kept { body, _tracked: tracked })));
    }
    if verb == "chat" {
        tracked.answered = true;
        return Ok(take_over(&mut request));
    }
    if verb == "early" {
        tracked.answered = true;
        return Ok(Response::new(Body::from("early")));
    }
    match request.into_body().collect().await {
        Ok(body) => {
            tracked.push(Entry::Whole(id));
            let length = body.to_bytes().len();
            act(verb, argument, &shared).await;
            tracked.answered = verb != "die";
            if verb == "die" {
                return Err(std::io::Error::other("closes its connection"));
            }
            Ok(Response::new(Body::from(format!("{length} bytes"))))
        }
        Err(_) => {
            tracked.push(Entry::Broken(id));
            Ok(Response::new(Body::from("broken")))
        }
    }
}

/// Agrees to an upgrade, and says everything back.
fn take_over(request: &mut Request<Incoming>) -> Response<Body> {
    let upgrade = hyper::upgrade::on(request);
    tokio::spawn(async move {
        if let Ok(stream) = upgrade.await {
            let (mut reader, mut writer) = tokio::io::split(TokioIo::new(stream));
            let _ = tokio::io::copy(&mut reader, &mut writer).await;
        }
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = hyper::StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert("connection", "upgrade".parse().unwrap());
    response.headers_mut().insert("upgrade", "echo".parse().unwrap());
    response
}

async fn act(verb: &str, argument: &str, shared: &Shared) {
    match verb {
        "slow" => {
            tokio::time::sleep_until(
                tokio::time::Instant::now() + Duration::from_millis(argument.parse().unwrap_or_default()),
            )
            .await
        }
        "hold" => hold_of(shared, argument).acquire().await.expect("never closed").forget(),
        _ => {}
    }
}

fn hold_of(shared: &Shared, name: &str) -> Arc<Semaphore> {
    shared.holds.lock().unwrap().entry(name.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(0))).clone()
}

/// A body that keeps its request open until it ended.
struct Kept {
    body: Incoming,
    _tracked: Tracked,
}

impl hyper::body::Body for Kept {
    type Data = axum::body::Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Self::Data>, Self::Error>>> {
        std::pin::Pin::new(&mut self.body).poll_frame(cx)
    }
}

/// Goal: the judge sees what it is there for.
#[test]
fn the_judge_sees_disorder() {
    let began = |id, token| Entry::Began(Seen { id, path: "/".into(), token, resources: vec!["a".into()] });
    assert_eq!(judge(&[began(1, 5), Entry::Answered(1), began(2, 5), began(3, 5)]), Ok(3));
    let older = judge(&[began(1, 6), Entry::Answered(1), began(2, 5)]);
    assert!(older.unwrap_err().starts_with("older after newer"));
    assert!(judge(&[began(1, 5), began(2, 6)]).unwrap_err().starts_with("overlap"));
    assert_eq!(judge(&[began(1, 5), Entry::Gone(1), began(2, 6)]), Ok(2));
}
