//! Which engine the tokens come from: admitted once at the start, and checked again later.
//!
//! # Laws
//!
//! 1. All offices over one ledger use one engine. Another engine is refused, unless the operator replaces the first, or no
//!    other process can use the ledger.
//! 2. Before the first lease, the engine's floor is raised above every token in the ledger. So an engine that lost its
//!    directory, or was restored from a copy, never makes a live hold unpayable.
//! 3. An engine that refuses the resource names of the box office is reported at the start, not to every buyer.

use std::time::Duration;

use leasehold::engine::{Claim, Want as Resource};
use leasehold::{Error as EngineError, Mode, Refusal as EngineRefusal, Token};

use super::Office;
use crate::error::Error;

/// Which engine was admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admitted {
    /// The one that the ledger knows, or its first.
    Known,
    /// It replaces another, whose identity this was.
    Replaces(String),
}

/// The ttl of the probe lease.
const PROBE_TTL: Duration = Duration::from_secs(5);
/// How often admission is tried when other offices admit engines at the same moment.
const MAX_ADMIT_ATTEMPTS: usize = 3;

impl Office {
    /// Admits the engine: compares it with the one that the ledger knows, and raises its floor above every token that the
    /// ledger has seen. `replace`: it may take the place of another, also where other servers could use the ledger.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] with a sentence for whoever runs the server: it is another engine, its floor cannot be raised,
    /// or it refuses the names of the box office. Otherwise engine or ledger could not be asked.
    pub async fn admit_engine(&self, replace: bool) -> Result<Admitted, Error> {
        let identity = self.0.engine.identity().await.map_err(Error::engine)?;
        self.probe_engine().await?;
        let mut admitted = Admitted::Known;
        for _ in 0..MAX_ADMIT_ATTEMPTS {
            let known = self.0.ledger.engine().await?;
            if let (Some(known), Some(own)) = (&known, &identity)
                && known != own
            {
                if self.0.ledger.is_shared() && !replace {
                    return Err(Error::Invalid(other_engine_sentence(known, own)));
                }
                admitted = Admitted::Replaces(known.clone());
            }
            self.raise_engine_floor().await?;
            // An engine without an identity does not change the stored one: only tokens can be compared.
            if identity.is_none() || known == identity || self.0.ledger.put_engine(identity.clone(), known).await? {
                *self.0.identity.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = identity;
                return Ok(admitted);
            }
        }
        let (part, attempt) = ("office", "admitting the engine".into());
        Err(Error::Unavailable { part, attempt, source: "other servers admit engines at the same moment".into() })
    }

    /// Raises the engine's floor above every token in the ledger, if it is not there already. So a key without the right
    /// to raise it is enough as long as it need not be raised.
    pub(super) async fn raise_engine_floor(&self) -> Result<(), Error> {
        let highest = self.0.ledger.highest_token().await?;
        let Some(token) = Token::new(highest) else { return Ok(()) };
        let floor = self.0.engine.raise_floor(None).await.map_err(Error::engine)?;
        if floor > token {
            return Ok(());
        }
        match self.0.engine.raise_floor(Some(token)).await {
            Ok(_) => Ok(()),
            Err(error @ (EngineError::Unavailable { .. } | EngineError::Indeterminate { .. })) => {
                Err(Error::engine(error))
            }
            // At exactly the highest token of the ledger, the engine's next token is above it.
            Err(_) if floor == token => Ok(()),
            Err(error) => Err(Error::Invalid(format!(
                "the ledger has seen token {highest}, and the engine's tokens stand at {floor}: its floor must be raised \
                 above that, which it refuses ({error}); show it a key with role admin and without prefixes, or raise it \
                 by LEASE FLOOR {highest}"
            ))),
        }
    }

    /// Acquires and releases a probe lease: an engine that refuses it refuses every hold.
    async fn probe_engine(&self) -> Result<(), Error> {
        if self.0.engine.promises().engine == EMBEDDED_ENGINE {
            return Ok(());
        }
        let claim = Claim {
            wants: vec![Resource { name: format!("{TASK_LEASE_PREFIX}probe"), mode: Mode::Shared }],
            ttl: PROBE_TTL,
            wait: Duration::ZERO,
            max_hold: None,
            delay: Duration::ZERO,
            holder: self.0.options.name.clone(),
            request: None,
            principal: String::new(),
        };
        match self.0.engine.acquire(claim).await {
            Ok(grant) => {
                let _ = self.0.engine.release(&grant.lease_id).await;
                Ok(())
            }
            Err(EngineError::Refused(EngineRefusal::Held { .. })) => Ok(()),
            Err(error @ (EngineError::Invalid(_) | EngineError::Refused(_))) => Err(Error::Invalid(format!(
                "the engine refuses the names of the box office ({error}): run its server with --ledger none, and show \
                 it a key that may take {TASK_LEASE_PREFIX}… and box/…"
            ))),
            Err(error) => Err(Error::engine(error)),
        }
    }

    /// Whether the engine is still the one that was admitted, and the one that the ledger knows.
    pub(super) async fn check_engine(&self) -> Result<(), Error> {
        let own = self.0.identity.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let Some(own) = own else { return Ok(()) };
        let known = self.0.ledger.engine().await?;
        let found = self.0.engine.identity().await.map_err(Error::engine)?;
        let why = match (known, found) {
            (Some(known), _) if known != own => {
                "another engine has taken the place of ours: this server must be restarted"
            }
            (_, Some(found)) if found != own => "the engine is not the one that was admitted: restart the servers",
            _ => return Ok(()),
        };
        let (part, attempt) = ("office", "serving the box office".into());
        Err(Error::Unavailable { part, attempt, source: why.into() })
    }
}

/// The engine in this process needs no probe: it has no access rules.
const EMBEDDED_ENGINE: &str = "embedded";
/// The prefix of the leases of background tasks.
pub(super) const TASK_LEASE_PREFIX: &str = "boxoffice-";

fn other_engine_sentence(known: &str, own: &str) -> String {
    format!(
        "the ledger belongs to engine {known}, and this is engine {own}: servers that share a ledger share one engine \
         (--engine leasehold://HOST:PORT for each); if engine {known} is lost for good, stop all servers and start one \
         with --replace-engine"
    )
}
