//! `leasehold queue`, as people use it: jobs in a file or a database, and a command for each of them.

mod common;

use std::time::Duration;

use common::server::Server;
use common::{Site, end_of, is_alive, pause, signal, text, wait_until};
use leasehold_harness::postgres::Cluster;
use rustix::process::Signal;

/// Writes the job and what the environment says of it, one line for each job.
const LOG: &str = "echo \"$(cat) $LEASEHOLD_JOB_ATTEMPT $LEASEHOLD_JOB_KEY\" >> log";

fn lines(site: &Site, file: &str) -> Vec<String> {
    std::fs::read_to_string(site.path(file)).unwrap_or_default().lines().map(|line| line.trim().to_owned()).collect()
}

/// Goal: push, look, work, and nothing is left. The queue is made by the first push, in the directory of the engine.
#[test]
fn jobs_are_pushed_and_worked_off() {
    let site = Site::new();
    let id = site.ask(&["queue", "push", "mail", "{\"to\": \"ada\"}"]).with_code(0).out;
    let pushed = site.ask(&["queue", "push", "mail", "7", "--dedupe", "x", "--json"]).with_code(0).json();
    assert_eq!(pushed["fresh"], true);
    assert!(text(&pushed, "job_id").parse::<i64>().unwrap() > id.trim().parse::<i64>().unwrap());
    let twin = site.ask_with(&["queue", "push", "mail", "-", "--dedupe", "x", "--json"], "8").with_code(0).json();
    assert_eq!((&twin["fresh"], &twin["job_id"]), (&serde_json::json!(false), &pushed["job_id"]));
    let shown = site.ask(&["queue", "ls", "mail", "--json"]).with_code(0).json();
    assert_eq!((&shown["ready"], &shown["taken"], &shown["by_key"]), (&2.into(), &0.into(), &false.into()));
    let worked = site.ask(&["queue", "work", "mail", "--drain", "--json", "--", "sh", "-c", LOG]).with_code(0);
    assert_eq!(worked.json()["acked"], 2);
    let mut log = lines(&site, "log");
    log.sort();
    assert_eq!(log, ["7 1", "{\"to\": \"ada\"} 1"]);
    let table = site.ask(&["queue", "ls"]).with_code(0).out;
    assert!(table.contains("QUEUE") && table.lines().nth(1).is_some_and(|row| row.starts_with("mail")), "{table}");
}

/// Goal: code 65 is a dead letter at once, other codes after so many tries; an operator revives and drops.
#[test]
fn failures_are_tried_again_and_buried() {
    let site = Site::new();
    let make = ["queue", "make", "mail", "--max-attempts", "2", "--backoff", "1ms", "--backoff-cap", "2ms"];
    site.ask(&make).with_code(0);
    for job in ["1", "2"] {
        site.ask(&["queue", "push", "mail", job]).with_code(0);
    }
    let script = "job=$(cat); echo $job >> log; test $job = 1 && exit 65; exit 9";
    let mut work = site.start(&mut site.command(&["queue", "work", "mail", "-j", "2", "--", "sh", "-c", script]));
    let dead = || site.ask(&["queue", "dead", "mail", "--json"]).with_code(0).out;
    wait_until("both are dead", || dead().lines().count() == 2);
    signal(work.id(), Signal::TERM);
    wait_until("the worker ends", || work.try_wait().unwrap().is_some());
    assert_eq!(work.wait().unwrap().code(), Some(0));
    let mut log = lines(&site, "log");
    log.sort();
    assert_eq!(log, ["1", "2", "2"]);
    let letters: Vec<serde_json::Value> = dead().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let letter = |body: i64| letters.iter().find(|letter| letter["body"] == body).unwrap();
    assert_eq!((&letter(1)["attempt"], &letter(2)["attempt"]), (&1.into(), &2.into()));
    assert_eq!(text(letter(2), "error"), "the command ended with code 9");
    let (one, two) = (text(letter(1), "job_id"), text(letter(2), "job_id"));
    assert_eq!(site.ask(&["queue", "retry", "mail", one]).with_code(0).out, "1\n");
    assert_eq!(site.ask(&["queue", "drop", "mail", two]).with_code(0).out, "1\n");
    let gone = site.ask(&["queue", "drop", "mail", two]).with_code(7);
    assert_eq!(gone.out, "0\n");
    site.ask(&["queue", "work", "mail", "--drain", "--", "sh", "-c", "cat > revived"]).with_code(0);
    assert_eq!(lines(&site, "revived"), ["1"]);
}

