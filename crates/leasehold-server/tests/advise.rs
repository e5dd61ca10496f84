//! `leasehold advise`: every way through the questions, and every line that it prints is tried.

mod common;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use common::{Answer, Site, end_of, text, wait_until};
use leasehold_harness::postgres::Cluster;
use serde_json::Value;

const GUIDE: &str = include_str!("../../../docs/guide/which-mechanism.md");
const RECIPES: &str = include_str!("../../leasehold/examples/recipes.rs");

/// Every way through the questions.
const WAYS: [(&str, &str); 13] = [
    ("y", "once"),
    ("ny", "unique"),
    ("nnys", "optimistic"),
    ("nnyo", "row"),
    ("nnyx", "advisory"),
    ("nnna", "queue"),
    ("nnnk", "queue by key"),
    ("nnnc", "cron"),
    ("nnnnyc", "single flight"),
    ("nnnnyl", "election"),
    ("nnnnyj", "acquire"),
    ("nnnnny", "acquire and fence"),
    ("nnnnnn", "acquire behind a gate"),
];

fn advice(site: &Site, answers: &str) -> Value {
    site.ask(&["advise", "--answers", answers, "--json"]).with_code(0).json()
}

/// The lines of one kind.
fn lines<'a>(advice: &'a Value, kind: &str) -> Vec<&'a str> {
    let lines = advice["lines"].as_array().expect("a list").iter();
    lines.filter(|line| line["kind"] == kind).map(|line| text(line, "text")).collect()
}

/// Every way, with its advice.
fn all(site: &Site) -> Vec<Value> {
    WAYS.iter().map(|(answers, _)| advice(site, answers)).collect()
}

/// Runs a line as somebody who copies it: the binary is on the `PATH`, and the scripts that it names are there.
fn copy(site: &Site, script: &str) -> Command {
    let bin = Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().expect("a directory").display();
    let mut bash = Command::new("bash");
    bash.current_dir(site.path(".")).arg("-c").arg(script);
    bash.env("PATH", format!("{bin}:{}", std::env::var("PATH").unwrap_or_default()));
    bash.env("LEASEHOLD_URL", site.url()).env("DATABASE", format!("sqlite:{}", site.path("shop.db").display()));
    bash
}

#[track_caller]
fn try_line(site: &Site, line: &str) -> Answer {
    Answer::of(&copy(site, line).output().expect("bash runs"))
}

fn write_scripts(site: &Site) {
    for name in ["report.sh", "scheduler", "charge.sh", "send.sh"] {
        std::fs::write(site.path(name), format!("#!/bin/sh\necho {name} >>ran\n")).expect("written");
        let made = Command::new("chmod").arg("+x").arg(site.path(name)).status().expect("chmod runs");
        assert!(made.success());
    }
}

/// How many of the scripts have run so far.
fn scripts_run(site: &Site) -> usize {
    std::fs::read_to_string(site.path("ran")).unwrap_or_default().lines().count()
}

#[test]
fn every_way_leads_to_its_mechanism() {
    let site = Site::new();
    for (answers, mechanism) in WAYS {
        let json = advice(&site, answers);
        assert_eq!((text(&json, "mechanism"), text(&json, "answers")), (mechanism, answers));
        assert!(!text(&json, "why").is_empty() && !json["limits"].as_array().expect("a list").is_empty(), "{json}");
        assert!(!json["lines"].as_array().expect("a list").is_empty(), "{answers}: nothing to copy");
        let shown = site.ask(&["advise", "--answers", answers]).with_code(0);
        assert_eq!(shown.err, "");
        assert!(shown.out.starts_with(&format!("Take: {mechanism} (answers {answers})\n")), "{shown:?}");
        for line in json["lines"].as_array().expect("a list").iter().flat_map(|line| text(line, "text").lines()) {
            assert!(shown.out.contains(&format!("  {line}\n")), "{line}");
        }
        // Answered line by line, as at the keyboard.
        let typed: String = answers.chars().flat_map(|letter| [letter, '\n']).collect();
        let asked = site.ask_with(&["advise"], &typed).with_code(0);
        assert_eq!(asked.out, shown.out);
        assert_eq!(asked.err.lines().count(), answers.len(), "one question for each answer: {}", asked.err);
    }
}

