//! Reads files that the user or another program wrote: kubeconfigs, and the files that they or
//! flags name. A kubeconfig may come from another person, and may name a pipe, which would block
//! the program, or a device or a huge file, which would fill its memory.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::path::Path;

/// The maximum size of a file in bytes.
pub(crate) const MAX_SIZE: u64 = 16 << 20;

/// Returns the content of a regular file.
///
/// # Errors
///
/// Returns an error if it cannot be read, is larger than [`MAX_SIZE`], or is a pipe or a device.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    check(path)?;
    read_all(path)
}

/// Returns the text of a pipe, which can be read only once.
///
/// # Errors
///
/// Returns an error if it cannot be read, or its text is larger than [`MAX_SIZE`] or not UTF-8.
pub(crate) fn read_pipe(path: &Path) -> io::Result<String> {
    text(read_all(path)?)
}

fn read_all(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.take(MAX_SIZE + 1).read_to_end(&mut content)?;
    if content.len() as u64 > MAX_SIZE {
        return Err(too_large());
    }
    Ok(content)
}

/// Checks a file that a library reads.
///
/// # Errors
///
/// Returns an error as [`read`].
pub(crate) fn check(path: &Path) -> io::Result<()> {
    let found = path.metadata()?;
    // The system has the better error for a directory.
    if !found.is_file() && !found.is_dir() {
        return Err(io::Error::new(ErrorKind::Unsupported, "not a regular file"));
    }
    if found.len() > MAX_SIZE { Err(too_large()) } else { Ok(()) }
}

fn too_large() -> io::Error {
    io::Error::new(ErrorKind::FileTooLarge, "larger than 16 MiB")
}

/// Returns the content of a regular file that is text.
///
/// # Errors
///
/// Returns an error as [`read`], or if the content is not UTF-8.
pub(crate) fn read_to_string(path: &Path) -> io::Result<String> {
    text(read(path)?)
}

fn text(content: Vec<u8>) -> io::Result<String> {
    String::from_utf8(content).map_err(|_| io::Error::new(ErrorKind::InvalidData, "not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_up_to_the_limit_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "text").unwrap();
        assert_eq!(read_to_string(&path).unwrap(), "text");
        std::fs::write(&path, b"\xff").unwrap();
        assert_eq!(read(&path).unwrap(), b"\xff");
        assert_eq!(read_to_string(&path).unwrap_err().to_string(), "not UTF-8");
        File::create(&path).unwrap().set_len(MAX_SIZE).unwrap();
        assert_eq!(read(&path).unwrap().len() as u64, MAX_SIZE);
        File::create(&path).unwrap().set_len(MAX_SIZE + 1).unwrap();
        for error in [read(&path).unwrap_err(), check(&path).unwrap_err()] {
            assert_eq!(error.to_string(), "larger than 16 MiB");
        }
        assert_eq!(read(dir.path()).unwrap_err().kind(), ErrorKind::IsADirectory);
        assert_eq!(read(&dir.path().join("none")).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_or_a_device_does_not_block() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for path in [&pipe, Path::new("/dev/zero")] {
            assert_eq!(read(path).unwrap_err().to_string(), "not a regular file");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_is_read_up_to_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for (size, error) in [(MAX_SIZE, None), (MAX_SIZE + 1, Some("larger than 16 MiB"))] {
            std::thread::scope(|scope| {
                scope.spawn(|| std::fs::write(&pipe, vec![b' '; usize::try_from(size).unwrap()]));
                let result = read_pipe(&pipe);
                assert_eq!(result.as_ref().err().map(ToString::to_string).as_deref(), error);
            });
        }
    }
}
