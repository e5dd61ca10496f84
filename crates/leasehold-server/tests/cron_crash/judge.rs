//! The judge: what the ledger, the file of the command and the machines say must agree.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;

use crate::common::{Answer, Site, text};
use crate::leasehold;

/// What the judge found.
#[derive(Debug)]
pub struct Verdict {
    pub violations: Vec<String>,
    pub ran: usize,
    /// Rows of the ledger, by state.
    pub states: BTreeMap<String, u64>,
}

/// The rows of the ledger, oldest first.
pub fn ledger_rows(site: &Site, url: &str) -> Vec<Value> {
    let words = ["cron", "history", "crash", "--limit", "10000", "--json", "--url", url];
    let answer = Answer::of(&leasehold(site, &words).output().expect("the binary starts")).with_code(0);
    let mut rows: Vec<Value> = answer.out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    rows.reverse();
    rows
}

/// Judges a schedule of every second.
pub fn judge(site: &Site, rows: &[Value], said: &str, killed: &BTreeSet<u32>) -> Verdict {
    let mut found = Vec::new();
    let mut runs: BTreeMap<String, u32> = BTreeMap::new();
    for tick in fs::read_to_string(site.path("runs")).unwrap_or_default().lines() {
        *runs.entry(tick.to_owned()).or_default() += 1;
    }
    for (tick, times) in runs.iter().filter(|(_, times)| **times > 1) {
        found.push(format!("tick {tick} was run {times} times"));
    }
    let mut states: BTreeMap<String, u64> = BTreeMap::new();
    let mut begun = BTreeSet::new();
    let mut next: Option<u64> = None;
    for (at, row) in rows.iter().enumerate() {
        let (tick, state) = (text(row, "tick"), text(row, "state"));
        let ticks = row["ticks"].as_u64().expect("a number");
        *states.entry(state.to_owned()).or_default() += ticks;
        let second = seconds(tick);
        if next.is_some_and(|next| next != second) {
            found.push(format!("tick {tick}: the ledger has a gap or a repetition before it"));
        }
        next = Some(second + ticks);
        match state {
            "missed" | "skipped" => {
                if seconds(text(row, "upto")) + 1 != second + ticks {
                    found.push(format!("the range from {tick} does not have the ticks that it counts"));
                }
            }
            _ => {
                begun.insert(tick.to_owned());
                if state == "ok" && !runs.contains_key(tick) {
                    found.push(format!("tick {tick} is ok, and was not run"));
                }
                if state == "lost" && !said.contains(&format!("tick {tick} was lost")) && !is_excused(rows, at, killed)
                {
                    found.push(format!("tick {tick} was lost, and nobody said so"));
                }
            }
        }
        if state != "lost" && said.contains(&format!("tick {tick} was lost")) {
            found.push(format!("tick {tick} was told to be lost, and is {state}"));
        }
    }
    found.extend(
        runs.keys().filter(|tick| !begun.contains(*tick)).map(|tick| format!("tick {tick} was run without the ledger")),
    );
    Verdict { violations: found, ran: runs.len(), states }
}

/// Whether the machine that found this run lost was killed before it could say so. It is the one that began the next run.
fn is_excused(rows: &[Value], at: usize, killed: &BTreeSet<u32>) -> bool {
    let is_run = |row: &&Value| !matches!(text(row, "state"), "missed" | "skipped");
    let finder = rows[at + 1..].iter().find(is_run);
    let pid =
        finder.and_then(|row| row["machine"].as_str()).and_then(|label| label.split([':', ' ']).nth(1)?.parse().ok());
    pid.is_some_and(|pid: u32| killed.contains(&pid))
}

/// A tick as a number of seconds.
fn seconds(tick: &str) -> u64 {
    let numbers: Vec<u64> = tick.split(['-', 'T', ':', 'Z']).filter_map(|part| part.parse().ok()).collect();
    let [year, month, day, hour, minute, second] = numbers[..] else { panic!("{tick} is a tick") };
    // Days since the year 0, by the rule for leap years; March is the first month.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day;
    ((days * 24 + hour) * 60 + minute) * 60 + second
}
