//! Flags of `leasehold serve` and their environment variables.

use std::path::PathBuf;

use super::{LogFormat, LogLevel, without_credentials};

/// What stands over the config file, typed or from the environment. `Debug` hides what may be a password in a URL.
#[derive(Clone, Default, clap::Args)]
pub struct ServeFlags {
    /// A TOML file; see --print-config
    #[arg(long, value_name = "FILE", env = "LEASEHOLD_CONFIG")]
    pub config: Option<PathBuf>,
    /// Where the embedded engine keeps its journal, and the keys are [default: ./leasehold-data]
    #[arg(long, value_name = "DIR", env = "LEASEHOLD_DATA")]
    pub data: Option<PathBuf>,
    /// What decides grants: embedded, or leasehold://, redis://, redlock://, postgres://, etcd:// or zk:// with a host
    // Hidden in help: the URL of an engine may carry a password.
    #[arg(long, value_name = "URL", env = "LEASEHOLD_ENGINE", hide_env_values = true)]
    pub engine: Option<String>,
    /// Where the box office keeps its books: sqlite, sqlite:FILE, postgres://…, or none [default: sqlite, in the data directory]
    #[arg(long, value_name = "URL", env = "LEASEHOLD_LEDGER", hide_env_values = true)]
    pub ledger: Option<String>,
    /// Where recipes (once, queues, schedules) keep their rows: postgres://…, sqlite:FILE, leasehold://…, or none [default: recipes.db in the data directory; of another engine what it has itself]
    #[arg(long, value_name = "URL", env = "LEASEHOLD_STORE", hide_env_values = true)]
    pub store: Option<String>,
    /// This engine takes the place of the one that the ledger knows, which is lost for good
    #[arg(long)]
    pub replace_engine: bool,
    /// Where HTTP listens [default: 127.0.0.1:7400]
    #[arg(long, value_name = "ADDR", env = "LEASEHOLD_HTTP")]
    pub http: Option<String>,
    /// Where RESP listens [default: 127.0.0.1:7401]
    #[arg(long, value_name = "ADDR", env = "LEASEHOLD_RESP")]
    pub resp: Option<String>,
    /// A name by which browsers may call us, beside addresses and localhost
    #[arg(long = "host", value_name = "NAME", env = "LEASEHOLD_HOSTS", value_delimiter = ',')]
    pub hosts: Vec<String>,
    /// Listen on a public address without TLS
    #[arg(long, value_name = "BOOL", env = "LEASEHOLD_ALLOW_PLAIN", num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub allow_plain: Option<bool>,
    /// The certificate for both ports, PEM
    #[arg(long, value_name = "FILE", env = "LEASEHOLD_TLS_CERT")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE", env = "LEASEHOLD_TLS_KEY")]
    pub tls_key: Option<PathBuf>,
    /// Who signs certificates of clients, PEM; given, every client needs one
    #[arg(long, value_name = "FILE", env = "LEASEHOLD_TLS_CLIENT_CA")]
    pub tls_client_ca: Option<PathBuf>,
    /// How log lines look
    #[arg(long, value_name = "FORMAT", env = "LEASEHOLD_LOG_FORMAT")]
    pub log_format: Option<LogFormat>,
    /// How much is logged
    #[arg(long, value_name = "LEVEL", env = "LEASEHOLD_LOG_LEVEL")]
    pub log_level: Option<LogLevel>,
    /// An OpenTelemetry collector, e.g. http://127.0.0.1:4318
    #[arg(long, value_name = "URL", env = "LEASEHOLD_OTEL_ENDPOINT", hide_env_values = true)]
    pub otel_endpoint: Option<String>,
}

impl std::fmt::Debug for ServeFlags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flags")
            .field("config", &self.config)
            .field("data", &self.data)
            .field("engine", &self.engine.as_deref().map(without_credentials))
            .field("http", &self.http)
            .field("resp", &self.resp)
            .finish_non_exhaustive()
    }
}
