//! A client that sends and receives raw bytes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A connection to the RESP port.
pub struct RespClient {
    pub stream: BufReader<TcpStream>,
}

/// A command as clients write it.
pub fn command(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}

impl RespClient {
    pub fn to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("RESP listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket takes a timeout");
        stream.set_nodelay(true).expect("a socket");
        Self { stream: BufReader::with_capacity(1 << 16, stream) }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).expect("the server reads");
    }

    /// The bytes of one complete reply; empty when the server closed the connection.
    pub fn reply(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.stream.read_until(b'\n', &mut bytes).expect("the server answers");
        let number = || String::from_utf8_lossy(&bytes[1..]).trim_end().parse::<i64>().expect("a number");
        let parts = match bytes.first() {
            Some(b'*' | b'>') => number().max(0),
            Some(b'%') => number() * 2,
            Some(b'$' | b'=') if number() >= 0 => {
                let from = bytes.len();
                bytes.resize(from + usize::try_from(number()).expect("a length") + 2, 0);
                self.stream.read_exact(&mut bytes[from..]).expect("the rest");
                0
            }
            _ => 0,
        };
        for _ in 0..parts {
            let part = self.reply();
            bytes.extend_from_slice(&part);
        }
        bytes
    }

    /// Sends one command and returns its reply as text.
    pub fn ask(&mut self, words: &[&str]) -> String {
        self.send(&command(words));
        String::from_utf8(self.reply()).expect("text")
    }
}