/// Goal: `retry --all` is about all dead letters, in whichever order they died, at home and over a server.
/// Method: the letters with the lowest ids died last, so that the newest hundred are not those with the highest ids. Two more
/// have a dedupe id that is in use by now.
#[test]
fn all_dead_letters_are_revived() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let served = format!("leasehold://{}", server.resp);
    for (store, file) in [("sqlite:local.db", "local.db"), (&served, "data/recipes.db")] {
        let ask = |words: &[&str]| site.ask(&[&["queue"], words, &["--store", store]].concat());
        ask(&["make", "mail", "--max-attempts", "1"]).with_code(0);
        ask(&["push", "mail", "1", "--dedupe", "used"]).with_code(0);
        let letters = "INSERT INTO leasehold_dead_job (job_id, token, ready_at, made_at, queue_id, priority, attempt,
                max_attempts, again, dedupe, body, died_at)
            WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 252)
            SELECT 1000 + i, 0, 0, 0, (SELECT queue_id FROM leasehold_queue), 1, 1, 1, 0, iif(i IN (1, 252), 'used', NULL), '2',
                10000 - i FROM n; UPDATE sqlite_sequence SET seq = 2000 WHERE name = 'leasehold_job'";
        rusqlite::Connection::open(site.path(file)).unwrap().execute_batch(letters).unwrap();
        let all = ask(&["retry", "mail", "--all", "--json"]).with_code(3);
        assert_eq!(all.json(), serde_json::json!({"revived": 250, "kept": 2}), "{store}");
        assert_eq!(ask(&["dead", "mail", "--json"]).with_code(0).out.lines().count(), 2, "{store}");
        let (first, last) = ("1001", "1252");
        assert_eq!(ask(&["drop", "mail", first, last, "--json"]).with_code(0).json()["dropped"], 2);
        assert_eq!(ask(&["retry", "mail", "--all"]).with_code(0).out, "0\n");
        let paused = ask(&["pause", "mail", "--json"]).with_code(0).json();
        assert_eq!(paused, serde_json::json!({"queue": "mail", "paused": true}));
    }
}

/// Goal: by key, in order, one at a time; the hot key is shown.
#[test]
fn keys_are_worked_in_order() {
    let site = Site::new();
    site.ask(&["queue", "make", "orders", "--by-key"]).with_code(0);
    for number in 0..6 {
        let key = if number == 5 { "bob" } else { "ada" };
        site.ask(&["queue", "push", "orders", &number.to_string(), "--key", key]).with_code(0);
    }
    let keys = site.ask(&["queue", "ls", "orders", "--keys", "--json"]).with_code(0).out;
    assert!(keys.lines().next().unwrap().contains("\"key\":\"ada\",\"jobs\":5"), "{keys}");
    site.ask(&["queue", "work", "orders", "-j", "4", "--drain", "--", "sh", "-c", LOG]).with_code(0);
    let log = lines(&site, "log");
    assert!(log.iter().all(|line| line[1..].starts_with(" 1 ")), "each is tried for the first time: {log:?}");
    let of_ada: Vec<&str> = log.iter().filter(|line| line.ends_with("ada")).map(|line| &line[..1]).collect();
    assert_eq!((of_ada, log.len()), (vec!["0", "1", "2", "3", "4"], 6));
}

/// Goal: what cannot be has one sentence and its code.
#[test]
fn what_cannot_be_is_said_in_one_sentence() {
    let site = Site::new();
    site.ask(&["queue", "push", "mail", "1"]).with_code(0);
    let table: [(&[&str], i32); 7] = [
        (&["queue", "ls", "none"], 2),
        (&["queue", "push", "mail", "{"], 2),
        (&["queue", "push", "mail", "1", "--key", "k"], 2),
        (&["queue", "make", "mail", "--by-key"], 2),
        (&["queue", "work", "mail", "--", "no-such-command"], 127),
        (&["queue", "ls", "--store", "mysql://ada:hunter2@db"], 2),
        (&["queue", "ls", "--store", "postgres://ada:hunter2@127.0.0.1:1/x"], 4),
    ];
    for (words, code) in table {
        let answer = site.ask(words).with_code(code);
        answer.says_one_sentence();
        assert!(!answer.err.contains("hunter2"), "{answer:?}");
    }
}

