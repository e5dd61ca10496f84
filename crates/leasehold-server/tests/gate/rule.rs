//! Who is admitted, and what the others are told.

use leasehold::Token;
use leasehold::fence::{FenceRefusal, FenceSetting};
use leasehold::testkit::fence_cases::{FenceSubject, all_cases};

use crate::common::Site;
use crate::process::{GateProcess, HttpClient, Shown, gate_command, shown};
use crate::upstream::Upstream;

const ADA: &str = "00000000000000aa";
const BOB: &str = "00000000000000bb";

fn marked<'a>(token: u64, mark: &'a str, resources: &'a [&'a str]) -> Shown<'a> {
    Shown { mark: Some(mark), ..shown(token, resources) }
}

/// Goal: the rule over HTTP, case by case, with the fields of the contract; and nothing that is refused reaches the
/// upstream.
#[test]
fn the_rule_decides_what_reaches_the_upstream() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    let seat = &["seat%2F14"];
    let table = [
        (shown(41, seat), 200, ""),
        (marked(41, ADA, seat), 200, ""),
        (marked(41, ADA, seat), 200, ""),
        (marked(41, BOB, seat), 409, "other_lease"),
        (shown(41, seat), 409, "other_lease"),
        (marked(42, BOB, seat), 200, ""),
        (marked(41, ADA, seat), 409, "stale"),
        (shown(1, seat), 409, "stale"),
        (marked(9_223_372_036_854_775_807, BOB, seat), 200, ""),
        (marked(42, BOB, seat), 409, "stale"),
        (shown(1, &["seat%2F15"]), 200, ""),
    ];
    let mut client = gate.connect();
    let mut forwarded = 0;
    for (at, (shown, status, code)) in table.iter().enumerate() {
        let answer = client.post("/write", shown, b"x");
        assert_eq!(answer.verdict(), (*status, (*code).to_owned()), "case {at}: {answer:?}");
        forwarded += usize::from(*status == 200);
        assert_eq!(upstream.began().len(), forwarded, "case {at}");
    }
    let stale = client.post("/write", &marked(42, BOB, seat), b"x");
    assert!(stale.head.contains("application/problem+json"), "{}", stale.head);
    let body = stale.json();
    for (field, value) in [("resource", "seat/14"), ("presented", "42"), ("highest", "9223372036854775807")] {
        assert_eq!(body[field], value, "{body}");
    }
    assert_eq!(gate.metric("leasehold_fence_admitted_total{kind=\"gate\"}"), forwarded as f64);
    assert_eq!(gate.metric("leasehold_fence_rejected_total{kind=\"gate\"}"), 6.0);
    assert_eq!(gate.metric("leasehold_gate_resources"), 2.0);
    assert!(gate.metric("leasehold_gate_raise_sync_seconds_count") >= 5.0);
}

/// The table of cases over HTTP. Which line of a setting speaks for a resource is the client's to know: it shows one token.
struct GateSubject(HttpClient);

impl FenceSubject for GateSubject {
    async fn write(&mut self, resource: &str, shown: Option<&str>) -> Result<(), FenceRefusal> {
        let text = match shown.map(|text| (text, text.parse::<FenceSetting>())) {
            Some((_, Ok(setting))) => Some(setting.pick_for(resource)?.to_string()),
            Some((text, Err(_))) => Some(text.to_owned()),
            None => None,
        };
        let mut headers = vec![("Fencing-Resource", resource.to_owned())];
        if let Some(text) = text {
            let (token, mark) = text.split_once(':').map_or((&*text, None), |(token, mark)| (token, Some(mark)));
            headers.push(("Fencing-Token", token.to_owned()));
            headers.extend(mark.map(|mark| ("Fencing-Lease", mark.to_owned())));
        }
        let answer = self.0.ask("POST", "/write", &headers, b"x");
        let (resource, verdict) = (resource.to_owned(), answer.verdict());
        if verdict.0 == 200 {
            return Ok(());
        }
        let body = answer.json();
        let token = |field: &str| Token::new(body[field].as_str().unwrap().parse().unwrap()).unwrap();
        Err(match (verdict.0, &*verdict.1) {
            (409, "stale") => {
                FenceRefusal::Stale { resource, presented: token("presented"), highest: token("highest") }
            }
            (409, "other_lease") => FenceRefusal::OtherLease { resource, presented: token("presented") },
            (428, "token_required") => FenceRefusal::NoToken { resource },
            (400, "invalid") => FenceRefusal::Malformed,
            other => panic!("{other:?}: {answer:?}"),
        })
    }
}

