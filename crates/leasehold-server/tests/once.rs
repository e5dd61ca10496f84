//! `leasehold once`, as people use it: one command runs, and everybody gets its output and its exit code.

mod common;

use std::time::Duration;

use common::{Answer, Site, end_of, is_alive, pause, signal, wait_until};
use leasehold_harness::postgres::Cluster;
use rustix::process::Signal;

/// A command that counts how often it ran, in a file.
const COUNTED: &str = "echo run >> runs; echo charged by $LEASEHOLD_ONCE_TOKEN; echo aside >&2; exit 5";

fn runs(site: &Site) -> usize {
    std::fs::read_to_string(site.path("runs")).unwrap_or_default().lines().count()
}

/// Goal: stdout and code of the first run are everybody's; stderr is not; the engine of the same directory goes on.
#[test]
fn a_command_runs_once_and_its_output_is_repeated() {
    let site = Site::new();
    let first = site.ask(&["once", "order-7", "--", "sh", "-c", COUNTED]).with_code(5);
    assert_eq!((first.out.as_str(), first.err.as_str()), ("charged by 1\n", "aside\n"));
    let again = site.ask(&["once", "order-7", "--", "sh", "-c", COUNTED]).with_code(5);
    assert_eq!((again.out.as_str(), again.err.as_str()), ("charged by 1\n", ""));
    assert_eq!(runs(&site), 1);
    // Another scope is another key; other arguments under the same key are refused.
    site.ask(&["once", "order-7", "--scope", "refunds", "--", "sh", "-c", COUNTED]).with_code(5);
    assert_eq!(runs(&site), 2);
    let other = site.ask(&["once", "order-7", "--", "sh", "-c", "true"]).with_code(2);
    other.says_one_sentence();
    assert!(other.err.contains("used before for another request"), "{other:?}");
    site.acquire(&["seat-14"]);
}

/// Goal: stdin is part of what is compared, and the command gets it; without --stdin it gets none.
#[test]
fn stdin_is_part_of_the_request() {
    let site = Site::new();
    let import = ["once", "november", "--stdin", "--", "wc", "-c"];
    assert_eq!(site.ask_with(&import, "four").with_code(0).out.trim(), "4");
    assert_eq!(site.ask_with(&import, "four").with_code(0).out.trim(), "4");
    site.ask_with(&import, "three").with_code(2);
    assert_eq!(site.ask_with(&["once", "none", "--", "wc", "-c"], "four").with_code(0).out.trim(), "0");
    let long = "x".repeat((1 << 20) + 1);
    let refused = site.ask_with(&["once", "long", "--stdin", "--", "wc", "-c"], &long).with_code(2);
    refused.says_one_sentence();
}

/// Goal: what a retry could change is not stored: a signal, code 75, a command that is not there. Its output and code are
/// passed on.
#[test]
fn a_failure_that_may_pass_is_not_stored() {
    let site = Site::new();
    for (script, code) in
        [("echo run >> runs; echo busy; exit 75", 75), ("echo run >> runs; echo busy; kill -TERM $$", 143)]
    {
        let before = runs(&site);
        for _ in 0..2 {
            let answer = site.ask(&["once", &format!("k{code}"), "--", "sh", "-c", script]).with_code(code);
            assert_eq!(answer.out, "busy\n");
        }
        assert_eq!(runs(&site), before + 2);
    }
    for _ in 0..2 {
        let missing = site.ask(&["once", "k", "--", "./no-such-program"]).with_code(127);
        missing.says_one_sentence();
    }
}

/// Goal: more output than is stored is an error, nothing of it is printed, and the command is ended.
#[test]
fn too_much_output_is_not_stored() {
    let site = Site::new();
    let script = "echo $$ > pid; head -c 1048577 /dev/zero; sleep 600";
    let answer = site.ask(&["once", "k", "--", "sh", "-c", script]).with_code(1);
    answer.says_one_sentence();
    assert_eq!(answer.out, "");
    assert!(!is_alive(site.number_in("pid")));
    let fits = site.ask(&["once", "k2", "--", "head", "-c", "1048576", "/dev/zero"]).with_code(0);
    assert_eq!(fits.out.len(), 1 << 20);
}

