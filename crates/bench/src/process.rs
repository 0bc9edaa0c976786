//! What the kernel says of a process: CPU time used and memory resident.

use std::time::Duration;

use anyhow::Context as _;

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

fn own_cpu_time(pid: u32) -> anyhow::Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| format!("could not read {path}"))?;
    // The command's name is in parentheses and may hold anything; the numbers follow the last one.
    let numbers: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |index: usize| -> anyhow::Result<u64> {
        Ok(numbers.get(index).context("short stat line")?.parse::<u64>()?)
    };
    // Fields 14 and 15 of proc_pid_stat(5); the third field is the first after the parenthesis.
    let ticks = ticks(11)? + ticks(12)?;
    // USER_HZ is 100 on every Linux that Rust runs on.
    Ok(Duration::from_millis(ticks * 10))
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
    fn this_process_has_used_memory() {
        assert!(resident(std::process::id()).unwrap() > 100_000);
        assert!(cpu_time(std::process::id()).unwrap() < Duration::from_secs(3600));
    }
}