/// Goal: the gate answers as every other fence.
#[test]
fn the_table_of_cases_holds() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for (at, case) in all_cases().iter().enumerate() {
        runtime.block_on(case.run(&format!("case/{at}"), &mut GateSubject(gate.connect())));
    }
    assert!(upstream.judge().unwrap() > 30);
}

/// Goal: without a token 428, with a malformed one 400; methods that are not fenced pass.
#[test]
fn what_shows_no_token_is_told_so() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &upstream.url(), &["--unfenced", "GET,PURGE"]);
    let mut client = gate.connect();
    let field = |name, value: &str| (name, value.to_owned());
    let resource = field("Fencing-Resource", "a");
    assert_eq!(client.ask("POST", "/", &[], b"").verdict(), (428, "token_required".into()));
    client.begin("HEAD", "/", &[]);
    assert!(client.read_head().starts_with("HTTP/1.1 428"));
    let bad = [
        vec![field("Fencing-Token", "42")],
        vec![field("Fencing-Token", "0"), resource.clone()],
        vec![field("Fencing-Token", "1.5"), resource.clone()],
        vec![field("Fencing-Token", "9223372036854775808"), resource.clone()],
        vec![field("Fencing-Token", "42"), field("Fencing-Token", "43"), resource.clone()],
        vec![field("Fencing-Token", "42"), field("Fencing-Lease", "ada"), resource.clone()],
        vec![field("Fencing-Token", "42"), field("Fencing-Resource", "a%2")],
        vec![field("Fencing-Token", "42"), field("Fencing-Resource", &"a".repeat(513))],
    ];
    for headers in bad {
        assert_eq!(client.ask("POST", "/", &headers, b"").verdict(), (400, "invalid".into()), "{headers:?}");
    }
    let many: Vec<_> = std::iter::once(field("Fencing-Token", "1"))
        .chain((0..65).map(|at| field("Fencing-Resource", &format!("r{at}"))))
        .collect();
    assert_eq!(client.ask("POST", "/", &many, b"").verdict(), (400, "invalid".into()));
    assert!(upstream.began().is_empty());
    assert_eq!(client.ask("GET", "/read?x=1", &[], b"").status, 200);
    assert_eq!(client.ask("PURGE", "/read", &[], b"").status, 200);
    assert_eq!(upstream.began().iter().map(|seen| &*seen.path).collect::<Vec<_>>(), ["/read?x=1", "/read"]);
}

/// Goal: one refusal refuses all, and leaves no trace on the others; all together are admitted in any order of headers.
#[test]
fn several_resources_are_admitted_together_or_not_at_all() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    assert_eq!(gate.post("/", &shown(9, &["b"])).status, 200);
    let refused = gate.post("/", &shown(8, &["c", "b", "a"]));
    assert_eq!(refused.verdict(), (409, "stale".into()));
    assert_eq!(refused.json()["resource"], "b");
    // What was refused did not raise the others.
    assert_eq!(gate.post("/", &shown(1, &["a"])).status, 200);
    assert_eq!(gate.post("/", &shown(10, &["c", "a", "b", "a"])).status, 200);
    for resource in ["a", "b", "c"] {
        assert_eq!(gate.post("/", &shown(9, &[resource])).verdict(), (409, "stale".into()), "{resource}");
    }
    assert_eq!(upstream.judge(), Ok(3));
}

