//! Locks as people write them by hand on Redis: one command, or the same command on every node.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value};

use super::Actor;
use crate::order::ActorOutcome;

/// How long a Redis may take. Redlock wants it small beside the ttl.
const REDIS_TIMEOUT: Duration = Duration::from_millis(500);

impl Actor {
    /// Sends one command.
    pub async fn ask_redis(&mut self, port: u16, words: &[String]) -> anyhow::Result<ActorOutcome> {
        match self.send_words(port, words).await {
            Ok(value) => Ok(ActorOutcome::Value { text: print_value(&value) }),
            // What the server itself answered with, for example a script's error.
            Err(error) if error.code().is_some() && !error.is_io_error() => {
                let text = [error.code(), error.detail()].into_iter().flatten().collect::<Vec<_>>().join(" ");
                Ok(ActorOutcome::Value { text })
            }
            Err(error) => {
                self.redis.remove(&port);
                Err(error.into())
            }
        }
    }

    /// Asks every node for the lock, and says which granted it. A node that does not answer has no vote.
    pub async fn ask_majority(
        &mut self,
        ports: &[u16],
        name: &str,
        value: &str,
        ttl_ms: u64,
    ) -> anyhow::Result<ActorOutcome> {
        let words = ["SET", name, value, "NX", "PX", &ttl_ms.to_string()].map(str::to_owned);
        let mut nodes = Vec::new();
        for (index, port) in ports.iter().enumerate() {
            match self.send_words(*port, &words).await {
                Ok(Value::Okay) => nodes.push(index + 1),
                Ok(_) => {}
                Err(_) => drop(self.redis.remove(port)),
            }
        }
        Ok(ActorOutcome::Votes { nodes })
    }

    async fn send_words(&mut self, port: u16, words: &[String]) -> redis::RedisResult<Value> {
        let mut connection = self.redis_connection(port).await?;
        let mut command = redis::Cmd::new();
        command.arg(words);
        command.query_async(&mut connection).await
    }

    async fn redis_connection(&mut self, port: u16) -> redis::RedisResult<MultiplexedConnection> {
        if let Some(connection) = self.redis.get(&port) {
            return Ok(connection.clone());
        }
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}/"))?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(REDIS_TIMEOUT))
            .set_response_timeout(Some(REDIS_TIMEOUT));
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        self.redis.insert(port, connection.clone());
        Ok(connection)
    }
}

/// A value as redis-cli prints it.
fn print_value(value: &Value) -> String {
    match value {
        Value::Nil => "(nil)".into(),
        Value::Okay => "OK".into(),
        Value::Int(number) => number.to_string(),
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        other => format!("{other:?}"),
    }
}
