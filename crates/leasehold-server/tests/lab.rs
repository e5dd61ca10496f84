//! `leasehold lab`, each lab end to end on the real binary: the failure shows, the cure shows, and nothing is left.

mod common;

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Answer, binary, end_of, now, signal, wait_until};
use rustix::process::Signal;
use serde_json::Value;

/// The promise of the help text.
const ONE_MINUTE: Duration = Duration::from_secs(60);

/// A temporary directory of a test's own: what a lab leaves behind would be in it.
struct LabSite {
    dir: tempfile::TempDir,
}

impl LabSite {
    fn new() -> Self {
        let site = Self { dir: tempfile::tempdir().expect("a fresh directory") };
        // PostgreSQL runs as a user of its own where tests run as root, and must get to its directory.
        for path in [site.dir.path().to_owned(), site.tmp()] {
            std::fs::set_permissions(path, Permissions::from_mode(0o711)).expect("it is ours");
        }
        site
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = binary();
        command.env("TMPDIR", self.tmp()).arg("lab").args(arguments);
        command
    }

    fn ask(&self, arguments: &[&str]) -> Answer {
        Answer::of(&self.command(arguments).output().expect("the binary starts"))
    }

    /// Where the lab makes its directories.
    fn tmp(&self) -> PathBuf {
        let tmp = self.dir.path().join("tmp");
        std::fs::create_dir_all(&tmp).expect("a directory can be made");
        tmp
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Processes that work in this site: the lab, and all that it started.
    fn processes(&self) -> Vec<String> {
        let own = self.dir.path().to_str().expect("a path").to_owned();
        let processes = std::fs::read_dir("/proc").expect("a list of processes").flatten();
        let read = |path: &Path, file: &str| {
            String::from_utf8_lossy(&std::fs::read(path.join(file)).unwrap_or_default()).replace('\0', " ")
        };
        let works_here = |path: &PathBuf| {
            let place = std::fs::read_link(path.join("cwd")).unwrap_or_default();
            place.starts_with(&own) || read(path, "cmdline").contains(&own) || read(path, "environ").contains(&own)
        };
        let found = processes.map(|process| process.path()).filter(works_here);
        found.map(|path| format!("{} {}", path.display(), read(&path, "cmdline"))).collect()
    }

    /// Nothing is left: no process, no directory.
    #[track_caller]
    fn is_clean(&self) {
        wait_until("every process of the lab has ended", || self.processes().is_empty());
        let left: Vec<_> = std::fs::read_dir(self.tmp()).expect("it is there").flatten().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// Plays a lab with `--json`, and checks what all labs have in common.
#[track_caller]
fn play(lab: &str) -> Value {
    let site = LabSite::new();
    let began = now();
    let arguments: Vec<&str> = lab.split(' ').chain(["--json"]).collect();
    let answer = site.ask(&arguments).with_code(0);
    assert!(began.elapsed() < ONE_MINUTE, "{lab} took {:?}", began.elapsed());
    site.is_clean();
    let played = answer.json();
    assert_eq!(played["missing"], serde_json::json!([]));
    let kinds: Vec<&str> = acts(&played).iter().map(|act| act["kind"].as_str().expect("a kind")).collect();
    assert_eq!(kinds.first(), Some(&"failure"), "the failure comes first");
    assert_eq!(kinds.last(), Some(&"cure"), "the cure comes last");
    assert!(played["sentence"].as_str().is_some_and(|text| text.starts_with("Seen: ")), "{played}");
    played
}

fn acts(played: &Value) -> &Vec<Value> {
    played["acts"].as_array().expect("acts")
}

/// The writes of an act, as actor and fate.
fn writes(act: &Value) -> Vec<(&str, &str)> {
    let writes = act["writes"].as_array().expect("writes").iter();
    writes.map(|write| (write["actor"].as_str().expect("text"), write["fate"].as_str().expect("text"))).collect()
}

/// Whether two actors believed at once, in some moment of the act, that they hold.
fn overlaps(act: &Value) -> bool {
    let spans = act["beliefs"].as_array().expect("beliefs");
    let span = |value: &Value| (value["from_ms"].as_f64().expect("ms"), value["to_ms"].as_f64().expect("ms"));
    spans.iter().enumerate().any(|(index, one)| {
        spans[index + 1..].iter().any(|other| {
            let (one, other) = (span(one), span(other));
            one.0 < other.1 && other.0 < one.1
        })
    })
}

/// Whether some line of an act says this.
fn says(act: &Value, part: &str) -> bool {
    let entries = act["entries"].as_array().expect("entries");
    entries.iter().any(|entry| entry["verdict"].as_str().is_some_and(|verdict| verdict.contains(part)))
}

/// Goal: a paused holder overwrites a newer sale, and with the fence it does not.
#[test]
fn pause_shows_failure_and_cure() {
    judge_pause(&play("pause"));
}

/// Goal: the same, and the seat is a row of PostgreSQL.
#[test]
fn pause_shows_failure_and_cure_on_postgres() {
    judge_pause(&play("pause --postgres"));
}

#[track_caller]
fn judge_pause(played: &Value) {
    let [failure, cure] = acts(played).as_slice() else { panic!("two acts: {played}") };
    assert_eq!(writes(failure), [("bob", "admitted"), ("ada", "wrongly_admitted")]);
    assert_eq!(writes(cure), [("bob", "admitted"), ("ada", "fenced")]);
    for act in [failure, cure] {
        let paused = &act["pauses"][0];
        let span = paused["to_ms"].as_f64().expect("ms") - paused["from_ms"].as_f64().expect("ms");
        assert!(span > 2_000.0, "ada was stopped for longer than her ttl: {paused}");
        assert!(overlaps(act), "ada believes to hold while bob does");
    }
    assert!(says(cure, "LH001") && says(cure, "is stale: seat/14 has seen token"), "{cure}");
}

/// Goal: a holder that is cut off overwrites a newer sale; `run` ends the work in time; the fence refuses the write.
#[test]
fn partition_shows_failure_and_cure() {
    let played = play("partition");
    let [failure, run, fenced] = acts(&played).as_slice() else { panic!("three acts: {played}") };
    assert_eq!(writes(failure), [("bob", "admitted"), ("ada", "wrongly_admitted")]);
    assert!(!overlaps(run), "under run nobody holds beside another: {run}");
    assert!(says(run, "ended by run"), "{run}");
    assert_eq!(writes(fenced), [("bob", "admitted"), ("ada", "fenced")]);
}

/// Goal: one unit is sold many times, and in five ways only once.
#[test]
fn oversell_shows_failure_and_cure() {
    let played = play("oversell");
    let sold: Vec<usize> = acts(&played).iter().map(|act| writes(act).len()).collect();
    assert_eq!(sold.len(), 6);
    assert!(sold[0] > 1, "{sold:?}");
    assert_eq!(sold[1..], [1; 5]);
}

/// Goal: `SET NX` fails in four ways, and two cures hold.
#[test]
fn setnx_shows_failure_and_cure() {
    let played = play("setnx");
    let acts = acts(&played);
    assert_eq!(acts.len(), 6);
    assert!(says(&acts[0], "-1"), "{}", acts[0]);
    assert!(overlaps(&acts[1]) && overlaps(&acts[2]), "two holders at once");
    assert!(says(&acts[2], "could not ask"), "a dead Redis says no to nobody: {}", acts[2]);
    assert_eq!(writes(&acts[3]), [("bob", "admitted"), ("ada", "wrongly_admitted")]);
    assert_eq!(writes(&acts[4]), [("bob", "admitted"), ("ada", "fenced")]);
    assert!(says(&acts[4], "STALE presented=1 highest=2"), "{}", acts[4]);
    assert!(!overlaps(&acts[5]), "one holder at a time: {}", acts[5]);
}

/// Goal: a late DEL makes two holders, and the release that compares does not.
#[test]
fn release_shows_failure_and_cure() {
    let played = play("release");
    let [failure, cure] = acts(&played).as_slice() else { panic!("two acts: {played}") };
    let believers = |act: &Value| act["beliefs"].as_array().expect("beliefs").len();
    assert_eq!((believers(failure), believers(cure)), (3, 2), "cleo is granted only in the failure");
}

/// Goal: a failover makes two holders with one token, and an embedded engine none.
#[test]
fn failover_shows_failure_and_cure() {
    judge_failover(&play("failover"));
}

/// Goal: the same, and the seat is a row of PostgreSQL.
#[test]
fn failover_shows_failure_and_cure_on_postgres() {
    judge_failover(&play("failover --postgres"));
}

#[track_caller]
fn judge_failover(played: &Value) {
    let acts = acts(played);
    assert_eq!(acts.len(), 4);
    assert!(overlaps(&acts[0]) && overlaps(&acts[1]));
    assert_eq!(writes(&acts[0]), [("ada", "admitted"), ("bob", "wrongly_admitted")]);
    assert_eq!(writes(&acts[1]), [("ada", "admitted"), ("bob", "fenced")]);
    assert!(says(&acts[1], "LH003"), "{}", acts[1]);
    assert!(says(&acts[2], "replica"), "{}", acts[2]);
    assert!(!overlaps(&acts[3]), "{}", acts[3]);
}

/// Goal: Redlock has two majorities, after a restart and after a step of a clock; an embedded engine has one holder.
#[test]
fn redlock_shows_failure_and_cure() {
    judge_redlock(&play("redlock"));
}

/// Goal: the same, and the seat is a row of PostgreSQL.
#[test]
fn redlock_shows_failure_and_cure_on_postgres() {
    judge_redlock(&play("redlock --postgres"));
}

#[track_caller]
fn judge_redlock(played: &Value) {
    let acts = acts(played);
    assert_eq!(acts.len(), 4);
    assert!(overlaps(&acts[0]) && overlaps(&acts[1]), "two holders at once");
    assert!(says(&acts[0], "nodes 2, 4, 5") && says(&acts[1], "nodes 3, 4, 5"), "{played}");
    assert!(says(&acts[2], "no tokens") && says(&acts[2], "may have forgotten leases"), "{}", acts[2]);
    assert!(!overlaps(&acts[3]), "{}", acts[3]);
}

/// Goal: the terminal gets a timeline without colour codes when it is none, and the report is one whole page.
#[test]
fn the_timeline_is_plain_and_the_report_is_whole() {
    let site = LabSite::new();
    let report = site.path("release.html");
    let answer = site.ask(&["release", "--report", report.to_str().expect("a path")]).with_code(0);
    assert!(!answer.out.contains('\u{1b}'), "{answer:?}");
    assert_eq!(answer.out.matches("ACTOR").count(), 2, "a heading for each act: {}", answer.out);
    assert!(answer.out.trim_end().lines().last().expect("lines").starts_with("Seen: "), "{}", answer.out);
    let page = std::fs::read_to_string(&report).expect("the report is written");
    let elements = parse_page(&page);
    assert_eq!(elements.iter().filter(|name| *name == "svg").count(), 2, "a picture for each act");
    assert_eq!(elements.iter().filter(|name| *name == "script").count(), 0);
    for actor in ["ada", "bob", "cleo"] {
        assert!(page.contains(&format!(">{actor}</text>")), "{actor} has a row");
    }
    for needed in [
        "prefers-color-scheme: dark",
        "role=\"img\"",
        "<desc id=",
        "tabindex=\"0\"",
        "name=\"viewport\"",
        "max-width: 40rem",
    ] {
        assert!(page.contains(needed), "{needed}");
    }
    let elsewhere = page.matches("http").count() - page.matches("xmlns=\"http://www.w3.org/2000/svg\"").count();
    assert_eq!(elsewhere, 0, "nothing is fetched from elsewhere");
    site.is_clean();
}

/// Reads a page whose every element is closed, and answers the names of its elements. Fails where one is not, where an id
/// comes twice, or where a reference goes nowhere.
#[track_caller]
fn parse_page(page: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut open: Vec<String> = Vec::new();
    let mut rest = page.strip_prefix("<!DOCTYPE html>").expect("a page begins with its type");
    while let Some(begin) = rest.find('<') {
        let end = begin + rest[begin..].find('>').expect("a tag ends");
        let tag = &rest[begin + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "{name} is closed where something else is open");
            continue;
        }
        let name = tag.split([' ', '/']).next().expect("a name").to_owned();
        assert!(tag.matches('"').count().is_multiple_of(2), "{tag}");
        if !tag.ends_with('/') {
            open.push(name.clone());
        }
        names.push(name);
    }
    assert!(open.is_empty(), "not closed: {open:?}");
    let values = |attribute: &str| -> Vec<String> {
        let mark = format!(" {attribute}=\"");
        page.split(mark.as_str()).skip(1).filter_map(|part| part.split('"').next()).map(str::to_owned).collect()
    };
    let ids = values("id");
    let known: BTreeSet<&String> = ids.iter().collect();
    assert_eq!(known.len(), ids.len(), "an id comes once");
    let labels = values("aria-labelledby").join(" ");
    let links: Vec<String> = values("href").iter().map(|link| link.trim_start_matches('#').to_owned()).collect();
    for reference in labels.split_whitespace().map(str::to_owned).chain(links) {
        assert!(known.contains(&reference), "{reference} is nowhere");
    }
    names
}

/// Goal: the list names every lab, and each lab of it can be played.
#[test]
fn the_list_names_every_lab() {
    let site = LabSite::new();
    let list = site.ask(&[]).with_code(0).out;
    for lab in ["pause", "partition", "oversell", "setnx", "release", "failover", "redlock"] {
        assert!(list.lines().any(|line| line.starts_with(lab)), "{lab}: {list}");
    }
    assert_eq!(site.ask(&["--json"]).with_code(0).out.lines().count(), 7);
}

/// Goal: a program that is missing is named, with what installs it, before anything is started.
#[test]
fn a_missing_program_is_named() {
    let site = LabSite::new();
    for lab in ["setnx", "release", "failover", "redlock"] {
        let answer = Answer::of(&site.command(&[lab]).env("PATH", "").output().expect("the binary starts"));
        let answer = answer.with_code(4);
        answer.says_one_sentence();
        assert!(
            answer.err.contains("redis-server") && answer.err.contains("apt-get install redis-server"),
            "{answer:?}"
        );
    }
    site.is_clean();
}

#[test]
fn bad_usage_is_told_before_anything_is_started() {
    let site = LabSite::new();
    site.ask(&["no-such-lab"]).with_code(2);
    site.ask(&["--report", "x.html"]).with_code(2);
    site.ask(&["release", "--postgres"]).with_code(2).says_one_sentence();
    site.ask(&["pause", "--url", "embedded:x"]).with_code(2).says_one_sentence();
    site.ask(&["pause", "--report", "/no/such/folder/x.html"]).with_code(2).says_one_sentence();
    site.is_clean();
}

/// Starts a lab, waits until it has printed this, and answers its process.
fn start_until(site: &LabSite, lab: &str, printed: &str) -> (std::process::Child, PathBuf) {
    let out = site.path("out");
    let file = std::fs::File::create(&out).expect("a file");
    let child = site
        .command(&lab.split(' ').collect::<Vec<_>>())
        .stdout(file)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    wait_until("the lab is under way", || std::fs::read_to_string(&out).is_ok_and(|text| text.contains(printed)));
    (child, out)
}

/// Goal: Ctrl-C leaves nothing: no process, not even one that is stopped, no Redis, no directory.
#[test]
fn an_interrupt_leaves_nothing() {
    for (lab, printed) in [("pause --postgres", "SIGSTOP"), ("setnx", "SIGSTOP"), ("partition", "cuts ada")] {
        let site = LabSite::new();
        let (child, _) = start_until(&site, lab, printed);
        assert!(site.processes().len() > 2, "a lab has processes: {:?}", site.processes());
        signal(child.id(), Signal::INT);
        let answer = end_of(child);
        assert_eq!(answer.code, 130, "{answer:?}");
        assert!(answer.err.contains("interrupted by SIGINT"), "{answer:?}");
        site.is_clean();
    }
}

/// Goal: when an actor dies, the lab says so and tidies up.
#[test]
fn the_death_of_an_actor_ends_the_lab() {
    let site = LabSite::new();
    let (child, _) = start_until(&site, "pause", "SIGSTOP");
    let actors = site.processes().into_iter().filter(|line| line.contains("lab-actor play")).collect::<Vec<_>>();
    assert_eq!(actors.len(), 2, "{actors:?}");
    for actor in actors {
        let pid: i32 = actor.split([' ', '/']).nth(2).and_then(|pid| pid.parse().ok()).expect("a pid");
        signal(pid, Signal::KILL);
    }
    let answer = end_of(child);
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(answer.err.contains("ended by signal 9 before the lab did"), "{answer:?}");
    site.is_clean();
}

/// Goal: PostgreSQL that cannot be started for want of a program is named as one, with what installs it.
#[test]
fn what_postgres_needs_is_named() {
    let site = LabSite::new();
    let answer =
        Answer::of(&site.command(&["pause", "--postgres"]).env("PATH", "").output().expect("the binary starts"));
    // Whoever is not root needs nothing but PostgreSQL itself.
    if rustix::process::geteuid().is_root() {
        let answer = answer.with_code(4);
        answer.says_one_sentence();
        assert!(answer.err.contains("runuser") && answer.err.contains("apt-get install util-linux"), "{answer:?}");
    }
    site.is_clean();
}

/// Goal: what a killed lab left on disk goes with the next one, and a lab that runs keeps what it has.
#[test]
fn leftovers_of_a_killed_lab_are_removed_by_the_next() {
    let site = LabSite::new();
    let (mut killed, _) = start_until(&site, "pause --postgres", "SIGSTOP");
    killed.kill().expect("it runs");
    killed.wait().expect("it ends");
    wait_until("every process of the lab has ended", || site.processes().is_empty());
    let count = || std::fs::read_dir(site.tmp()).expect("it is there").count();
    assert_eq!(count(), 1, "a killed lab cannot remove its directory");
    let (running, _) = start_until(&site, "pause", "SIGSTOP");
    assert_eq!(count(), 1, "the leftovers are gone, and the directory of the lab that runs is there");
    site.ask(&["release"]).with_code(0);
    let answer = end_of(running).with_code(0);
    assert!(answer.err.is_empty(), "{answer:?}");
    site.is_clean();
}

/// Goal: not even a lab that is killed leaves a process behind.
#[test]
fn a_killed_lab_leaves_no_process() {
    for (lab, printed) in [("pause --postgres", "SIGSTOP"), ("setnx", "SIGSTOP")] {
        let site = LabSite::new();
        let (mut child, _) = start_until(&site, lab, printed);
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        wait_until("every process of the lab has ended", || site.processes().is_empty());
    }
}
