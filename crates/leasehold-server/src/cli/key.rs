//! `leasehold key`: makes, lists and revokes the API keys of a server. Works beside a running server, which notices
//! within a second.

use std::num::NonZeroU32;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::config::Config;
use crate::config::ServeFlags;
use crate::service::Role;
use crate::service::keys::file::{KeyFile, KeyFileError, KeyRecord};
use crate::service::keys::secret::{self, NewKey};
use leasehold_support::exit::{self, CORRUPT, Failure, UNAVAILABLE};
use leasehold_support::output::Table;
use leasehold_support::{output, time};

const EXAMPLE: &str = "\
Example:
  leasehold key create --role lease --prefix seats/ --note 'web shop'
  leasehold key ls
  leasehold key revoke k3f9a1b2

Roles: read sees, lease also takes leases, boxoffice runs the box office, admin may do everything, also revoke.
Shown by: Authorization: Bearer KEY (HTTP), AUTH KEY (RESP), LEASEHOLD_API_KEY (this command line).";

/// Makes, lists and revokes API keys of a server.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct KeyArgs {
    #[command(subcommand)]
    what: KeySubcommand,
}

#[derive(Debug, Subcommand)]
enum KeySubcommand {
    Create(KeyCreateArgs),
    Ls(KeyLsArgs),
    Revoke(KeyRevokeArgs),
}

#[derive(Debug, Args)]
struct KeyDirectory {
    /// The data directory of the server [default: ./leasehold-data]
    #[arg(long, value_name = "DIR", env = "LEASEHOLD_DATA")]
    data: Option<PathBuf>,
    /// The config file of the server, which names its data directory; --data stands over it
    #[arg(long, value_name = "FILE", env = "LEASEHOLD_CONFIG")]
    config: Option<PathBuf>,
}

/// Makes a key and prints it, once
#[derive(Debug, Args)]
struct KeyCreateArgs {
    /// What it may do: read, lease, boxoffice or admin; may be given again
    #[arg(long = "role", value_name = "ROLE", required = true, value_parser = parse_role, value_delimiter = ',')]
    roles: Vec<Role>,
    /// Only names that begin so; may be given again [default: every name]
    #[arg(long = "prefix", value_name = "PREFIX")]
    prefixes: Vec<String>,
    /// Requests per second at most [default: no limit]
    #[arg(long, value_name = "N")]
    rate: Option<NonZeroU32>,
    /// What it is for, for people
    #[arg(long, value_name = "TEXT", default_value = "")]
    note: String,
    #[command(flatten)]
    place: KeyDirectory,
}

/// Lists the keys: never their secrets, which nobody knows
#[derive(Debug, Args)]
struct KeyLsArgs {
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: KeyDirectory,
}

/// Revokes a key, also on connections that are open
#[derive(Debug, Args)]
struct KeyRevokeArgs {
    /// The id of the key, as `ls` shows it
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    place: KeyDirectory,
}

/// A key as everybody may see it.
#[derive(Serialize)]
struct KeyJson<'a> {
    id: &'a str,
    roles: &'a [Role],
    prefixes: &'a [String],
    rate: Option<NonZeroU32>,
    note: &'a str,
    created: &'a str,
}

fn parse_role(word: &str) -> Result<Role, String> {
    Role::named(word).ok_or_else(|| format!("the roles are {}", Role::ALL.map(Role::word).join(", ")))
}

impl KeyArgs {
    /// Does it.
    pub fn execute(self) -> anyhow::Result<u8> {
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
        let done = match self.what {
            KeySubcommand::Create(create) => create.execute(),
            KeySubcommand::Ls(ls) => ls.execute(),
            KeySubcommand::Revoke(revoke) => revoke.execute(),
        };
        done.map_err(with_exit_code).map(|()| exit::DONE)
    }
}

/// The exit code of a list that cannot be had.
fn with_exit_code(error: anyhow::Error) -> anyhow::Error {
    let code = match error.downcast_ref::<KeyFileError>() {
        Some(KeyFileError::Damaged { .. }) => CORRUPT,
        Some(KeyFileError::Io { .. }) => UNAVAILABLE,
        None => return error,
    };
    Failure::coded(code, exit::sentence(&error))
}

impl KeyDirectory {
    fn data_dir(self) -> anyhow::Result<PathBuf> {
        let flags = ServeFlags { data: self.data, config: self.config, ..ServeFlags::default() };
        Ok(Config::load(&flags)?.data)
    }
}

impl KeyCreateArgs {
    fn execute(self) -> anyhow::Result<()> {
        let key = NewKey::random().context("take random bits from the operating system")?;
        let mut roles = self.roles;
        roles.sort_by_key(|role| *role as u8);
        roles.dedup();
        let record = KeyRecord {
            id: key.id.clone(),
            hash: key.digest(),
            roles,
            prefixes: self.prefixes,
            rate: self.rate,
            note: self.note,
            created: time::rfc3339_in(std::time::Duration::ZERO),
        };
        record.check().map_err(Failure::usage)?;
        let dir = self.place.data_dir()?;
        let first = KeyFile::change(&dir, |file| {
            file.keys.push(record);
            Ok(file.keys.len() == 1)
        })?;
        output::line(key.expose())?;
        output::say(format!("key {} is made; this is the only time that it is shown", key.id));
        if first {
            output::say("it is the first key: from now on this server lets nobody in without one");
        }
        Ok(())
    }
}

impl KeyLsArgs {
    fn execute(self) -> anyhow::Result<()> {
        let file = KeyFile::load(&self.place.data_dir()?)?;
        if self.json {
            return file.keys.iter().try_for_each(|record| output::json(&KeyJson::from_record(record)));
        }
        if file.keys.is_empty() {
            output::say("there are no keys: everybody on the machine of the server may do everything");
            return Ok(());
        }
        let mut table = Table::new(&["ID", "ROLES", "PREFIXES", "RATE", "CREATED", "NOTE"]);
        for record in &file.keys {
            let roles: Vec<&str> = record.roles.iter().map(|role| role.word()).collect();
            let prefixes = if record.prefixes.is_empty() { "(all)".to_owned() } else { record.prefixes.join(" ") };
            let rate = record.rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate}/s"));
            let cells =
                [record.id.clone(), roles.join(","), prefixes, rate, record.created.clone(), record.note.clone()];
            table.row(cells);
        }
        table.print()
    }
}

impl KeyRevokeArgs {
    fn execute(self) -> anyhow::Result<()> {
        let id = secret::id_in(self.id.trim()).to_owned();
        if !secret::is_id(&id) {
            return Err(Failure::usage("this is no id of a key: `leasehold key ls` shows them"));
        }
        let dir = self.place.data_dir()?;
        let left = KeyFile::change(&dir, |file| {
            let before = file.keys.len();
            file.keys.retain(|record| record.id != id);
            if file.keys.len() == before {
                return Err(Failure::usage(format!("there is no key {id} in {}", dir.display())));
            }
            Ok(file.keys.len())
        })?;
        output::line(format!("revoked {id}"))?;
        if left == 0 {
            output::say(
                "it was the last key: a running server lets nobody in, and one that is started again everybody on its \
                 machine",
            );
        }
        Ok(())
    }
}

impl<'a> KeyJson<'a> {
    fn from_record(record: &'a KeyRecord) -> Self {
        Self {
            id: &record.id,
            roles: &record.roles,
            prefixes: &record.prefixes,
            rate: record.rate,
            note: &record.note,
            created: &record.created,
        }
    }
}