/// Goal: while it runs, another call is told so (3), or waits and gets the answer.
#[test]
fn a_second_call_is_told_or_waits() {
    let site = Site::new();
    let slow = ["once", "k", "--", "sh", "-c", "echo run >> runs; while ! test -e go; do sleep 0.05; done; echo done"];
    let first = site.start(&mut site.command(&slow));
    wait_until("it runs", || runs(&site) == 1);
    let told = site.ask(&slow).with_code(3);
    told.says_one_sentence();
    assert!(told.err.contains("still runs") && told.out.is_empty(), "{told:?}");
    let waiting = [&["once", "k", "--wait", "1m"], &slow[2..]].concat();
    let second = site.start(&mut site.command(&waiting));
    pause(Duration::from_millis(100));
    std::fs::write(site.path("go"), "").expect("a file");
    for child in [first, second] {
        assert_eq!(end_of(child).with_code(0).out, "done\n");
    }
    assert_eq!(runs(&site), 1);
}

/// Goal: a call that dies takes its command with it, and is taken over when its ttl is over.
#[test]
fn a_call_that_dies_is_taken_over() {
    let site = Site::new();
    let script = "echo $$ > pid; echo run >> runs; test -e go || sleep 600; echo by $LEASEHOLD_ONCE_TOKEN";
    let call = ["once", "k", "--ttl", "1s", "--wait", "1m", "--", "sh", "-c", script];
    let first = site.start(&mut site.command(&call));
    wait_until("it runs", || runs(&site) == 1);
    let pid = site.number_in("pid");
    signal(first.id(), Signal::KILL);
    let said = end_of(first).err;
    assert!(said.contains("once ended without a word"), "{said}");
    wait_until("its command is dead", || !is_alive(pid));
    std::fs::write(site.path("go"), "").expect("a file");
    assert_eq!(site.ask(&call).with_code(0).out, "by 2\n");
}

/// Goal: a call that was stopped past its ttl wakes up to exit code 7: it prints nothing, and changes no answer.
#[test]
fn a_call_that_was_taken_over_prints_nothing() {
    let site = Site::new();
    let script =
        "echo run >> runs; while ! test -e go$LEASEHOLD_ONCE_TOKEN; do sleep 0.05; done; echo by $LEASEHOLD_ONCE_TOKEN";
    let call = ["once", "k", "--ttl", "3s", "--wait", "1m", "--", "sh", "-c", script];
    let slow = site.start(&mut site.command(&call));
    wait_until("it runs", || runs(&site) == 1);
    signal(slow.id(), Signal::STOP);
    // Its command ends meanwhile, so that it wakes up with an answer.
    std::fs::write(site.path("go1"), "").expect("a file");
    std::fs::write(site.path("go2"), "").expect("a file");
    assert_eq!(site.ask(&call).with_code(0).out, "by 2\n");
    signal(slow.id(), Signal::CONT);
    let late = end_of(slow).with_code(7);
    assert_eq!(late.out, "");
    late.says_one_sentence();
    assert_eq!(site.ask(&call).with_code(0).out, "by 2\n");
}

/// Goal: TERM goes to the command, and the try is free again at once.
#[test]
fn an_interrupted_call_is_abandoned() {
    let site = Site::new();
    let script = "echo run >> runs; test -e go || exec sleep 600; echo done";
    let call = ["once", "k", "--", "sh", "-c", script];
    let first = site.start(&mut site.command(&call));
    wait_until("it runs", || runs(&site) == 1);
    signal(first.id(), Signal::TERM);
    end_of(first).with_code(143);
    std::fs::write(site.path("go"), "").expect("a file");
    assert_eq!(site.ask(&call).with_code(0).out, "done\n");
}

