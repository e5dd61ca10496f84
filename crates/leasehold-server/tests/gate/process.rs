//! The real binary as a gate, and a client that speaks to it in bytes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::common::{Answer, PATIENCE, Site, end_of, signal, wait_until};

/// A gate that runs until it is asked to end, or dropped.
pub struct GateProcess {
    child: Option<Child>,
    pub address: SocketAddr,
    pub metrics: SocketAddr,
    err: PathBuf,
}

/// The command that starts a gate on free ports, its stderr in a file.
pub fn gate_command(site: &Site, upstream: &str, arguments: &[&str]) -> Command {
    let data = site.path("gate-data");
    let mut command = site.command(&["gate", "--upstream", upstream, "--data"]);
    command.arg(data).args(arguments).stdout(Stdio::null());
    for (option, address) in [("--listen", "127.0.0.1:0"), ("--metrics", "127.0.0.1:0")] {
        if !arguments.contains(&option) {
            command.args([option, address]);
        }
    }
    command.stderr(std::fs::File::create(site.path("stderr")).expect("a file for stderr"));
    command
}

impl GateProcess {
    #[track_caller]
    pub fn start(site: &Site, upstream: &str, arguments: &[&str]) -> Self {
        Self::spawn(site, &mut gate_command(site, upstream, arguments))
    }

    #[track_caller]
    pub fn spawn(site: &Site, command: &mut Command) -> Self {
        let mut child = command.spawn().expect("the binary starts");
        let err = site.path("stderr");
        let text = || std::fs::read_to_string(&err).unwrap_or_default();
        // The address after the first "://" of a line with this word.
        let said = |word: &str| {
            let text = text();
            let line = text.lines().find(|line| line.contains(word))?.to_owned();
            line.split("://").nth(1)?.split([' ', '/']).next()?.parse::<SocketAddr>().ok()
        };
        wait_until("the gate says where it listens", || {
            let ended = child.try_wait().expect("it is ours");
            assert!(ended.is_none(), "it ended with {ended:?}: {}", text());
            said("  metrics ").is_some()
        });
        let (address, metrics) = (said(" gate ").expect("said"), said("  metrics ").expect("said"));
        Self { child: Some(child), address, metrics, err }
    }

    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.err).expect("its stderr")
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Asks it to end, and waits.
    #[track_caller]
    pub fn stop(mut self) -> Answer {
        signal(self.pid(), Signal::TERM);
        let mut answer = end_of(self.child.take().expect("it runs"));
        answer.err = self.said();
        answer
    }

    /// Kills it at once, as a crash does.
    pub fn kill(mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().expect("it is ours");
        child.wait().expect("it ends");
    }

    pub fn connect(&self) -> HttpClient {
        HttpClient::connect(self.address)
    }

    /// One request of a lease on one resource, on a connection of its own.
    pub fn post(&self, path: &str, shown: &Shown<'_>) -> HttpAnswer {
        self.connect().post(path, shown, b"x")
    }

    /// The value of a sample on the page of metrics.
    #[track_caller]
    pub fn metric(&self, name: &str) -> f64 {
        let answer = HttpClient::connect(self.metrics).ask("GET", "/metrics", &[], b"");
        assert_eq!(answer.status, 200);
        let text = answer.text();
        let line = text.lines().find(|line| line.split(' ').next() == Some(name));
        line.and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or_else(|| panic!("no {name} in {text}"))
    }
}

impl Drop for GateProcess {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What a request shows.
#[derive(Clone, Debug)]
pub struct Shown<'a> {
    pub token: u64,
    pub mark: Option<&'a str>,
    pub resources: &'a [&'a str],
}

pub fn shown<'a>(token: u64, resources: &'a [&'a str]) -> Shown<'a> {
    Shown { token, mark: None, resources }
}

impl Shown<'_> {
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        let mut headers = vec![("Fencing-Token", self.token.to_string())];
        headers.extend(self.mark.map(|mark| ("Fencing-Lease", mark.to_owned())));
        headers.extend(self.resources.iter().map(|name| ("Fencing-Resource", (*name).to_owned())));
        headers
    }
}

/// What came back.
#[derive(Debug)]
pub struct HttpAnswer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl HttpAnswer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// The status and the code of the problem, empty without one.
    pub fn verdict(&self) -> (u16, String) {
        let code = serde_json::from_slice::<Value>(&self.body).ok();
        (self.status, code.and_then(|body| Some(body["code"].as_str()?.to_owned())).unwrap_or_default())
    }
}

