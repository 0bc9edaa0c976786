//! Processes of the machine, from `/proc`.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};

/// The identity of a process, which differs from that of a later process with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) pid: u32,
    /// Start time of the process, in clock ticks since the machine's start.
    started: u64,
}

impl Identity {
    /// Returns the process that has this id now.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        stat(pid).map(|(_, started)| Self { pid, started })
    }

    /// Whether it is still running; a zombie is not.
    pub(crate) fn alive(self) -> bool {
        stat(self.pid).is_some_and(|(state, started)| started == self.started && !matches!(state, 'Z' | 'X'))
    }

    /// Kills the process if it is still the same.
    pub(crate) fn kill(self) {
        if self.alive() {
            kill(self.pid);
        }
    }
}

/// Returns state and start time.
fn stat(pid: u32) -> Option<(char, u64)> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses `/proc/PID/stat`. The name, in parentheses, may contain spaces and parentheses; after it
/// come the state and, as the 20th field, the start time.
fn parse_stat(text: &str) -> Option<(char, u64)> {
    let (_, rest) = text.rsplit_once(") ")?;
    let mut words = rest.split_whitespace();
    let state = words.next()?.chars().next()?;
    Some((state, words.nth(18)?.parse().ok()?))
}

/// Sends SIGKILL. A process that no longer exists is not an error.
pub(crate) fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

/// Returns all process ids of the machine except that of this process.
pub(crate) fn all() -> Vec<u32> {
    let own = std::process::id();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(|pid| *pid != own).collect()
}

/// Returns the children of a process.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// Whether a process is in the network that has the link `marker`.
pub(crate) fn in_network(pid: u32, marker: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/net/dev"))
        .is_ok_and(|text| text.lines().any(|line| line.trim_start().starts_with(&format!("{marker}:"))))
}

/// Whether a process is in the cgroup or one below it, in any hierarchy.
pub(crate) fn in_cgroup(pid: u32, cgroup: &str) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).any(|path| {
        let path = path.trim_start_matches('/');
        path.strip_prefix(cgroup).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

/// Formats a process as `PID (NAME)`, for messages.
pub(crate) fn describe(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("{pid} ({})", name.trim())
}

/// Calls `done` repeatedly until it returns true, at most for `deadline`; returns whether it did.
pub(crate) fn wait_until(deadline: Duration, mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if done() {
            return true;
        }
        if start.elapsed() >= deadline {
            return false;
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_may_contain_parentheses() {
        let text = "12 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        assert_eq!(parse_stat(text), Some(('S', 4711)));
        assert_eq!(parse_stat("12 (a"), None);
    }

    #[test]
    fn a_later_process_with_the_same_id_is_different() {
        let own = Identity::of(std::process::id()).unwrap();
        assert!(own.alive());
        assert!(!Identity { started: own.started + 1, ..own }.alive());
    }
}