/// Goal: a command that catches TERM and ends with a code of its own was interrupted all the same: nothing is stored.
#[test]
fn an_interrupted_command_that_ends_by_itself_is_not_stored() {
    let site = Site::new();
    let script = "echo run >> runs; test -e go || { trap 'exit 143' TERM; while :; do sleep 0.05; done; }; echo done";
    let call = ["once", "k", "--", "sh", "-c", script];
    let first = site.start(&mut site.command(&call));
    wait_until("it runs", || runs(&site) == 1);
    pause(Duration::from_millis(300));
    signal(first.id(), Signal::TERM);
    end_of(first).with_code(143);
    std::fs::write(site.path("go"), "").expect("a file");
    assert_eq!(site.ask(&call).with_code(0).out, "done\n");
}

/// Goal: what the command left behind outside of its group cannot hold up the answer, though it holds stdout open.
#[test]
fn what_left_the_group_does_not_hold_up_the_answer() {
    let site = Site::new();
    let script =
        "setsid sh -c 'echo $$ > pid; exec sleep 600' 2>/dev/null & while ! test -s pid; do sleep 0.05; done; echo ok";
    let answer = site.ask(&["once", "k", "--", "sh", "-c", script]).with_code(0);
    assert_eq!(answer.out, "ok\n");
    signal(u32::try_from(site.number_in("pid")).expect("a pid"), Signal::KILL);
}

/// Goal: the store is named by --store or LEASEHOLD_STORE, on PostgreSQL too; what has no store says what to give.
#[test]
fn the_store_is_named_or_belongs_to_the_engine() {
    let site = Site::new();
    let cluster = Cluster::start(&[]);
    let url = cluster.url("postgres");
    let shared = ["once", "k", "--store", &url, "--", "sh", "-c", COUNTED];
    site.ask(&shared).with_code(5);
    let mut named = site.command(&["once", "k", "--", "sh", "-c", COUNTED]);
    let again = Answer::of(&named.env("LEASEHOLD_STORE", &url).output().expect("it runs")).with_code(5);
    assert_eq!((again.out.as_str(), runs(&site)), ("charged by 1\n", 1));
    for engine in ["etcd://127.0.0.1:1", "redis://:hunter2@127.0.0.1:1", "zk://127.0.0.1:1"] {
        let refused = site.ask(&["--url", engine, "once", "k", "--", "true"]).with_code(2);
        refused.says_one_sentence();
        assert!(refused.err.contains("--store") && !refused.err.contains("hunter2"), "{refused:?}");
    }
    // A server has a store of its own, and this one is away.
    site.ask(&["--url", "leasehold://127.0.0.1:1", "once", "k", "--", "true"]).with_code(4).says_one_sentence();
    site.ask(&["once", "k", "--store", "mysql://x", "--", "true"]).with_code(2);
    site.ask(&["once", "k", "--store", "postgres://x@127.0.0.1:1/x", "--", "true"]).with_code(4);
    site.ask(&["once", "k", "--keep", "721h", "--", "true"]).with_code(2);
}

/// Goal: `migrate --store` makes the tables by hand, and prints what an owner can run.
#[test]
fn migrate_makes_the_store() {
    let site = Site::new();
    let cluster = Cluster::start(&[]);
    let url = cluster.url("postgres");
    let printed = site.ask(&["migrate", "--store", &url, "--print"]).with_code(0).out;
    assert!(printed.starts_with("BEGIN;") && printed.contains("leasehold.once_begin"), "{printed}");
    for _ in 0..2 {
        let made = site.ask(&["migrate", "--store", &url]).with_code(0);
        assert_eq!(made.out, "the store's schema leasehold is up to date\n");
    }
    let file = format!("sqlite:{}", site.path("recipes.db").display());
    assert_eq!(site.ask(&["migrate", "--store", &file]).with_code(0).out, "the store is up to date\n");
    site.ask(&["migrate", "--store", &file, "--print"]).with_code(2).says_one_sentence();
    site.ask(&["migrate", "--store", "etcd://x"]).with_code(2).says_one_sentence();
}
