//! TLS to the members: `etcds://`.

use tonic::transport::{Endpoint, Error as TransportError};

use super::options::EtcdTlsFiles;
use crate::error::Error;

#[cfg(feature = "tls")]
pub(super) fn with_tls(endpoint: Endpoint, files: &EtcdTlsFiles) -> Result<Endpoint, Error> {
    use tonic::transport::{Certificate, ClientTlsConfig, Identity};

    let read = |path: &std::path::Path| {
        std::fs::read(path).map_err(|error| Error::Invalid(format!("{} cannot be read: {error}", path.display())))
    };
    let mut config = ClientTlsConfig::new();
    config = match &files.ca {
        Some(ca) => config.ca_certificate(Certificate::from_pem(read(ca)?)),
        None => config.with_native_roots(),
    };
    if let Some((cert, key)) = &files.client {
        config = config.identity(Identity::from_pem(read(cert)?, read(key)?));
    }
    endpoint.tls_config(config).map_err(|_| Error::Invalid("the files in ca=, cert= and key= are not for TLS".into()))
}

#[cfg(not(feature = "tls"))]
pub(super) fn with_tls(_: Endpoint, _: &EtcdTlsFiles) -> Result<Endpoint, Error> {
    Err(Error::Invalid("this build speaks no TLS to etcd: build leasehold with the features `etcd` and `tls`".into()))
}

/// What is known of a failed connect beyond that it failed, for people.
pub(super) fn explain(error: &TransportError) -> String {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(error);
    let mut text = String::new();
    while let Some(inner) = cause {
        text = format!(": {inner}");
        cause = inner.source();
    }
    text
}
