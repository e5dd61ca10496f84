//! HTTP/1.1 as a rehearsal needs it: one request out, one answer in, over a connection that is kept. Written for little
//! work per answer, since the load shares its cores with the server.
//!
//! # Not here
//!
//! Clients for real use: this one reads what it expects and gives up on everything else. What is asked again and when
//! (`http_client`).

use std::io;
use std::ops::Range;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// The longest head of an answer.
const LONGEST_HEAD: usize = 64 << 10;
/// The longest body: the audit of a large event, by pages, or the map of a large hall.
const LONGEST_BODY: usize = 1 << 30;
/// What is read at once.
const CHUNK: usize = 8 << 10;

/// Bytes to and from a server.
pub enum HttpStream {
    /// In the clear.
    Plain(TcpStream),
    /// Under TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

/// One connection.
pub struct HttpConnection {
    stream: HttpStream,
    /// What was received of the answer.
    incoming: Vec<u8>,
}

/// Where the parts of an answer are.
#[derive(Debug, PartialEq, Eq)]
struct ResponseHead {
    status: u16,
    /// Where the body begins.
    begin: usize,
    body: BodyLength,
    keep: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum BodyLength {
    Known(usize),
    Chunked,
}

fn broken(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

impl HttpConnection {
    /// Over this stream.
    pub const fn new(stream: HttpStream) -> Self {
        Self { stream, incoming: Vec::new() }
    }

    /// Sends a request and reads its answer: the status, where the body is, and whether the connection may be used again.
    ///
    /// # Errors
    ///
    /// The connection broke, and nobody knows what came of the request.
    pub async fn exchange(&mut self, request: &[u8]) -> io::Result<(u16, Range<usize>, bool)> {
        match &mut self.stream {
            HttpStream::Plain(stream) => exchange(stream, &mut self.incoming, request).await,
            HttpStream::Tls(stream) => exchange(stream, &mut self.incoming, request).await,
        }
    }

    /// The bytes of the last answer's body.
    pub fn body(&self, range: Range<usize>) -> &[u8] {
        self.incoming.get(range).unwrap_or_default()
    }
}

async fn exchange<S>(stream: &mut S, incoming: &mut Vec<u8>, request: &[u8]) -> io::Result<(u16, Range<usize>, bool)>
where
    S: AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    incoming.clear();
    stream.write_all(request).await?;
    stream.flush().await?;
    let head = loop {
        match head(incoming)? {
            // 100 Continue and its kind: the answer comes after it.
            Some(head) if head.status < 200 => drop(incoming.drain(..head.begin)),
            Some(head) => break head,
            None => more(stream, incoming).await?,
        }
    };
    let range = match head.body {
        BodyLength::Known(length) => {
            let end = head.begin + length;
            incoming.reserve(end.saturating_sub(incoming.len()));
            while incoming.len() < end {
                more(stream, incoming).await?;
            }
            head.begin..end
        }
        BodyLength::Chunked => {
            let mut whole = unchunk(&incoming[head.begin..])?;
            while whole.is_none() {
                more(stream, incoming).await?;
                whole = unchunk(&incoming[head.begin..])?;
            }
            let whole = whole.unwrap_or_default();
            incoming.truncate(head.begin);
            incoming.extend(whole);
            head.begin..incoming.len()
        }
    };
    Ok((head.status, range, head.keep))
}

/// Reads what is there.
async fn more(stream: &mut (impl AsyncRead + Unpin), incoming: &mut Vec<u8>) -> io::Result<()> {
    if incoming.len() > LONGEST_BODY {
        return Err(broken("an answer is too long"));
    }
    incoming.reserve(CHUNK);
    match stream.read_buf(incoming).await? {
        0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")),
        _ => Ok(()),
    }
}

/// Reads the head of an answer, if it is whole.
fn head(bytes: &[u8]) -> io::Result<Option<ResponseHead>> {
    let Some(end) = memchr::memmem::find(bytes, b"\r\n\r\n") else {
        return if bytes.len() > LONGEST_HEAD { Err(broken("the server does not speak HTTP")) } else { Ok(None) };
    };
    let text = str::from_utf8(&bytes[..end]).map_err(|_| broken("the server does not speak HTTP"))?;
    let mut lines = text.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let version = first.split(' ').next().unwrap_or_default();
    let status = first.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok());
    let status =
        status.filter(|_| version.starts_with("HTTP/1.")).ok_or_else(|| broken("the server does not speak HTTP"))?;
    let mut keep = version == "HTTP/1.1";
    let mut body = None;
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            let length = value.parse::<usize>().ok().filter(|length| *length <= LONGEST_BODY);
            body = Some(BodyLength::Known(length.ok_or_else(|| broken("an answer is too long"))?));
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            body = Some(BodyLength::Chunked);
        } else if name.eq_ignore_ascii_case("connection") {
            keep = !value.eq_ignore_ascii_case("close");
        }
    }
    let body = match body {
        _ if status < 200 || status == 204 || status == 304 => BodyLength::Known(0),
        Some(body) => body,
        None => return Err(broken("an answer does not say how long it is")),
    };
    Ok(Some(ResponseHead { status, begin: end + 4, body, keep }))
}

/// The content of a chunked body, if it is whole.
fn unchunk(mut bytes: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let mut whole = Vec::new();
    loop {
        let Some(end) = memchr::memmem::find(bytes, b"\r\n") else { return Ok(None) };
        let size = str::from_utf8(&bytes[..end]).ok().and_then(|line| line.split(';').next());
        let size = size.and_then(|size| usize::from_str_radix(size.trim(), 16).ok());
        let size =
            size.filter(|size| *size <= LONGEST_BODY).ok_or_else(|| broken("an answer is cut into odd chunks"))?;
        let rest = &bytes[end + 2..];
        if size == 0 {
            // Trailers are not expected, and what follows is the empty line.
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
            let mut asked = vec![0; 64];
            let _ = far.read(&mut asked).await;
            for part in parts {
                let _ = far.write_all(part.as_bytes()).await;
                tokio::task::yield_now().await;
            }
        });
        let mut incoming = Vec::new();
        let (status, body, keep) = exchange(&mut near, &mut incoming, b"GET / HTTP/1.1\r\n\r\n").await?;
        Ok((status, String::from_utf8(incoming[body].to_vec()).unwrap(), keep))
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