#[test]
fn wrong_answers_are_bad_usage() {
    let site = Site::new();
    for answers in ["", "n", "x", "yy", "nnyq", "Y", "nnnnnnn"] {
        site.ask(&["advise", "--answers", answers]).with_code(2).says_one_sentence();
    }
    let ended = site.ask_with(&["advise"], "n\nn\n").with_code(2);
    assert!(ended.err.contains("the answers ended before the questions"), "{ended:?}");
    let wrong = site.ask_with(&["advise"], "perhaps\n").with_code(2);
    assert!(wrong.err.contains("does not answer"), "{wrong:?}");
    site.ask(&["advise", "--url", "embedded:x", "--answers", "y"]).with_code(2).says_one_sentence();
}

/// Goal: the chooser of the guide is this one: every question in its words, every way to the same mechanism.
#[test]
fn the_guide_agrees() {
    let site = Site::new();
    let asked = site.ask_with(&["advise"], "n\nn\nn\nn\ny\n").with_code(2).err
        + &site.ask_with(&["advise"], "n\nn\ny\n").with_code(2).err
        + &site.ask_with(&["advise"], "n\nn\nn\nn\nn\n").with_code(2).err;
    let mut questions = 0;
    for line in asked.lines().filter_map(|line| line.strip_prefix("leasehold: ")).filter(|line| line.contains(" [")) {
        let (question, _) = line.split_once(" [").expect("a question and its answers");
        assert!(GUIDE.contains(question), "not in the guide: {question}");
        questions += 1;
    }
    assert!(questions >= 12, "{asked}");
    let rows: Vec<(&str, &str)> = GUIDE
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
        .filter_map(|(answers, rest)| Some((answers, rest.strip_prefix('`')?.split('`').next()?)))
        .collect();
    assert_eq!(rows, WAYS, "the table of ways in docs/guide/which-mechanism.md");
}

/// Goal: every shell line works when it is copied.
#[test]
fn every_shell_line_works() {
    let site = Site::new();
    write_scripts(&site);
    let database = rusqlite::Connection::open(site.path("shop.db")).expect("a database");
    database
        .execute_batch("CREATE TABLE charges (id PRIMARY KEY, paid); INSERT INTO charges VALUES (7, 0)")
        .expect("made");
    let mut tried = 0;
    for advice in all(&site).iter().filter(|advice| text(advice, "mechanism") != "acquire behind a gate") {
        for line in lines(advice, "shell") {
            tried += 1;
            let before = scripts_run(&site);
            if line.starts_with("leasehold queue work") {
                // A worker works until it is told to end.
                let worker = site.start(&mut copy(&site, &format!("exec {line}")));
                wait_until("the job was done", || scripts_run(&site) == before + 1);
                common::signal(i32::try_from(worker.id()).expect("a pid"), rustix::process::Signal::TERM);
                end_of(worker);
                continue;
            }
            if line.starts_with("leasehold cron") {
                // The tick of the advice comes once a day.
                let line = line.replace("0 3 * * *", "* * * * * *");
                let runner = site.start(&mut copy(&site, &format!("exec {line}")));
                wait_until("a tick was run", || scripts_run(&site) > before);
                common::signal(i32::try_from(runner.id()).expect("a pid"), rustix::process::Signal::TERM);
                end_of(runner).with_code(0);
                continue;
            }
            try_line(&site, line).with_code(0);
            let runs = usize::from(line.contains("./"));
            assert_eq!(scripts_run(&site), before + runs, "{line}");
        }
    }
    assert!(tried >= 5, "only {tried} lines were tried");
    let paid: i64 = database.query_row("SELECT paid FROM charges", [], |row| row.get(0)).expect("a row");
    assert_eq!(paid, 1, "the fenced write of the advice took effect");
    let refused = database.execute("UPDATE charges SET paid = 2", []);
    assert!(refused.is_err(), "the fence of the advice is there");
    // The second machine of the fleet does not run the tick again.
    let cron = advice(&site, "nnnc");
    if let [line] = lines(&cron, "shell")[..]
        && line.contains("leasehold acquire")
    {
        let before = scripts_run(&site);
        try_line(&site, line).with_code(3);
        assert_eq!(scripts_run(&site), before);
    }
}

