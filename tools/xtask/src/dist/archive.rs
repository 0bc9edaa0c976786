//! The archives of the command line.

use std::io::{Cursor, Write as _};

use anyhow::Context as _;
use flate2::{Compression, GzBuilder};
use zip::write::SimpleFileOptions;

/// A file of an archive.
#[derive(Clone, Debug)]
pub(super) struct File {
    name: String,
    mode: u32,
    bytes: Vec<u8>,
}

impl File {
    pub(super) fn text(name: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self { name: name.into(), mode: 0o644, bytes }
    }

    pub(super) fn program(name: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self { name: name.into(), mode: 0o755, bytes }
    }
}

/// Returns a tar, compressed with gzip, whose entries are in one folder and have this time.
pub(super) fn tar_gz(folder: &str, mut files: Vec<File>, epoch: u64) -> anyhow::Result<Vec<u8>> {
    files.sort_by(|a, b| a.name.cmp(&b.name));
    let mut tar = tar::Builder::new(GzBuilder::new().write(Vec::new(), Compression::best()));
    for file in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(file.mode);
        header.set_mtime(epoch);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(file.bytes.len() as u64);
        let added = tar.append_data(&mut header, format!("{folder}/{}", file.name), file.bytes.as_slice());
        added.with_context(|| format!("could not add {}", file.name))?;
    }
    Ok(tar.into_inner()?.finish()?)
}

/// Returns a zip, whose entries are in one folder. They have the earliest time of the format, which
/// has no time zones.
pub(super) fn zip(folder: &str, mut files: Vec<File>) -> anyhow::Result<Vec<u8>> {
    files.sort_by(|a, b| a.name.cmp(&b.name));
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for file in files {
        let options = SimpleFileOptions::default()
            .compression_method(zip::CompressionMethod::Deflated)
            .compression_level(Some(9))
            .last_modified_time(zip::DateTime::DEFAULT)
            .unix_permissions(file.mode);
        let added = zip.start_file(format!("{folder}/{}", file.name), options);
        added.with_context(|| format!("could not add {}", file.name))?;
        zip.write_all(&file.bytes)?;
    }
    Ok(zip.finish()?.into_inner())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn files() -> Vec<File> {
        vec![File::text("man/b", b"text".to_vec()), File::program("a", b"program".to_vec())]
    }

    #[test]
    fn a_tar_has_sorted_entries_of_root_with_the_given_time() {
        let bytes = tar_gz("f", files(), 1_700_000_000).unwrap();
        let mut reversed = files();
        reversed.reverse();
        assert_eq!(bytes, tar_gz("f", reversed, 1_700_000_000).unwrap());
        let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(bytes.as_slice()));
        let entries = tar.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let header = entry.header();
            assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (0, 0));
            assert_eq!(header.mtime().unwrap(), 1_700_000_000);
            (entry.path().unwrap().display().to_string(), header.mode().unwrap())
        });
        assert_eq!(entries.collect::<Vec<_>>(), [("f/a".to_owned(), 0o755), ("f/man/b".to_owned(), 0o644)]);
    }

    #[test]
    fn a_zip_has_the_files_and_their_modes() {
        let bytes = zip("f", files()).unwrap();
        assert_eq!(bytes, zip("f", files()).unwrap());
        let mut archive = zip::ZipArchive::new(Cursor::new(bytes)).unwrap();
        let mut file = archive.by_name("f/a").unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), file.unix_mode().unwrap() & 0o777), ("program", 0o755));
        assert_eq!(file.last_modified(), Some(zip::DateTime::DEFAULT));
    }
}
