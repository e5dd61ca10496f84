//! Opening: a member answers, the login is right, and there is a session.

use std::sync::Arc;

use tokio::runtime::Handle;

use super::events::run_of;
use super::members::CallKind;
use super::messages::StatusCall;
use super::options::EtcdEngineOptions;
use super::shared::EtcdShared;
use super::{EtcdEngine, MAX_DELAY, TOO_LATE};
use crate::clock::{Clock as _, until};
use crate::engine::etcd::failure::{EtcdFailure, unavailable};
use crate::error::Error;

impl EtcdEngine {
    /// Connects to a member and opens a session. Its tasks run on the runtime that this is called in.
    ///
    /// # Errors
    ///
    /// Unavailable when no member answers or there is no leader; Invalid for a wrong login, a missing permission or files
    /// that are not for TLS.
    pub async fn open(options: EtcdEngineOptions) -> Result<Arc<Self>, Error> {
        let runtime = Handle::try_current()
            .map_err(|_| Error::Invalid("etcd is asked on a tokio runtime: open it inside one".into()))?;
        let attempt = format!("open etcd://{}", options.at());
        let shared = Arc::new(EtcdShared::new(options, runtime)?);
        let clock = shared.clock;
        let opening = async {
            let status = shared.members.call(StatusCall {}, CallKind::Read).await?;
            match shared.open_session().await {
                // Looks, releases and revokes need no session, and free the space that a new one needs.
                Ok(()) | Err(EtcdFailure::NoSpace) => {}
                Err(failure) => return Err(failure),
            }
            Ok(status.header.map_or(0, |header| header.cluster_id))
        };
        let opened = until(&clock, clock.now().plus(MAX_DELAY), opening).await;
        let opened = opened.ok_or_else(|| unavailable(attempt.as_str(), TOO_LATE))?;
        let cluster_id = opened.map_err(|failure: EtcdFailure| failure.into_read_error(attempt))?;
        let prefix = &shared.options.prefix;
        let identity = format!("etcd-{cluster_id:016x}-{prefix}");
        let run = run_of(cluster_id, prefix);
        shared.spawn_last(shared.clone().keep_session());
        shared.spawn_background(shared.clone().end_leases_in_time());
        Ok(Arc::new(Self { shared, identity, run }))
    }
}
