//! One engine, one PostgreSQL, two front servers: the commands of the page, run; either killed at random moments; and an
//! engine that is not the one the ledger knows. And two servers on etcd or ZooKeeper.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use common::server::Server;
use common::{Answer, PATIENCE, Site, now, pause, text, wait_until};
use leasehold_harness::etcd::EtcdCluster;
use leasehold_harness::postgres::Cluster;
use leasehold_harness::zookeeper::ZookeeperEnsemble;
use rustix::process::Signal;
use serde_json::{Value, json};

const PAGE: &str = include_str!("../../../docs/operating/two-servers.md");

fn free_port() -> String {
    format!("127.0.0.1:{}", leasehold_harness::free_port())
}

fn database(cluster: &Cluster) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    cluster.url(&runtime.block_on(cluster.database()))
}

/// A server that is started again where it was.
struct Member {
    site: Site,
    arguments: Vec<String>,
    server: Option<Server>,
}

impl Member {
    fn new(arguments: Vec<String>) -> Self {
        let mut member = Self { site: Site::new(), arguments, server: None };
        member.rise();
        member
    }

    fn rise(&mut self) {
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        let mut command = self.site.command(&arguments);
        command.stdout(Stdio::null());
        command.stderr(std::fs::File::create(self.site.path("stderr")).expect("a file for stderr"));
        self.server = Some(Server::spawn(&self.site, &mut command));
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("it runs")
    }

    fn kill(&mut self) {
        let server = self.server.take().expect("it runs");
        server.signal(Signal::KILL);
        server.end();
    }

    fn ready(&self) -> (u16, String) {
        self.server().ask("GET", "/readyz", None, "")
    }
}

/// The servers of the page: its own commands, with other ports, directories and a database of this test's.
struct Fleet {
    members: Vec<Member>,
    _home: Site,
    _cluster: Cluster,
}

impl Fleet {
    fn start() -> Self {
        let (cluster, home) = (Cluster::start(&[]), Site::new());
        let ledger = database(&cluster);
        let ports: Vec<(String, String)> = ["7400", "7401", "7410", "7411", "7420", "7421"]
            .map(|port| (format!("127.0.0.1:{port}"), free_port()))
            .to_vec();
        let commands: Vec<&str> = PAGE.lines().filter(|line| line.starts_with("leasehold serve ")).collect();
        assert_eq!(commands.len(), 3, "the page has an engine and two front servers");
        let here = |line: &str| line.replace("/var/lib/leasehold", home.path("fleet").to_str().expect("UTF-8"));
        let command = |line: &str| -> Vec<String> {
            let mut line = here(&line.replace("postgres://leasehold@127.0.0.1/leasehold", &ledger));
            for (shown, real) in &ports {
                line = line.replace(shown, real);
            }
            line.split(' ').skip(1).map(str::to_owned).collect()
        };
        std::fs::create_dir(home.path("fleet")).expect("a directory");
        for line in PAGE.lines().filter(|line| line.starts_with("printf ") || line.starts_with("chmod ")) {
            let made = std::process::Command::new("sh").args(["-c", &here(line)]).status().expect("a shell");
            assert!(made.success(), "{line}");
        }
        // The engine first: a front server needs it to start.
        let members = commands.into_iter().map(|line| Member::new(command(line))).collect();
        Self { members, _home: home, _cluster: cluster }
    }

    fn fronts(&self) -> [&Server; 2] {
        [self.members[1].server(), self.members[2].server()]
    }
}

#[track_caller]
fn body((status, answer): (u16, String), wanted: u16) -> Value {
    assert_eq!(status, wanted, "{answer}");
    let body = answer.split_once("\r\n\r\n").expect("a body").1;
    serde_json::from_str(body).unwrap_or(Value::Null)
}

fn hall() -> Value {
    let seat = |n: u32| json!({"id": format!("A-{n}"), "section": "S", "row": "A", "number": n, "price": 4500});
    json!({"name": "Gala", "on_sale": true, "per_buyer": 20, "seats": (1..=20).map(seat).collect::<Vec<_>>()})
}

fn make_event(server: &Server) -> String {
    let made = body(server.ask("POST", "/v1/events", None, &hall().to_string()), 201);
    text(&made, "event_id").to_owned()
}

