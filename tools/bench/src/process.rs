//! CPU time and resident memory of a process, as reported by the kernel.

use std::time::Duration;

use anyhow::Context as _;
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use pinniped_test_support::process_status::resident_memory;

/// Returns the CPU time (user and system) of all threads of the process and of its running
/// children, without their children.
pub(crate) fn cpu_time(pid: u32) -> anyhow::Result<Duration> {
    // A child that exits meanwhile counts like one that exited before.
    let of_children = children(pid).into_iter().filter_map(|child| own_cpu_time(child).ok());
    Ok(own_cpu_time(pid)? + of_children.sum::<Duration>())
}

fn children(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

/// Reads the process's CPU clock and not /proc/PID/stat, whose resolution of 10 ms is a tenth of
/// the time of four thousand requests.
fn own_cpu_time(pid: u32) -> anyhow::Result<Duration> {
    let read = || anyhow::Ok(clock_gettime(clock_getcpuclockid(Pid::from_raw(i32::try_from(pid)?))?)?);
    Ok(read().with_context(|| format!("could not read the CPU clock of process {pid}"))?.into())
}

/// Returns the resident memory of the process and its children. Shared memory is counted several
/// times, so only the growth is meaningful.
pub(crate) fn resident_of_all(pid: u32) -> anyhow::Result<u64> {
    let of_children = children(pid).into_iter().filter_map(|child| resident_memory(child).ok());
    Ok(resident_memory(pid)? + of_children.sum::<u64>())
}

/// Raises the limit of open files of this process and its children to the maximum, and returns it.
pub(crate) fn raise_open_files() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum.unwrap_or(u64::MAX),
        Err(_) => limit.current.unwrap_or(u64::MAX),
    }
}

/// Returns the machine's load average over the last minute.
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
    fn the_error_names_a_missing_process() {
        // One more than the kernel's maximum, PID_MAX_LIMIT.
        let error = cpu_time(4_194_305).unwrap_err().to_string();
        assert!(error.contains("4194305"), "{error}");
    }

    #[test]
    fn this_process_has_used_memory_and_time() {
        assert!(resident_of_all(std::process::id()).unwrap() > 100_000);
        assert!(cpu_time(std::process::id()).unwrap() < Duration::from_secs(3600));
    }
}
