//! Starts a program several times, one run after the other, and prints the CPU time and the memory
//! of all runs as JSON: `pinniped-bench-repeat COUNT EXPECTED PROGRAM [ARGUMENT]...`. Each run must
//! print the text EXPECTED.
//!
//! It is a program of its own, and small, because the kernel counts the memory of the process that
//! starts a program as if the program had used it.

mod runs;

use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, ensure};
use nix::sys::resource::{UsageWho, getrusage};

use crate::runs::{Usage, check_output};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match measured(&args).and_then(|usage| Ok(serde_json::to_string(&usage)?)) {
        Ok(usage) => {
            println!("{usage}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measured(args: &[String]) -> anyhow::Result<Usage> {
    let [count, expected, program, args @ ..] = args else {
        anyhow::bail!("usage: COUNT EXPECTED PROGRAM [ARGUMENT]...");
    };
    let usage = repeat(count.parse().context("COUNT is not a number")?, expected, program, args)?;
    let status = std::fs::read_to_string("/proc/self/status").context("could not read the own memory")?;
    require_visible(&usage, &status)?;
    Ok(usage)
}

/// Requires more memory than the largest of this process, according to its file `status` in
/// `/proc`, which is counted for each run.
fn require_visible(usage: &Usage, status: &str) -> anyhow::Result<()> {
    let own: i64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.split_whitespace().next())
        .context("no VmHWM line")?
        .parse()?;
    let memory = usage.memory_kib;
    ensure!(memory > own, "a run used at most {memory} KiB, fewer than its starter with {own}");
    Ok(())
}

/// Runs the program several times, and returns the usage of all runs. It must be the only work of
/// the process.
fn repeat(count: u32, expected: &str, program: &str, args: &[String]) -> anyhow::Result<Usage> {
    for _ in 0..count {
        let output = Command::new(program).args(args).stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("could not start {program}"))?;
        check_output(&output, expected)?;
    }
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("could not read the usage of the runs")?;
    let [user, system] = [usage.user_time(), usage.system_time()]
        .map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6);
    Ok(Usage { cpu_seconds: user + system, memory_kib: usage.max_rss() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usage_is_that_of_all_runs() {
        let run =
            |count, script: &str| repeat(count, "expected", "/bin/sh", &["-c", script].map(str::to_owned));
        let busy = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo as expected";
        let usage = run(3, busy).unwrap();
        assert!(usage.cpu_seconds > 0.001 && usage.memory_kib > 100, "{usage:?}");
        for failing in ["echo expected; exit 1", "echo nothing", "echo expected >&2"] {
            assert!(run(1, failing).is_err(), "{failing}");
        }
    }

    #[test]
    fn memory_that_the_starter_hides_is_an_error() {
        let usage = Usage { cpu_seconds: 0.1, memory_kib: 5000 };
        let status = |own: u32| format!("Name:\tx\nVmPeak:\t    9000 kB\nVmHWM:\t    {own} kB\n");
        require_visible(&usage, &status(4999)).unwrap();
        let error = require_visible(&usage, &status(5000)).unwrap_err().to_string();
        assert!(error.contains("5000"), "{error}");
    }
}
