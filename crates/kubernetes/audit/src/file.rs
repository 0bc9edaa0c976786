//! The file of the audit log, with rotation.
//!
//! Names of files, and the meaning of the settings, are those of kube-apiserver's flags
//! `--audit-log-*`, which uses the Go library lumberjack: `audit.log` is renamed to
//! `audit-2026-11-27T12-00-00.000.log`, with the time of the rotation in UTC. Compression is not
//! supported, and no file is removed by default.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::platform::private;

/// The format of the time in the name of a rotated file.
const NAME_TIME: &str = "%Y-%m-%dT%H-%M-%S%.3f";
/// The path for standard output.
const STDOUT: &str = "-";

/// The file of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileParams {
    /// The path; `-` for standard output. Only a regular file is rotated, not a symbolic link.
    pub path: PathBuf,
    /// The age at which rotated files are removed; `None` for never.
    pub max_age: Option<Duration>,
    /// The number of rotated files that are kept; 0 for all.
    pub max_backups: usize,
    /// The size in bytes at which the file is rotated.
    pub max_size: u64,
}

/// Events that could not be written, at the end of a batch.
#[derive(Debug)]
pub(crate) struct Unwritten {
    pub(crate) events: usize,
    pub(crate) error: io::Error,
}

impl Unwritten {
    fn new(lines: &[u8], error: io::Error) -> Self {
        Self { events: lines.iter().filter(|byte| **byte == b'\n').count(), error }
    }
}

/// An open audit log.
#[derive(Debug)]
pub(crate) enum Log {
    Stdout,
    File(RotatedFile),
}

/// An open file.
#[derive(Debug)]
pub(crate) struct RotatedFile {
    params: FileParams,
    file: File,
    size: u64,
}

impl Log {
    pub(crate) fn open(mut params: FileParams) -> io::Result<Self> {
        if params.path == Path::new(STDOUT) {
            return Ok(Self::Stdout);
        }
        if let Some(folder) = params.path.parent() {
            fs::create_dir_all(folder)?;
        }
        let (file, size) = append(&params.path)?;
        // A rotation renames the path. That must not be a device, a pipe or a link such as
        // `/dev/stdout`, which other programs use.
        if !fs::symlink_metadata(&params.path)?.is_file() {
            params.max_size = u64::MAX;
        }
        Ok(Self::File(RotatedFile { params, file, size }))
    }

    /// Writes lines. Lines for which one file has no room continue in the next one.
    ///
    /// # Errors
    /// Returns the lines that are not written: no part of them remains in a regular file. For
    /// standard output, these are all lines, because its reader may have received any part of them.
    pub(crate) fn write(&mut self, lines: &[u8], now: Timestamp) -> Result<(), Unwritten> {
        match self {
            Self::Stdout => {
                let mut stdout = io::stdout().lock();
                let result = stdout.write_all(lines).and_then(|()| stdout.flush());
                result.map_err(|error| Unwritten::new(lines, error))
            }
            Self::File(file) => file.write(lines, now),
        }
    }
}

impl RotatedFile {
    fn write(&mut self, mut lines: &[u8], now: Timestamp) -> Result<(), Unwritten> {
        while !lines.is_empty() {
            let room = self.params.max_size.saturating_sub(self.size);
            let (mut fitting, mut rest) = lines.split_at(fitting(lines, room));
            if fitting.is_empty() && self.size > 0 {
                self.rotate(now).map_err(|error| Unwritten::new(lines, error))?;
                continue;
            }
            if fitting.is_empty() {
                // One line is larger than a file may be.
                let end = lines.iter().position(|byte| *byte == b'\n').map_or(lines.len(), |end| end + 1);
                (fitting, rest) = lines.split_at(end);
            }
            if let Err(error) = self.file.write_all(fitting) {
                // Without half a line at the end, the next lines can be read. A pipe or a device
                // cannot be truncated.
                let _unchanged = self.file.set_len(self.size);
                return Err(Unwritten::new(lines, error));
            }
            self.size += fitting.len() as u64;
            lines = rest;
        }
        Ok(())
    }

