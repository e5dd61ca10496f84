//! Which store a command keeps its rows in: `--store`, `LEASEHOLD_STORE`, or the default of the engine.

use leasehold::engine::remote;
use leasehold::recipe::Store;
use leasehold::recipe::store::default_url;
use leasehold_support::exit::Failure;

use super::target::with_environment_key;

/// The environment variable with the URL of the store.
const STORE_VARIABLE: &str = "LEASEHOLD_STORE";

/// Opens the store that was typed, or that the environment names, or that belongs to the engine.
///
/// # Errors
///
/// Exit code 2 for a URL that names no store, 4 when nobody answers there. No sentence repeats the URL.
pub async fn open_store(typed: Option<&str>, engine_url: &str) -> anyhow::Result<Store> {
    let named = std::env::var(STORE_VARIABLE).ok().filter(|url| !url.is_empty());
    let url = match typed.map(ToOwned::to_owned).or(named) {
        Some(url) => url,
        None => default_url(engine_url)?,
    };
    if let Some(directory) = engine_url.strip_prefix("embedded:")
        && url == default_url(engine_url)?
    {
        // The engine makes its directory when it is opened, and so does its store.
        let made = std::fs::create_dir_all(directory);
        made.map_err(|error| anyhow::Error::new(error).context("make the directory of the store"))?;
    }
    if url.starts_with("leasehold://") || url.starts_with("leaseholds://") {
        return open_server_store(&url).await;
    }
    Ok(Store::open(&url).await?)
}

/// The store of a server, with the key of the environment where the URL has none.
async fn open_server_store(url: &str) -> anyhow::Result<Store> {
    let options = remote::Options::from_url(url).map_err(|error| Failure::usage(error.to_string()))?;
    Ok(Store::open_server(with_environment_key(options)).await?)
}
