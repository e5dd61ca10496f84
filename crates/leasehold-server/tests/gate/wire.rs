//! Bytes on the wire: when a newer request was forwarded, none of an older one follows, not even out of the kernel.
//!
//! The service here reads nothing, and its buffers are small. What the kernel holds is asked of the kernel.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use crate::common::{Site, now, pause};
use crate::process::{GateProcess, HttpClient, shown};

/// A listener whose connections take little before they are read.
fn listen_small() -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 8192).unwrap();
    listener
}

/// The next connection; none if it does not come soon.
fn accept_soon(listener: &TcpListener, patience: Duration) -> Option<TcpStream> {
    listener.set_nonblocking(true).unwrap();
    let until = now() + patience;
    while now() < until {
        if let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(false).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            return Some(stream);
        }
        pause(Duration::from_millis(2));
    }
    None
}

fn read_head(stream: &mut TcpStream) -> String {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "it hung up");
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

/// Both ends of a connection, as the kernel's table names them: the sender first.
struct Ends(String, String);

impl Ends {
    fn of(stream: &TcpStream) -> Self {
        let name = |address: std::net::SocketAddr| format!("0100007F:{:04X}", address.port());
        Self(name(stream.peer_addr().unwrap()), name(stream.local_addr().unwrap()))
    }

    /// Bytes that the sender has given to its kernel and that are not at the other end yet.
    fn still_with_the_sender(&self) -> u64 {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let mut lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let line = lines.find(|fields| fields.len() > 4 && fields[1] == self.0 && fields[2] == self.1);
        line.map_or(0, |fields| u64::from_str_radix(fields[4].split(':').next().unwrap(), 16).unwrap())
    }
}

/// How much came in all until the end of the connection, or until nothing more comes.
fn read_rest(stream: &mut TcpStream) -> u64 {
    // A connection that is kept for the next request does not end.
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let (mut count, mut buffer) = (0, [0; 65_536]);
    while let Ok(read @ 1..) = stream.read(&mut buffer) {
        count += read as u64;
    }
    count
}

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly";

/// Sends a whole request of this size in a thread of its own: it may never be taken.
fn send_large(gate: &GateProcess, size: usize) -> (HttpClient, thread::JoinHandle<bool>) {
    let mut client = gate.connect();
    let reader = client.second_handle();
    let mut headers = shown(1, &["a"]).headers();
    headers.push(("Content-Length", size.to_string()));
    client.begin("POST", "/older", &headers);
    (reader, thread::spawn(move || client.try_write(&vec![b'x'; size])))
}

/// Goal: an answer that comes before the request was sent does not let a newer request overtake bytes of the older one.
/// Method: bodies of many sizes, so that the rest of one of them is in the gate and not in the kernel.
#[test]
fn bytes_in_the_gate_do_not_follow_a_newer_request() {
    let (mut on_one_connection, mut in_the_gate) = (0, 0);
    // How much the kernel takes differs from machine to machine.
    for size in (4..=40).map(|step| step * 256 * 1024) {
        if in_the_gate > 0 {
            break;
        }
        let listener = listen_small();
        let (site, url) = (Site::new(), format!("http://{}", listener.local_addr().unwrap()));
        let gate = GateProcess::start(&site, &url, &[]);
        let (mut reader, sending) = send_large(&gate, size);
        let mut older = accept_soon(&listener, Duration::from_secs(5)).unwrap();
        let ends = Ends::of(&older);
        read_head(&mut older);
        // What fits goes on its way.
        pause(Duration::from_millis(150));
        let is_handed_over = sending.is_finished();
        older.write_all(ANSWER).unwrap();
        assert_eq!(reader.read_answer().unwrap().text(), "early");
        let address = gate.address;
        let newer = thread::spawn(move || HttpClient::connect(address).post("/newer", &shown(2, &["a"]), b"x").status);
        match accept_soon(&listener, Duration::from_millis(500)) {
            // The kernel had all of it: the newer request may stand behind it on the same connection.
            None => {
                let mut body = vec![0; size];
                older.read_exact(&mut body).unwrap();
                assert!(read_head(&mut older).starts_with("POST /newer "));
                older.write_all(ANSWER).unwrap();
                on_one_connection += 1;
            }
            Some(mut second) => {
                assert!(read_head(&mut second).starts_with("POST /newer "));
                let on_the_way = rustix::io::ioctl_fionread(&older).unwrap() + ends.still_with_the_sender();
                second.write_all(ANSWER).unwrap();
                let came = read_rest(&mut older);
                assert!(came <= on_the_way, "{size} bytes: {} followed the newer request", came - on_the_way);
                in_the_gate += usize::from(is_handed_over);
            }
        }
        assert_eq!(newer.join().unwrap(), 200, "{size} bytes");
        drop(gate);
        let _ = sending.join();
    }
    println!("{on_one_connection} in the kernel, {in_the_gate} in the gate");
    assert!(in_the_gate > 0, "no size left a part of the request in the gate");
}

