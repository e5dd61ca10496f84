//! A minimal HTTP/1.1 client connection with keep-alive: one request out, one response in. It does little work per
//! response, because the load shares its cores with the server.
//!
//! # Not here
//!
//! HTTP for general use: this code fails on everything that it does not expect. Retries (`http_client`).

use std::io;
use std::ops::Range;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// The longest response head.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// The longest body: a page of the audit, or the seat map of a large event.
const MAX_BODY_BYTES: usize = 1 << 30;
/// Bytes reserved for each read.
const READ_CHUNK_BYTES: usize = 8 << 10;

/// A TCP stream, with or without TLS.
pub enum HttpStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// One connection.
pub struct HttpConnection {
    stream: HttpStream,
    /// The bytes of the last response.
    read_buffer: Vec<u8>,
}

/// The parsed head of a response.
#[derive(Debug, PartialEq, Eq)]
struct ResponseHead {
    status: u16,
    /// The offset of the body in the read buffer.
    body_start: usize,
    body: BodyLength,
    keep_alive: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum BodyLength {
    Known(usize),
    Chunked,
}

fn invalid_data(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

impl HttpConnection {
    pub const fn new(stream: HttpStream) -> Self {
        Self { stream, read_buffer: Vec::new() }
    }

    /// Sends a request and reads its response. Returns the status, the range of the body, and whether to keep the
    /// connection.
    ///
    /// # Errors
    ///
    /// The connection failed, and the outcome of the request is unknown.
    pub async fn exchange(&mut self, request: &[u8]) -> io::Result<(u16, Range<usize>, bool)> {
        match &mut self.stream {
            HttpStream::Plain(stream) => exchange(stream, &mut self.read_buffer, request).await,
            HttpStream::Tls(stream) => exchange(stream, &mut self.read_buffer, request).await,
        }
    }

    /// The body of the last response.
    pub fn body(&self, range: Range<usize>) -> &[u8] {
        self.read_buffer.get(range).unwrap_or_default()
    }
}

async fn exchange<S>(stream: &mut S, read_buffer: &mut Vec<u8>, request: &[u8]) -> io::Result<(u16, Range<usize>, bool)>
where
    S: AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    read_buffer.clear();
    stream.write_all(request).await?;
    stream.flush().await?;
    let head = loop {
        match parse_head(read_buffer)? {
            // 1xx responses precede the final one.
            Some(head) if head.status < 200 => drop(read_buffer.drain(..head.body_start)),
            Some(head) => break head,
            None => read_more(stream, read_buffer).await?,
        }
    };
    let range = match head.body {
        BodyLength::Known(length) => {
            let end = head.body_start + length;
            read_buffer.reserve(end.saturating_sub(read_buffer.len()));
            while read_buffer.len() < end {
                read_more(stream, read_buffer).await?;
            }
            head.body_start..end
        }
        BodyLength::Chunked => {
            let mut whole = decode_chunks(&read_buffer[head.body_start..])?;
            while whole.is_none() {
                read_more(stream, read_buffer).await?;
                whole = decode_chunks(&read_buffer[head.body_start..])?;
            }
            let whole = whole.unwrap_or_default();
            read_buffer.truncate(head.body_start);
            read_buffer.extend(whole);
            head.body_start..read_buffer.len()
        }
    };
    Ok((head.status, range, head.keep_alive))
}

/// Reads at least one byte into the buffer.
async fn read_more(stream: &mut (impl AsyncRead + Unpin), read_buffer: &mut Vec<u8>) -> io::Result<()> {
    if read_buffer.len() > MAX_BODY_BYTES {
        return Err(invalid_data("an answer is too long"));
    }
    read_buffer.reserve(READ_CHUNK_BYTES);
    match stream.read_buf(read_buffer).await? {
        0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")),
        _ => Ok(()),
    }
}

/// Parses the head of a response. `None` if it is incomplete.
fn parse_head(bytes: &[u8]) -> io::Result<Option<ResponseHead>> {
    let Some(end) = memchr::memmem::find(bytes, b"\r\n\r\n") else {
        return if bytes.len() > MAX_HEAD_BYTES {
            Err(invalid_data("the server does not speak HTTP"))
        } else {
            Ok(None)
        };
    };
    let text = str::from_utf8(&bytes[..end]).map_err(|_| invalid_data("the server does not speak HTTP"))?;
    let mut lines = text.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let version = first.split(' ').next().unwrap_or_default();
    let status = first.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok());
    let status = status
        .filter(|_| version.starts_with("HTTP/1."))
        .ok_or_else(|| invalid_data("the server does not speak HTTP"))?;
    let mut keep_alive = version == "HTTP/1.1";
    let mut body = None;
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            let length = value.parse::<usize>().ok().filter(|length| *length <= MAX_BODY_BYTES);
            body = Some(BodyLength::Known(length.ok_or_else(|| invalid_data("an answer is too long"))?));
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            body = Some(BodyLength::Chunked);
        } else if name.eq_ignore_ascii_case("connection") {
            keep_alive = !value.eq_ignore_ascii_case("close");
        }
    }
    let body = match body {
        _ if status < 200 || status == 204 || status == 304 => BodyLength::Known(0),
        Some(body) => body,
        None => return Err(invalid_data("an answer does not say how long it is")),
    };
    Ok(Some(ResponseHead { status, body_start: end + 4, body, keep_alive }))
}

