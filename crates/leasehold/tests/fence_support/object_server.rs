//! A small object store that speaks like S3 over HTTP: GET, HEAD, PUT and DELETE, `If-Match`, `If-None-Match`, ETags and
//! `x-amz-meta-…`. It can lie, be slow, and lose answers.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// How the store behaves.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreHabits {
    /// ETags are numbers that rise; otherwise hashes of the body, as those of S3.
    pub unique_etags: bool,
    /// `If-Match` is not looked at.
    pub ignores_if_match: bool,
    /// `If-None-Match` is not looked at.
    pub ignores_if_none_match: bool,
    /// `If-Match` is looked at only where there is an object.
    pub creates_on_if_match: bool,
    /// `x-amz-meta-…` are dropped.
    pub loses_metadata: bool,
    /// An overwrite keeps the metadata of the first write.
    pub keeps_old_metadata: bool,
    /// One answer to a PUT in so many is lost, before or after it took effect.
    pub loses_one_in: u64,
    /// Requests take up to so many milliseconds.
    pub slow_ms: u64,
}

#[derive(Clone, Debug)]
struct KeptObject {
    etag: String,
    metadata: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// A store that listens on a free port until it is dropped.
pub struct ObjectServer {
    port: u16,
    state: Arc<ServerState>,
    accepting: tokio::task::JoinHandle<()>,
}

struct ServerState {
    habits: StoreHabits,
    objects: Mutex<HashMap<String, KeptObject>>,
    requests: AtomicU64,
    etags: AtomicU64,
}

struct Request {
    method: String,
    key: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

struct Response {
    status: &'static str,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Drop for ObjectServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl ObjectServer {
    pub async fn start(habits: StoreHabits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let state = Arc::new(ServerState {
            habits,
            objects: Mutex::default(),
            requests: AtomicU64::new(0),
            etags: AtomicU64::new(0),
        });
        let shared = state.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(shared.clone(), socket));
            }
        });
        Self { port, state, accepting }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The keys there are.
    pub fn keys(&self) -> Vec<String> {
        self.state.objects.lock().unwrap().keys().cloned().collect()
    }

    /// The bytes of an object, as a reader without the fence sees them.
    pub fn bytes(&self, key: &str) -> Option<Vec<u8>> {
        self.state.objects.lock().unwrap().get(key).map(|object| object.body.clone())
    }
}

async fn serve(state: Arc<ServerState>, socket: TcpStream) {
    let mut socket = BufReader::new(socket);
    while let Some(request) = read_request(&mut socket).await {
        let number = state.requests.fetch_add(1, Ordering::Relaxed);
        let chance = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        if state.habits.slow_ms > 0 {
            tokio::time::sleep(Duration::from_millis(chance % (state.habits.slow_ms + 1))).await;
        }
        let losing = request.method == "PUT"
            && state.habits.loses_one_in > 0
            && chance.is_multiple_of(state.habits.loses_one_in);
        if losing && chance & 1024 == 0 {
            return;
        }
        let response = state.answer(request);
        if losing {
            return;
        }
        let mut text = format!("HTTP/1.1 {}\r\n", response.status);
        for (name, value) in &response.headers {
            text += &format!("{name}: {value}\r\n");
        }
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(&response.body);
        if socket.get_mut().write_all(&bytes).await.is_err() {
            return;
        }
    }
}

async fn read_request(socket: &mut BufReader<TcpStream>) -> Option<Request> {
    let first = read_line(socket).await?;
    let mut words = first.split(' ');
    let (method, key) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let line = read_line(socket).await?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(": ")?;
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").map_or(Some(0), |text| text.parse().ok())?;
    let mut body = vec![0; length];
    socket.read_exact(&mut body).await.ok()?;
    Some(Request { method, key, headers, body })
}

async fn read_line(socket: &mut BufReader<TcpStream>) -> Option<String> {
    let mut line = String::new();
    let count = socket.read_line(&mut line).await.ok()?;
    (count > 0).then(|| line.trim_end().to_owned())
}

impl ServerState {
    fn answer(&self, request: Request) -> Response {
        let mut objects = self.objects.lock().unwrap();
        match request.method.as_str() {
            "GET" | "HEAD" => match objects.get(&request.key) {
                None => Response::plain("404 Not Found"),
                Some(object) => {
                    let mut headers = vec![("ETag".to_owned(), object.etag.clone())];
                    let meta = object.metadata.iter();
                    headers.extend(meta.map(|(name, value)| (format!("x-amz-meta-{name}"), value.clone())));
                    headers.push(("Content-Length".into(), object.body.len().to_string()));
                    let body = if request.method == "GET" { object.body.clone() } else { Vec::new() };
                    Response { status: "200 OK", headers, body }
                }
            },
            "PUT" => self.put(&mut objects, request),
            "DELETE" => {
                objects.remove(&request.key);
                Response::plain("204 No Content")
            }
            _ => Response::plain("400 Bad Request"),
        }
    }

    fn put(&self, objects: &mut HashMap<String, KeptObject>, request: Request) -> Response {
        let there = objects.get(&request.key);
        if let Some(wanted) = request.headers.get("if-match").filter(|_| !self.habits.ignores_if_match) {
            match there {
                None if !self.habits.creates_on_if_match => return Response::plain("404 Not Found"),
                Some(object) if object.etag != *wanted => return Response::plain("412 Precondition Failed"),
                _ => {}
            }
        }
        if request.headers.contains_key("if-none-match") && !self.habits.ignores_if_none_match && there.is_some() {
            return Response::plain("412 Precondition Failed");
        }
        let etag = if self.habits.unique_etags {
            format!("\"{:032}\"", self.etags.fetch_add(1, Ordering::Relaxed) + 1)
        } else {
            let digest = Sha256::digest(&request.body);
            format!("\"{}\"", digest[..16].iter().map(|byte| format!("{byte:02x}")).collect::<String>())
        };
        let named = |(name, value): (&String, &String)| {
            name.strip_prefix("x-amz-meta-").map(|name| (name.to_owned(), value.clone()))
        };
        let metadata = match there {
            _ if self.habits.loses_metadata => BTreeMap::new(),
            Some(object) if self.habits.keeps_old_metadata => object.metadata.clone(),
            _ => request.headers.iter().filter_map(named).collect(),
        };
        objects.insert(request.key, KeptObject { etag: etag.clone(), metadata, body: request.body });
        let headers = vec![("ETag".into(), etag), ("Content-Length".into(), "0".into())];
        Response { status: "200 OK", headers, body: Vec::new() }
    }
}

impl Response {
    fn plain(status: &'static str) -> Self {
        Self { status, headers: vec![("Content-Length".into(), "0".into())], body: Vec::new() }
    }
}