    /// Renames the file, creates a new one, and removes old ones.
    fn rotate(&mut self, now: Timestamp) -> io::Result<()> {
        let path = &self.params.path;
        // A second rotation in the same millisecond must not replace the first file.
        let mut time = now;
        let mut renamed = rotated_name(path, time);
        while renamed.exists() {
            time += Duration::from_millis(1);
            renamed = rotated_name(path, time);
        }
        match fs::rename(path, renamed) {
            // Another program has moved the file, or the last rotation could not create it again.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => result?,
        }
        (self.file, self.size) = append(path)?;
        if let Err(error) = remove_old(&self.params, now) {
            tracing::warn!(%error, path = %path.display(), "could not remove old audit logs");
        }
        Ok(())
    }
}

/// Opens a file, and returns its size.
fn append(path: &Path) -> io::Result<(File, u64)> {
    let file = private(OpenOptions::new().create(true).append(true)).open(path)?;
    let size = file.metadata()?.len();
    Ok((file, size))
}

/// Returns the length of the lines that fit.
fn fitting(lines: &[u8], room: u64) -> usize {
    let room = usize::try_from(room).unwrap_or(usize::MAX).min(lines.len());
    lines[..room].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1)
}

/// Returns the parts of the file name before and after the time.
fn name_parts(path: &Path) -> (String, String) {
    let text = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let extension = text(path.extension());
    let extension = if extension.is_empty() { extension } else { format!(".{extension}") };
    (format!("{}-", text(path.file_stem())), extension)
}

fn rotated_name(path: &Path, time: Timestamp) -> PathBuf {
    let (prefix, extension) = name_parts(path);
    let time = TimeZone::UTC.to_datetime(time).strftime(NAME_TIME).to_string();
    path.with_file_name(format!("{prefix}{time}{extension}"))
}

