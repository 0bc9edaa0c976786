//! What the kernel says of a process: CPU time used and memory resident.

use std::time::Duration;

use anyhow::Context as _;
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// CPU time (user and system) that the process and those that it has started have used, all threads. Children of
/// children do not count, nor what has ended.
pub(crate) fn cpu_time(pid: u32) -> anyhow::Result<Duration> {
    // One that ends meanwhile is as one that had ended before.
    let of_children = children(pid).into_iter().filter_map(|child| own_cpu_time(child).ok());
    Ok(own_cpu_time(pid)? + of_children.sum::<Duration>())
}

fn children(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

/// By the clock of the process and not by /proc/PID/stat, whose 10 ms are a tenth of what four thousand requests take.
fn own_cpu_time(pid: u32) -> anyhow::Result<Duration> {
    let read = || anyhow::Ok(clock_gettime(clock_getcpuclockid(Pid::from_raw(i32::try_from(pid)?))?)?);
    Ok(read().with_context(|| format!("could not read the CPU clock of process {pid}"))?.into())
}

/// Resident memory in bytes.
pub(crate) fn resident(pid: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).with_context(|| format!("could not read {path}"))?;
    let kib: u64 = text
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next())
        .context("no VmRSS line")?
        .parse()?;
    Ok(kib * 1024)
}

/// That of the process and of those that it has started. What they share is in it several times, so only its growth
/// says something.
pub(crate) fn resident_of_all(pid: u32) -> anyhow::Result<u64> {
    let of_children = children(pid).into_iter().filter_map(|child| resident(child).ok());
    Ok(resident(pid)? + of_children.sum::<u64>())
}

/// Allows this process, and those that it starts, as many open files as it may have; how many.
pub(crate) fn raise_open_files() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum.unwrap_or(u64::MAX),
        Err(_) => limit.current.unwrap_or(u64::MAX),
    }
}

/// The machine's load over the last minute.
pub(crate) fn load_average() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_time_of_a_process_is_finer_than_the_kernels_ticks() {
        let first = cpu_time(std::process::id()).unwrap();
        let next =
            std::iter::repeat_with(|| cpu_time(std::process::id()).unwrap()).find(|time| *time > first);
        let step = next.unwrap() - first;
        assert!(step < Duration::from_millis(10), "{step:?}");
    }

    #[test]
    fn a_process_that_is_not_there_is_named() {
        // One above the kernel's highest, PID_MAX_LIMIT.
        let error = cpu_time(4_194_305).unwrap_err().to_string();
        assert!(error.contains("4194305"), "{error}");
    }

    #[test]
    fn this_process_has_used_memory() {
        assert!(resident(std::process::id()).unwrap() > 100_000);
        assert!(cpu_time(std::process::id()).unwrap() < Duration::from_secs(3600));
    }
}
