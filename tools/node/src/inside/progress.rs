//! Reports the progress of the start to the process outside: lines in a file.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::Context as _;

/// The last line after a successful start.
pub(crate) const READY: &str = "READY";
/// Prefix of the last line after a failure.
pub(crate) const FAILED: &str = "FAILED ";

#[derive(Debug)]
pub(super) struct Progress {
    file: Mutex<File>,
    start: Instant,
}

impl Progress {
    pub(super) fn append(path: &Path) -> anyhow::Result<Self> {
        let file = File::options().create(true).append(true).open(path);
        let file = file.with_context(|| format!("could not open {}", path.display()))?;
        Ok(Self { file: Mutex::new(file), start: Instant::now() })
    }

    /// Records a completed step.
    pub(super) fn step(&self, text: &str) {
        self.line(&format!("{:6.1} s  {text}", self.start.elapsed().as_secs_f64()));
    }

    pub(super) fn ready(&self) {
        self.line(READY);
    }

    /// Records the reason of a failure in one line, with newlines as `\n`.
    pub(super) fn failed(&self, error: &anyhow::Error) {
        self.line(&format!("{FAILED}{}", format!("{error:#}").replace('\n', "\\n")));
    }

    fn line(&self, text: &str) {
        let mut file = self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // The process outside may no longer be waiting.
        let _ = file.write_all(format!("{text}\n").as_bytes());
    }
}
