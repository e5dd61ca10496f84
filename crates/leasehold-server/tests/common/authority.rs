//! An authority that signs certificates for tests of TLS.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use super::Site;

/// Signs certificates.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).expect("no names");
        // Another name than its certificates have, or openssl takes those for self-signed.
        params.distinguished_name.push(DnType::CommonName, "an authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("signed"))
    }

    /// The authority's own key.
    pub fn key_pem(&self) -> String {
        self.0.key().serialize_pem()
    }

    /// Writes the authority's certificate, and one for localhost with its key.
    pub fn write(&self, site: &Site, name: &str) -> [PathBuf; 3] {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["localhost".into()]).expect("a name");
        let certificate = params.signed_by(&key, &self.0).expect("signed");
        let paths = ["ca", "pem", "key"].map(|kind| site.path(&format!("{name}.{kind}")));
        let texts = [self.0.pem(), certificate.pem(), key.serialize_pem()];
        paths.iter().zip(texts).for_each(|(path, text)| std::fs::write(path, text).expect("written"));
        paths
    }
}