/// Goal: the two lines about the gate work: the request reaches the service, and without a token it does not.
#[test]
fn the_lines_of_the_gate_work() {
    let site = Site::new();
    let advice = advice(&site, "nnnnnn");
    let upstream = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (gate_port, upstream_port) = (leasehold_harness::free_port(), upstream.local_addr().expect("bound").port());
    std::thread::spawn(move || {
        for stream in upstream.incoming().flatten() {
            answer_requests(stream);
        }
    });
    let ports = |line: &str| {
        line.replace("127.0.0.1:7410", &format!("127.0.0.1:{gate_port}"))
            .replace("127.0.0.1:8080", &format!("127.0.0.1:{upstream_port}"))
    };
    let [gate, request] = lines(&advice, "shell")[..] else { panic!("{advice}") };
    let gate = ports(gate.strip_suffix(" &").expect("it runs beside the rest"));
    let mut gate = site.start(&mut copy(&site, &format!("exec {gate}")));
    wait_until("the gate listens", || std::net::TcpStream::connect(("127.0.0.1", gate_port)).is_ok());
    let passed = try_line(&site, &ports(request)).with_code(0);
    assert_eq!(passed.out, "paid", "{passed:?}");
    let bare = format!("curl -sS -o answer -w '%{{http_code}}' -d paid=1 http://127.0.0.1:{gate_port}/charges/7");
    assert_eq!(try_line(&site, &bare).with_code(0).out, "428");
    gate.kill().expect("it is ours");
    gate.wait().expect("it is ours");
}

/// Answers every request on a connection.
fn answer_requests(mut stream: std::net::TcpStream) {
    let mut buffer = [0; 4096];
    let mut seen = Vec::new();
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        seen.extend_from_slice(&buffer[..count]);
        if seen.windows(6).any(|part| part == b"paid=1") {
            seen.clear();
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\npaid");
        }
    }
}

/// Goal: every SQL line works when it is copied into psql, one after the other, and does what the advice says.
#[test]
fn every_sql_line_works() {
    let site = Site::new();
    let cluster = Cluster::start(&[]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let url = cluster.url(&runtime.block_on(cluster.database()));
    let psql = |sql: &str| {
        let mut psql = Command::new("psql");
        psql.args(["-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", &url, "-c", sql]);
        Answer::of(&psql.output().expect("psql runs")).with_code(0).out
    };
    psql("CREATE TABLE stock (item int PRIMARY KEY, left_over int NOT NULL); INSERT INTO stock VALUES (7, 3)");
    psql("CREATE TABLE job (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key text, body jsonb NOT NULL)");
    psql("INSERT INTO job (key, body) VALUES ('a', '1'), ('a', '2'), ('b', '3')");
    let mut tried = 0;
    for advice in all(&site) {
        for line in lines(&advice, "sql") {
            tried += 1;
            let out = psql(line);
            if line.starts_with("INSERT INTO sale") {
                assert!(out.contains("14"), "first: {out}");
                assert!(!psql(line).contains("14\n"), "taken");
            }
            if line.starts_with("UPDATE stock") {
                assert_eq!(out.trim(), "UPDATE 1");
                assert_eq!(psql(line).trim(), "UPDATE 0", "another version: try again");
            }
        }
    }
    assert!(tried >= 7, "only {tried} lines were tried");
    // One by `optimistic`, one by `row`, and one back by `advisory`.
    assert_eq!(psql("SELECT left_over FROM stock").trim(), "2");
}

/// Goal: every Rust line is in the example that `scripts/test` builds and runs.
#[test]
fn every_rust_line_is_in_the_example() {
    let site = Site::new();
    let squeeze = |text: &str| text.split_whitespace().collect::<String>();
    let example = squeeze(RECIPES);
    let mut tried = 0;
    for advice in all(&site) {
        for line in lines(&advice, "rust") {
            tried += 1;
            assert!(example.contains(&squeeze(line)), "not in crates/leasehold/examples/recipes.rs: {line}");
        }
    }
    assert!(tried >= 8, "only {tried} lines were looked for");
}
