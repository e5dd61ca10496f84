//! Several independent Redis servers, each behind a proxy if it is wanted: the nodes of a Redlock.

use crate::proxy::Proxy;
use crate::redis::RedisServer;

/// Servers that know nothing of each other.
#[derive(Debug)]
pub struct RedisNodes {
    /// One for each node.
    pub servers: Vec<RedisServer>,
    /// In front of each, where there are any.
    pub proxies: Vec<Proxy>,
}

impl RedisNodes {
    /// Starts so many, with these settings.
    ///
    /// # Panics
    ///
    /// If there is no Redis, or one does not start.
    #[must_use]
    pub fn start(count: usize, settings: &[&str]) -> Self {
        Self { servers: (0..count).map(|_| RedisServer::start(settings)).collect(), proxies: Vec::new() }
    }

    /// Starts so many, each behind a proxy.
    ///
    /// # Panics
    ///
    /// If there is no Redis, or one does not start.
    #[must_use]
    pub fn start_behind_proxies(count: usize, settings: &[&str]) -> Self {
        let mut nodes = Self::start(count, settings);
        nodes.proxies = nodes.servers.iter().map(|server| Proxy::start(server.port())).collect();
        nodes
    }

    /// The address of all of them, with this query.
    #[must_use]
    pub fn url(&self, query: &str) -> String {
        let places: Vec<String> = self.ports().iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("redlock://{}{query}", places.join(","))
    }

    /// Where each is reached: at its proxy, where there is one.
    #[must_use]
    pub fn ports(&self) -> Vec<u16> {
        if self.proxies.is_empty() {
            self.servers.iter().map(RedisServer::port).collect()
        } else {
            self.proxies.iter().map(Proxy::port).collect()
        }
    }

    /// How many have this key.
    #[must_use]
    pub fn holding(&self, key: &str) -> usize {
        self.servers.iter().filter(|server| server.command(&["EXISTS", key]).trim() == "1").count()
    }

    /// Deletes everything on all of them.
    pub fn flush_all(&self) {
        for server in &self.servers {
            server.command(&["FLUSHALL"]);
        }
    }
}
