//! An [`ObjectStore`] over plain HTTP, one connection a request: what a user writes over the client of a real store.

use std::collections::BTreeMap;

use leasehold::error::BoxError;
use leasehold::fence::object::{
    NewObject, ObjectHead, ObjectStore, PutCondition, PutOutcome, StoreAnswer, StoreError, StoredObject,
};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

#[derive(Clone, Debug)]
pub struct HttpStore {
    pub port: u16,
}

struct Answer {
    status: u16,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl HttpStore {
    async fn ask(&self, method: &str, key: &str, headers: &str, body: &[u8]) -> Result<Answer, StoreError> {
        let socket = TcpStream::connect(("127.0.0.1", self.port)).await;
        let mut socket = socket.map_err(|error| StoreError::NoEffect(error.into()))?;
        let head = format!("{method} {key} HTTP/1.1\r\nHost: store\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
        let unknown = |error: std::io::Error| StoreError::Unknown(error.into());
        socket.write_all(&[head.as_bytes(), body].concat()).await.map_err(unknown)?;
        read_answer(BufReader::new(socket), method != "HEAD").await.map_err(StoreError::Unknown)
    }
}

async fn read_answer(mut socket: BufReader<TcpStream>, has_body: bool) -> Result<Answer, BoxError> {
    let mut line = String::new();
    socket.read_line(&mut line).await?;
    let status = line.split(' ').nth(1).ok_or("no status")?.parse()?;
    let mut headers = BTreeMap::new();
    loop {
        line.clear();
        socket.read_line(&mut line).await?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").map_or("0", String::as_str).parse()?;
    let mut body = vec![0; if has_body { length } else { 0 }];
    socket.read_exact(&mut body).await?;
    Ok(Answer { status, headers, body })
}

impl Answer {
    fn object_head(&self) -> Result<ObjectHead, StoreError> {
        let version = self.headers.get("etag").cloned().ok_or_else(|| StoreError::Invalid("no ETag".into()))?;
        let named = |(name, value): (&String, &String)| {
            name.strip_prefix("x-amz-meta-").map(|name| (name.to_owned(), value.clone()))
        };
        Ok(ObjectHead { version, metadata: self.headers.iter().filter_map(named).collect() })
    }
}

impl ObjectStore for HttpStore {
    fn get<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<StoredObject>> {
        Box::pin(async move {
            let answer = self.ask("GET", key, "", b"").await?;
            match answer.status {
                200 => Ok(Some(StoredObject { head: answer.object_head()?, body: answer.body })),
                404 => Ok(None),
                other => Err(StoreError::Unknown(format!("status {other}").into())),
            }
        })
    }

    fn head<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<ObjectHead>> {
        Box::pin(async move {
            let answer = self.ask("HEAD", key, "", b"").await?;
            match answer.status {
                200 => answer.object_head().map(Some),
                404 => Ok(None),
                other => Err(StoreError::Unknown(format!("status {other}").into())),
            }
        })
    }

    fn put<'a>(
        &'a self,
        key: &'a str,
        object: &'a NewObject,
        condition: &'a PutCondition,
    ) -> StoreAnswer<'a, PutOutcome> {
        Box::pin(async move {
            let mut headers = match condition {
                PutCondition::Absent => "If-None-Match: *\r\n".to_owned(),
                PutCondition::Version(version) => format!("If-Match: {version}\r\n"),
            };
            for (name, value) in &object.metadata {
                headers += &format!("x-amz-meta-{name}: {value}\r\n");
            }
            let answer = self.ask("PUT", key, &headers, &object.body).await?;
            match answer.status {
                200 => Ok(PutOutcome::Written { version: answer.object_head()?.version }),
                404 | 409 | 412 => Ok(PutOutcome::ConditionFailed),
                other => Err(StoreError::Unknown(format!("status {other}").into())),
            }
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, ()> {
        Box::pin(async move { self.ask("DELETE", key, "", b"").await.map(drop) })
    }
}
