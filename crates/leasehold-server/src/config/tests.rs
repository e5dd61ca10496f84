//! What is read, what is refused, and that every field is documented.

use clap::Parser;

use super::*;
use leasehold_support::exit;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    flags: ServeFlags,
}

fn flags(arguments: &[&str]) -> ServeFlags {
    Line::parse_from([&["serve"], arguments].concat()).flags
}

/// The example with every field set.
fn uncommented() -> String {
    let set = |line: &'static str| match line.strip_prefix('#') {
        Some(field) if !field.starts_with(' ') => field,
        _ => line,
    };
    EXAMPLE.lines().map(set).collect::<Vec<_>>().join("\n")
}

/// Every field there is, by the list that serde itself refuses unknown ones with.
fn every_field() -> Vec<String> {
    let tables = [("", "zzz = 1"), ("tls.", "[tls]\nzzz = 1"), ("limits.", "[limits]\nzzz = 1")];
    let tables = tables.into_iter().chain([
        ("log.", "[log]\nzzz = 1"),
        ("otel.", "[otel]\nzzz = 1"),
        ("boxoffice.", "[boxoffice]\nzzz = 1"),
    ]);
    let mut fields = Vec::new();
    for (table, text) in tables {
        let error = toml::from_str::<Config>(text).expect_err("zzz is no field").to_string();
        let (_, expected) = error.split_once("expected").expect("serde says what it expected");
        let names: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "{error}");
        fields.extend(names.into_iter().map(|name| format!("{table}{name}")));
    }
    fields
}

/// Goal: the printed example is the truth: as it stands and with every field uncommented it says the defaults.
#[test]
fn the_example_says_the_defaults() {
    assert_eq!(toml::from_str::<Config>(EXAMPLE).unwrap(), Config::default());
    let full: Config = toml::from_str(&uncommented()).unwrap();
    assert!(full.tls.is_some() && full.otel.is_some() && full.store.is_some());
    let boxoffice =
        BoxOfficeConfig { default_event: None, provider_url: None, provider_payments: None, ..full.boxoffice.clone() };
    assert!(full.boxoffice.default_event.is_some() && full.boxoffice.provider_url.is_some());
    assert!(full.boxoffice.provider_payments.is_some());
    assert_eq!(Config { tls: None, otel: None, store: None, boxoffice, ..full }, Config::default());
}

/// Goal: no field is without a word in the example and in the reference.
#[test]
fn every_field_is_documented() {
    let reference = include_str!("../../../../docs/reference/config.md");
    let example = uncommented();
    let fields = every_field();
    assert!(fields.len() > 35, "{fields:?}");
    for field in fields {
        assert!(reference.contains(&format!("`{field}`")), "docs/reference/config.md lacks `{field}`");
        let name = field.rsplit('.').next().unwrap();
        assert!(
            example.lines().any(|line| line.starts_with(&format!("{name} = ")) || line == format!("[{name}]")),
            "example.toml lacks {field}"
        );
    }
}

/// Goal: what is wrong in a file is refused with its line, in one sentence, as bad usage.
#[test]
fn a_bad_file_is_refused_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.toml");
    let table = [
        ("\nhtpp = \"127.0.0.1:1\"", "line 2: unknown field `htpp`"),
        ("[limits]\n\nleeses = 3", "line 3: unknown field `leeses`"),
        ("[limits]\nttl = 30", "line 2: invalid type: integer `30`, expected a duration in quotes, e.g. \"30s\""),
        ("[limits]\nttl = \"30\"", "line 2: say the unit, e.g. 30s"),
        ("[limits]\nbody_bytes = \"many\"", "line 2: not a size"),
        ("[limits]\nleases = 0", "limits.leases is from 1"),
        ("[limits]\nttl = \"9999h\"", "limits.ttl is from 1ms to 720h"),
        ("[log]\nlevel = \"loud\"", "line 2: unknown variant `loud`"),
        ("[tls]\ncert = \"x\"", "missing field `key`"),
        ("http = \"7400\"", "http is an address and a port"),
        ("engine = \"mysql://u:hunter2@h\"", "serves the embedded engine, another server"),
        ("hosts = [\"http://x\"]", "without scheme"),
        ("x", "line 1"),
    ];
    for (text, part) in table {
        std::fs::write(&path, text).unwrap();
        let error = Config::load(&flags(&["--config", path.to_str().unwrap()])).expect_err(text);
        let sentence = exit::sentence(&error);
        assert_eq!(exit::code(&error), 2, "{sentence}");
        assert!(sentence.contains(part) && !sentence.contains('\n'), "{part:?} in {sentence:?}");
        assert!(!sentence.contains("hunter2"), "{sentence}");
    }
    assert_eq!(exit::code(&Config::load(&flags(&["--config", "/nonexistent"])).unwrap_err()), 2);
}

