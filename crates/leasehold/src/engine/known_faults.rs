//! Versions of servers with faults that break a promise: which ones, what happens, and where it is written.
//!
//! Only faults that bear on leases are here, and only those that the release notes of the server name. A distribution may have
//! mended a fault without changing the version: it is a warning, and denies nothing.

use crate::engine::Finding;

/// One fault.
pub(crate) struct KnownFault {
    /// The first version that has it.
    pub since: [u32; 3],
    /// The first one of the same line that does not.
    pub fixed: [u32; 3],
    /// What follows from it.
    pub sentence: &'static str,
    /// Where the fix is written down.
    pub source: &'static str,
}

/// The faults of a version. `setting` is what the server calls its version.
pub(crate) fn fault_findings(setting: &str, version: &str, faults: &[KnownFault]) -> Vec<Finding> {
    let Some(number) = parse_version(version) else { return Vec::new() };
    let has = |fault: &&KnownFault| fault.since <= number && number < fault.fixed;
    let finding = |fault: &KnownFault| {
        let wanted = format!("{} or newer", show_version(fault.fixed));
        Finding::warning(setting, version, wanted, format!("{} ({})", fault.sentence, fault.source))
    };
    faults.iter().filter(has).map(finding).collect()
}

/// `7.0.15`, `15.18`, `6.1.0-13-amd64`: up to three numbers, and whatever else.
fn parse_version(text: &str) -> Option<[u32; 3]> {
    let mut numbers = [0; 3];
    for (at, part) in text.split('.').take(3).enumerate() {
        let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
        match digits.parse() {
            Ok(number) => numbers[at] = number,
            Err(_) if at == 0 => return None,
            Err(_) => break,
        }
        if digits.len() < part.len() {
            break;
        }
    }
    Some(numbers)
}

fn show_version(number: [u32; 3]) -> String {
    match number {
        [major, minor, 0] => format!("{major}.{minor}"),
        [major, minor, patch] => format!("{major}.{minor}.{patch}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAULTS: [KnownFault; 2] = [
        KnownFault { since: [7, 0, 0], fixed: [7, 0, 3], sentence: "It forgets.", source: "release notes 7.0.3" },
        KnownFault { since: [14, 0, 0], fixed: [14, 4, 0], sentence: "It breaks.", source: "release notes 14.4" },
    ];

    /// Goal: a fault is named for the versions that have it, up to the one that mended it, and for no other.
    #[test]
    fn a_fault_is_named_for_its_versions_only() {
        for (version, wanted) in [
            ("6.2.14", None),
            ("7.0.0", Some("7.0.3 or newer")),
            ("7.0.2", Some("7.0.3 or newer")),
            ("7.0.3", None),
            ("7.2.0", None),
            ("13.20", None),
            ("14.0", Some("14.4 or newer")),
            ("14.3 (Debian 14.3-1)", Some("14.4 or newer")),
            ("14.4", None),
            ("14rc1", Some("14.4 or newer")),
            ("", None),
            ("unknown", None),
        ] {
            let found = fault_findings("version", version, &FAULTS);
            assert_eq!(found.first().map(|finding| finding.wanted.as_str()), wanted, "{version}");
            assert!(found.len() <= 1 && found.iter().all(|finding| finding.found == version));
        }
        let sentence = &fault_findings("version", "7.0.1", &FAULTS)[0].sentence;
        assert_eq!(sentence, "It forgets. (release notes 7.0.3)");
    }

    #[test]
    fn versions_are_read_up_to_the_first_that_is_no_number() {
        assert_eq!(parse_version("6.1.0-13-amd64"), Some([6, 1, 0]));
        assert_eq!(parse_version("15.18 (Debian 15.18-0+deb12u1)"), Some([15, 18, 0]));
        assert_eq!(parse_version("255.255.255"), Some([255, 255, 255]));
        assert_eq!(parse_version("99999999999.1"), None);
    }
}
