//! Secrets stay secret: at the level trace, in metrics, in listings, on disk where they have no business.

mod common;

use common::Site;
use common::server::{Server, key};

/// Goal: after every kind of call, with right and wrong secrets, none of them is in the log, the metrics or a listing.
/// Method: the real server at trace, on both ports; every secret that was made or shown is looked for, whole.
#[test]
fn no_secret_is_told_at_trace() {
    let site = Site::new();
    let (bearer, id) = key(&site, &["--role", "admin"]);
    let server = Server::start(&site, &["--log-level", "trace"]);
    let secret = bearer.rsplit('_').next().expect("a secret").to_owned();
    let mut secrets = vec![bearer.clone(), secret];
    let mut client = server.connect();
    for wrong in ["lh_00000000_wrong0password", "hunter2hunter2"] {
        assert!(client.ask(&["AUTH", wrong]).starts_with('-'));
        assert_eq!(server.ask("GET", "/v1/resources", Some(wrong), "").0, 401);
        secrets.push(wrong.into());
    }
    assert_eq!(client.ask(&["AUTH", &bearer]), "OK");
    for n in 0..50 {
        let value = format!("value-of-{n}-kept-secret");
        assert_eq!(client.ask(&["SET", &format!("key-{n}"), &value, "NX", "PX", "60000"]), "OK");
        assert_eq!(client.ask(&["GET", &format!("key-{n}")]), value);
        secrets.push(value);
        let grant = client.ask(&["LEASE", "ACQUIRE", "60000", "RESOURCES", &format!("lease-{n}")]);
        let lease = grant.split(' ').next().expect("a lease id").to_owned();
        assert!(client.ask(&["LEASE", "RENEW", &lease]).parse::<u64>().is_ok());
        secrets.push(lease);
    }
    let claim = r#"{"resources":["web-1"],"ttl_ms":60000,"holder":"ada"}"#;
    let (status, answer) = server.ask("POST", "/v1/leases", Some(&bearer), claim);
    assert_eq!(status, 201, "{answer}");
    let lease = answer.split("\"lease_id\":\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a lease id");
    secrets.push(lease.to_owned());
    let about = |lease: &str| format!(r#"{{"lease_id":"{lease}"}}"#);
    assert_eq!(server.ask("POST", "/v1/leases/renew", Some(&bearer), &about(lease)).0, 200);
    for wrong in ["no-such-lease-0123456789", &lease.replace(&lease[4..8], "0000")] {
        let told = server.ask("POST", "/v1/leases/release", Some(&bearer), &about(wrong));
        assert!(matches!(told.0, 400 | 404) && !told.1.contains(wrong), "{told:?}");
        assert!(!client.ask(&["LEASE", "RELEASE", wrong]).contains(wrong));
        secrets.push(wrong.to_owned());
    }
    let broken = server.ask("POST", "/v1/leases/renew", Some(&bearer), &format!("{{\"lease_id\":\"{lease}\""));
    assert!(broken.0 == 400 && !broken.1.contains(lease), "{broken:?}");
    assert_eq!(client.ask(&["LEASE", "REVOKE", "key-1", "REASON", "test"]), "1");

    let shown = [
        ("/metrics", server.ask("GET", "/metrics", Some(&bearer), "")),
        ("listing", server.ask("GET", "/v1/resources?limit=1000", Some(&bearer), "")),
        ("resource", server.ask("GET", "/v1/resources/key-2", Some(&bearer), "")),
        ("page", server.ask("GET", "/locks", Some(&bearer), "")),
    ];
    assert!(shown[0].1.1.contains("leasehold_leases") && shown[1].1.1.contains("key-2"), "they do show something");
    let stored = std::fs::read_to_string(site.path("data/keys.toml")).expect("the keys");
    let log = server.stop().with_code(0).err;
    assert!(log.contains(&id) && log.contains("leasehold::call") && log.contains("TRACE") | log.contains("DEBUG"));
    let places = shown.iter().map(|(place, (_, text))| (*place, text.as_str()));
    for (place, text) in places.chain([("log", log.as_str())]) {
        for secret in &secrets {
            assert!(!text.contains(secret.as_str()), "{secret} is in the {place}: {text}");
        }
    }
    // Values and lease ids must be on disk to survive; keys must not.
    assert!(!stored.contains(&secrets[0]) && !stored.contains(&secrets[1]));
}
