//! Two who want the same name, over and over.

use std::collections::BTreeSet;

use super::Site;

/// Fails loudly if it is not alone, and leaves its token behind.
const ALONE: &str = "mkdir alone || exit 9; echo $LEASEHOLD_TOKEN >> tokens; sleep 0.01; rmdir alone";

/// Two at once run a command under one lease, by `run` with these arguments: one at a time has it, both get their turns,
/// and every token is new.
#[track_caller]
pub fn for_one_name(site: &Site, run: impl Fn(&[&str]) + Sync) {
    let rounds = 8;
    let fight = || (0..rounds).for_each(|_| run(&["run", "ring", "--wait", "60s", "--", "sh", "-c", ALONE]));
    std::thread::scope(|scope| {
        scope.spawn(fight);
        scope.spawn(fight);
    });
    let tokens = std::fs::read_to_string(site.path("tokens")).expect("tokens were written");
    let tokens: Vec<u64> = tokens.lines().map(|line| line.parse().expect("a token")).collect();
    assert_eq!(tokens.len(), 2 * rounds);
    assert!(tokens.is_sorted(), "tokens rise with every grant: {tokens:?}");
    assert_eq!(tokens.iter().collect::<BTreeSet<_>>().len(), tokens.len(), "no token comes twice: {tokens:?}");
}
