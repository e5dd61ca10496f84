//! LEASE FLOOR and LEASE ENGINE: the floor of tokens, and which engine it is.

use rustix::process::Signal;

use super::client::RespClient;
use super::common::Site;
use super::common::server::{Server, key};
use super::{dial, granted, lines, word};

fn floor(client: &mut RespClient, raise: &[&str]) -> u64 {
    let reply = client.ask(&[&["LEASE", "FLOOR"], raise].concat());
    reply.trim_end().strip_prefix(':').and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{reply}"))
}

fn take(client: &mut RespClient, name: &str) -> u64 {
    granted(&client.ask(&["LEASE", "ACQUIRE", "600000", "RESOURCES", name])).1
}

/// The identity in what LEASE ENGINE says.
fn identity(client: &mut RespClient) -> String {
    let reply = client.ask(&["LEASE", "ENGINE"]);
    let lines = lines(&reply);
    let at = lines.iter().position(|line| *line == "identity").unwrap_or_else(|| panic!("{reply}"));
    let identity = lines[at + 2].to_owned();
    assert!(identity.len() == 32 && identity.bytes().all(|byte| byte.is_ascii_hexdigit()), "{reply}");
    identity
}

/// Goal: a floor that was answered holds for every later grant, over a kill and over an orderly end, and never goes down.
/// The identity stays.
#[test]
fn a_floor_survives_a_kill() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let mut client = dial(&server);
    assert_eq!(floor(&mut client, &[]), 1, "nothing was granted");
    assert_eq!(take(&mut client, "a"), 1);
    assert_eq!(floor(&mut client, &["5000000000"]), 5_000_000_000);
    let first = identity(&mut client);
    server.signal(Signal::KILL);
    drop(server);
    let server = Server::start(&site, &[]);
    let mut client = dial(&server);
    assert!(floor(&mut client, &[]) >= 5_000_000_000);
    let token = take(&mut client, "b");
    assert!(token > 5_000_000_000, "{token}");
    assert_eq!(floor(&mut client, &["7"]), token, "a lower one changes nothing");
    assert_eq!(floor(&mut client, &["9000000000"]), 9_000_000_000);
    server.stop().with_code(0);
    let server = Server::start(&site, &[]);
    let mut client = dial(&server);
    assert_eq!(take(&mut client, "c"), 9_000_000_001, "an orderly end hands back what was only reserved");
    assert_eq!(identity(&mut client), first);
}

/// Goal: everybody who may read may ask; only an operator of everything may raise, and that is written down.
#[test]
fn raising_the_floor_takes_an_operator() {
    let site = Site::new();
    let (reader, _) = key(&site, &["--role", "read"]);
    let (lessee, _) = key(&site, &["--role", "lease"]);
    let (part, _) = key(&site, &["--role", "admin", "--prefix", "a/"]);
    let (admin, id) = key(&site, &["--role", "admin"]);
    let server = Server::start(&site, &[]);
    for key in [&reader, &lessee, &part, &admin] {
        let mut client = dial(&server);
        assert_eq!(client.ask(&["AUTH", key]), "+OK\r\n");
        floor(&mut client, &[]);
        identity(&mut client);
        if key != &admin {
            assert_eq!(word(&client.ask(&["LEASE", "FLOOR", "4711"])), "FORBIDDEN");
        }
    }
    let mut client = dial(&server);
    client.ask(&["AUTH", &admin]);
    assert_eq!(floor(&mut client, &[]), 1, "nobody raised it");
    assert_eq!(floor(&mut client, &["4711"]), 4711);
    server.wait_for("raise floor");
    let said = server.said();
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("raise floor")).collect();
    assert!(lines.len() == 1 && lines[0].contains("4711") && lines[0].contains(&id), "{lines:?}");
}

