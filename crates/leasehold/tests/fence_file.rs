//! The fence on files: the table of cases, what stays beside the file, and races of processes that are killed.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "other processes live in real time"
)]

mod fence_support;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fence_support::race::{RaceNote, RaceVerdict, RaceWrite, RaceWriter, judge, parse_shown, race_size, refusal_only};
use fence_support::{Dice, lease_on, open_leases};
use leasehold::fence::file::FencedFile;
use leasehold::fence::file::steps::FileChange;
use leasehold::fence::{FenceError, FenceRefusal, FenceToken, decide};
use leasehold::testkit::fence_cases::{FenceSubject, all_cases};
use rustix::fs::{FlockOperation, flock};

/// The name of the worker below, as the test binary knows it.
const WORKER: &str = "a_writer_of_the_race";

fn append_line(id: &str) -> FileChange<'static> {
    let line = format!("{id}\n").into_bytes();
    FileChange::Edit(Box::new(|old: Option<Vec<u8>>| Ok([old.unwrap_or_default(), line].concat())))
}

struct FileSubject<'a>(&'a Path, u64);

impl FenceSubject for FileSubject<'_> {
    async fn write(&mut self, resource: &str, shown: Option<&str>) -> Result<(), FenceRefusal> {
        let setting = parse_shown(resource, shown)?;
        let file = FencedFile::new(resource, self.0).expect("a file");
        let answer = file.change_shown(&setting, append_line("x")).await;
        self.1 += u64::from(answer.is_ok());
        refusal_only(answer)
    }
}

/// Goal: the file answers as the rule does, and what is admitted, and only that, was written.
#[tokio::test]
async fn the_table_of_cases() {
    let dir = tempfile::tempdir().expect("a place");
    for (at, case) in all_cases().iter().enumerate() {
        let path = dir.path().join(format!("seat-{at}"));
        let mut subject = FileSubject(&path, 0);
        case.run(&format!("seat/{at}"), &mut subject).await;
        let written = fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(written.lines().count() as u64, subject.1, "{}", case.name);
    }
}

/// Goal: write, edit and remove under a lease; the fence stays when the file goes; nothing of ours is left but what is
/// documented.
#[tokio::test]
async fn the_fence_outlives_the_file() {
    let dir = tempfile::tempdir().expect("a place");
    let path = dir.path().join("report.csv");
    let file = FencedFile::new("report", &path).expect("a file");
    let (_leases, leasehold) = open_leases().await;
    let late = lease_on(&leasehold, &["report"]).await;
    file.write(&late, "one").await.expect("admitted");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("set");
    leasehold.release(late.lease_id()).await.expect("released");
    let newer = lease_on(&leasehold, &["report"]).await;
    file.update(&newer, |old| Ok([old.expect("there"), b", two".to_vec()].concat())).await.expect("admitted");
    assert_eq!(fs::read_to_string(&path).expect("read"), "one, two");
    assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o640, "permissions are kept");
    let failed = file.update(&newer, |_| Err("no".into())).await.expect_err("it failed");
    assert!(matches!(failed, FenceError::Work(_)), "{failed:?}");
    file.remove(&newer).await.expect("admitted");
    file.remove(&newer).await.expect("a file that is gone can be removed");
    assert!(!path.exists());
    let refused = file.write(&late, "back").await.expect_err("refused");
    let stale = FenceRefusal::Stale { resource: "report".into(), presented: late.token(), highest: newer.token() };
    assert!(matches!(refused, FenceError::Refused(refusal) if refusal == stale));
    assert!(!path.exists());
    assert_eq!(file.highest().expect("read"), Some(FenceToken::from_lease(&newer).expect("exclusive")));
    let mut names: Vec<String> = fs::read_dir(dir.path())
        .expect("read")
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, [".report.csv.fence", ".report.csv.lock"]);
    fs::write(dir.path().join(".report.csv.fence"), "42 or so").expect("written");
    let corrupt = file.write(&newer, "x").await.expect_err("refused");
    assert!(matches!(&corrupt, FenceError::Corrupt { at, .. } if at.ends_with(".report.csv.fence")), "{corrupt:?}");
    for path in ["/", "no-such-directory/file", ".."] {
        assert!(matches!(FencedFile::new("x", path), Err(FenceError::Invalid(_))), "{path}");
    }
}