/// Goal: flags stand over the file, and paths in the file count from the file.
#[test]
fn flags_stand_over_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.toml");
    let text = "data = \"here\"\nhttp = \"127.0.0.1:1\"\nresp = \"127.0.0.1:2\"\n[tls]\ncert = \"c\"\nkey = \"/k\"\n";
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap();
    let config = Config::load(&flags(&["--config", path, "--http", "127.0.0.1:9", "--tls-client-ca", "ca"])).unwrap();
    assert_eq!((config.http.as_str(), config.resp.as_str()), ("127.0.0.1:9", "127.0.0.1:2"));
    assert_eq!(config.data, dir.path().join("here"));
    let tls = config.tls.unwrap();
    assert_eq!((tls.cert, tls.key, tls.client_ca), (dir.path().join("c"), "/k".into(), Some("ca".into())));
    let config = Config::load(&flags(&["--config", path, "--engine", "embedded:there"])).unwrap();
    assert_eq!(config.data, PathBuf::from("there"));
    assert!(Config::load(&flags(&["--tls-cert", "c"])).is_err());
}

/// Goal: every limit of the engine can be set, and none is lost on the way.
#[test]
fn limits_reach_the_engine() {
    assert_eq!(LimitsConfig::default().core_limits(), leasehold_core::Limits::default());
    assert_eq!(LimitsConfig::default().check(), Ok(()));
    let text = "[limits]\nname_bytes = 1\nholder_bytes = 2\nrequest_bytes = 16\nresources_per_claim = 4\nttl = \"5ms\"\n\
        wait = \"6ms\"\nwaiters_per_resource = 7\nwaiters = 8\nleases = 9\nendings = 70000\ncapacity = 11\n\
        value_bytes = 17\nleases_per_principal = 13\nwaiters_per_principal = 14";
    let core = toml::from_str::<Config>(text).unwrap().limits.core_limits();
    let expected = leasehold_core::Limits {
        name_bytes: 1,
        holder_bytes: 2,
        request_bytes: 16,
        resources_per_claim: 4,
        ttl_ms: 5,
        wait_ms: 6,
        waiters_per_resource: 7,
        waiters: 8,
        leases: 9,
        endings: 70_000,
        capacity: 11,
        value_bytes: 17,
        leases_per_principal: 13,
        waiters_per_principal: 14,
    };
    assert_eq!(core, expected);
}

/// Goal: a password in a URL of the configuration is not printed by whoever prints the configuration.
#[test]
fn debug_hides_passwords() {
    let engine = "leasehold://ada:hunter2@10.0.0.7:7401";
    let otel = Some(OtelConfig { endpoint: "http://ada:hunter2@10.0.0.8:4318".into() });
    let config = Config { engine: engine.into(), otel, ..Config::default() };
    let all = format!("{config:?} {:?}", flags(&["--engine", engine, "--otel-endpoint", engine]));
    assert!(!all.contains("hunter2"), "{all}");
    assert!(all.contains("leasehold://…@10.0.0.7:7401") && all.contains("http://…@10.0.0.8:4318"), "{all}");
}
