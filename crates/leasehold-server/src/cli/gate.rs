//! `leasehold gate`: the fence in front of an HTTP service.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use hyper::Method;
use leasehold_support::duration;
use leasehold_support::exit::Failure;

use crate::config::{LogConfig, LogFormat, LogLevel, TlsFiles};
use crate::gate::forward::ExchangeTimes;
use crate::gate::machine::OnStuck;
use crate::gate::run::{GateOptions, UpstreamUrl, run_gate};

const EXAMPLE: &str = "\
Example:
  leasehold gate --listen 127.0.0.1:8080 --upstream http://127.0.0.1:9000 --data ./gate-data
  leasehold run nightly-billing -- ./bill.sh
  # in bill.sh:
  curl --fail -H \"Fencing-Token: $LEASEHOLD_TOKEN\" -H \"Fencing-Lease: $LEASEHOLD_MARK\" \\
       -H \"Fencing-Resource: $LEASEHOLD_RESOURCE\" -d @bills.json http://127.0.0.1:8080/bills

A stale holder gets 409 and reaches nothing. One gate for each upstream: two gates with two memories are no fence.";

/// Refuses requests of stale holders in front of an HTTP service that cannot check tokens itself.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct GateArgs {
    /// Where clients connect
    #[arg(long, value_name = "ADDR", value_parser = parse_address)]
    listen: SocketAddr,
    /// The service behind the gate: http://HOST:PORT or https://HOST
    #[arg(long, value_name = "URL")]
    upstream: UpstreamUrl,
    /// Where the gate remembers the highest tokens; one process at a time
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Methods that pass without a token
    #[arg(long, value_name = "METHODS", value_delimiter = ',', default_value = "GET,HEAD,OPTIONS", value_parser = parse_method)]
    unfenced: Vec<Method>,
    /// How long a newer request waits until older ones are answered
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    drain: Duration,
    /// With --on-stuck cut: how long the upstream has after its connection was closed
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration::parse)]
    settle: Duration,
    /// When older requests stay unanswered: refuse the newer one, or cut the older ones off
    #[arg(long, value_name = "refuse|cut", value_enum, default_value = "refuse", hide_possible_values = true)]
    on_stuck: OnStuck,
    /// Where /metrics and /healthz are
    #[arg(long, value_name = "ADDR", value_parser = parse_address)]
    metrics: Option<SocketAddr>,
    /// Listen on a public address without TLS
    #[arg(long)]
    allow_plain: bool,
    /// The certificate, PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Who signs certificates of clients, PEM; given, every client needs one
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// How log lines look
    #[arg(long, value_name = "FORMAT", env = "LEASEHOLD_LOG_FORMAT")]
    log_format: Option<LogFormat>,
    /// How much is logged
    #[arg(long, value_name = "LEVEL", env = "LEASEHOLD_LOG_LEVEL")]
    log_level: Option<LogLevel>,
}

impl GateArgs {
    /// Runs the gate until it is asked to stop.
    ///
    /// # Errors
    ///
    /// What could not be opened or listened on.
    pub fn execute(self) -> anyhow::Result<u8> {
        if self.drain.is_zero() {
            return Err(Failure::usage("--drain is longer than nothing: older requests need time for their answer"));
        }
        let tls = match (self.tls_cert, self.tls_key) {
            (Some(cert), Some(key)) => Some(TlsFiles { cert, key, client_ca: self.tls_client_ca }),
            _ => None,
        };
        let log = LogConfig::default();
        run_gate(GateOptions {
            listen: self.listen,
            upstream: self.upstream,
            data: self.data,
            unfenced: self.unfenced,
            drain: self.drain,
            settle: self.settle,
            on_stuck: self.on_stuck,
            metrics: self.metrics,
            allow_plain: self.allow_plain,
            tls,
            log: LogConfig {
                format: self.log_format.unwrap_or(log.format),
                level: self.log_level.unwrap_or(log.level),
            },
            times: ExchangeTimes::default(),
        })
    }
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let sentence = "say an address and a port, e.g. 127.0.0.1:8080";
    text.to_socket_addrs().ok().and_then(|mut found| found.next()).ok_or_else(|| sentence.to_owned())
}

fn parse_method(text: &str) -> Result<Method, String> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_uppercase());
    let method = text.parse().ok().filter(|_| plain);
    method.ok_or_else(|| "methods are written in capitals, e.g. GET,HEAD".into())
}
