//! TLS with a real server, and whom it keeps out.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use super::super::{Postgres, PostgresOptions};
use super::*;

/// Somebody who signs, and whose own certificate is in this file.
struct DatabaseAuthority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    file: tempfile::NamedTempFile,
}

impl DatabaseAuthority {
    fn new() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, issuer.pem()).unwrap();
        Self { issuer, file }
    }

    /// A certificate for a host, or for a user by its common name, and its key.
    fn sign(&self, host: &[&str], user: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let hosts: Vec<String> = host.iter().map(|&host| host.to_owned()).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name.push(DnType::CommonName, user);
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    fn path(&self) -> &Path {
        self.file.path()
    }
}

async fn open(url: &str, query: &str) -> Result<Arc<Postgres>, Error> {
    Postgres::open(&format!("{url}?{query}"), PostgresOptions::default()).await
}

/// Goal: a ledger that is asked for TLS speaks it on every connection, with the host it names and nobody else.
/// Method: a server with a certificate of an authority of the test; what it says of its own connections.
#[tokio::test]
async fn every_connection_is_encrypted_and_goes_to_the_right_host() {
    let cluster = Cluster::start(&[]);
    let (database, authority) = (cluster.database().await, DatabaseAuthority::new());
    let url = cluster.url(&database);
    let believed = format!("sslmode=require&sslrootcert={}", authority.path().display());
    let plain = why(open(&url, &believed).await);
    assert!(plain.contains("TLS"), "a server without it: {plain}");

    let (certificate, key) = authority.sign(&["127.0.0.1"], "a server");
    cluster.put_file("server.crt", &certificate);
    cluster.put_file("server.key", &key);
    cluster.put_file("root.crt", &std::fs::read_to_string(authority.path()).unwrap());
    cluster.put_file(
        "pg_hba.conf",
        "hostssl all ada 127.0.0.1/32 cert\nhost all ada 127.0.0.1/32 reject\nhost all all 127.0.0.1/32 trust\n",
    );
    cluster.change_setting("ssl_ca_file = 'root.crt'").await;
    cluster.change_setting("ssl = on").await;
    let client = cluster.client(&database).await;
    until(&client, "SELECT current_setting('ssl') = 'on'").await;

    let ledger = open(&url, &believed).await.unwrap();
    make_event(&*ledger, 3).await;
    let sql = "SELECT count(*) > 0 AND bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
               WHERE application_name = 'leasehold boxoffice'";
    assert!(client.query_one(sql, &[]).await.unwrap().get::<_, bool>(0), "a connection is readable");
    ledger.close().await.unwrap();

    let stranger = DatabaseAuthority::new();
    let refused = why(open(&url, &format!("sslrootcert={}", stranger.path().display())).await);
    assert!(refused.contains("invalid peer certificate"), "signed by somebody else: {refused}");
    let elsewhere = url.replace("127.0.0.1", "localhost");
    let refused = why(open(&elsewhere, &format!("hostaddr=127.0.0.1&{believed}")).await);
    assert!(refused.contains("not valid for name \"localhost\""), "of another host: {refused}");

    client.batch_execute(&format!("CREATE ROLE ada LOGIN; GRANT CREATE ON DATABASE {database} TO ada")).await.unwrap();
    client.batch_execute("DROP SCHEMA leasehold_boxoffice CASCADE").await.unwrap();
    let url = url.replace("postgres@", "ada@");
    let refused = why(open(&url, &believed).await);
    assert!(refused.contains("certificate"), "who shows none: {refused}");
    let (certificate, key) = authority.sign(&[], "ada");
    let home = tempfile::tempdir().unwrap();
    let [chain, private] = [("ada.crt", certificate), ("ada.key", key)].map(|(name, text)| {
        let path = home.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    });
    let shown = format!("{believed}&sslcert={}&sslkey={}", chain.display(), private.display());
    let ledger = open(&url, &shown).await.unwrap();
    make_event(&*ledger, 3).await;
    ledger.close().await.unwrap();
}

/// Waits until it holds: settings that are read again take a moment.
async fn until(client: &tokio_postgres::Client, sql: &str) {
    for _ in 0..500 {
        if client.query_one(sql, &[]).await.unwrap().get::<_, bool>(0) {
            return;
        }
        client.batch_execute("SELECT pg_sleep(0.02)").await.unwrap();
    }
    panic!("not within ten seconds: {sql}");
}
