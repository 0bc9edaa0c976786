//! Runs test executables concurrently, and reports how long executables and tests took.
//!
//! A test that uses a control plane mostly waits, so executables run concurrently. Each has its own
//! network namespace, so their ports do not clash. The output of each is written to a file and
//! printed as a whole when the executable has finished. An executable that prints nothing for a
//! long time is terminated, so that its output shows which test hangs. All are terminated when the
//! disk is almost full, because every test would wait for programs that cannot write.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::executables::Executable;
use crate::disk;

/// The interval at which the names of the running executables are printed.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(60);
/// The interval at which a running executable is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// How long an executable may print nothing. The longest test takes five minutes on two processors,
/// and half as long again beside other work.
const LONGEST_SILENCE: Duration = Duration::from_secs(15 * 60);
/// The free space of the disk below which executables are terminated. etcd and containerd abort if
/// they cannot write.
const LEAST_FREE_BYTES: u64 = 300_000_000;
/// How long an executable may take to terminate.
const TERMINATION_LIMIT: Duration = Duration::from_secs(10);
/// The number of tests in the list of the slowest ones.
const SLOWEST: usize = 10;

/// One executable and its arguments.
pub(super) struct Job {
    pub(super) executable: Executable,
    pub(super) args: Vec<String>,
}

/// A finished job.
pub(super) struct Finished {
    pub(super) name: String,
    pub(super) status: ExitStatus,
    pub(super) duration: Duration,
    /// The tests and their durations, as the executable reports them.
    pub(super) tests: Vec<(String, Duration)>,
    output: String,
}

/// An event to print.
enum Event {
    Started(String),
    Finished(anyhow::Result<Finished>),
}

/// Runs all jobs in order, at most `at_once` concurrently. `logs` is the folder for their output.
///
/// # Errors
/// Returns an error when an executable cannot be started or its output cannot be stored. Failed
/// tests are in the result.
pub(super) fn run(
    jobs: Vec<Job>,
    environment: &[(&str, PathBuf)],
    at_once: usize,
    logs: &Path,
) -> anyhow::Result<Vec<Finished>> {
    std::fs::create_dir_all(logs).with_context(|| format!("could not create {}", logs.display()))?;
    let all = jobs.len();
    let queue = Mutex::new(VecDeque::from(jobs));
    let (sender, events) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..at_once.clamp(1, all.max(1)) {
            let (sender, queue) = (sender.clone(), &queue);
            scope.spawn(move || {
                let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                while let Some(job) = next() {
                    // The receiver exists until all senders are dropped.
                    let _ignored = sender.send(Event::Started(job.executable.name.clone()));
                    let _ignored = sender.send(Event::Finished(run_one(job, environment, logs)));
                }
            });
        }
        drop(sender);
        collect(all, &events)
    })
}

/// Prints events until all jobs have finished.
fn collect(all: usize, events: &mpsc::Receiver<Event>) -> anyhow::Result<Vec<Finished>> {
    let started = Instant::now();
    let (mut running, mut finished): (Vec<String>, Vec<Finished>) = (Vec::new(), Vec::new());
    loop {
        match events.recv_timeout(PROGRESS_INTERVAL) {
            Ok(Event::Started(name)) => running.push(name),
            Ok(Event::Finished(job)) => {
                let job = job?;
                running.retain(|name| *name != job.name);
                println!("\n     Ran {} in {:.1} s", job.name, job.duration.as_secs_f64());
                print!("{}", job.output);
                if !job.status.success() {
                    println!("error: {} failed ({})", job.name, job.status);
                }
                finished.push(job);
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let minutes = started.elapsed().as_secs() / 60;
                println!(
                    "  {minutes} min: {} of {all} executables done, running: {}",
                    finished.len(),
                    running.join(", ")
                );
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(finished),
        }
    }
}

fn run_one(job: Job, environment: &[(&str, PathBuf)], logs: &Path) -> anyhow::Result<Finished> {
    let started = Instant::now();
    let Job { executable, args } = job;
    let name = executable.name.clone();
    let file_name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let log = logs.join(format!("{file_name}.log"));
    let output = File::create(&log).with_context(|| format!("could not write {}", log.display()))?;
    let errors = output.try_clone().context("could not share a log file")?;
    let mut command = executable.command();
    command.args(&args).stdin(Stdio::null()).stdout(output).stderr(errors);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    let child = command.spawn().with_context(|| format!("could not start {}", executable.path.display()))?;
    let (status, reason) = wait(child, &log, LONGEST_SILENCE, LEAST_FREE_BYTES)?;
    let output = std::fs::read(&log).with_context(|| format!("could not read {}", log.display()))?;
    let mut output = String::from_utf8_lossy(&output).into_owned();
    if let Some(reason) = reason {
        // Not written to the log, because the disk may be full.
        output.push_str(&format!("\nerror: terminated, because {reason}\n"));
    }
    let tests = output.lines().filter_map(timed_test).collect();
    Ok(Finished { name, status, duration: started.elapsed(), tests, output })
}

/// Waits until a process exits. If its log does not grow for `longest_silence`, or the disk of the
/// log or of temporary files has less than `least_free_bytes` of free space, terminates the
/// process, and returns the reason. The process's children terminate, too, because its guardian
/// notices that it has exited.
fn wait(
    mut child: Child,
    log: &Path,
    longest_silence: Duration,
    least_free_bytes: u64,
) -> anyhow::Result<(ExitStatus, Option<String>)> {
    let pid = rustix::process::Pid::from_child(&child);
    let (sender, status) = mpsc::channel();
    // The thread ends with the process.
    std::thread::spawn(move || sender.send(child.wait()));
    let received =
        |status: std::io::Result<ExitStatus>| status.context("could not wait for a test executable");
    let size = || std::fs::metadata(log).map_or(0, |metadata| metadata.len());
    let (mut last_size, mut last_growth) = (size(), Instant::now());
    loop {
        if let Ok(status) = status.recv_timeout(CHECK_INTERVAL) {
            return Ok((received(status)?, None));
        }
        let now = size();
        if now != last_size {
            (last_size, last_growth) = (now, Instant::now());
        }
        let reason = if last_growth.elapsed() >= longest_silence {
            format!("no test finished for {} minutes", longest_silence.as_secs() / 60)
        } else if let Some(full) = full_disk(log, least_free_bytes) {
            full
        } else {
            continue;
        };
        let kill = |signal| match rustix::process::kill_process(pid, signal) {
            // It has exited in the meantime.
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error).context("could not terminate a test executable"),
        };
        kill(rustix::process::Signal::TERM)?;
        let status = match status.recv_timeout(TERMINATION_LIMIT) {
            Ok(status) => status,
            // A test has installed a handler for the signal.
            Err(_) => {
                kill(rustix::process::Signal::KILL)?;
                status.recv().context("the thread that waits has ended")?
            }
        };
        return Ok((received(status)?, Some(reason)));
    }
}

