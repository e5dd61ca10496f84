//! What a run with real servers showed about the laws.

use std::io::Write as _;
use std::path::Path;

/// Where `scripts/test` looks for broken laws afterwards.
const BROKEN_LAWS: &str = "LEASEHOLD_BROKEN_LAWS";

/// Fails where a law is broken. It is noted, too: a run that was late is tried again, and that must not hide a broken law.
pub fn assert_laws(found: Result<(), (&'static str, String)>) {
    let Err((law, why)) = found else { return };
    if let Some(directory) = std::env::var_os(BROKEN_LAWS) {
        note(Path::new(&directory), law, &why).expect("a broken law is noted");
    }
    panic!("{law}: {why}");
}

fn note(directory: &Path, law: &str, why: &str) -> std::io::Result<()> {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(directory.join(law))?;
    writeln!(file, "{law}: {why} ({test})")
}

/// Goal: a broken law is noted where it is looked for.
#[test]
fn a_broken_law_is_noted() {
    let directory = tempfile::tempdir().expect("a directory");
    note(directory.path(), "token_order", "7 after 8").expect("it is noted");
    let noted = std::fs::read_to_string(directory.path().join("token_order")).expect("a note");
    assert!(noted.starts_with("token_order: 7 after 8"), "{noted}");
}