/// Goal: a writer that is paused inside of its write does not make others wait for ever, and nothing is written meanwhile.
#[tokio::test]
async fn a_writer_that_is_paused_is_not_waited_for_for_ever() {
    let dir = tempfile::tempdir().expect("a place");
    let path = dir.path().join("seat");
    let lock = fs::File::create(dir.path().join(".seat.lock")).expect("made");
    flock(&lock, FlockOperation::LockExclusive).expect("locked");
    let file = FencedFile::new("seat", &path).expect("a file").wait(Duration::from_millis(100));
    let setting = "7".parse().expect("a token");
    let busy = file.change_shown(&setting, append_line("x")).await.expect_err("busy");
    assert!(matches!(busy, FenceError::Unavailable { .. }), "{busy:?}");
    assert!(!path.exists());
    // A lock file that was removed and made anew: the one that has the name counts.
    fs::remove_file(dir.path().join(".seat.lock")).expect("removed");
    file.change_shown(&setting, append_line("x")).await.expect("admitted");
    drop(lock);
    file.change_shown(&setting, append_line("x")).await.expect("admitted");
    assert_eq!(fs::read_to_string(&path).expect("read"), "x\nx\n");
}

/// Where the processes of a race meet.
struct RacePlace(PathBuf);

impl RacePlace {
    /// One line at the end of the list that all processes write.
    fn note(&self, note: &RaceNote) {
        let list = fs::OpenOptions::new().append(true).create(true).open(self.0.join("notes"));
        list.and_then(|mut list| list.write_all(format!("{note}\n").as_bytes())).expect("noted");
    }

    /// Grants the next lease on a resource.
    fn next_token(&self, resource: u64) -> u64 {
        let path = self.0.join(format!("token-{resource}"));
        let file =
            fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).expect("opened");
        flock(&file, FlockOperation::LockExclusive).expect("locked");
        // The length is the counter: a process that is killed leaves the old one or the new one.
        let token = file.metadata().expect("its length").len() + 1;
        file.set_len(token).expect("counted");
        token
    }

    fn data(&self, resource: u64) -> PathBuf {
        self.0.join(format!("seat-{resource}"))
    }
}

/// A fence of another order: first the data, then the memory.
fn write_data_before_fence(path: &Path, write: &RaceWrite) -> Result<(), FenceError> {
    let beside = |what: &str| path.with_file_name(format!(".{}.{what}", path.file_name().unwrap().to_str().unwrap()));
    let lock = fs::File::create(beside("lock")).expect("made");
    flock(&lock, FlockOperation::LockExclusive).expect("locked");
    let kept = fs::read_to_string(beside("fence")).ok().map(|text| text.parse::<FenceToken>().expect("a fence"));
    let shown = write.setting().pick_for(&write.resource_name()).expect("covered");
    decide(kept, shown).into_result(&write.resource_name())?;
    let old = fs::read_to_string(path).unwrap_or_default();
    let put = |to: &Path, text: String| {
        fs::write(beside("tmp"), text).and_then(|()| fs::rename(beside("tmp"), to)).expect("written");
    };
    put(path, format!("{old}{}\n", write.id));
    std::thread::sleep(Duration::from_millis(1));
    put(&beside("fence"), shown.to_string());
    Ok(())
}