/// Asks something of a hold, with its key.
fn of_hold(server: &Server, hold: &Value, verb: &str, asked: &Value) -> (u16, String) {
    let mut stream = TcpStream::connect(server.http).expect("HTTP listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket takes a timeout");
    let asked = asked.to_string();
    let head = format!(
        "POST /v1/holds/{}/{verb} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nLeasehold-Hold-Key: {}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{asked}",
        text(hold, "hold_id"),
        text(hold, "hold_key"),
        asked.len()
    );
    stream.write_all(head.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    (answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status"), answer)
}

fn hold(server: &Server, event: &str, seat: &str) -> Value {
    let asked = json!({"seats": [seat], "buyer": "ada"}).to_string();
    let mut answer = (0, String::new());
    // A server that just came back may need a moment to reach its engine.
    wait_until("the seat is held", || {
        answer = server.ask("POST", &format!("/v1/events/{event}/holds"), None, &asked);
        answer.0 != 503
    });
    body(answer, 201)
}

fn lawful(server: &Server, event: &str) {
    let laws = body(server.ask("GET", &format!("/v1/events/{event}/invariants"), None, ""), 200);
    assert_eq!(laws["ok"], true, "{laws}");
    let names: Vec<&str> = laws["checks"].as_array().expect("checks").iter().map(|check| text(check, "name")).collect();
    for name in ["every_cent_has_a_source", "tokens_of_a_seat_rise"] {
        assert!(names.contains(&name), "{names:?}");
    }
}

/// What a server says that refuses to start, with exit code 2.
#[track_caller]
fn refused_start(site: &Site, arguments: &[&str]) -> String {
    let mut child = common::server::serve(site, arguments).spawn().expect("the binary starts");
    let end = now() + PATIENCE;
    let code = loop {
        if let Some(status) = child.try_wait().expect("it is ours") {
            break status.code();
        }
        if now() > end {
            let _ = child.kill();
            panic!("it started: {}", std::fs::read_to_string(site.path("stderr")).unwrap_or_default());
        }
        pause(Duration::from_millis(20));
    };
    let said = std::fs::read_to_string(site.path("stderr")).expect("its stderr");
    assert_eq!(code, Some(2), "{said}");
    said
}

/// Goal: the page's commands make one box office: what is held through one server is renewed, paid and sold through the
/// other, also when either of them was killed in between; and a dead engine is said by `/readyz`.
#[test]
fn the_commands_of_the_page_sell_through_both() {
    let mut fleet = Fleet::start();
    let event = make_event(fleet.fronts()[0]);
    for (n, killed) in [(1, None), (2, Some(1)), (3, Some(2)), (4, Some(0))] {
        let [one, other] = fleet.fronts();
        let held = hold(one, &event, &format!("A-{n}"));
        body(of_hold(other, &held, "renew", &json!({})), 200);
        if let Some(killed) = killed {
            fleet.members[killed].kill();
            fleet.members[killed].rise();
        }
        let [one, other] = fleet.fronts();
        let payment = json!({"payment_ref": format!("pi-{n}")});
        wait_until("it can be paid", || match of_hold(other, &held, "pay", &payment) {
            (200, _) => true,
            (503, _) => false,
            (status, answer) => panic!("{status}: {answer}"),
        });
        let order = body(of_hold(one, &held, "confirm", &payment), 201);
        assert_eq!(order["paid"], 4500, "{order}");
    }
    lawful(fleet.fronts()[1], &event);
    for member in &fleet.members[1..] {
        wait_until("it is ready", || member.ready().0 == 200);
    }
    fleet.members[0].kill();
    wait_until("a dead engine is said", || fleet.members[1].ready().0 == 503);
    fleet.members[0].rise();
    wait_until("it is ready again", || fleet.members[1].ready().0 == 200);
}

/// Goal: servers on a cluster that keeps the leases make one box office too: what is held through one is renewed and refused
/// through the other, and paid and sold there after the first was killed. Nothing is oversold meanwhile.
fn sells_through_both(engine: &str) {
    let (cluster, sites) = (Cluster::start(&[]), [Site::new(), Site::new(), Site::new()]);
    let ledger = database(&cluster);
    let start = |site: &Site| Server::start(site, &["--engine", engine, "--ledger", &ledger]);
    let (mut one, other) = (start(&sites[0]), start(&sites[1]));
    let event = make_event(&one);
    for n in 1..=2 {
        let seat = format!("A-{n}");
        let held = hold(&one, &event, &seat);
        let wanted = json!({"seats": [seat], "buyer": "bob"}).to_string();
        assert_eq!(other.ask("POST", &format!("/v1/events/{event}/holds"), None, &wanted).0, 409);
        body(of_hold(&other, &held, "renew", &json!({})), 200);
        if n == 2 {
            one.signal(Signal::KILL);
            one.end();
            one = start(&sites[2]);
        }
        assert_eq!(other.ask("POST", &format!("/v1/events/{event}/holds"), None, &wanted).0, 409);
        let payment = json!({"payment_ref": format!("pi-{n}")});
        body(of_hold(&other, &held, "pay", &payment), 200);
        let order = body(of_hold(&one, &held, "confirm", &payment), 201);
        assert_eq!(order["paid"], 4500, "{order}");
        assert_eq!(one.ask("POST", &format!("/v1/events/{event}/holds"), None, &wanted).0, 409, "it is sold");
    }
    lawful(&other, &event);
}

#[test]
fn servers_on_etcd_sell_through_both() {
    sells_through_both(&EtcdCluster::start(1).url());
}

#[test]
fn servers_on_zookeeper_sell_through_both() {
    sells_through_both(&ZookeeperEnsemble::start(1).url("locks"));
}

/// Goal: servers with engines of their own on one ledger are refused at the start, with a sentence; and once another
/// engine takes the place of the first, the first is not ready, and says why.
#[test]
fn another_engine_is_refused() {
    let cluster = Cluster::start(&[]);
    let ledger = database(&cluster);
    let (first, second) = (Site::new(), Site::new());
    let one = Server::start(&first, &["--ledger", &ledger]);
    let event = make_event(&one);
    let held = hold(&one, &event, "A-1");
    let said = refused_start(&second, &["--ledger", &ledger]);
    assert!(said.contains("the ledger belongs to engine") && said.contains("--replace-engine"), "{said}");
    assert_eq!(one.ask("GET", "/readyz", None, "").0, 200);

    let other = Server::start(&second, &["--ledger", &ledger, "--replace-engine"]);
    let told = body(one.ask("GET", "/readyz", None, ""), 503);
    assert!(text(&told, "detail").contains("another engine has taken the place of ours"), "{told}");
    // A hold of the lost engine is payable, and its token is above all that the ledger has seen.
    body(of_hold(&other, &held, "pay", &json!({"payment_ref": "pi"})), 200);
    let order = body(of_hold(&other, &held, "confirm", &json!({"payment_ref": "pi"})), 201);
    let token = |piece: &Value| text(piece, "token").parse::<u64>().expect("a token");
    assert!(token(&order["seats"][0]) > token(&held["seats"][0]), "{order}");
    lawful(&other, &event);
}

/// Goal: a front server over an engine that keeps the names of the box office for itself says so at its start, instead of
/// refusing every buyer.
#[test]
fn an_engine_with_a_box_office_of_its_own_is_refused() {
    let cluster = Cluster::start(&[]);
    let ledger = database(&cluster);
    let (engine, front) = (Site::new(), Site::new());
    let engine = Server::start(&engine, &[]);
    let url = format!("leasehold://{}", engine.resp);
    let said = refused_start(&front, &["--engine", &url, "--ledger", &ledger]);
    assert!(said.contains("--ledger none"), "{said}");
}

/// Goal: an engine directory that was lost, or put back from a copy, makes no live hold unpayable, and no token of a seat
/// goes back.
#[test]
fn a_lost_or_restored_engine_directory_makes_nothing_unpayable() {
    for lost in [true, false] {
        let (site, copy) = (Site::new(), Site::new());
        let ledger = format!("sqlite:{}", site.path("ledger.sqlite").display());
        let server = Server::start(&site, &["--ledger", &ledger]);
        let event = make_event(&server);
        server.stop();
        // What is put back later: the engine before anything was held.
        copy_dir(&site.path("data"), &copy.path("data"));
        let server = Server::start(&site, &["--ledger", &ledger]);
        let first = hold(&server, &event, "A-1");
        body(of_hold(&server, &first, "release", &json!({})), 200);
        for n in 2..=6 {
            hold(&server, &event, &format!("A-{n}"));
        }
        let live = hold(&server, &event, "A-1");
        server.signal(Signal::KILL);
        server.end();
        std::fs::remove_dir_all(site.path("data")).expect("it is lost");
        if !lost {
            copy_dir(&copy.path("data"), &site.path("data"));
        }
        let server = Server::start(&site, &["--ledger", &ledger]);
        assert_eq!(server.said().contains("takes its place"), lost, "{}", server.said());
        body(of_hold(&server, &live, "renew", &json!({})), 200);
        body(of_hold(&server, &live, "pay", &json!({"payment_ref": "pi"})), 200);
        let order = body(of_hold(&server, &live, "confirm", &json!({"payment_ref": "pi"})), 201);
        assert_eq!(order["seats"][0]["id"], "A-1", "lost: {lost}");
        lawful(&server, &event);
    }
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("it is there") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name");
        std::fs::copy(&path, to.join(name)).expect("it can be copied");
    }
}

/// A load balancer in its plainest form: each connection goes to the next server that takes it.
fn balance(fronts: Vec<SocketAddr>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let at = listener.local_addr().expect("it is bound");
    let fronts = Arc::new(fronts);
    thread::spawn(move || {
        for (turn, stream) in listener.incoming().enumerate() {
            let (Ok(client), fronts) = (stream, fronts.clone()) else { continue };
            thread::spawn(move || {
                let next = (0..fronts.len()).map(|n| fronts[(turn + n) % fronts.len()]);
                let Some(server) = next.filter_map(|front| TcpStream::connect(front).ok()).next() else { return };
                let (Ok(back), Ok(forth)) = (server.try_clone(), client.try_clone()) else { return };
                let answers = thread::spawn(move || pump(back, forth));
                pump(client, server);
                let _ = answers.join();
            });
        }
    });
    at
}

fn pump(mut from: TcpStream, mut to: TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(std::net::Shutdown::Both);
    let _ = from.shutdown(std::net::Shutdown::Both);
}

fn rehearsal(site: &Site, url: &str, seed: u64) -> Child {
    let seed = seed.to_string();
    let mut command = site.command(&[
        "rehearse", "--http", url, "--buyers", "200", "--seats", "300", "--over", "12s", "--think", "300ms", "--ttl",
        "3s", "--pay", "2s", "--late", "0.1", "--seed", &seed, "--json",
    ]);
    command.env_remove("LEASEHOLD_API_KEY").env_remove("LEASEHOLD_PROVIDER_SECRET");
    site.start(&mut command)
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Goal: two servers on a PostgreSQL ledger keep their word through kill -9 of either, and of the engine.
/// Method: buyers come through a load balancer; the rehearsal compares what they were told with report, audit and
/// invariants. `LEASEHOLD_REHEARSE_KILLS` says how often (3); `scripts/rehearse-kill` does it 50 times and more.
#[test]
fn a_killed_fleet_keeps_its_word() {
    let kills = number("LEASEHOLD_REHEARSE_KILLS", 3);
    let seed = number("LEASEHOLD_SEED", u64::from(std::process::id()));
    println!("{kills} kills, LEASEHOLD_SEED={seed}");
    let mut fleet = Fleet::start();
    let url = format!("http://{}", balance(fleet.fronts().map(|front| front.http).to_vec()));
    let site = Site::new();
    let (mut killed, mut chance, mut sums) = ([0_u64; 3], seed, [0_u64; 4]);
    let mut below = |end: u64| {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (chance >> 33) % end
    };
    for round in 0.. {
        let mut child = rehearsal(&site, &url, seed + round);
        let end = now() + PATIENCE * 6;
        while child.try_wait().expect("it is ours").is_none() {
            assert!(now() < end, "the rehearsal does not end");
            pause(Duration::from_millis(50 + below(1500)));
            if killed.iter().sum::<u64>() < kills && child.try_wait().expect("it is ours").is_none() {
                let victim = usize::try_from(below(3)).expect("one of three");
                fleet.members[victim].kill();
                killed[victim] += 1;
                fleet.members[victim].rise();
            }
        }
        let answer = Answer::of(&child.wait_with_output().expect("it has ended"));
        assert_eq!(answer.code, 0, "round {round}: {answer:?}");
        let report = answer.json();
        assert_eq!(report["proof"]["ok"], true, "{report}");
        for (sum, field) in sums.iter_mut().zip(["holds", "refusals", "sold", "lost_answers"]) {
            *sum += report[field].as_u64().expect("a count");
        }
        lawful(fleet.fronts()[0], text(&report, "event_id"));
        if killed.iter().sum::<u64>() >= kills {
            break;
        }
    }
    let [holds, refusals, sold, lost] = sums;
    println!(
        "{killed:?} kills of engine and fronts: {holds} holds, {refusals} refusals, {sold} orders, {lost} answers lost"
    );
    assert!(holds > 0 && sold > 0, "an empty run proves nothing");
}
