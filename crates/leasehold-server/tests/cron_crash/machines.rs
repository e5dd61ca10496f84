//! Machines: processes of the real binary that keep one schedule.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::process::Child;

use rustix::process::Signal;

use crate::common::{Site, wait_until};
use crate::{leasehold, send};

/// Appends the tick at its beginning: whoever dies afterwards has run it.
const WORK: &str = "echo $LEASEHOLD_TICK >> runs; sleep 0.2";

/// How many runs began.
pub fn run_count(site: &Site) -> usize {
    fs::read_to_string(site.path("runs")).unwrap_or_default().lines().count()
}

struct Machine {
    /// What it says goes to a file of this number.
    number: usize,
    process: Child,
    stopped: bool,
}

/// Machines that keep the schedule `crash`: every second.
pub struct Fleet<'s> {
    site: &'s Site,
    url: String,
    options: Vec<String>,
    machines: Vec<Machine>,
    started: usize,
    /// The processes that were killed: they could not tell what they knew.
    pub killed: BTreeSet<u32>,
    pub stops: usize,
}

impl<'s> Fleet<'s> {
    pub fn new(site: &'s Site, url: &str, options: &[&str]) -> Self {
        let options = options.iter().map(ToString::to_string).collect();
        Self { site, url: url.into(), options, machines: Vec::new(), started: 0, killed: BTreeSet::new(), stops: 0 }
    }

    pub fn start(&mut self) {
        self.start_with(WORK);
    }

    pub fn start_with(&mut self, script: &str) {
        let number = self.started;
        self.started += 1;
        let head = ["cron", "crash", "--schedule", "* * * * * *", "--late", "5s", "--ttl", "2s", "--grace", "200ms"];
        let mut command = leasehold(self.site, &head);
        command.args(["--jitter", "50ms", "--url", &self.url]).args(&self.options).args(["--", "sh", "-c", script]);
        let said = File::create(self.site.path(&format!("said-{number}"))).expect("a file");
        command.stdout(said.try_clone().expect("a file")).stderr(said);
        let process = command.spawn().expect("the binary starts");
        self.machines.push(Machine { number, process, stopped: false });
    }

    /// How many machines were started.
    pub const fn count(&self) -> usize {
        self.started
    }

    /// What the machine of this number has said.
    pub fn said(&self, number: usize) -> String {
        fs::read_to_string(self.site.path(&format!("said-{number}"))).unwrap_or_default()
    }

    pub fn kill(&mut self, at: usize) {
        if at < self.machines.len() {
            let mut machine = self.machines.swap_remove(at);
            self.killed.insert(machine.process.id());
            machine.process.kill().expect("it is ours");
            let _ = machine.process.wait();
        }
    }

    /// Kills the machine whose command is at work, if there is one: its child is a shell.
    pub fn kill_at_work(&mut self) {
        let at_work = self.machines.iter().position(|machine| {
            let pid = machine.process.id();
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
            let name = |child: &str| fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
            children.split_whitespace().any(|child| name(child).trim() == "sh")
        });
        if let Some(at) = at_work {
            self.kill(at);
        }
    }

    /// Stops a machine until it is woken: past its ttl, as a rule.
    pub fn stop(&mut self, at: usize) {
        if let Some(machine) = self.machines.get_mut(at) {
            self.stops += 1;
            machine.stopped = true;
            send(machine.process.id(), Signal::STOP);
        }
    }

    pub fn wake(&mut self) {
        for machine in &mut self.machines {
            machine.stopped = false;
            send(machine.process.id(), Signal::CONT);
        }
    }

    /// Starts machines until so many are not stopped.
    pub fn fill(&mut self, count: usize) {
        while self.machines.iter().filter(|machine| !machine.stopped).count() < count {
            self.start();
        }
    }

    /// Ends all machines, and returns what everybody ever said.
    pub fn end(&mut self) -> String {
        self.wake();
        for machine in &self.machines {
            send(machine.process.id(), Signal::TERM);
        }
        for mut machine in self.machines.drain(..) {
            wait_until("a machine ends", || machine.process.try_wait().expect("it is ours").is_some());
            let code = machine.process.wait().expect("it has ended").code();
            let said = fs::read_to_string(self.site.path(&format!("said-{}", machine.number))).unwrap_or_default();
            assert_eq!(code, Some(0), "{said}");
        }
        (0..self.started).map(|number| self.said(number)).collect()
    }
}

impl Drop for Fleet<'_> {
    fn drop(&mut self) {
        for machine in &mut self.machines {
            let _ = machine.process.kill();
            let _ = machine.process.wait();
        }
    }
}
