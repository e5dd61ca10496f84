//! An HTTP client that hides nothing: one socket, bytes out, bytes in.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::PATIENCE;

/// One connection.
pub struct Client {
    pub socket: TcpStream,
    at: SocketAddr,
    read: Vec<u8>,
}

/// An answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Client {
    pub async fn connect(at: SocketAddr) -> Self {
        Self { socket: TcpStream::connect(at).await.unwrap(), at, read: Vec::new() }
    }

    /// Sends a request; a body goes as JSON.
    pub async fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&Value>) {
        let mut text = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            text.push_str(&format!("Host: {}\r\n", self.at));
        }
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(body) = body {
            let body = body.to_string();
            text.push_str(&format!("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
        } else {
            text.push_str("\r\n");
        }
        self.raw(text.as_bytes()).await;
    }

    pub async fn raw(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).await.unwrap();
    }

    pub async fn ask(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&Value>) -> Reply {
        self.send(method, path, headers, body).await;
        self.reply(method == "HEAD").await
    }

    /// Reads the next answer, whole.
    pub async fn reply(&mut self, head_only: bool) -> Reply {
        let (status, headers) = self.head().await;
        let find = |name: &str| headers.iter().find(|(field, _)| field == name).map(|(_, value)| value.clone());
        let body = if head_only || matches!(status, 204 | 304) {
            Vec::new()
        } else if let Some(length) = find("content-length") {
            self.exactly(length.parse().unwrap()).await
        } else {
            panic!("an answer whose length is not known: {headers:?}");
        };
        Reply { status, headers, body }
    }

    /// Reads the head of an answer.
    pub async fn head(&mut self) -> (u16, Vec<(String, String)>) {
        let head = self.until(b"\r\n\r\n").await;
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let fields = lines.filter_map(|line| line.split_once(": "));
        (status, fields.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect())
    }

    /// Reads one chunk of a stream; none at its end.
    pub async fn chunk(&mut self) -> Option<String> {
        let size = String::from_utf8(self.until(b"\r\n").await).unwrap();
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        let chunk = self.exactly(size + 2).await;
        (size > 0).then(|| String::from_utf8(chunk[..size].to_vec()).unwrap())
    }

    async fn until(&mut self, end: &[u8]) -> Vec<u8> {
        loop {
            if let Some(at) = self.read.windows(end.len()).position(|window| window == end) {
                return self.read.drain(..at + end.len()).collect();
            }
            assert!(self.more().await > 0, "closed too early after {:?}", String::from_utf8_lossy(&self.read));
        }
    }

    async fn exactly(&mut self, many: usize) -> Vec<u8> {
        while self.read.len() < many {
            assert!(self.more().await > 0, "closed too early");
        }
        self.read.drain(..many).collect()
    }

    async fn more(&mut self) -> usize {
        timeout(PATIENCE, self.socket.read_buf(&mut self.read)).await.expect("an answer").unwrap_or(0)
    }

    /// The status of the next answer; none if the server closes instead.
    pub async fn until_closed_or_head(&mut self) -> Option<u16> {
        while !self.read.windows(4).any(|window| window == b"\r\n\r\n") {
            if self.more().await == 0 {
                return None;
            }
        }
        Some(self.head().await.0)
    }

    /// Reads until the server closes; fails if it does not.
    pub async fn until_closed(mut self) -> String {
        while self.more().await > 0 {}
        String::from_utf8_lossy(&self.read).into_owned()
    }
}

impl Reply {
    /// Fails unless the status is this.
    #[track_caller]
    pub fn with(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        self
    }

    /// Fails unless this is a problem with this status and code; answers it.
    #[track_caller]
    pub fn problem(self, status: u16, code: &str) -> Value {
        let reply = self.with(status);
        assert_eq!(reply.header("content-type"), "application/problem+json");
        let body = reply.json();
        let shape = match code {
            "held" => "Held",
            "conflict" => "Conflict",
            "expired" => "Expired",
            "bad_layout" => "BadLayout",
            "in_flight" => "InFlight",
            _ => "Problem",
        };
        super::schema::holds(&body, shape);
        assert_eq!((body["status"].as_u64(), body["code"].as_str()), (Some(status.into()), Some(code)), "{body}");
        body
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("JSON, got {}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// A header; empty if there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(field, _)| field == name).map_or("", |(_, value)| value)
    }
}
