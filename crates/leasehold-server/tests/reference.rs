//! The reference of the command line shows what the binary says of itself.

use std::process::Command;

const REFERENCE: &str = include_str!("../../../docs/reference/cli.md");

fn help(command: &str) -> String {
    let mut asked = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    if !command.is_empty() {
        asked.arg(command);
    }
    let answer = asked.arg("--help").output().expect("the binary runs");
    assert!(answer.status.success(), "{command}: {answer:?}");
    String::from_utf8(answer.stdout).expect("help is text")
}

/// The help texts in the reference: the command (none for the binary itself), and the text.
fn shown() -> Vec<(&'static str, &'static str)> {
    let blocks = REFERENCE.split("```").skip(1).step_by(2).filter_map(|block| block.strip_prefix("text\n"));
    let command = |block: &'static str| {
        let usage = block.lines().find_map(|line| line.strip_prefix("Usage: leasehold "))?;
        let word = usage.split(' ').next()?;
        Some((if word.starts_with('[') { "" } else { word }, block))
    };
    blocks.filter_map(command).collect()
}

/// Goal: whoever reads the reference reads the help, word for word, of every command there is.
/// Method: a block with options is the whole help; a shorter one begins with the same line.
#[test]
fn the_reference_shows_the_help_of_every_command() {
    let shown = shown();
    for (command, block) in &shown {
        let help = help(command);
        if block.contains("\nOptions:\n") {
            assert_eq!(block.trim_end(), help.trim_end(), "leasehold {command} --help");
        } else {
            assert_eq!(block.lines().next(), help.lines().next(), "leasehold {command} --help");
        }
    }
    let all = help("");
    let listed = all.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let mut count = 0;
    for name in listed.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help") {
        count += 1;
        assert!(shown.iter().any(|(command, _)| *command == name), "{name} is not in the reference");
    }
    assert!(count >= 12, "only {count} commands were found to look for");
}