/// Goal: a request that is cut sends nothing more, not even what the kernel holds of it.
#[test]
fn what_the_kernel_holds_of_a_cut_request_is_thrown_away() {
    let listener = listen_small();
    let (site, url) = (Site::new(), format!("http://{}", listener.local_addr().unwrap()));
    let arguments = ["--drain", "300ms", "--settle", "100ms", "--on-stuck", "cut"];
    let gate = GateProcess::start(&site, &url, &arguments);
    let (mut reader, sending) = send_large(&gate, 2 << 20);
    let mut older = accept_soon(&listener, Duration::from_secs(5)).unwrap();
    let address = gate.address;
    let newer = thread::spawn(move || HttpClient::connect(address).post("/newer", &shown(2, &["a"]), b"x").status);
    pause(Duration::from_millis(150));
    assert!(Ends::of(&older).still_with_the_sender() > 0, "the kernel holds nothing of it");
    let mut second = accept_soon(&listener, Duration::from_secs(5)).unwrap();
    assert!(read_head(&mut second).starts_with("POST /newer "));
    let here = rustix::io::ioctl_fionread(&older).unwrap();
    second.write_all(ANSWER).unwrap();
    assert_eq!(newer.join().unwrap(), 200);
    let came = read_rest(&mut older);
    assert!(came <= here, "{} bytes followed the newer request", came - here);
    assert!(reader.read_answer().is_none_or(|answer| answer.verdict() == (504, "unknown_outcome".into())));
    drop(gate);
    let _ = sending.join();
}

/// Goal: what the kernel holds of a request when the gate is killed is thrown away: the next gate's newer request is not
/// followed by it.
#[test]
fn what_the_kernel_holds_of_a_killed_gate_is_thrown_away() {
    let listener = listen_small();
    let (site, url) = (Site::new(), format!("http://{}", listener.local_addr().unwrap()));
    let gate = GateProcess::start(&site, &url, &[]);
    let (_reader, sending) = send_large(&gate, 2 << 20);
    let mut older = accept_soon(&listener, Duration::from_secs(5)).unwrap();
    pause(Duration::from_millis(150));
    assert!(Ends::of(&older).still_with_the_sender() > 0, "the kernel holds nothing of it");
    gate.kill();
    let gate = GateProcess::start(&site, &url, &[]);
    let address = gate.address;
    let newer = thread::spawn(move || HttpClient::connect(address).post("/newer", &shown(2, &["a"]), b"x").status);
    let mut second = accept_soon(&listener, Duration::from_secs(5)).unwrap();
    assert!(read_head(&mut second).starts_with("POST /newer "));
    let here = rustix::io::ioctl_fionread(&older).unwrap();
    second.write_all(ANSWER).unwrap();
    assert_eq!(newer.join().unwrap(), 200);
    let came = read_rest(&mut older);
    assert!(came <= here, "{} bytes followed the newer request", came - here);
    let _ = sending.join();
}
