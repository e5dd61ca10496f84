//! Taste as a test: ceilings that the sources of the whole workspace keep. Each failure names the file and the line.
//!
//! The ceilings are what was reached, and only go down. `cargo test --package leasehold-server --test tidy -- --nocapture`
//! prints the figures.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test: it panics when something is wrong, and prints figures"
)]

mod source;

use std::collections::{BTreeMap, BTreeSet};

use source::{Source, repository, sources};

/// Lines of a file.
const MAX_FILE_LINES: usize = 600;
/// Lines of a function, from `fn` to its closing brace.
const MAX_FUNCTION_LINES: usize = 70;
/// Of a hundred type names, how many may name more than one type.
const MAX_REUSED_TYPE_NAMES_PERCENT: f64 = 3.0;
/// Of a hundred functions, how many may be named by one word.
const MAX_ONE_WORD_FUNCTIONS_PERCENT: f64 = 52.0;

/// The modules of the server, lowest first. A module uses those in earlier rows and itself. `main.rs` uses all.
const SERVER_LAYERS: [&[&str]; 8] =
    [&["api"], &["config"], &["boxoffice"], &["service"], &["http", "resp"], &["serve"], &["gate"], &["cli"]];

/// What a reader meets between the HTTP route and the disk when one lease is acquired: see "One acquire" in
/// ARCHITECTURE.md. A name that is added here is one more thing to learn.
const ACQUIRE_PATH: [&str; 7] = ["Service", "Pass", "Embedded", "EngineShared", "GroupCommit", "Book", "JournalWriter"];

/// Goal: a file can be read in one sitting.
#[test]
fn files_are_short() {
    let mut longest = (0, String::new());
    for source in sources() {
        let lines = source.text.lines().count();
        assert!(lines <= MAX_FILE_LINES, "{} has {lines} lines, more than {MAX_FILE_LINES}", source.path);
        longest = longest.max((lines, source.path));
    }
    println!("longest file: {} lines, {}", longest.0, longest.1);
}

/// Goal: a function fits on a screen.
#[test]
fn functions_are_short() {
    let mut longest = (0, String::new());
    for source in sources() {
        for function in source.functions() {
            let at = format!("{}:{} {}", source.path, function.line, function.name);
            assert!(function.lines <= MAX_FUNCTION_LINES, "{at} has {} lines", function.lines);
            longest = longest.max((function.lines, at));
        }
    }
    println!("longest function: {} lines, {}", longest.0, longest.1);
}

/// Goal: a type name means one type, in the whole workspace.
#[test]
fn type_names_mean_one_thing() {
    let mut defined: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in sources() {
        for name in source.types() {
            defined.entry(name).or_default().insert(source.path.clone());
        }
    }
    let reused: Vec<_> = defined.iter().filter(|(_, places)| places.len() > 1).collect();
    let percent = 100.0 * reused.len() as f64 / defined.len() as f64;
    println!("type names with more than one type: {} of {} ({percent:.1} %)", reused.len(), defined.len());
    assert!(percent < MAX_REUSED_TYPE_NAMES_PERCENT, "{percent:.1} %: {reused:#?}");
}

/// Goal: a function's name says what it does, and to what.
#[test]
fn functions_have_an_object() {
    let names: Vec<String> = sources().iter().flat_map(Source::functions).map(|function| function.name).collect();
    let one_word = names.iter().filter(|name| !name.trim_start_matches('_').contains('_')).count();
    let percent = 100.0 * one_word as f64 / names.len() as f64;
    println!("functions named by one word: {one_word} of {} ({percent:.1} %)", names.len());
    assert!(percent < MAX_ONE_WORD_FUNCTIONS_PERCENT, "{percent:.1} %");
}

/// Goal: the top modules of a crate use each other in one direction.
#[test]
fn modules_have_no_cycle() {
    let sources = sources();
    let crates: BTreeSet<&str> = sources.iter().map(|source| source.package.as_str()).collect();
    for package in crates {
        let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for source in sources.iter().filter(|source| source.package == package) {
            let used = source.uses().into_iter().filter(|module| *module != source.module);
            uses.entry(source.module.clone()).or_default().extend(used);
        }
        // What uses nothing that is left is taken away; what remains in the end goes round in a circle.
        while let Some(leaf) = uses
            .iter()
            .find(|(_, used)| used.iter().all(|module| !uses.contains_key(module)))
            .map(|(leaf, _)| leaf.clone())
        {
            uses.remove(&leaf);
        }
        assert!(
            uses.is_empty(),
            "{package}: these modules use each other in a circle, or use one that does: {uses:#?}"
        );
    }
}

/// Goal: in the server nothing below uses anything above.
#[test]
fn layers_of_the_server_point_down() {
    let layer_of = |module: &str| SERVER_LAYERS.iter().position(|row| row.contains(&module));
    for source in sources().iter().filter(|source| source.package == "leasehold-server" && source.module != "main") {
        let own = layer_of(&source.module).unwrap_or_else(|| panic!("{}: its module is in no layer", source.path));
        for used in source.uses().into_iter().filter(|used| *used != source.module) {
            let below = layer_of(&used).is_some_and(|layer| layer < own);
            assert!(below, "{} uses crate::{used}, which is not below {}", source.path, source.module);
        }
    }
}

/// Goal: whoever looks for a file finds in ARCHITECTURE what it is for.
#[test]
fn every_file_is_in_architecture() {
    let text = std::fs::read_to_string(repository().join("ARCHITECTURE.md")).unwrap();
    let mut section = String::new();
    let mut named: BTreeSet<String> = BTreeSet::new();
    for line in text.lines() {
        // The heading of a section ends with its folder; the rows name files from there.
        if line.starts_with('#') {
            section = line.split('`').nth(1).unwrap_or_default().to_owned();
        }
        if line.starts_with('|') {
            let cell = line.split('|').nth(1).unwrap_or_default();
            named.extend(cell.split('`').skip(1).step_by(2).map(|file| format!("{section}/{file}")));
        }
    }
    let covered = |path: &str| {
        named.contains(path) || named.iter().any(|name| name.ends_with('/') && path.starts_with(name.as_str()))
    };
    let missing: Vec<_> = sources().into_iter().map(|source| source.path).filter(|path| !covered(path)).collect();
    assert!(missing.is_empty(), "not in ARCHITECTURE.md: {missing:#?}");
    for name in named.iter().filter(|name| name.starts_with("crates/")) {
        assert!(repository().join(name).exists(), "ARCHITECTURE.md names {name}, which is not there");
    }
}

/// Goal: what a newcomer must learn to follow one acquire is little, and ARCHITECTURE says all of it.
#[test]
fn one_acquire_passes_few_types() {
    let text = std::fs::read_to_string(repository().join("ARCHITECTURE.md")).unwrap();
    let path = text.split("## One acquire").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap_or_default();
    let defined: BTreeSet<String> = sources().iter().flat_map(Source::types).collect();
    for name in ACQUIRE_PATH {
        assert!(defined.contains(name), "{name} is not a type any more");
        assert!(path.contains(&format!("`{name}`")), "\"One acquire\" does not explain {name}");
    }
    let others: Vec<_> = path
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| defined.contains(*word) && !ACQUIRE_PATH.contains(word))
        .collect();
    assert!(others.is_empty(), "\"One acquire\" needs more words than it says: {others:?}");
    println!("types to learn for one acquire: {}", ACQUIRE_PATH.len());
}