/// A process of the race, until it is killed or done: started by the race, and by nobody else.
#[test]
#[ignore = "started by the race"]
fn a_writer_of_the_race() {
    let Ok(order) = std::env::var("LEASEHOLD_FENCE_WORKER") else { return };
    let words: Vec<&str> = order.split('|').collect();
    let (place, name, front, planted) = (RacePlace(words[0].into()), words[1], words[2], words[3] == "planted");
    let (front, seed) = (front.parse::<u64>().unwrap(), words[4].parse::<u64>().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut writer = RaceWriter::new(name, seed);
    let mut files: BTreeMap<u64, FencedFile> = BTreeMap::new();
    for _ in 0..100_000 {
        let resource = front + writer.dice.below(3);
        let write = writer.choose(resource, || place.next_token(resource));
        if writer.dice.below(20) == 0 {
            std::thread::sleep(Duration::from_millis(writer.dice.below(5)));
        }
        place.note(&RaceNote::Shown(write.clone()));
        let answer = if planted {
            write_data_before_fence(&place.data(resource), &write)
        } else {
            let make = || FencedFile::new(write.resource_name(), place.data(resource)).expect("a file");
            let file = files.entry(resource).or_insert_with(make);
            runtime.block_on(file.change_shown(&write.setting(), append_line(&write.id)))
        };
        place.note(&RaceNote::from_answer(&write.id, &answer));
    }
}

struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_worker(place: &RacePlace, number: u64, front: u64, planted: bool) -> Worker {
    let kind = if planted { "planted" } else { "real" };
    let seed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let order = format!("{}|p{number}|{front}|{kind}|{seed}", place.0.display());
    let child = Command::new(std::env::current_exe().expect("this program"))
        .args([WORKER, "--exact", "--ignored", "--nocapture"])
        .env("LEASEHOLD_FENCE_WORKER", order)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Worker(child.expect("started"))
}

/// Five processes, one of them killed every few moments and started again under another name.
fn race(planted: bool, size: u64) -> (RaceVerdict, u64) {
    let dir = tempfile::tempdir().expect("a place");
    let place = RacePlace(dir.path().to_owned());
    let read_notes = || fs::read_to_string(place.0.join("notes")).unwrap_or_default();
    let answers = |notes: &str| notes.lines().filter(|line| !line.starts_with("shown")).count() as u64;
    let mut workers: Vec<Worker> = (0..5).map(|number| start_worker(&place, number, 0, planted)).collect();
    let (mut kills, mut done, mut stuck) = (0, 0, 0);
    let mut dice = Dice(0xdead);
    while done < size {
        std::thread::sleep(Duration::from_millis(20 + dice.below(60)));
        let now = answers(&read_notes());
        stuck = if now == done { stuck + 1 } else { 0 };
        assert!(stuck < 500, "no answers any more");
        done = now;
        let at = dice.below(workers.len() as u64) as usize;
        kills += 1;
        workers[at] = start_worker(&place, 5 + kills, done / 1500, planted);
    }
    drop(workers);
    let text = read_notes();
    // The last line of a process that was killed may be cut: its write has no answer.
    let notes: Vec<RaceNote> = text.lines().filter_map(|line| line.parse().ok()).collect();
    let mut histories = BTreeMap::new();
    for resource in 0..size / 1500 + 40 {
        let history = fs::read_to_string(place.data(resource)).unwrap_or_default();
        assert!(history.is_empty() || history.ends_with('\n'), "the file is whole");
        histories.insert(resource, history.lines().map(str::to_owned).collect());
    }
    (judge(&notes, &histories), kills)
}

/// Goal: no stale write after a newer one, no current writer refused, nothing acknowledged lost, over kills of writers.
#[test]
fn a_race_of_processes_that_are_killed() {
    let size = race_size(1000);
    let (verdict, kills) = race(false, size);
    eprintln!("file, {kills} kills: {verdict:?}");
    verdict.assert_clean(size);
    assert!(kills > 0);
}

/// Goal: the judge sees a fence that is raised after the data.
#[test]
fn data_before_fence_is_flagged() {
    let mut kills_in_all = 0;
    for _ in 0..6 {
        let (verdict, kills) = race(true, 1500);
        kills_in_all += kills;
        eprintln!("file, planted, {kills} kills: {verdict:?}");
        if verdict.stale_admitted > 0 {
            return;
        }
    }
    panic!("{kills_in_all} kills between data and fence were not seen");
}
