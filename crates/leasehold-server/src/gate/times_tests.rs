//! Time limits of a request: a running gate with short ones, in front of a service that is slow in every way.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use hyper::Method;
use tokio::time::{Instant, sleep_until};

use super::forward::ExchangeTimes;
use super::machine::OnStuck;
use super::run::{GateOptions, RunningGate, UpstreamUrl};
use crate::config::LogConfig;

const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(400);

fn start_gate(data: &Path, upstream: SocketAddr, times: ExchangeTimes) -> RunningGate {
    let options = GateOptions {
        listen: "127.0.0.1:0".parse().unwrap(),
        upstream: UpstreamUrl(format!("http://{upstream}")),
        data: data.to_owned(),
        unfenced: vec![Method::GET],
        drain: Duration::from_millis(100),
        settle: Duration::ZERO,
        on_stuck: OnStuck::Refuse,
        metrics: None,
        allow_plain: false,
        tls: None,
        log: LogConfig::default(),
        times,
    };
    RunningGate::start(options).unwrap()
}

const NO_LIMITS: ExchangeTimes = ExchangeTimes { answer: LONG, body_idle: LONG, write_stall: LONG };

async fn pause(time: Duration) {
    sleep_until(Instant::now() + time).await;
}

/// Runs something that blocks beside the gate.
async fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

fn head(token: u64, length: usize) -> String {
    format!(
        "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nFencing-Token: {token}\r\nFencing-Resource: a\r\n\
         Content-Length: {length}\r\n\r\n"
    )
}

/// The whole answer as text.
fn read_text(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn ask(address: SocketAddr, token: u64) -> String {
    beside(move || {
        let mut stream = connect(address);
        stream.write_all(head(token, 0).as_bytes()).unwrap();
        read_text(stream)
    })
    .await
}

/// What the service does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// Reads all of it, and answers.
    Answers,
    /// Reads all of it, and never answers.
    Silent,
    /// Reads nothing.
    ReadsNothing,
    /// Answers with this much, and says that there is more.
    AnswersHalf,
    /// Answers with more than fits into any buffer.
    AnswersALot,
}

/// A service that treats its first connection in this manner, and answers on all others. It ends with the test.
fn start_upstream(manner: Manner) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for (at, stream) in listener.incoming().enumerate() {
            let stream = stream.unwrap();
            kept.push(stream.try_clone().unwrap());
            let manner = if at == 0 { manner } else { Manner::Answers };
            std::thread::spawn(move || treat(stream, manner));
        }
    });
    address
}

fn treat(mut stream: TcpStream, manner: Manner) {
    if manner == Manner::ReadsNothing {
        return;
    }
    let (mut seen, mut buffer) = (Vec::new(), vec![0; 65_536]);
    loop {
        let end = seen.windows(4).position(|bytes| bytes == b"\r\n\r\n").map(|at| at + 4);
        if let Some(end) = end {
            let text = String::from_utf8_lossy(&seen[..end]).to_ascii_lowercase();
            let length = text.split("content-length: ").nth(1).and_then(|text| text.split("\r\n").next()?.parse().ok());
            if seen.len() >= end + length.unwrap_or(0) {
                break;
            }
        }
        match stream.read(&mut buffer) {
            Ok(read @ 1..) => seen.extend_from_slice(&buffer[..read]),
            _ => return,
        }
    }
    let _ = match manner {
        Manner::Answers => stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\ndone"),
        Manner::AnswersHalf => stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"),
        Manner::AnswersALot => {
            let size = 64 << 20;
            // Nobody reads this connection again.
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n");
            stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&vec![b'x'; size]))
        }
        Manner::Silent | Manner::ReadsNothing => Ok(()),
    };
}

/// Goal: the time for an answer counts from the end of the request: a long upload that goes on is not late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_upload_is_not_late() {
    let dir = tempfile::tempdir().unwrap();
    let gate = start_gate(dir.path(), start_upstream(Manner::Answers), ExchangeTimes { answer: SHORT, ..NO_LIMITS });
    let address = gate.address;
    let mut stream = beside(move || connect(address)).await;
    stream.write_all(head(1, 15).as_bytes()).unwrap();
    for _ in 0..15 {
        pause(SHORT / 4).await;
        stream.write_all(b"x").unwrap();
    }
    let text = beside(move || read_text(stream)).await;
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    assert_eq!(gate.close(LONG).await, 0);
}

