//! Opens a box office: the ledger by its URL, secrets from the configuration or from a file.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use leasehold::clock::Clock;
use leasehold::engine::{Engine, Finding, FindingKind, Promise};
use leasehold_boxoffice::Office;
use leasehold_boxoffice::ledger::Ledger;
use leasehold_boxoffice::ledger::postgres::{Postgres, PostgresOptions};
use leasehold_boxoffice::ledger::sqlite::Sqlite;
use leasehold_boxoffice::office::{Admitted, OfficeOptions};
use leasehold_boxoffice::provider::PaymentProvider;
use leasehold_boxoffice::sign::Secrets;
use leasehold_boxoffice::webhook::guard::TargetGuard;

use super::outbound::Outbound;
use super::provider::HttpProvider;
use super::{BoxOffice, BoxOfficeSettings};
use crate::config::{self, Config, LedgerUrl};
use leasehold_support::exit::{CORRUPT, Failure, UNAVAILABLE};

/// The file of the ticket secret, in the data directory.
const TICKET_SECRET_FILE: &str = "boxoffice.key";

/// Opens the box office of the configuration; none for a server without one.
///
/// # Errors
///
/// Exit code 2, 4 or 8, and a sentence.
pub async fn open_boxoffice(
    config: &Config,
    engine: Arc<dyn Engine>,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<Option<Arc<BoxOffice>>> {
    let url = LedgerUrl::parse(&config.ledger, &config.data).map_err(Failure::usage)?;
    fs::create_dir_all(&config.data).map_err(|error| io_failure(&config.data, &error))?;
    let ledger: Arc<dyn Ledger> = match url {
        LedgerUrl::None => return Ok(None),
        LedgerUrl::Sqlite(path) => Sqlite::open(&path, clock.clone()).await.map_err(exit_failure)?,
        LedgerUrl::Postgres(url) => {
            Postgres::open(url.expose(), PostgresOptions::default()).await.map_err(exit_failure)?
        }
    };
    let options = OfficeOptions { clock: clock.clone(), name: config.boxoffice.name(), ..OfficeOptions::default() };
    // A server for locks alone: the configuration did not ask for a box office.
    let optional = config.engine != "embedded" && config.ledger == "sqlite";
    let go_without = |why: String| {
        tracing::warn!(why, "there is no box office on this server: say --ledger none, or where its ledger is");
        Ok(None)
    };
    match why_unfenced(engine.as_ref()).await {
        Some(why) if optional => return go_without(why),
        Some(why) => return Err(Failure::usage(why)),
        None => {}
    }
    let office = Office::new(engine, ledger, options).map_err(exit_failure)?;
    match office.admit_engine(config.replace_engine).await {
        Err(leasehold_boxoffice::Error::Invalid(why)) if optional => return go_without(why),
        Err(error) => return Err(exit_failure(error)),
        Ok(Admitted::Known) => {}
        Ok(Admitted::Replaces(before)) => tracing::warn!(
            before,
            "the ledger was of another engine: this one takes its place, and its tokens go on above the ledger's"
        ),
    }
    let boxoffice = &config.boxoffice;
    let tickets = match boxoffice.ticket_secrets.as_slice() {
        [] => {
            if office.shares_ledger() {
                tracing::warn!(
                    "boxoffice.ticket_secrets is not set: other servers on this ledger cannot read the tickets and \
                     stored answers of this one"
                );
            }
            load_or_make_secret(&config.data)?
        }
        given => parse_secrets("boxoffice.ticket_secrets", given)?,
    };
    let outbound = Outbound::new(TargetGuard { allow_private: boxoffice.allow_private_targets })?;
    let provider_secrets = match boxoffice.provider_secrets.as_slice() {
        [] => None,
        given => Some(parse_secrets("boxoffice.provider_secrets", given)?),
    };
    let provider = boxoffice.provider_url.as_ref().zip(provider_secrets.as_ref()).map(|(url, secrets)| {
        let provider = HttpProvider::new(url, boxoffice.provider_payments, secrets.clone(), outbound.clone());
        Arc::new(provider) as Arc<dyn PaymentProvider>
    });
    let settings = BoxOfficeSettings {
        tickets,
        ticket_ttl: boxoffice.ticket_ttl.0,
        provider_secrets,
        provider,
        default_event: boxoffice.default_event.clone(),
    };
    BoxOffice::new(office, clock, settings, outbound).await.map(Some).map_err(exit_failure)
}

/// Why seats cannot be sold on this engine: what keeps it from promising fencing. None if it promises it.
async fn why_unfenced(engine: &dyn Engine) -> Option<String> {
    let promises = engine.promises();
    if promises.fencing {
        return None;
    }
    let findings = engine.examine().await.unwrap_or_default();
    let denies = |finding: &&Finding| matches!(&finding.kind, FindingKind::Denies(d) if d.contains(&Promise::Fencing));
    let reasons: Vec<String> = findings
        .iter()
        .filter(denies)
        .map(|finding| format!("{} is {} ({})", finding.setting, finding.found, finding.sentence))
        .collect();
    let engine = promises.engine;
    Some(format!(
        "the box office needs fencing tokens, and the {engine} engine does not promise them here: {}",
        if reasons.is_empty() { "see leasehold doctor".to_owned() } else { reasons.join("; ") }
    ))
}

fn parse_secrets(field: &str, given: &[config::SecretText]) -> anyhow::Result<Secrets> {
    let texts: Vec<&str> = given.iter().map(config::SecretText::expose).collect();
    Secrets::new(&texts).map_err(|unfit| Failure::usage(format!("{field}: {unfit}")))
}

/// The secret in the data directory, created if missing: tickets must survive a restart.
fn load_or_make_secret(data: &Path) -> anyhow::Result<Secrets> {
    let path = data.join(TICKET_SECRET_FILE);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => make_secret(&path)?,
        Err(error) => return Err(io_failure(&path, &error)),
    };
    Secrets::new(&[text.trim()])
        .map_err(|unfit| Failure::coded(CORRUPT, format!("{}: {unfit}; put it back, or remove it", path.display())))
}

fn make_secret(path: &Path) -> anyhow::Result<String> {
    let mut bits = [0; 32];
    getrandom::fill(&mut bits)?;
    let text = leasehold_support::hex::encode(&bits);
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = file.map_err(|error| io_failure(path, &error))?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(|error| io_failure(path, &error))?;
    Ok(text)
}

fn io_failure(path: &Path, error: &std::io::Error) -> anyhow::Error {
    Failure::coded(UNAVAILABLE, format!("{}: {error}", path.display()))
}

/// An error of the office as an exit code and a sentence.
pub fn exit_failure(error: leasehold_boxoffice::Error) -> anyhow::Error {
    let code = match &error {
        leasehold_boxoffice::Error::Corrupt { .. } => CORRUPT,
        leasehold_boxoffice::Error::Invalid(_) => leasehold_support::exit::USAGE,
        _ => UNAVAILABLE,
    };
    let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
    Failure::coded(code, format!("{error}{cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: tickets outlive a restart, and the secret is for its owner alone.
    #[test]
    fn the_secret_stays() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let first = load_or_make_secret(dir.path()).unwrap().sign(&[b"x"]);
        assert_eq!(load_or_make_secret(dir.path()).unwrap().sign(&[b"x"]), first);
        let mode = fs::metadata(dir.path().join(TICKET_SECRET_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::write(dir.path().join(TICKET_SECRET_FILE), "short").unwrap();
        assert!(load_or_make_secret(dir.path()).is_err());
    }
}