/// Decodes a chunked body. `None` if it is incomplete.
fn decode_chunks(mut bytes: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let mut whole = Vec::new();
    loop {
        let Some(end) = memchr::memmem::find(bytes, b"\r\n") else { return Ok(None) };
        let size = str::from_utf8(&bytes[..end]).ok().and_then(|line| line.split(';').next());
        let size = size.and_then(|size| usize::from_str_radix(size.trim(), 16).ok());
        let size = size
            .filter(|size| *size <= MAX_BODY_BYTES)
            .ok_or_else(|| invalid_data("an answer is cut into odd chunks"))?;
        let rest = &bytes[end + 2..];
        if size == 0 {
            // Trailers are not supported: an empty line must follow.
            return Ok(rest.starts_with(b"\r\n").then_some(whole));
        }
        if rest.len() < size + 2 {
            return Ok(None);
        }
        whole.extend(&rest[..size]);
        bytes = &rest[size + 2..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn answers(parts: &'static [&'static str]) -> io::Result<(u16, String, bool)> {
        let (mut near, mut far) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move {
            let mut request = vec![0; 64];
            let _ = far.read(&mut request).await;
            for part in parts {
                let _ = far.write_all(part.as_bytes()).await;
                tokio::task::yield_now().await;
            }
        });
        let mut read_buffer = Vec::new();
        let (status, body, keep_alive) = exchange(&mut near, &mut read_buffer, b"GET / HTTP/1.1\r\n\r\n").await?;
        Ok((status, String::from_utf8(read_buffer[body].to_vec()).unwrap(), keep_alive))
    }

    /// Goal: an answer is read whole, however it is cut, and the connection is given up when the server says so.
    #[tokio::test]
    async fn answers_are_read_whole() {
        let whole = answers(&["HTTP/1.1 201 Created\r\ncontent-le", "ngth: 5\r\n\r\nhe", "llo"]).await.unwrap();
        assert_eq!(whole, (201, "hello".into(), true));
        let chunked = answers(&[
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5;x=1\r\nhel",
            "lo\r\n1\r\n!\r\n0\r\n",
            "\r\n",
        ]);
        assert_eq!(chunked.await.unwrap(), (200, "hello!".into(), false));
        let empty = answers(&["HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"]).await;
        // The interim answer and the last came together: what follows the first is read on.
        assert!(empty.is_ok_and(|(status, ..)| status == 204));
    }

    /// Goal: what is no answer is an error, and so is half of one: nobody takes it for a no.
    #[tokio::test]
    async fn half_an_answer_is_none() {
        let bad: [&'static [&'static str]; 6] = [
            &[],
            &["HTTP/1.1 200 OK\r\n"],
            &["HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"],
            &["HTTP/1.1 200 OK\r\n\r\n"],
            &["+PONG\r\n\r\n"],
            &["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
        ];
        for bad in bad {
            assert!(answers(bad).await.is_err(), "{bad:?}");
        }
    }
}