/// Goal: a worker that is killed takes its command with it, and the job comes again.
#[test]
fn a_killed_worker_leaves_its_job() {
    let site = Site::new();
    site.ask(&["queue", "make", "mail", "--visible", "2s"]).with_code(0);
    site.ask(&["queue", "push", "mail", "1"]).with_code(0);
    let script = "echo $$ > pid; sleep 60";
    let mut work = site.start(&mut site.command(&["queue", "work", "mail", "--", "sh", "-c", script]));
    let pid = site.number_in("pid");
    work.kill().unwrap();
    let said = end_of(work).err;
    assert!(said.contains("queue work ended without a word"), "{said}");
    wait_until("the command is gone", || !is_alive(pid));
    // The delivery lasts two seconds: --drain waits for what is taken.
    site.ask(&["queue", "work", "mail", "--drain", "--", "sh", "-c", LOG]).with_code(0);
    assert_eq!(lines(&site, "log"), ["1 2"]);
}

/// Goal: TERM lets the command that runs end, and takes no more; a second one gives the job back.
#[test]
fn a_signal_ends_the_worker_after_its_job() {
    let site = Site::new();
    for job in ["1", "2"] {
        site.ask(&["queue", "push", "mail", job]).with_code(0);
    }
    let script = "echo $$ > pid; sleep 1; cat >> log";
    let work = site.start(&mut site.command(&["queue", "work", "mail", "--json", "--", "sh", "-c", script]));
    site.number_in("pid");
    signal(work.id(), Signal::TERM);
    assert_eq!(end_of(work).with_code(0).json()["acked"], 1);
    assert_eq!(site.ask(&["queue", "ls", "mail", "--json"]).json()["ready"], 1);

    std::fs::remove_file(site.path("pid")).unwrap();
    let work = site.start(&mut site.command(&["queue", "work", "mail", "--", "sh", "-c", "echo $$ > pid; sleep 60"]));
    let pid = site.number_in("pid");
    signal(work.id(), Signal::TERM);
    pause(Duration::from_millis(300));
    signal(work.id(), Signal::INT);
    end_of(work).with_code(130);
    wait_until("the command is gone", || !is_alive(pid));
    let ready = || site.ask(&["queue", "ls", "mail", "--json"]).with_code(0).json()["ready"] == 1;
    wait_until("the job is given back", ready);
}

/// Goal: a paused queue hands out nothing.
#[test]
fn a_paused_queue_waits() {
    let site = Site::new();
    site.ask(&["queue", "push", "mail", "1"]).with_code(0);
    site.ask(&["queue", "pause", "mail"]).with_code(0);
    assert_eq!(site.ask(&["queue", "ls", "mail", "--json"]).with_code(0).json()["paused"], true);
    site.ask(&["queue", "work", "mail", "--drain", "--", "true"]).with_code(3).says_one_sentence();
    site.ask(&["queue", "pause", "mail", "--resume"]).with_code(0);
    site.ask(&["queue", "work", "mail", "--drain", "--", "true"]).with_code(0);
}

/// Goal: on PostgreSQL any program pushes by SQL, in its own transaction, and the command line works it off.
#[test]
fn a_push_by_sql_is_worked_off() {
    let cluster = Cluster::start(&[]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let database = runtime.block_on(cluster.database());
    let url = cluster.url(&database);
    let site = Site::new();
    let ask = |words: &[&str]| site.ask(&[words, &["--store", &url]].concat());
    ask(&["queue", "make", "mail"]).with_code(0);
    runtime.block_on(cluster.execute(
        &database,
        "BEGIN; SELECT leasehold.queue_push('mail', '41'); ROLLBACK;
         BEGIN; SELECT leasehold.queue_push('mail', '42'); COMMIT",
    ));
    let words = ["queue", "work", "mail", "--drain", "--store", &url, "--", "sh", "-c", LOG];
    site.ask(&words).with_code(0);
    assert_eq!(lines(&site, "log"), ["42 1"]);
}