/// Goal: the fence's headers go on to the upstream, those of this connection and the key of the gate do not.
#[test]
fn headers_go_on_but_for_those_of_the_connection() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &format!("{}/base/", upstream.url()), &[]);
    let mut headers = marked(42, ADA, &["seat%2F14"]).headers();
    for (name, value) in [
        ("Connection", "keep-alive, X-Hop, Fencing-Token"),
        ("X-Hop", "1"),
        ("Keep-Alive", "timeout=5"),
        ("TE", "trailers"),
        ("Proxy-Authorization", "Bearer secret"),
        ("Authorization", "Bearer upstream"),
        ("X-Forwarded-For", "192.0.2.1"),
    ] {
        headers.push((name, value.to_owned()));
    }
    assert_eq!(gate.connect().ask("POST", "/write?a=b%20c", &headers, b"xyz").text(), "3 bytes");
    assert_eq!(upstream.began()[0].path, "/base/write?a=b%20c");
    let seen = upstream.headers_of(0);
    let all = |name: &str| seen.get_all(name).iter().map(|value| value.to_str().unwrap()).collect::<Vec<_>>().join("|");
    for (name, value) in [
        ("fencing-token", "42"),
        ("fencing-lease", ADA),
        ("fencing-resource", "seat%2F14"),
        ("authorization", "Bearer upstream"),
        ("content-length", "3"),
        ("host", &upstream.address.to_string()),
        ("x-forwarded-host", "gate.example"),
        ("x-forwarded-for", "192.0.2.1|127.0.0.1"),
        ("x-forwarded-proto", "http"),
    ] {
        assert_eq!(all(name), value, "{name}");
    }
    for name in ["connection", "x-hop", "keep-alive", "te", "proxy-authorization", "transfer-encoding"] {
        assert_eq!(all(name), "", "{name}");
    }
}

/// Goal: what was admitted is remembered over a clean restart and over a kill; one directory has one gate.
#[test]
fn a_restart_remembers_and_a_directory_has_one_gate() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    assert_eq!(gate.post("/", &marked(42, ADA, &["a", "b"])).status, 200);
    let mut second = gate_command(&site, &upstream.url(), &[]);
    second.stderr(std::process::Stdio::piped());
    let second = crate::common::Answer::of(&second.output().unwrap()).with_code(4);
    assert!(second.err.contains(&format!("in use by another process (pid {})", gate.pid())), "{second:?}");
    assert_eq!(second.err.lines().count(), 1, "{second:?}");

    gate.stop().with_code(0);
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    assert!(gate.said().contains("2 resources remembered"), "{}", gate.said());
    assert_eq!(gate.post("/", &marked(41, BOB, &["b"])).verdict(), (409, "stale".into()));
    assert_eq!(gate.post("/", &marked(42, BOB, &["a"])).verdict(), (409, "other_lease".into()));
    assert_eq!(gate.post("/", &marked(42, ADA, &["a"])).status, 200);
    assert_eq!(gate.post("/", &marked(43, BOB, &["c"])).status, 200);
    gate.kill();
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    assert_eq!(gate.post("/", &shown(42, &["c"])).verdict(), (409, "stale".into()));
    assert_eq!(gate.post("/", &marked(43, BOB, &["c"])).status, 200);
}

/// Goal: the guide holds: what `run` gives its child is what the gate wants, and the holder before is stale.
#[test]
fn what_run_gives_its_child_opens_the_gate() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    let hold = |name: &str| {
        let words = "printf '%s\\n' \"$LEASEHOLD_TOKEN\" \"$LEASEHOLD_MARK\" \"$LEASEHOLD_RESOURCE\"";
        let answer = site.ask(&["run", "--url", &site.url(), name, "--", "sh", "-c", words]).with_code(0);
        let mut lines = answer.out.lines().map(str::to_owned);
        let mut next = || lines.next().expect("three lines");
        vec![("Fencing-Token", next()), ("Fencing-Lease", next()), ("Fencing-Resource", next())]
    };
    let ask = |headers: &[(&'static str, String)]| gate.connect().ask("POST", "/bills", headers, b"[]").verdict();
    let first = hold("nightly-billing");
    assert_eq!(ask(&first).0, 200);
    let second = hold("nightly-billing");
    assert_eq!(ask(&second).0, 200);
    assert_eq!(ask(&first), (409, "stale".into()));
    assert_eq!(upstream.began().last().unwrap().resources, ["nightly-billing"]);
    // A name with other characters is encoded by the client: plain, it is refused or is another name.
    let mut third = hold("last of ä, b");
    assert_eq!(ask(&third), (400, "invalid".into()));
    third[2].1 = "last%20of%20%C3%A4%2C%20b".into();
    assert_eq!(ask(&third).0, 200);
    assert_eq!(upstream.judge(), Ok(3));
}