/// Removes rotated files that are too many or too old.
fn remove_old(params: &FileParams, now: Timestamp) -> io::Result<()> {
    let FileParams { path, max_age, max_backups, .. } = params;
    let (prefix, extension) = name_parts(path);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut rotated: Vec<(DateTime, PathBuf)> = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let time = name.strip_prefix(&prefix).and_then(|name| name.strip_suffix(&extension));
        if let Some(time) = time.and_then(|time| DateTime::strptime(NAME_TIME, time).ok()) {
            rotated.push((time, entry.path()));
        }
    }
    rotated.sort_by(|one, other| other.cmp(one));
    let oldest = max_age.map(|age| TimeZone::UTC.to_datetime(now - age));
    for (at, (time, file)) in rotated.iter().enumerate() {
        if *max_backups > 0 && at >= *max_backups || oldest.is_some_and(|oldest| *time < oldest) {
            fs::remove_file(file)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(path: PathBuf, max_size: u64) -> FileParams {
        FileParams { path, max_age: None, max_backups: 0, max_size }
    }

    /// Returns the names and contents of a folder.
    fn files(folder: &Path) -> Vec<(String, String)> {
        let mut files: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| {
                (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap())
            })
            .collect();
        files.sort();
        files
    }

    fn owned<const N: usize>(files: [(&str, &str); N]) -> Vec<(String, String)> {
        files.map(|(name, text)| (name.to_owned(), text.to_owned())).to_vec()
    }

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_full_file_is_renamed_and_no_line_is_split() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/audit.log");
        let mut log = Log::open(params(path.clone(), 8)).unwrap();
        log.write(b"one\ntwo\nthree\n", time("2026-11-27T12:00:00.5Z")).unwrap();
        log.write(b"a line that is too long\n4\n", time("2026-11-27T12:00:00.5Z")).unwrap();
        drop(log);
        // The size of an existing file counts.
        let mut log = Log::open(params(path, 8)).unwrap();
        log.write(b"5\n6\n", time("2026-11-27T13:00:00Z")).unwrap();
        log.write(b"seven\n", time("2026-11-27T13:00:00Z")).unwrap();
        assert_eq!(
            files(&folder.path().join("new")),
            owned([
                ("audit-2026-11-27T12-00-00.500.log", "one\ntwo\n"),
                ("audit-2026-11-27T12-00-00.501.log", "three\n"),
                ("audit-2026-11-27T12-00-00.502.log", "a line that is too long\n"),
                ("audit-2026-11-27T13-00-00.000.log", "4\n5\n6\n"),
                ("audit.log", "seven\n"),
            ])
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_is_not_renamed() {
        use std::io::Read as _;
        use std::os::unix::fs::FileTypeExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        // With both, the open does not wait for another program.
        let mut reader = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mut log = Log::open(params(path.clone(), 4)).unwrap();
        log.write(b"one\ntwo\n", time("2026-11-27T12:00:00Z")).unwrap();
        log.write(b"three\n", time("2026-11-27T12:00:00Z")).unwrap();
        assert!(fs::metadata(&path).unwrap().file_type().is_fifo());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let mut received = [0; 14];
        reader.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"one\ntwo\nthree\n");
    }

    #[cfg(unix)]
    #[test]
    fn a_symbolic_link_is_not_renamed() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        fs::write(&target, "").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let mut log = Log::open(params(link.clone(), 4)).unwrap();
        log.write(b"one\ntwo\n", time("2026-11-27T12:00:00Z")).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&target).unwrap(), "one\ntwo\n");
    }

    #[test]
    fn a_file_that_another_program_has_removed_is_created_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let mut log = Log::open(params(path.clone(), 8)).unwrap();
        log.write(b"one\ntwo\n", time("2026-11-27T12:00:00Z")).unwrap();
        fs::remove_file(&path).unwrap();
        log.write(b"three\n", time("2026-11-27T12:00:00Z")).unwrap();
        assert_eq!(files(folder.path()), owned([("audit.log", "three\n")]));
    }

    #[test]
    fn rotated_files_that_are_too_many_or_too_old_are_removed_and_other_files_are_not() {
        let folder = tempfile::tempdir().unwrap();
        for other in ["audit-2020-01-01T00-00-00.000.log.gz", "audit-x.log", "b-2020-01-01T00-00-00.000.log"]
        {
            fs::write(folder.path().join(other), "").unwrap();
        }
        let others = files(folder.path());
        let path = folder.path().join("audit.log");
        let day = Duration::from_secs(86_400);
        let mut log =
            Log::open(FileParams { max_age: Some(2 * day), max_backups: 2, ..params(path, 2) }).unwrap();
        let rotated = |folder: &Path| -> Vec<String> {
            let names = files(folder).into_iter().filter(|file| !others.contains(file)).map(|(name, _)| name);
            names.filter(|name| name != "audit.log").collect()
        };
        for hour in 10..15 {
            log.write(b"x\n", time(&format!("2026-11-27T{hour}:00:00Z"))).unwrap();
        }
        assert_eq!(
            rotated(folder.path()),
            ["audit-2026-11-27T13-00-00.000.log", "audit-2026-11-27T14-00-00.000.log"]
        );
        log.write(b"x\n", time("2026-11-29T13:30:00Z")).unwrap();
        assert_eq!(
            rotated(folder.path()),
            ["audit-2026-11-27T14-00-00.000.log", "audit-2026-11-29T13-30-00.000.log"]
        );
        log.write(b"x\n", time("2026-12-09T13:30:00Z")).unwrap();
        assert_eq!(rotated(folder.path()), ["audit-2026-12-09T13-30-00.000.log"]);
        assert!(others.iter().all(|file| files(folder.path()).contains(file)));
    }

    #[test]
    fn a_full_disk_is_an_error_and_the_log_can_be_written_later() {
        let mut log = Log::File(RotatedFile {
            params: params(PathBuf::from("/dev/full"), 100),
            file: OpenOptions::new().append(true).open("/dev/full").unwrap(),
            size: 0,
        });
        let now = Timestamp::now();
        let unwritten = log.write(b"a\nb\n", now).unwrap_err();
        assert_eq!((unwritten.events, unwritten.error.kind()), (2, io::ErrorKind::StorageFull));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let Log::File(full) = &mut log else { panic!("a file") };
        (full.file, full.size) = append(&path).unwrap();
        log.write(b"b\n", now).unwrap();
        assert_eq!(fs::read_to_string(path).unwrap(), "b\n");
    }

    #[test]
    fn lines_of_a_batch_that_are_in_the_previous_file_are_not_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let mut log = Log::open(params(path.clone(), 4)).unwrap();
        // The rotation renames the file, and cannot create another one.
        let Log::File(file) = &mut log else { panic!("a file") };
        file.params.path = folder.path().join("missing/audit.log");
        let unwritten = log.write(b"1\n2\n3\n4\n5\n", Timestamp::now()).unwrap_err();
        assert_eq!((unwritten.events, unwritten.error.kind()), (3, io::ErrorKind::NotFound));
        assert_eq!(fs::read_to_string(path).unwrap(), "1\n2\n");
    }
}
