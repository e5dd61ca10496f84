//! The configuration: a TOML file, then the environment, then flags, each over the one before.
//!
//! # Laws
//!
//! 1. An unknown field is refused with its line: a misspelt limit must not be ignored.
//! 2. A checked configuration is well formed. Files and ports are opened later.
//! 3. `example.toml` and `docs/reference/config.md` name every field; tests compare them with the struct.

mod boxoffice;
mod flags;
mod ledger;
mod limits;
mod store;
mod units;

use std::borrow::Cow;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use serde::Deserialize;

pub use boxoffice::{BoxOfficeConfig, SecretText};
pub use flags::ServeFlags;
pub use ledger::LedgerUrl;
pub use limits::LimitsConfig;
pub use store::StoreUrl;
pub use units::ConfigSize;

use leasehold_support::exit::Failure;

/// Every field with its default and what it is for, as `serve --print-config` prints it.
pub const EXAMPLE: &str = include_str!("example.toml");

/// The configuration. `Debug` hides passwords in URLs.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The data directory.
    pub data: PathBuf,
    /// The engine.
    pub engine: String,
    /// The URL of the ledger.
    pub ledger: String,
    /// The URL of the store of recipes, or `none`; unset: that of the engine.
    pub store: Option<SecretText>,
    /// This engine replaces the one that the ledger knows. Only a flag: it is meant once.
    #[serde(skip)]
    pub replace_engine: bool,
    /// The box office.
    pub boxoffice: BoxOfficeConfig,
    /// The address of the HTTP listener.
    pub http: String,
    /// The address of the RESP listener.
    pub resp: String,
    /// Host names of this server, beside addresses and localhost.
    pub hosts: Vec<String>,
    /// Listen on a public address without TLS.
    pub allow_plain: bool,
    /// TLS for both ports.
    pub tls: Option<TlsFiles>,
    /// Limits.
    pub limits: LimitsConfig,
    /// Bytes of recent events kept for watches.
    pub news_bytes: ConfigSize,
    /// What is logged.
    pub log: LogConfig,
    /// Where traces go.
    pub otel: Option<OtelConfig>,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("data", &self.data)
            .field("engine", &without_credentials(&self.engine))
            .field("http", &self.http)
            .field("resp", &self.resp)
            .field("hosts", &self.hosts)
            .field("allow_plain", &self.allow_plain)
            .field("tls", &self.tls)
            .field("limits", &self.limits)
            .field("news_bytes", &self.news_bytes)
            .field("log", &self.log)
            .field("otel", &self.otel)
            .finish()
    }
}

/// A URL without user and password.
pub fn without_credentials(url: &str) -> Cow<'_, str> {
    // The options of a URL may hold a password too.
    let shown = |place: &str| match place.split_once('?') {
        Some((place, _)) => format!("{place}?…"),
        None => place.to_owned(),
    };
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, place))) => format!("{scheme}://…@{}", shown(place)).into(),
        (Some((scheme, place)), None) => format!("{scheme}://{}", shown(place)).into(),
        _ => url.into(),
    }
}

/// Engines that a server can be started over, besides the embedded one.
const ENGINE_SCHEMES: [&str; 10] =
    ["leasehold", "leaseholds", "redis", "rediss", "redlock", "postgres", "postgresql", "etcd", "etcds", "zk"];

/// Files of TLS, as PEM.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// The certificate and what leads to its root.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Who signs certificates of clients; given, every client needs one.
    pub client_ca: Option<PathBuf>,
}

/// What is logged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename = "Log", deny_unknown_fields, default)]
pub struct LogConfig {
    /// As text for people, or one JSON object per line.
    pub format: LogFormat,
    /// How much.
    pub level: LogLevel,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename = "Format", rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename = "Level", rename_all = "lowercase")]
pub enum LogLevel {
    /// What failed.
    Error,
    /// And what may fail soon.
    Warn,
    /// And what an operator wants to know.
    #[default]
    Info,
    /// And every call.
    Debug,
    /// And everything else.
    Trace,
}

/// Where traces go. `Debug` hides what may be a password.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(rename = "Otel", deny_unknown_fields)]
pub struct OtelConfig {
    /// An OTLP collector over HTTP, e.g. `http://127.0.0.1:4318`.
    pub endpoint: String,
}

impl fmt::Debug for OtelConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Otel").field("endpoint", &without_credentials(&self.endpoint)).finish()
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data: "./leasehold-data".into(),
            engine: "embedded".into(),
            ledger: "sqlite".into(),
            store: None,
            replace_engine: false,
            boxoffice: BoxOfficeConfig::default(),
            http: "127.0.0.1:7400".into(),
            resp: "127.0.0.1:7401".into(),
            hosts: Vec::new(),
            allow_plain: false,
            tls: None,
            limits: LimitsConfig::default(),
            news_bytes: ConfigSize(8 << 20),
            log: LogConfig::default(),
            otel: None,
        }
    }
}

impl Config {
    /// The file, if one is named, and flags and environment over it.
    ///
    /// # Errors
    ///
    /// Exit code 2 and a sentence.
    pub fn load(flags: &ServeFlags) -> anyhow::Result<Self> {
        let mut config = match &flags.config {
            Some(path) => Self::read(path)?,
            None => Self::default(),
        };
        config.apply_flags(flags)?;
        config.check().map_err(Failure::usage)?;
        Ok(config)
    }

