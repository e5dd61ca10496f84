//! The real server on free ports and a directory of its own, and a client that speaks to it in bytes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use super::{Answer, PATIENCE, Site, end_of, signal, wait_until};

/// A server that runs until it is asked to end, or dropped.
pub struct Server {
    child: Option<Child>,
    /// Where HTTP listens.
    pub http: SocketAddr,
    /// Where RESP listens.
    pub resp: SocketAddr,
    err: PathBuf,
}

/// The command that starts a server on free ports, its stderr in a file.
pub fn serve(site: &Site, arguments: &[&str]) -> Command {
    let mut command = site.command(&["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"]);
    command.env("LEASEHOLD_DATA", site.path("data")).args(arguments).stdout(Stdio::null());
    command.stderr(std::fs::File::create(site.path("stderr")).expect("a file for stderr"));
    command
}

impl Server {
    /// Starts it and waits until it says where it listens.
    #[track_caller]
    pub fn start(site: &Site, arguments: &[&str]) -> Self {
        Self::spawn(site, &mut serve(site, arguments))
    }

    #[track_caller]
    pub fn spawn(site: &Site, command: &mut Command) -> Self {
        let mut child = command.spawn().expect("the binary starts");
        let err = site.path("stderr");
        let text = || std::fs::read_to_string(&err).unwrap_or_default();
        let said = |what: &str| {
            let text = text();
            let line = text.lines().find_map(|line| line.trim().strip_prefix(what).map(str::to_owned))?;
            let address = line.trim().rsplit("//").next()?.split_whitespace().next()?;
            address.parse().ok().filter(|_| text.contains("acquire seat-16"))
        };
        wait_until("the server says where it listens", || {
            let ended = child.try_wait().expect("it is ours");
            assert!(ended.is_none(), "it ended with {ended:?}: {}", text());
            said("resp  ").is_some()
        });
        let (http, resp) = (said("http  ").expect("said"), said("resp  ").expect("said"));
        Self { child: Some(child), http, resp, err }
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    pub fn signal(&self, what: Signal) {
        signal(self.pid(), what);
    }

    /// What it wrote to stderr so far.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.err).expect("its stderr")
    }

    /// Waits until it has written this.
    #[track_caller]
    pub fn wait_for(&self, part: &str) {
        wait_until(&format!("stderr has {part:?}"), || self.said().contains(part));
    }

    /// Waits for its end, and answers the code and all of stderr.
    #[track_caller]
    pub fn end(mut self) -> Answer {
        let mut answer = end_of(self.child.take().expect("it runs"));
        answer.err = self.said();
        answer
    }

    /// Asks it to end, and waits.
    #[track_caller]
    pub fn stop(self) -> Answer {
        self.signal(Signal::TERM);
        self.end()
    }

    pub fn connect(&self) -> Client {
        Client::over(TcpStream::connect(self.resp).expect("RESP listens"))
    }

    /// A request over a connection of its own; the status and everything after it.
    pub fn ask(&self, method: &str, path: &str, key: Option<&str>, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.http).expect("HTTP listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket takes a timeout");
        let key = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{key}");
        let body = format!("Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}");
        stream.write_all(format!("{head}{body}").as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, answer)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A connection that speaks RESP.
pub struct Client<S = TcpStream> {
    stream: BufReader<S>,
}

impl Client<TcpStream> {
    fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket takes a timeout");
        Self { stream: BufReader::new(stream) }
    }
}

impl<S: Read + Write> Client<S> {
    pub fn with(stream: S) -> Self {
        Self { stream: BufReader::new(stream) }
    }

    pub fn send(&mut self, words: &[&str]) {
        let mut bytes = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| bytes.push_str(&format!("${}\r\n{word}\r\n", word.len())));
        self.stream.get_mut().write_all(bytes.as_bytes()).expect("the server reads");
    }

    /// Sends a command and reads its reply as text; an error begins with `-`.
    pub fn ask(&mut self, words: &[&str]) -> String {
        self.send(words);
        self.reply()
    }

    /// The next reply; arrays as their elements with spaces between. Empty when the server hung up.
    pub fn reply(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("the server answers");
        let line = line.trim_end();
        let count = || line.get(1..).and_then(|count| count.parse::<i64>().ok()).expect("a count");
        match line.chars().next() {
            Some('*' | '%' | '~') => {
                let times = if line.starts_with('%') { 2 } else { 1 };
                (0..times * count().max(0)).map(|_| self.reply()).collect::<Vec<_>>().join(" ")
            }
            Some('$') if count() < 0 => String::new(),
            Some('$') => {
                let mut bytes = vec![0; usize::try_from(count()).expect("a length") + 2];
                self.stream.read_exact(&mut bytes).expect("the rest");
                String::from_utf8_lossy(&bytes[..bytes.len() - 2]).into_owned()
            }
            Some('-') | None => line.to_owned(),
            Some(_) => line[1..].to_owned(),
        }
    }
}

/// Makes a key and returns it with its id.
#[track_caller]
pub fn key(site: &Site, arguments: &[&str]) -> (String, String) {
    let data = site.path("data");
    let data = data.to_str().expect("UTF-8");
    let answer = site.ask(&[&["key", "create", "--data", data], arguments].concat()).with_code(0);
    let text = answer.out.trim().to_owned();
    let id = text.split('_').nth(1).expect("a key has an id").to_owned();
    assert!(!answer.err.contains(&text), "the key goes to stdout alone");
    (text, id)
}
