//! The directory of recordings: names, limits and recovery of files.
//!
//! A recording is written to `NAME.cast.part`, and renamed to `NAME.cast` at its end. The name
//! begins with the time, so that names sort by it. Each recording in progress counts with its
//! maximum size, so that the directory never exceeds its limit, whatever sessions print.
//!
//! The directory is read for each new recording, so that a program that moves recordings away makes
//! room. Files with other names are left alone.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// The end of the name of a complete recording.
const COMPLETE: &str = ".cast";
/// The end of the name of a recording in progress.
const PART: &str = ".cast.part";
/// The time at the beginning of a name.
const NAME_TIME: &str = "%Y%m%dT%H%M%S";

/// Maximum lengths in bytes of the parts of a name.
const MAX_NAMESPACE: usize = 63;
const MAX_POD: usize = 80;
const MAX_ID: usize = 48;

/// Each file counts with at least this size, and with more if the limit of the directory would
/// allow more than this number of files: the metadata of each file is read for a new recording.
const MIN_FILE: u64 = 16 << 10;
const MAX_FILES: u64 = 64 << 10;

/// Maximum number of attempts to find a free name. Clients may choose the identifier of a request,
/// so two sessions of the same microsecond can have the same one.
const MAX_NAMES: usize = 100;

/// Maximum number of bytes at the end of an interrupted recording that are searched for its last
/// line.
const MAX_LAST_LINE: u64 = 256 << 10;

/// The handling of a full directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// The oldest complete recordings are removed.
    RemoveOldest,
    /// No recording is removed, and a new session is not recorded.
    Keep,
}

/// The reasons why a recording has no file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("the directory of recordings is full: the limit is {} MiB (recording.sessions.maxTotalMegabytes)", .0 >> 20)]
    Full(u64),
    #[error("could not create a recording in {}", .0.display())]
    Create(PathBuf, #[source] io::Error),
}

/// The directory of recordings.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    when_full: WhenFull,
    max_session: u64,
    max_total: u64,
    /// The names of recordings in progress. Locked while the directory is searched and changed.
    active: Mutex<HashSet<OsString>>,
}

/// The parts of a name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NameParts<'a> {
    pub(crate) time: Timestamp,
    pub(crate) namespace: &'a str,
    pub(crate) pod: &'a str,
    pub(crate) audit_id: &'a str,
}

/// The file of a recording in progress.
#[derive(Debug)]
pub(crate) struct RecordingFile {
    directory: Arc<Directory>,
    /// The name of the complete recording.
    name: String,
    file: File,
    size: u64,
}

