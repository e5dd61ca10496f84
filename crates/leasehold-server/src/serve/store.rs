//! Opens the store of recipes of a server.

use std::sync::Arc;

use leasehold::clock::Clock;
use leasehold::recipe::{RecipeError, Store};
use leasehold_support::exit::{self, Failure};

use crate::config::{Config, SecretText, StoreUrl, without_credentials};
use crate::service::recipes::RecipeState;

/// Opens the store of the configuration; none for a server without one.
///
/// # Errors
///
/// Exit code 2, 4 or 8, and a sentence that names the store without its password.
pub async fn open_recipes(config: &Config, clock: Arc<dyn Clock>) -> anyhow::Result<Option<Arc<RecipeState>>> {
    let StoreUrl::At(url) = config.store_url().map_err(Failure::usage)? else {
        return Ok(None);
    };
    warn_of_own_file(config, &url);
    let opened = Store::open(url.expose()).await.map_err(|error| open_failure(&url, error))?;
    Ok(Some(RecipeState::new(opened, clock)))
}

/// Other servers over the same engine would each have rows of their own.
fn warn_of_own_file(config: &Config, url: &SecretText) {
    if config.engine != "embedded" && url.expose().starts_with("sqlite:") {
        tracing::warn!(
            "the store of recipes is a file of this server alone: another server over the same engine must not have one \
             of its own, or things run twice"
        );
    }
}

fn open_failure(url: &SecretText, error: RecipeError) -> anyhow::Error {
    let place = without_credentials(url.expose()).into_owned();
    let error = anyhow::Error::new(error);
    Failure::coded(exit::code(&error), format!("the store {place}: {}", exit::sentence(&error)))
}