/// Goal: without an answer in time the client learns that the outcome is unknown, whether the service read the request or
/// not. A request that the service has stays, so that no newer one overtakes it; one that it has not read is given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_answer_is_an_unknown_outcome() {
    for (manner, length) in [(Manner::Silent, 0), (Manner::Silent, 10), (Manner::ReadsNothing, 32 << 20)] {
        let dir = tempfile::tempdir().unwrap();
        let gate = start_gate(dir.path(), start_upstream(manner), ExchangeTimes { answer: SHORT, ..NO_LIMITS });
        let address = gate.address;
        let text = beside(move || {
            let stream = connect(address);
            let mut writer = stream.try_clone().unwrap();
            std::thread::spawn(move || {
                let _ = writer.write_all(head(1, length).as_bytes());
                let _ = writer.write_all(&vec![b'x'; length]);
            });
            read_text(stream)
        })
        .await;
        assert!(text.starts_with("HTTP/1.1 504") && text.contains("unknown_outcome"), "{manner:?}: {text}");
        let newer = ask(address, 2).await;
        if manner == Manner::Silent {
            assert!(newer.starts_with("HTTP/1.1 503") && newer.contains("fence_busy"), "{manner:?}: {newer}");
        } else {
            assert!(newer.starts_with("HTTP/1.1 200"), "{manner:?}: {newer}");
        }
        drop(gate);
    }
}

/// Goal: a client that stops in the middle of its body does not keep newer requests out for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_body_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let gate = start_gate(dir.path(), start_upstream(Manner::Answers), ExchangeTimes { body_idle: SHORT, ..NO_LIMITS });
    let address = gate.address;
    let mut paused = beside(move || connect(address)).await;
    paused.write_all(head(1, 10).as_bytes()).unwrap();
    paused.write_all(b"half").unwrap();
    pause(SHORT / 4).await;
    assert!(ask(address, 2).await.contains("fence_busy"));
    pause(SHORT).await;
    let newer = ask(address, 2).await;
    assert!(newer.starts_with("HTTP/1.1 200"), "{newer}");
    // The paused client goes on, and learns that its request is lost.
    let _ = paused.write_all(b" a body");
    let text = beside(move || read_text(paused)).await;
    assert!(text.is_empty() || text.starts_with("HTTP/1.1 504"), "{text}");
    assert_eq!(gate.close(LONG).await, 0);
}

/// Goal: a client that is paused while it reads a large answer does not keep newer requests out for ever: the gate reads
/// the rest for nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let times = ExchangeTimes { write_stall: SHORT, ..NO_LIMITS };
    let gate = start_gate(dir.path(), start_upstream(Manner::AnswersALot), times);
    let address = gate.address;
    let mut paused = beside(move || connect(address)).await;
    paused.write_all(head(1, 0).as_bytes()).unwrap();
    pause(SHORT / 4).await;
    assert!(ask(address, 2).await.contains("fence_busy"));
    let until = Instant::now() + LONG;
    loop {
        let newer = ask(address, 2).await;
        if newer.starts_with("HTTP/1.1 200") {
            break;
        }
        assert!(newer.contains("fence_busy") && Instant::now() < until, "{newer}");
    }
    drop(paused);
    assert_eq!(gate.close(LONG).await, 0);
}

/// Goal: an answer that stops in the middle is no whole one, and its request stays until the service closes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_an_answer_is_no_answer() {
    let dir = tempfile::tempdir().unwrap();
    let times = ExchangeTimes { body_idle: SHORT, ..NO_LIMITS };
    let gate = start_gate(dir.path(), start_upstream(Manner::AnswersHalf), times);
    let address = gate.address;
    let text = ask(address, 1).await;
    assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("half"), "{text}");
    assert!(text.contains("content-length: 100"), "the client sees that it is not whole: {text}");
    assert!(ask(address, 2).await.contains("fence_busy"));
    drop(gate);
}