/// Returns a text about a disk with too little free space.
fn full_disk(log: &Path, least_free_bytes: u64) -> Option<String> {
    [log, &std::env::temp_dir()].into_iter().find_map(|path| {
        let free = disk::free_bytes(path).filter(|free| *free < least_free_bytes)?;
        Some(format!("the disk of {} has only {} MB of free space", path.display(), free / 1_000_000))
    })
}

/// Parses name and duration from a line such as `test a::b ... ok <1.234s>`.
fn timed_test(line: &str) -> Option<(String, Duration)> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let (_, seconds) = result.strip_suffix("s>")?.rsplit_once('<')?;
    Some((name.to_owned(), Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?))
}

/// Prints the time of each executable that took long, and the slowest tests.
pub(super) fn report(finished: &[Finished]) {
    let mut executables: Vec<_> = finished.iter().map(|job| (job.duration, job.name.as_str())).collect();
    executables.sort_unstable();
    println!("\ntime per executable (executables under one second are omitted):");
    for (duration, name) in executables.iter().rev().filter(|(duration, _)| duration.as_secs() > 0) {
        println!("  {:>7.1} s  {name}", duration.as_secs_f64());
    }
    let mut tests: Vec<_> = finished
        .iter()
        .flat_map(|job| {
            job.tests.iter().map(|(test, duration)| (*duration, job.name.as_str(), test.as_str()))
        })
        .collect();
    tests.sort_unstable();
    println!("slowest tests:");
    for (duration, executable, test) in tests.iter().rev().take(SLOWEST) {
        println!("  {:>7.1} s  {executable} {test}", duration.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(script: &str, log: &Path) -> Child {
        let output = File::create(log).unwrap();
        std::process::Command::new("sh").args(["-c", script]).stdout(output).spawn().unwrap()
    }

    #[test]
    fn an_executable_that_prints_nothing_is_terminated_although_it_ignores_the_signal() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let hanging = start("echo test one; exec sleep 1000", &log);
        let (status, reason) = wait(hanging, &log, Duration::from_secs(1), 0).unwrap();
        assert_eq!((status.success(), reason.as_deref()), (false, Some("no test finished for 0 minutes")));
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "test one\n");
        let stubborn = start("trap '' TERM; exec sleep 1000", &log);
        assert!(!wait(stubborn, &log, Duration::from_secs(1), 0).unwrap().0.success());
        let (status, reason) = wait(start("echo test two", &log), &log, LONGEST_SILENCE, 0).unwrap();
        assert_eq!((status.success(), reason), (true, None));
    }

    #[test]
    fn executables_are_terminated_when_the_disk_is_almost_full() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let running = start("exec sleep 1000", &log);
        let (status, reason) = wait(running, &log, LONGEST_SILENCE, u64::MAX).unwrap();
        let reason = reason.unwrap();
        assert!(!status.success() && reason.contains("MB of free space"), "{reason}");
    }

    #[test]
    fn durations_come_from_the_lines_of_finished_tests() {
        let seconds = |seconds| Some(("a::b".to_owned(), Duration::from_millis(seconds)));
        assert_eq!(timed_test("test a::b ... ok <1.234s>"), seconds(1234));
        assert_eq!(timed_test("test a::b ... FAILED <0.500s>"), seconds(500));
        assert_eq!(timed_test("test a::b ... ignored"), None);
        assert_eq!(timed_test("test result: ok. 1 passed; finished in 0.01s"), None);
    }
}
