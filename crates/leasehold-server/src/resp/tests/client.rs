//! A client that speaks and hears bytes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A connection.
pub struct Client {
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

impl Client {
    pub fn to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::with_capacity(1 << 16, stream) }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    /// The bytes of one whole reply; empty when the server hung up.
    pub fn reply(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.stream.read_until(b'\n', &mut bytes).unwrap();
        let number = || std::str::from_utf8(&bytes[1..bytes.len() - 2]).unwrap().parse::<i64>().unwrap();
        let parts = match bytes.first() {
            Some(b'*' | b'>') => number().max(0),
            Some(b'%') => number() * 2,
            Some(b'$' | b'=') if number() >= 0 => {
                let from = bytes.len();
                bytes.resize(from + usize::try_from(number()).unwrap() + 2, 0);
                self.stream.read_exact(&mut bytes[from..]).unwrap();
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

    /// Sends one command and answers the bytes of its reply as text.
    pub fn ask(&mut self, words: &[&str]) -> String {
        self.send(&command(words));
        String::from_utf8(self.reply()).unwrap()
    }
}