/// Goal: a server before another passes both on, and says the identity of the one behind it.
#[test]
fn a_front_server_passes_both_on() {
    let (site, front_site) = (Site::new(), Site::new());
    let server = Server::start(&site, &[]);
    let url = format!("leasehold://{}", server.resp);
    let front = Server::start(&front_site, &["--engine", &url]);
    let (mut behind, mut before) = (dial(&server), dial(&front));
    assert_eq!(identity(&mut before), identity(&mut behind));
    assert_eq!(floor(&mut before, &["4711"]), 4711);
    assert_eq!(floor(&mut behind, &[]), 4711);
    assert_eq!(take(&mut before, "a"), 4712);
    let told = before.ask(&["LEASE", "FLOOR", "9223372036854775807"]);
    assert!(word(&told) == "INVALID" && told.contains("a floor is at most"), "{told}");
    // The port is that of the server which was asked.
    let ends = |port: u16| format!("$4\r\nhttp\r\n:{port}\r\n");
    assert!(before.ask(&["LEASE", "ENGINE"]).ends_with(&ends(front.http.port())));
    assert!(behind.ask(&["LEASE", "ENGINE"]).ends_with(&ends(server.http.port())));
}

/// Goal: a front server refuses Redis keys, since the engine behind it keeps no values for it, and changes nothing.
#[test]
fn a_front_server_refuses_keys() {
    let (site, front_site) = (Site::new(), Site::new());
    let server = Server::start(&site, &[]);
    let front = Server::start(&front_site, &["--engine", &format!("leasehold://{}", server.resp)]);
    let (mut behind, mut before) = (dial(&server), dial(&front));
    assert_eq!(behind.ask(&["SET", "held", "v", "NX", "PX", "60000"]), "+OK\r\n");
    for line in [
        "SET free v NX PX 60000",
        "GET held",
        "EXISTS held free",
        "TTL held",
        "PTTL held",
        "DEL held",
        "PEXPIRE held 1",
        "PEXPIRE held 0",
        "EVALSHA e5a322e2634ef59a516e8ea150cb085afafee684 1 free v 60000",
        "EVALSHA c3f8721cbb97f72bc19e972846bd7aaf91901658 1 held v",
        "EVALSHA 1cac51482acf5858da00f6d685d68f886cd6b6b2 1 held v 1",
    ] {
        let told = before.ask(&line.split(' ').collect::<Vec<_>>());
        assert!(word(&told) == "INVALID" && told.contains("an engine that keeps values"), "{line}: {told}");
    }
    assert_eq!(behind.ask(&["GET", "held"]), "$1\r\nv\r\n");
    assert_eq!(behind.ask(&["EXISTS", "free"]), ":0\r\n");
}

/// Goal: the map has the fields of the contract, in both versions.
#[test]
fn an_engine_is_described_in_both_versions() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let mut client = dial(&server);
    let id = identity(&mut client);
    let (port, two) = (server.http.port(), client.ask(&["lease", "engine"]));
    let names = ["durable", "fencing", "fair", "never_early", "outlives_process"];
    let promises = |yes: &str| names.map(|name| format!("${}\r\n{name}\r\n{yes}\r\n", name.len())).concat();
    let begin = |map: &str, yes: &str| {
        let promises = promises(yes);
        format!(
            "{map}\r\n$6\r\nengine\r\n$8\r\nembedded\r\n$8\r\nidentity\r\n$32\r\n{id}\r\n$8\r\npromises\r\n{map}\r\n\
             {promises}$8\r\nfindings\r\n*"
        )
    };
    let end = format!("$4\r\nhttp\r\n:{port}\r\n");
    // A full disk would be a finding more.
    let note = "$4\r\nkind\r\n$4\r\nnote\r\n$7\r\nsetting\r\n$6\r\ncopies\r\n$5\r\nfound\r\n$1\r\n1\r\n$6\r\nwanted\r\n$0\r\n\r\n$8\r\nsentence";
    let described = |reply: &str, map: &str, finding: &str, yes: &str| {
        assert!(reply.starts_with(&begin(map, yes)) && reply.ends_with(&end), "{reply}");
        assert!(reply.contains(&format!("{finding}\r\n{note}")), "{reply}");
    };
    described(&two, "*10", "*12", ":1");
    client.ask(&["HELLO", "3"]);
    described(&client.ask(&["LEASE", "ENGINE"]), "%5", "%6", "#t");
}

