//! `leasehold rehearse` against the real server: its figures, its proof, and what it refuses.

mod common;

use std::process::Command;

use common::server::Server;
use common::{Answer, Site, end_of, signal, text, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};

/// A rehearsal of a second or two, at this server.
fn rehearse(site: &Site, server: &Server, arguments: &[&str]) -> Answer {
    end_of(site.start(&mut command(site, server, arguments)))
}

fn command(site: &Site, server: &Server, arguments: &[&str]) -> Command {
    let url = format!("http://{}", server.http);
    let few = ["rehearse", "--http", &url, "--seed", "7"];
    let mut command = site.command(&[&few, arguments].concat());
    command.env_remove("LEASEHOLD_API_KEY").env_remove("LEASEHOLD_PROVIDER_SECRET");
    command
}

/// Buyers who are done soon: holds and payments end within a second.
const QUICK: [&str; 13] =
    ["--buyers", "40", "--seats", "60", "--over", "1s", "--think", "50ms", "--ttl", "1s", "--pay", "700ms", "--json"];

fn count(report: &Value, field: &str) -> u64 {
    report.pointer(field).and_then(Value::as_u64).unwrap_or_else(|| panic!("{field} in {report}"))
}

#[track_caller]
fn proven(report: &Value) {
    assert_eq!(report["proof"]["ok"], true, "{report}");
    let checks = report["proof"]["checks"].as_array().expect("a list of checks");
    // At an event of somebody else, what is free is not tried.
    assert!(checks.len() >= 8, "{report}");
}

fn body(answer: &str) -> Value {
    serde_json::from_str(answer.split("\r\n\r\n").nth(1).expect("a body")).expect("JSON")
}

/// An event for tests, made by hand. Answers its id.
fn event(server: &Server, rehearsal: bool) -> String {
    let seats: Vec<Value> = (1..=40)
        .map(|number| json!({"id": format!("A-{number}"), "section": "A", "row": "A", "number": number, "price": 100}))
        .collect();
    let event = json!({"name": "Gala", "on_sale": true, "ttl_ms": 1000, "max_hold_ms": 3000, "pay_ms": 700,
                       "rehearsal": rehearsal, "seats": seats});
    let (status, answer) = server.ask("POST", "/v1/events", None, &event.to_string());
    assert_eq!(status, 201, "{answer}");
    text(&body(&answer), "event_id").to_owned()
}

/// Goal: every kind of buyer comes, the figures are there, the event says the same as its buyers, and it is off sale
/// and marked at the end.
#[test]
fn a_small_rehearsal_is_proven() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let plot = ["--plot", "sale.svg", "--decline", "0.2", "--late", "0.2", "--never", "0.1"];
    let answer = rehearse(&site, &server, &[&QUICK[..], &plot].concat()).with_code(0);
    assert_eq!(answer.err, "", "nothing but results in a pipe");
    let report = answer.json();
    proven(&report);
    assert_eq!(count(&report, "/arrived"), 40, "{report}");
    assert!(count(&report, "/sold") > 0 && count(&report, "/refusals") > 0, "{report}");
    let left = ["/abandoned", "/released", "/declined", "/never_paid"].map(|field| count(&report, field));
    assert!(left.iter().sum::<u64>() > 0, "{report}");
    assert_eq!(count(&report, "/proof/confirmed_orders"), count(&report, "/sold"));
    assert_eq!((count(&report, "/unknown"), &report["errors"]), (0, &json!({})), "{report}");
    for figure in ["/hold_us/p50", "/hold_us/p99", "/confirm_us/p50", "/confirm_us/p99", "/conflict_rate"] {
        assert!(
            report.pointer(figure).and_then(Value::as_f64).is_some_and(|figure| figure > 0.0),
            "{figure}: {report}"
        );
    }
    let picture = std::fs::read_to_string(site.path("sale.svg")).expect("it was drawn");
    assert!(picture.contains("leasehold rehearse") && picture.matches("<polyline").count() >= 3, "{picture}");
    let (_, shown) = server.ask("GET", &format!("/v1/events/{}", text(&report, "event_id")), None, "");
    let shown = body(&shown);
    assert_eq!((&shown["rehearsal"], &shown["on_sale"]), (&json!(true), &json!(false)), "{shown}");
    let said = rehearse(&site, &server, &QUICK[..12]).with_code(0);
    assert!(said.out.contains("nothing was sold twice") && said.out.contains("P99"), "{said:?}");
}

