//! The documentation says what the binary does: help texts of the reference, recipes of the guide.

mod common;

use std::path::Path;
use std::process::Command;

use common::{Answer, Site};

const REFERENCE: &str = include_str!("../../../docs/reference/cli.md");
const GUIDE: &str = include_str!("../../../docs/guide/README.md");
const README: &str = include_str!("../../../README.md");

fn help(command: &str) -> String {
    let mut asked = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    asked.args(command.split_whitespace());
    let answer = asked.arg("--help").output().expect("the binary runs");
    assert!(answer.status.success(), "{command}: {answer:?}");
    String::from_utf8(answer.stdout).expect("help is text")
}

/// The help texts in the reference: the command (none for the binary itself), and the text.
fn shown() -> Vec<(String, &'static str)> {
    let blocks = REFERENCE.split("```").skip(1).step_by(2).filter_map(|block| block.strip_prefix("text\n"));
    let command = |block: &'static str| {
        let usage = block.lines().find_map(|line| line.strip_prefix("Usage: leasehold "))?;
        let words = usage.split(' ').take_while(|word| word.starts_with(|c: char| c.is_ascii_lowercase()));
        // A block without options is about the command as a whole, even where it shows the usage of a part.
        let depth = if block.contains("\nOptions:\n") { usize::MAX } else { 1 };
        Some((words.take(depth).collect::<Vec<_>>().join(" "), block))
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

/// The shell examples of a page, in order.
fn shell_blocks(page: &'static str) -> Vec<&'static str> {
    page.split("```").skip(1).step_by(2).filter_map(|block| block.strip_prefix("bash\n")).collect()
}

/// Runs a script as somebody who copies it: the binary is on the `PATH`, and the directory is fresh.
fn run_script(site: &Site, url: Option<&str>, script: &str) -> Answer {
    let bin = Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().expect("a directory").display();
    let mut bash = Command::new("bash");
    bash.current_dir(site.path(".")).env_remove("LEASEHOLD_URL").arg("-c").arg(script);
    bash.env("PATH", format!("{bin}:{}", std::env::var("PATH").unwrap_or_default()));
    // A server of a script listens on free ports.
    bash.env("LEASEHOLD_HTTP", "127.0.0.1:0").env("LEASEHOLD_RESP", "127.0.0.1:0");
    bash.envs(url.map(|url| ("LEASEHOLD_URL", url)));
    Answer::of(&bash.output().expect("bash runs"))
}

/// Goal: the guide's lock recipe does its work with the lock, and does not do it without.
/// Method: the recipe as it is printed, with a line of work behind it, on a free name and on a held one.
#[test]
fn the_lock_recipe_stops_where_the_lock_is_held() {
    let blocks = shell_blocks(GUIDE);
    let recipe = blocks.iter().find(|block| block.contains("LEASE_ID=$(")).expect("the guide has the recipe");
    let script = format!("{recipe}\necho the work was done");
    let site = Site::new();
    let free = run_script(&site, Some(&site.url()), &script).with_code(0);
    assert!(free.out.contains("the work was done"), "{free:?}");
    assert!(!site.is_held("build-slot"), "{free:?}");

    site.acquire(&["build-slot", "--holder", "bob"]);
    let held = run_script(&site, Some(&site.url()), &script).with_code(3);
    assert_eq!(held.out, "", "{held:?}");
    assert!(held.err.contains("build-slot is held by bob"), "{held:?}");
}

/// Goal: no recipe takes a lease in a pipe, because a pipe ends with the exit code of its last command.
#[test]
fn no_recipe_acquires_in_a_pipe() {
    for page in [REFERENCE, GUIDE, README] {
        let code = page.split("```").skip(1).step_by(2).flat_map(str::lines);
        let takes: Vec<&str> = code.filter(|line| line.contains("$(leasehold acquire")).collect();
        assert!(!takes.is_empty(), "a page without a recipe");
        for line in takes {
            let command = line.split('#').next().unwrap_or_default().replace("||", "");
            assert!(!command.contains('|') && command.contains("--id-only"), "{line}");
        }
    }
}

/// Goal: the first two blocks of the guide work when they are copied one after the other.
#[test]
fn the_guides_opening_blocks_work_in_order() {
    let blocks = shell_blocks(GUIDE);
    let [serve, directory, ..] = blocks[..] else { panic!("the guide opens with two blocks") };
    assert!(serve.contains("leasehold serve &") && directory.contains("LEASEHOLD_URL=embedded:"), "{serve}{directory}");
    let site = Site::new();
    // Wait for the banner: from then on the server's directory is its own.
    let script = format!(
        "exec 2>stderr; {serve}\n\
         until grep -q 'acquire seat-16' stderr; do kill -0 $! || exit; sleep 0.05; done\n\
         {directory}\n\
         leasehold acquire seat-14 && leasehold ls; code=$?\n\
         kill $!; wait $!; cat stderr >&2; exit $code"
    );
    let answer = run_script(&site, None, &script).with_code(0);
    assert!(answer.out.contains("lease_id") && answer.out.contains("seat-14"), "{answer:?}");
}