impl Directory {
    /// Opens the directory, and completes recordings that the end of a program interrupted.
    pub(crate) fn open(
        path: PathBuf,
        when_full: WhenFull,
        max_session: u64,
        max_total: u64,
    ) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        for entry in fs::read_dir(&path)? {
            let entry = entry?;
            let name = entry.file_name();
            if let Some(name) = name.to_str().filter(|name| is_recording(name, PART))
                && let Err(error) = recover(&path, name)
            {
                tracing::warn!(%error, file = name, "could not complete an interrupted recording");
            }
        }
        Ok(Self { path, when_full, max_session, max_total, active: Mutex::default() })
    }

    /// Creates a file that only its owner can read.
    pub(crate) fn create(self: &Arc<Self>, parts: NameParts<'_>) -> Result<RecordingFile, FileError> {
        let mut active = self.active.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |error| FileError::Create(self.path.clone(), error);
        self.make_room(&active).map_err(failed)?.then_some(()).ok_or(FileError::Full(self.max_total))?;
        for at in 0..MAX_NAMES {
            let name = file_name(parts, at);
            let part = self.path.join(part_of(&name));
            if self.path.join(&name).exists() {
                continue;
            }
            match OpenOptions::new().create_new(true).append(true).read(true).mode(0o600).open(&part) {
                Ok(file) => {
                    // Another program that recovers this directory leaves a locked file alone. Some
                    // file systems have no locks.
                    let _unsupported = file.try_lock();
                    active.insert(part_of(&name).into());
                    return Ok(RecordingFile { directory: Arc::clone(self), name, file, size: 0 });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(failed(io::ErrorKind::AlreadyExists.into()))
    }

    /// Returns whether there is room for a new recording. Removes the oldest ones if configured.
    fn make_room(&self, active: &HashSet<OsString>) -> io::Result<bool> {
        let min_file = min_file(self.max_total);
        let mut used = self.max_session.saturating_mul(active.len() as u64);
        let (mut complete, mut removable) = (Vec::new(), 0_u64);
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(text) = name.to_str() else { continue };
            if active.contains(&name) {
                continue;
            }
            let is_complete = is_recording(text, COMPLETE);
            if !is_complete && !is_recording(text, PART) {
                continue;
            }
            let size = match entry.metadata() {
                Ok(metadata) => metadata.len().max(min_file),
                // It was removed in the meantime.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            used = used.saturating_add(size);
            if is_complete {
                complete.push((text.to_owned(), size));
                removable = removable.saturating_add(size);
            }
        }
        let fits = |used: u64| used.saturating_add(self.max_session) <= self.max_total;
        // Recordings are removed only if that makes enough room.
        let makes_room = !fits(used) && fits(used.saturating_sub(removable));
        if self.when_full == WhenFull::RemoveOldest && makes_room {
            complete.sort_unstable();
            for (name, size) in complete {
                if fits(used) {
                    break;
                }
                match fs::remove_file(self.path.join(&name)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
                tracing::info!(file = name, "removed the oldest recording to make room");
                used = used.saturating_sub(size);
            }
        }
        Ok(fits(used))
    }

    fn release(&self, name: &str) {
        let mut active = self.active.lock().unwrap_or_else(PoisonError::into_inner);
        active.remove(&OsString::from(part_of(name)));
    }
}

impl RecordingFile {
    /// Returns the name of the complete recording.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Appends lines. After an error, the file has no part of them.
    pub(crate) fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if let Err(error) = self.file.write_all(lines) {
            let _unchanged = self.file.set_len(self.size);
            return Err(error);
        }
        self.size += lines.len() as u64;
        Ok(())
    }

    /// Completes the recording.
    pub(crate) fn finish(self) -> io::Result<()> {
        let folder = &self.directory.path;
        self.file.sync_data()?;
        fs::rename(folder.join(part_of(&self.name)), folder.join(&self.name))
    }

    /// Removes the recording of a session that did not begin.
    pub(crate) fn discard(self) -> io::Result<()> {
        fs::remove_file(self.directory.path.join(part_of(&self.name)))
    }
}

impl Drop for RecordingFile {
    fn drop(&mut self) {
        self.directory.release(&self.name);
    }
}

/// Returns the size with which an empty file counts towards the limit of the directory.
fn min_file(max_total: u64) -> u64 {
    MIN_FILE.max(max_total.div_ceil(MAX_FILES))
}

fn part_of(name: &str) -> String {
    format!("{name}.part")
}

/// Returns a name. All texts become one component of a path.
fn file_name(parts: NameParts<'_>, attempt: usize) -> String {
    let NameParts { time, namespace, pod, audit_id } = parts;
    let datetime = TimeZone::UTC.to_datetime(time);
    let microseconds = datetime.subsec_nanosecond() / 1000;
    let suffix = if attempt == 0 { String::new() } else { format!("-{attempt}") };
    format!(
        "{}.{microseconds:06}Z_{}_{}_{}{suffix}{COMPLETE}",
        datetime.strftime(NAME_TIME),
        component(namespace, MAX_NAMESPACE),
        component(pod, MAX_POD),
        component(audit_id, MAX_ID),
    )
}

/// Returns the text with other characters than those of names replaced.
fn component(text: &str, most: usize) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '.') { c } else { '-' };
    text.chars().map(safe).take(most).collect()
}

/// Returns whether this is the name of a recording with this end.
fn is_recording(name: &str, end: &str) -> bool {
    let Some(rest) = name.strip_suffix(end) else { return false };
    let bytes = rest.as_bytes();
    bytes.len() > 23
        && bytes[..8].iter().all(u8::is_ascii_digit)
        && bytes[8] == b'T'
        && bytes[9..15].iter().all(u8::is_ascii_digit)
        && &bytes[22..24] == b"Z_"
}

