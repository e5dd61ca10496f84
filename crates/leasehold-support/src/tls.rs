//! TLS as a client: the certificates of the system, rustls with ring.

use std::sync::Arc;

use anyhow::Context;

/// A configuration that trusts what the system trusts. Without system certificates, connections fail when they are made.
///
/// # Errors
///
/// TLS cannot be set up.
pub fn client_config() -> anyhow::Result<Arc<rustls::ClientConfig>> {
    let mut roots = rustls::RootCertStore::empty();
    let _ = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("set up TLS")?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
