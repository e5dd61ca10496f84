//! The address of a database: the URL that people write, and connections to it.
//!
//! The URL may hold a password. It is in no error and in no `Debug`.

use std::fmt;
use std::str::FromStr as _;
use std::time::Duration;

use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::{Client, Config, Connection, Error, Socket};

use crate::tls::{PostgresTls, PostgresTlsStream, TlsRequest};

/// How long connecting may take, and how soon a dead connection is noticed.
#[derive(Clone, Copy, Debug)]
pub struct ConnectTimes {
    /// The longest that connecting to one host may take.
    pub connect_timeout: Duration,
    /// Sent data that is not acknowledged for so long ends the connection.
    pub tcp_user_timeout: Duration,
    /// A connection that is idle for so long is probed.
    pub keepalives_idle: Duration,
}

/// The address of a database, with its TLS settings.
#[derive(Clone)]
pub struct DatabaseAddress {
    pub(crate) config: Config,
    pub(crate) tls: PostgresTls,
}

impl fmt::Debug for DatabaseAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatabaseAddress").field("hosts", &self.config.get_hosts()).finish_non_exhaustive()
    }
}

impl DatabaseAddress {
    /// Reads a URL, or the `key=value` form. The parameters of TLS are named as in libpq.
    ///
    /// # Errors
    ///
    /// A sentence that says what is wrong, and repeats nothing of the URL but the names of files.
    pub fn from_url(url: &str, application_name: &str, times: ConnectTimes) -> Result<Self, String> {
        let (url, asked) = TlsRequest::split_from_url(url);
        let mut config =
            Config::from_str(&url).map_err(|error| format!("this is no address of PostgreSQL: {error}"))?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err("the url names no host, as in postgres://ada@127.0.0.1/tickets".into());
        }
        let tls = asked.apply(&mut config)?;
        if config.get_application_name().is_none() {
            config.application_name(application_name);
        }
        // These also apply while connecting, and to a server that stops answering.
        config.connect_timeout(times.connect_timeout);
        config.tcp_user_timeout(times.tcp_user_timeout);
        config.keepalives_idle(times.keepalives_idle);
        Ok(Self { config, tls })
    }

    /// The settings of the connection, as they were read.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// With several hosts in the address: connects to the one that takes writes.
    pub fn want_primary(&mut self) {
        if self.config.get_hosts().len() + self.config.get_hostaddrs().len() > 1 {
            self.config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
    }

    /// The same database, user and TLS at another host.
    #[must_use]
    pub fn at_host(&self, host: &str, port: u16) -> Self {
        let mut config = Config::new();
        config.host(host).port(port).ssl_mode(self.config.get_ssl_mode());
        if let Some(user) = self.config.get_user() {
            config.user(user);
        }
        if let Some(password) = self.config.get_password() {
            config.password(password);
        }
        if let Some(name) = self.config.get_dbname() {
            config.dbname(name);
        }
        if let Some(options) = self.config.get_options() {
            config.options(options);
        }
        if let Some(name) = self.config.get_application_name() {
            config.application_name(name);
        }
        if let Some(timeout) = self.config.get_connect_timeout() {
            config.connect_timeout(*timeout);
        }
        if let Some(timeout) = self.config.get_tcp_user_timeout() {
            config.tcp_user_timeout(*timeout);
        }
        config.keepalives_idle(self.config.get_keepalives_idle());
        Self { config, tls: self.tls.clone() }
    }

    /// A connection whose messages a task of its own reads and drops.
    ///
    /// # Errors
    ///
    /// Nobody answers there, or refuses us.
    pub async fn connect(&self) -> Result<Client, Error> {
        let (client, connection) = self.connect_with_messages().await?;
        // The task ends with its client. Its errors reach whoever waits for an answer.
        tokio::spawn(async move { drop(connection.await) });
        Ok(client)
    }

    /// A connection, and what must be polled for it: that is where notifications and notices come.
    ///
    /// # Errors
    ///
    /// Nobody answers there, or refuses us.
    pub async fn connect_with_messages(
        &self,
    ) -> Result<(Client, Connection<Socket, PostgresTlsStream<Socket>>), Error> {
        self.config.connect(self.tls.clone()).await
    }
}