/// Completes the recording of a program that has ended: removes half a line at its end, and adds a
/// marker.
fn recover(folder: &Path, part: &str) -> io::Result<()> {
    let path = folder.join(part);
    let mut file = OpenOptions::new().read(true).append(true).open(&path)?;
    match file.try_lock() {
        // Another program writes it.
        Err(TryLockError::WouldBlock) => return Ok(()),
        // Without locks, it may be the file of another program.
        Err(TryLockError::Error(error)) => return Err(error),
        Ok(()) => {}
    }
    let size = file.metadata()?.len();
    let searched = size.min(MAX_LAST_LINE);
    file.seek(SeekFrom::Start(size - searched))?;
    let mut end = Vec::new();
    (&file).take(searched).read_to_end(&mut end)?;
    let time = if let Some(last) = end.iter().rposition(|byte| *byte == b'\n') {
        file.set_len(size - searched + last as u64 + 1)?;
        let start = end[..last].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        end[start..last].strip_prefix(b"[").and_then(|line| line.split(|byte| *byte == b',').next())
    } else if size == searched {
        // Without a header there are no events, but the session may have begun.
        let title = part.strip_suffix(PART).unwrap_or(part);
        let header = serde_json::json!({"version": 2, "width": 80, "height": 24, "title": title});
        file.set_len(0)?;
        file.write_all(format!("{header}\n").as_bytes())?;
        None
    } else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let time = time.and_then(|time| std::str::from_utf8(time).ok()).unwrap_or("0.0");
    file.write_all(format!("[{time}, \"m\", \"the recording was interrupted\"]\n").as_bytes())?;
    file.sync_data()?;
    let name = part.strip_suffix(".part").unwrap_or(part);
    fs::rename(&path, folder.join(name))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const MAX_SESSION: u64 = 1 << 20;

    fn parts<'a>(pod: &'a str, audit_id: &'a str) -> NameParts<'a> {
        NameParts { time: "2026-11-27T12:00:00.000012Z".parse().unwrap(), namespace: "n", pod, audit_id }
    }

    fn open(folder: &Path, when_full: WhenFull, sessions: u64) -> Arc<Directory> {
        let directory = Directory::open(folder.to_owned(), when_full, MAX_SESSION, sessions * MAX_SESSION);
        Arc::new(directory.unwrap())
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn names_sort_by_time_and_contain_no_other_path() {
        let long = "x".repeat(300);
        for (pod, audit_id, wanted) in [
            ("web-0", "1-2", "20261127T120000.000012Z_n_web-0_1-2.cast"),
            ("../../etc", "/a\0b_ü", "20261127T120000.000012Z_n_..-..-etc_-a-b--.cast"),
        ] {
            assert_eq!(file_name(parts(pod, audit_id), 0), wanted);
        }
        let name = file_name(parts(&long, &long), 99);
        assert!(name.len() + ".part".len() <= 255 && is_recording(&name, COMPLETE), "{name}");
        assert!(!is_recording("audit.cast", COMPLETE) && !is_recording("lost+found", COMPLETE));
    }

    #[test]
    fn a_recording_is_private_and_renamed_at_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let directory = open(folder.path(), WhenFull::Keep, 10);
        let mut file = directory.create(parts("p", "a")).unwrap();
        let same = directory.create(parts("p", "a")).unwrap();
        let name = "20261127T120000.000012Z_n_p_a.cast";
        let second = "20261127T120000.000012Z_n_p_a-1.cast";
        assert_eq!(names(folder.path()), [part_of(second), part_of(name)]);
        file.write(b"line\n").unwrap();
        file.finish().unwrap();
        same.discard().unwrap();
        assert_eq!(names(folder.path()), [name]);
        let path = folder.path().join(name);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read(&path).unwrap(), b"line\n");
        // A complete recording is never replaced.
        assert_eq!(directory.create(parts("p", "a")).unwrap().name(), second);
    }

    #[test]
    fn recordings_in_progress_count_with_their_maximum_size() {
        let folder = tempfile::tempdir().unwrap();
        let directory = open(folder.path(), WhenFull::Keep, 3);
        let open: Vec<_> = (0..3).map(|_| directory.create(parts("p", "a")).unwrap()).collect();
        let full = directory.create(parts("p", "a")).unwrap_err().to_string();
        assert_eq!(
            full,
            "the directory of recordings is full: the limit is 3 MiB (recording.sessions.maxTotalMegabytes)"
        );
        open.into_iter().for_each(|file| file.finish().unwrap());
        // Three small recordings leave room for two others.
        let more = (0..3).filter_map(|_| directory.create(parts("p", "b")).ok());
        assert_eq!(more.collect::<Vec<_>>().len(), 2);
    }

    #[test]
    fn the_oldest_recordings_are_removed_if_configured() {
        let folder = tempfile::tempdir().unwrap();
        let large = |name: &str| {
            File::create(folder.path().join(name)).unwrap().set_len(MAX_SESSION).unwrap();
        };
        let (old, new) = ("20250101T000000.000000Z_n_p_a.cast", "20260101T000000.000000Z_n_p_a.cast");
        large(new);
        large(old);
        large("other");
        let kept = open(folder.path(), WhenFull::Keep, 2);
        assert!(kept.create(parts("p", "a")).is_err());
        let directory = open(folder.path(), WhenFull::RemoveOldest, 2);
        let file = directory.create(parts("p", "a")).unwrap();
        assert_eq!(names(folder.path()), [new.to_owned(), part_of(file.name()), "other".to_owned()]);
        // Recordings in progress are never removed.
        let second = directory.create(parts("p", "b")).unwrap();
        assert!(directory.create(parts("p", "c")).is_err());
        drop((file, second));
    }

    #[test]
    fn no_recording_is_removed_if_that_makes_no_room() {
        let folder = tempfile::tempdir().unwrap();
        let directory = open(folder.path(), WhenFull::RemoveOldest, 2);
        let old = "20250101T000000.000000Z_n_p_a.cast";
        File::create(folder.path().join(old)).unwrap();
        // A volume without locks keeps such files.
        let stale = "20250101T000000.000000Z_n_p_b.cast.part";
        File::create(folder.path().join(stale)).unwrap().set_len(2 * MAX_SESSION).unwrap();
        assert!(directory.create(parts("p", "c")).is_err());
        assert_eq!(names(folder.path()), [old, stale]);
    }

    #[test]
    fn the_number_of_files_is_limited_for_each_size_of_the_directory() {
        assert_eq!(min_file(1 << 30), MIN_FILE);
        for max_total in [1 << 30, 10 << 30, 1 << 50] {
            assert!(max_total / min_file(max_total) <= MAX_FILES);
        }
    }

    #[test]
    fn interrupted_recordings_are_completed_unless_a_program_writes_them() {
        let folder = tempfile::tempdir().unwrap();
        let directory = open(folder.path(), WhenFull::Keep, 10);
        let path = |name: &str| folder.path().join(name);
        let mut busy = directory.create(parts("busy", "a")).unwrap();
        busy.write(b"{}\n").unwrap();
        let empty = "20261127T120000.000012Z_n_empty_a.cast.part";
        fs::write(path(empty), "{\"version").unwrap();
        let cut = "20261127T120000.000012Z_n_cut_a.cast.part";
        fs::write(path(cut), "{}\n[1.500000, \"o\", \"a\"]\n[2.5, \"o").unwrap();
        drop(open(folder.path(), WhenFull::Keep, 10));
        let complete = cut.strip_suffix(".part").unwrap();
        // A session without output may have run for hours.
        let silent = empty.strip_suffix(".part").unwrap();
        assert_eq!(names(folder.path()), [part_of(busy.name()), complete.to_owned(), silent.to_owned()]);
        let silent = fs::read_to_string(path(silent)).unwrap();
        let lines: Vec<serde_json::Value> =
            silent.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[0]["title"], "20261127T120000.000012Z_n_empty_a");
        assert_eq!(lines[1], serde_json::json!([0.0, "m", "the recording was interrupted"]));
        assert_eq!(
            fs::read_to_string(path(complete)).unwrap(),
            "{}\n[1.500000, \"o\", \"a\"]\n[1.500000, \"m\", \"the recording was interrupted\"]\n"
        );
    }

    #[test]
    fn a_failed_write_leaves_complete_lines() {
        let folder = tempfile::tempdir().unwrap();
        let directory = open(folder.path(), WhenFull::Keep, 10);
        let mut file = directory.create(parts("p", "a")).unwrap();
        file.write(b"line\n").unwrap();
        let name = file.name().to_owned();
        // A file that is opened for reading cannot be written.
        file.file = File::open(folder.path().join(part_of(&name))).unwrap();
        file.write(b"more\n").unwrap_err();
        assert_eq!(fs::read(folder.path().join(part_of(&name))).unwrap(), b"line\n");
    }
}