    fn read(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::usage(format!("the config file {shown} cannot be read: {error}")))?;
        let mut config: Self = toml::from_str(&text).map_err(|error| {
            Failure::usage(format!("the config file {shown} is refused, {}", toml_sentence(&error, &text)))
        })?;
        config.resolve_paths(path.parent().unwrap_or(Path::new("")));
        Ok(config)
    }

    /// Makes paths in the file relative to the file, not to the working directory.
    fn resolve_paths(&mut self, base: &Path) {
        self.data = base.join(&self.data);
        if let Some(tls) = &mut self.tls {
            tls.cert = base.join(&tls.cert);
            tls.key = base.join(&tls.key);
            tls.client_ca = tls.client_ca.take().map(|path| base.join(path));
        }
    }

    fn apply_flags(&mut self, flags: &ServeFlags) -> anyhow::Result<()> {
        fn set<T: Clone>(field: &mut T, flag: &Option<T>) {
            if let Some(value) = flag {
                field.clone_from(value);
            }
        }
        set(&mut self.data, &flags.data);
        set(&mut self.engine, &flags.engine);
        set(&mut self.ledger, &flags.ledger);
        if let Some(store) = &flags.store {
            self.store = Some(SecretText::new(store));
        }
        self.replace_engine = flags.replace_engine;
        set(&mut self.http, &flags.http);
        set(&mut self.resp, &flags.resp);
        set(&mut self.log.format, &flags.log_format);
        set(&mut self.log.level, &flags.log_level);
        if !flags.hosts.is_empty() {
            self.hosts.clone_from(&flags.hosts);
        }
        set(&mut self.allow_plain, &flags.allow_plain);
        if let Some(endpoint) = &flags.otel_endpoint {
            self.otel = Some(OtelConfig { endpoint: endpoint.clone() });
        }
        if flags.tls_cert.is_some() || flags.tls_key.is_some() || flags.tls_client_ca.is_some() {
            let old = self.tls.take();
            let cert = flags.tls_cert.clone().or_else(|| old.as_ref().map(|tls| tls.cert.clone()));
            let key = flags.tls_key.clone().or_else(|| old.as_ref().map(|tls| tls.key.clone()));
            let client_ca = flags.tls_client_ca.clone().or_else(|| old.and_then(|tls| tls.client_ca));
            let (Some(cert), Some(key)) = (cert, key) else {
                return Err(Failure::usage("TLS needs both a certificate and its key: give --tls-cert and --tls-key"));
            };
            self.tls = Some(TlsFiles { cert, key, client_ca });
        }
        // `embedded:DIR` names the data directory too.
        if let Some(dir) = self.engine.strip_prefix("embedded:").filter(|dir| !dir.is_empty()) {
            self.data = dir.into();
            self.engine = "embedded".into();
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let scheme = self.engine.split_once("://").map(|(scheme, _)| scheme);
        if self.engine != "embedded" && !scheme.is_some_and(|scheme| ENGINE_SCHEMES.contains(&scheme)) {
            // Not repeated: the URL of an engine may carry a password.
            return Err("this version serves the embedded engine, another server, Redis, Redlock, PostgreSQL, etcd and ZooKeeper: \
                        say engine = \"embedded\", or a URL as in engine = \"leasehold://host:port\", or leave it out"
                .into());
        }
        LedgerUrl::parse(&self.ledger, &self.data)?;
        self.store_url()?;
        self.boxoffice.check()?;
        self.limits.check()?;
        if self.news_bytes.0 > 4 << 30 {
            return Err("news_bytes is at most 4GiB".into());
        }
        self.addresses().map(drop)?;
        if self.otel.is_some() && !cfg!(feature = "otel") {
            return Err("this build has no OpenTelemetry: build with --features otel, or leave otel out".into());
        }
        for host in &self.hosts {
            let fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
            if host != "*" && (host.is_empty() || !host.bytes().all(fine)) {
                return Err(format!("hosts are names without scheme and port, or *, got {host:?}"));
            }
        }
        Ok(())
    }

    /// The URL of the store of recipes.
    ///
    /// # Errors
    ///
    /// A sentence. It does not repeat the URL: that may carry a password.
    pub fn store_url(&self) -> Result<StoreUrl, String> {
        StoreUrl::choose(self.store.as_ref(), &self.engine, &self.data)
    }

    /// Where HTTP and RESP listen.
    ///
    /// # Errors
    ///
    /// The sentence.
    pub fn addresses(&self) -> Result<(SocketAddr, SocketAddr), String> {
        Ok((parse_address("http", &self.http)?, parse_address("resp", &self.resp)?))
    }
}

fn parse_address(field: &str, text: &str) -> Result<SocketAddr, String> {
    let found = text.to_socket_addrs().ok().and_then(|mut found| found.next());
    found.ok_or_else(|| format!("{field} is an address and a port like 127.0.0.1:7400, got {text:?}"))
}

/// What is wrong with a TOML text, in one sentence with its line.
pub fn toml_sentence(error: &toml::de::Error, text: &str) -> String {
    let message = error.message().replace('\n', ", ");
    match error.span().and_then(|span| text.get(..span.start)) {
        Some(before) => format!("line {}: {message}", before.matches('\n').count() + 1),
        None => message,
    }
}

#[cfg(test)]
mod tests;