/// Goal: an owner relabels; a stranger does not; what others see changes, and nothing else.
#[test]
fn a_lease_is_relabelled() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let mut client = dial(&server);
    let (lease, token) = granted(&client.ask(&["LEASE", "ACQUIRE", "600000", "HOLDER", "ada", "RESOURCES", "a"]));
    assert_eq!(client.ask(&["LEASE", "RELABEL", &lease, "HOLDER", "ada at 10.0.0.7"]), ":1\r\n");
    let seen = client.ask(&["LEASE", "GET", "a"]);
    assert!(seen.contains("ada at 10.0.0.7") && seen.contains(&format!(":{token}\r\n")), "{seen}");
    for (line, told) in [
        (&["LEASE", "RELABEL", "1-00000000000000000000000000000000", "HOLDER", "x"][..], "NOTHELD"),
        (&["LEASE", "RELABEL", &lease, "HOLDER", "a\nb"], "INVALID"),
        (&["LEASE", "RELABEL", &lease, "x"], "INVALID"),
        (&["LEASE", "RELABEL", &lease], "INVALID"),
    ] {
        assert_eq!(word(&client.ask(line)), told, "{line:?}");
    }
    assert_eq!(client.ask(&["LEASE", "RELEASE", &lease]), ":1\r\n");
    assert_eq!(word(&client.ask(&["LEASE", "RELABEL", &lease, "HOLDER", "x"])), "STALE");
}

/// Goal: a server whose engine is elsewhere keeps the quotas of its own keys.
/// Method: two leases and one waiter for each key; ada has hers, bob has his, and what ends makes room.
#[test]
fn a_front_server_keeps_quotas_of_its_own() {
    let (site, front_site) = (Site::new(), Site::new());
    let server = Server::start(&site, &[]);
    let [(ada, _), (bob, _)] = ["ada", "bob"].map(|_| key(&front_site, &["--role", "lease"]));
    let path = front_site.path("leasehold.toml");
    std::fs::write(&path, "[limits]\nleases_per_principal = 2\nwaiters_per_principal = 0\n").expect("a config file");
    let url = format!("leasehold://{}", server.resp);
    let front = Server::start(&front_site, &["--engine", &url, "--config", path.to_str().expect("UTF-8")]);
    let connect = |key: &str| {
        let mut client = dial(&front);
        assert_eq!(client.ask(&["AUTH", key]), "+OK\r\n");
        client
    };
    let (mut ada, mut bob) = (connect(&ada), connect(&bob));
    let (first, _) = granted(&ada.ask(&["LEASE", "ACQUIRE", "600000", "RESOURCES", "a"]));
    granted(&ada.ask(&["LEASE", "ACQUIRE", "600000", "RESOURCES", "b"]));
    let told = ada.ask(&["LEASE", "ACQUIRE", "600000", "RESOURCES", "c"]);
    assert!(word(&told) == "QUOTA" && told.contains("2 leases of one key"), "{told}");
    granted(&bob.ask(&["LEASE", "ACQUIRE", "600000", "RESOURCES", "c"]));
    let told = bob.ask(&["LEASE", "ACQUIRE", "600000", "WAIT", "1000", "RESOURCES", "a"]);
    assert!(word(&told) == "QUOTA" && told.contains("0 waiters of one key"), "{told}");
    assert_eq!(ada.ask(&["LEASE", "RELEASE", &first]), ":1\r\n");
    granted(&ada.ask(&["LEASE", "ACQUIRE", "600000", "RESOURCES", "d"]));
}