/// Goal: with the provider's secret, declines and captures come as signed callbacks, and everything agrees.
#[test]
fn a_provider_tells_of_payments() {
    let site = Site::new();
    let secret = "what the provider and we know of each other";
    std::fs::write(site.path("c.toml"), format!("[boxoffice]\nprovider_secrets = [\"{secret}\"]\n")).expect("written");
    let server = Server::start(&site, &["--config", "c.toml"]);
    let mut command = command(&site, &server, &[&QUICK[..], &["--decline", "0.5"]].concat());
    let answer = end_of(site.start(command.env("LEASEHOLD_PROVIDER_SECRET", secret))).with_code(0);
    let report = answer.json();
    proven(&report);
    assert!(count(&report, "/declined") > 0 && count(&report, "/sold") > 0, "{report}");
    assert!(!answer.out.contains(secret) && !answer.err.contains(secret));
}

/// Goal: a crowd on few seats buys each of them once, and hears nothing but refusals otherwise.
#[test]
fn a_flash_crowd_sells_out_exactly() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let answer = rehearse(&site, &server, &["--flash", "--buyers", "150", "--seats", "30", "--json"]).with_code(0);
    let report = answer.json();
    proven(&report);
    assert_eq!((count(&report, "/sold"), count(&report, "/sold_seats")), (30, 30), "{report}");
    assert_eq!(count(&report, "/went_without"), 120, "{report}");
    assert_eq!(report["errors"], json!({}), "{report}");
}

/// Goal: the loads for figures count what they say.
#[test]
fn loads_count_holds_and_refusals() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let load = ["--for", "500ms", "--buyers", "4", "--seats", "400", "--json"];
    for keyed in [&[][..], &["--keyed"]] {
        let report = rehearse(&site, &server, &[&["--holds"], &load[..], keyed].concat()).with_code(0).json();
        proven(&report);
        assert!(count(&report, "/holds") > 0 && count(&report, "/sold") == 0, "{report}");
        let rate = report["holds_per_s"].as_f64().expect("a number") * report["seconds"].as_f64().expect("a number");
        assert!((rate - report["holds"].as_f64().expect("a number")).abs() < 2.0, "{report}");
    }
    let report = rehearse(&site, &server, &[&["--losers"], &load[..]].concat()).with_code(0).json();
    proven(&report);
    assert!(count(&report, "/refusals") > 0 && count(&report, "/holds") == 0, "{report}");
}

/// Goal: seats of a real event are not sold by mistake.
#[test]
fn only_what_is_marked_is_rehearsed_at() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let (real, marked) = (event(&server, false), event(&server, true));
    let few = ["--buyers", "10", "--over", "200ms", "--think", "10ms", "--json"];
    let refused = rehearse(&site, &server, &[&few[..], &["--event", &real]].concat()).with_code(2);
    refused.says_one_sentence();
    assert!(refused.err.contains("--really"), "{refused:?}");
    let (_, report) = server.ask("GET", &format!("/v1/events/{real}/audit"), None, "");
    assert!(!report.contains("\"held\""), "{report}");
    proven(&rehearse(&site, &server, &[&few[..], &["--event", &marked]].concat()).with_code(0).json());
    proven(&rehearse(&site, &server, &[&few[..], &["--event", &real, "--really"]].concat()).with_code(0).json());
    let (_, shown) = server.ask("GET", &format!("/v1/events/{marked}"), None, "");
    assert_eq!(body(&shown)["on_sale"], true, "an event of somebody else is let be");
    rehearse(&site, &server, &["--event", "no-such"]).with_code(2).says_one_sentence();
}