/// One connection.
pub struct HttpClient {
    stream: BufReader<TcpStream>,
}

impl HttpClient {
    pub fn connect(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).expect("it listens"))
    }

    pub fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket takes a timeout");
        let _ = stream.set_nodelay(true);
        Self { stream: BufReader::new(stream) }
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).expect("it reads");
    }

    /// Sends the head of a request.
    pub fn begin(&mut self, method: &str, path: &str, headers: &[(&str, String)]) {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: gate.example\r\n");
        headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
        head.push_str("\r\n");
        self.write(head.as_bytes());
    }

    /// Sends a request and reads its answer.
    pub fn ask(&mut self, method: &str, path: &str, headers: &[(&str, String)], body: &[u8]) -> HttpAnswer {
        self.send(method, path, headers, body);
        self.read_answer().expect("it answers")
    }

    /// Sends a whole request.
    pub fn send(&mut self, method: &str, path: &str, headers: &[(&str, String)], body: &[u8]) {
        let mut headers = headers.to_vec();
        headers.push(("Content-Length", body.len().to_string()));
        self.begin(method, path, &headers);
        self.write(body);
    }

    pub fn post(&mut self, path: &str, shown: &Shown<'_>, body: &[u8]) -> HttpAnswer {
        self.ask("POST", path, &shown.headers(), body)
    }

    /// The next answer; none if the connection ended before it was whole.
    pub fn read_answer(&mut self) -> Option<HttpAnswer> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.stream.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let field = |name: &str| {
            let line = head.lines().find(|line| line.to_ascii_lowercase().starts_with(name))?;
            Some(line[name.len()..].trim().to_owned())
        };
        let body = if field("transfer-encoding:").is_some() {
            self.read_chunks()?
        } else {
            let mut body = vec![0; field("content-length:").and_then(|text| text.parse().ok()).unwrap_or(0)];
            self.stream.read_exact(&mut body).ok()?;
            body
        };
        Some(HttpAnswer { status, head, body })
    }

    fn read_chunks(&mut self) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let chunk = self.read_chunk()?;
            if chunk.is_empty() {
                return Some(body);
            }
            body.extend(chunk);
        }
    }

    /// One chunk of an answer; empty at its end.
    pub fn read_chunk(&mut self) -> Option<Vec<u8>> {
        let mut line = String::new();
        self.stream.read_line(&mut line).ok()?;
        let size = usize::from_str_radix(line.trim(), 16).ok()?;
        let mut chunk = vec![0; size + 2];
        self.stream.read_exact(&mut chunk).ok()?;
        chunk.truncate(size);
        Some(chunk)
    }

    /// One line of another protocol; empty at its end.
    pub fn read_line(&mut self) -> String {
        let mut line = String::new();
        let _ = self.stream.read_line(&mut line);
        line
    }

    /// The head of an answer alone.
    pub fn read_head(&mut self) -> String {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(self.stream.read_line(&mut head).expect("it answers") > 0, "it hung up: {head}");
        }
        head
    }
}

impl HttpClient {
    /// Sends bytes to a gate that may be dead.
    pub fn try_write(&mut self, bytes: &[u8]) -> bool {
        self.stream.get_mut().write_all(bytes).is_ok()
    }
}

impl HttpClient {
    /// The same connection once more, to read beside writing.
    pub fn second_handle(&self) -> Self {
        Self { stream: BufReader::new(self.stream.get_ref().try_clone().expect("a second handle")) }
    }
}

impl GateProcess {
    /// Waits for the end of a gate that was asked to end.
    #[track_caller]
    pub fn stop_quietly(mut self) -> Answer {
        let mut answer = end_of(self.child.take().expect("it runs"));
        answer.err = self.said();
        answer
    }
}

impl HttpClient {
    /// Its end is a reset, as when its machine is restarted: the gate learns it before it has read what was sent.
    pub fn reset_on_close(&self) {
        let none = Some(std::time::Duration::ZERO);
        rustix::net::sockopt::set_socket_linger(self.stream.get_ref(), none).expect("a socket takes the option");
    }

    /// Sends these bytes again and again until nothing more is taken.
    pub fn write_until_full(&mut self, bytes: &[u8]) {
        let stream = self.stream.get_mut();
        stream.set_write_timeout(Some(std::time::Duration::from_millis(500))).expect("a socket takes a timeout");
        while stream.write_all(bytes).is_ok() {}
    }
}
