//! What an operator should know of the directory: where it is, and how much room there is.

use std::path::Path;

use crate::engine::Finding;
use crate::engine::known_faults::{KnownFault, fault_findings};

/// Less room than this on the file system is worth a warning: a few segments of the journal and a snapshot.
const LOW_SPACE_BYTES: u64 = 1 << 30;

/// File systems that keep nothing over a reboot, by the number that statfs gives.
const MEMORY_FILE_SYSTEMS: [(u32, &str); 2] = [(0x0102_1994, "tmpfs"), (0x8584_58f6, "ramfs")];

/// Versions of Linux that may say that something is on disk when it is not.
const KNOWN_FAULTS: [KnownFault; 1] = [KnownFault {
    since: [0, 0, 0],
    fixed: [4, 13, 0],
    sentence: "an error of the disk may be reported to another program, so that a sync succeeds and the data are lost",
    source: "Linux 4.13, errseq_t",
}];

/// Examines the file system below a directory.
pub(super) fn examine_directory(dir: &Path) -> Vec<Finding> {
    let mut findings = vec![Finding::note(
        "copies",
        "1",
        "everything is on one disk: back it up, or use an engine that is replicated, if losing the disk must not lose leases",
    )];
    findings.push(Finding::note(
        "clock",
        "CLOCK_BOOTTIME of this machine",
        "leases end by a clock that is never set: no wall clock and no other machine's clock takes part",
    ));
    let system = rustix::system::uname();
    findings.extend(fault_findings("kernel", &system.release().to_string_lossy(), &KNOWN_FAULTS));
    let Ok(stat) = rustix::fs::statfs(dir) else {
        return findings;
    };
    // The type is a signed word on some systems and an unsigned one on others: the low 32 bits are the number.
    let kind = stat.f_type as u64 as u32;
    if let Some((_, name)) = MEMORY_FILE_SYSTEMS.iter().find(|(number, _)| *number == kind) {
        let sentence = "the directory is in memory: a reboot loses every lease and starts the tokens again";
        findings.push(Finding::warning("file system", *name, "a disk", sentence));
    }
    let free = stat.f_bavail.saturating_mul(stat.f_bsize as u64);
    if free < LOW_SPACE_BYTES {
        findings.push(Finding::warning(
            "free space",
            format!("{} MiB", free >> 20),
            format!("{} MiB", LOW_SPACE_BYTES >> 20),
            "when the disk is full the engine stops",
        ));
    }
    findings
}