/// Goal: a double sale is found and said, with exit code 8.
/// Method: the ledger is tampered with between two rehearsals: a second order has the seats of the first.
#[test]
fn a_planted_double_sale_is_found() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let id = event(&server, true);
    let few = ["--buyers", "10", "--over", "200ms", "--think", "10ms", "--abandon", "0", "--json", "--event", &id];
    proven(&rehearse(&site, &server, &few).with_code(0).json());
    server.stop();
    let ledger = rusqlite::Connection::open(site.path("data").join("boxoffice.sqlite")).expect("the ledger");
    let plant = "INSERT INTO orders SELECT 'o_planted', event_id, replace(body, order_id, 'o_planted') FROM orders \
                 WHERE json_array_length(body, '$.seats') > 0 LIMIT 1";
    assert_eq!(ledger.execute(plant, []).expect("it can be tampered with"), 1);
    drop(ledger);
    let server = Server::start(&site, &[]);
    let answer = rehearse(&site, &server, &few).with_code(8);
    let report = answer.json();
    assert_eq!(report["proof"]["ok"], false, "{report}");
    let checks = report["proof"]["checks"].as_array().expect("a list of checks");
    let twice = checks.iter().find(|check| check["name"] == "no_seat_sold_twice").expect("it is looked at");
    assert!(twice["ok"] == false && text(twice, "detail").contains("o_planted"), "{twice}");
    let said =
        rehearse(&site, &server, &few.map(|word| if word == "--json" { "--hot=0.5" } else { word })).with_code(8);
    assert!(said.out.contains("BROKEN") && said.out.contains("o_planted"), "{said:?}");
}

/// Goal: Ctrl-C ends it with what it has, proof and all.
#[test]
fn an_interrupted_rehearsal_says_what_it_has() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let long = ["--buyers", "30", "--over", "10m", "--think", "10ms", "--json"];
    let child = site.start(&mut command(&site, &server, &long));
    wait_until("it has begun", || server.ask("GET", "/v1/events", None, "").1.contains("Rehearsal"));
    signal(child.id(), Signal::INT);
    let answer = end_of(child);
    let answer = answer.with_code(130);
    let report = answer.json();
    assert_eq!(report["proof"]["ok"], true, "{report}");
    assert!(count(&report, "/arrived") < 30, "{report}");
    let (_, events) = server.ask("GET", "/v1/events", None, "");
    let events = body(&events);
    assert_eq!(events["events"][0]["on_sale"], false, "{events}");
}

/// Goal: who cannot be asked is named, and what makes no sense is refused in one sentence.
#[test]
fn bad_usage_is_refused() {
    let site = Site::new();
    let url = ["--http", "http://127.0.0.1:9"];
    let bad: [&[&str]; 14] = [
        &["--holds", "--flash"],
        &["--abandon", "1.5"],
        &["--abandon", "-0.1"],
        &["--decline", "0.6", "--late", "0.6"],
        &["--for", "10s"],
        &["--keyed"],
        &["--holds", "--for", "0s"],
        &["--flash", "--event", "e"],
        &["--event", "e", "--seats", "50"],
        &["--really"],
        &["--ttl", "0s"],
        &["--holds", "--seats", "20"],
        &["--think", "soon"],
        &["--buyers", "0"],
    ];
    for bad in bad {
        let answer = site.ask(&[&["rehearse"], &url[..], bad].concat());
        assert_eq!((answer.code, answer.out.as_str()), (2, ""), "{bad:?}: {answer:?}");
        assert!(!answer.err.is_empty(), "{bad:?}");
    }
    site.ask(&["rehearse", "--http", "ftp://x"]).with_code(2).says_one_sentence();
    site.ask(&["--url", "embedded:x", "rehearse"]).with_code(2).says_one_sentence();
    site.ask(&[&["rehearse"], &url[..]].concat()).with_code(4).says_one_sentence();
}

/// Goal: a server with keys asks for one, and a key that may not run events is not enough.
#[test]
fn a_key_is_needed_where_there_are_keys() {
    let site = Site::new();
    let (office, _) = common::server::key(&site, &["--role", "boxoffice"]);
    let (reader, _) = common::server::key(&site, &["--role", "read"]);
    let server = Server::start(&site, &[]);
    let with = |key: Option<&str>| {
        let mut command = command(&site, &server, &QUICK);
        key.map(|key| command.env("LEASEHOLD_API_KEY", key));
        end_of(site.start(&mut command))
    };
    let refused = with(None).with_code(2);
    assert!(refused.err.contains("LEASEHOLD_API_KEY"), "{refused:?}");
    let refused = with(Some(&reader)).with_code(2);
    assert!(!refused.err.contains(&reader), "{refused:?}");
    proven(&with(Some(&office)).with_code(0).json());
}
