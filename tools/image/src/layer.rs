//! One layer: files, folders and links in memory, written as a tar whose bytes depend on nothing
//! else.

use std::collections::BTreeMap;

use crate::error::Error;

/// Permissions of implicitly created folders.
const FOLDER: u32 = 0o755;
/// Permissions of links, which have no effect.
const LINK: u32 = 0o777;

/// The entries of a layer, by path without the leading slash.
#[derive(Debug, Default)]
pub(crate) struct Layer {
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug)]
enum Entry {
    Folder { mode: u32 },
    File { mode: u32, bytes: Vec<u8> },
    Link { target: String },
}

impl Layer {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds a folder and its parents.
    pub(crate) fn directory(&mut self, path: &str, mode: u32) -> Result<(), Error> {
        let name = self.place(path)?;
        self.entries.insert(name, Entry::Folder { mode });
        Ok(())
    }

    /// Adds a file and its parent folders.
    pub(crate) fn file(&mut self, path: &str, mode: u32, bytes: Vec<u8>) -> Result<(), Error> {
        let name = self.place(path)?;
        self.entries.insert(name, Entry::File { mode, bytes });
        Ok(())
    }

    /// Adds a symbolic link and its parent folders.
    pub(crate) fn link(&mut self, path: &str, target: &str) -> Result<(), Error> {
        let name = self.place(path)?;
        if target.is_empty() || target.contains(char::is_control) {
            return Err(Error::Path { path: target.to_owned() });
        }
        self.entries.insert(name, Entry::Link { target: target.to_owned() });
        Ok(())
    }

    /// Returns the name of a new entry, and adds its parent folders.
    fn place(&mut self, path: &str) -> Result<String, Error> {
        let refused = || Error::Path { path: path.to_owned() };
        let name = path.strip_prefix('/').ok_or_else(refused)?;
        let usual = |part: &str| !matches!(part, "" | "." | "..") && !part.contains(char::is_control);
        if !name.split('/').all(usual) || self.entries.contains_key(name) {
            return Err(refused());
        }
        for (end, _) in name.match_indices('/') {
            let folder = self.entries.entry(name[..end].to_owned()).or_insert(Entry::Folder { mode: FOLDER });
            if !matches!(folder, Entry::Folder { .. }) {
                return Err(refused());
            }
        }
        Ok(name.to_owned())
    }

    /// Returns the layer's bytes. A folder's name sorts before the names in it, so it comes first.
    pub(crate) fn into_tar(self) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        for (name, entry) in self.entries {
            match entry {
                Entry::Folder { mode } => {
                    append(&mut tar, &(name + "/"), mode, tar::EntryType::Directory, &[]);
                }
                Entry::File { mode, bytes } => {
                    append(&mut tar, &name, mode, tar::EntryType::Regular, &bytes);
                }
                Entry::Link { target } => tar
                    .append_link(&mut header(LINK, tar::EntryType::Symlink), &name, &target)
                    .expect("memory takes all that is written, names were checked"),
            }
        }
        tar.into_inner().expect("memory takes all that is written")
    }
}

/// Adds an entry of user 0 and group 0 without a time.
pub(crate) fn append(
    tar: &mut tar::Builder<Vec<u8>>,
    name: &str,
    mode: u32,
    kind: tar::EntryType,
    bytes: &[u8],
) {
    let mut header = header(mode, kind);
    header.set_size(bytes.len() as u64);
    tar.append_data(&mut header, name, bytes).expect("memory takes all that is written, names were checked");
}

fn header(mode: u32, kind: tar::EntryType) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(0);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(layer: Layer) -> Vec<(String, u32, u64)> {
        let bytes = layer.into_tar();
        let mut archive = tar::Archive::new(&bytes[..]);
        let entries = archive.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let header = entry.header();
            assert_eq!((header.uid().unwrap(), header.gid().unwrap(), header.mtime().unwrap()), (0, 0, 0));
            assert_eq!((header.username().unwrap(), header.groupname().unwrap()), (Some(""), Some("")));
            let name = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
            (name, header.mode().unwrap(), entry.size())
        });
        entries.collect()
    }

    #[test]
    fn entries_are_sorted_and_every_folder_precedes_its_content() {
        let long = format!("/opt/{}/x", "very-long-name".repeat(12));
        let mut layer = Layer::new();
        layer.file("/usr/local/bin/b", 0o755, b"bb".into()).unwrap();
        layer.directory("/tmp", 0o1777).unwrap();
        layer.file("/usr/local/bin/a", 0o644, b"a".into()).unwrap();
        layer.file(&long, 0o600, Vec::new()).unwrap();
        let wanted = [
            ("opt/".to_owned(), 0o755, 0),
            (long[1..].trim_end_matches('x').to_owned(), 0o755, 0),
            (long[1..].to_owned(), 0o600, 0),
            ("tmp/".to_owned(), 0o1777, 0),
            ("usr/".to_owned(), 0o755, 0),
            ("usr/local/".to_owned(), 0o755, 0),
            ("usr/local/bin/".to_owned(), 0o755, 0),
            ("usr/local/bin/a".to_owned(), 0o644, 1),
            ("usr/local/bin/b".to_owned(), 0o755, 2),
        ];
        assert_eq!(listing(layer), wanted);
    }

    #[test]
    fn a_link_has_a_target_and_no_entries_below_it() {
        let mut layer = Layer::new();
        layer.link("/bin/sh", "busybox").unwrap();
        for (path, target) in
            [("/bin/sh", "x"), ("/bin/sh/x", "x"), ("/bin/../x", "x"), ("/y", ""), ("/y", "a\0")]
        {
            let refused = layer.link(path, target);
            assert!(matches!(refused, Err(Error::Path { .. })), "{path:?} to {target:?} was taken");
        }
        assert_eq!(listing(layer), [("bin/".to_owned(), 0o755, 0), ("bin/sh".to_owned(), 0o777, 0)]);
        let mut layer = Layer::new();
        layer.link("/bin/sh", "busybox").unwrap();
        let bytes = layer.into_tar();
        let mut archive = tar::Archive::new(&bytes[..]);
        let link = archive.entries().unwrap().nth(1).unwrap().unwrap();
        assert_eq!(link.header().entry_type(), tar::EntryType::Symlink);
        assert_eq!(link.link_name_bytes().unwrap(), &b"busybox"[..]);
    }

    #[test]
    fn the_order_of_adding_does_not_matter() {
        let layer = |paths: [&str; 3]| {
            let mut layer = Layer::new();
            for path in paths {
                layer.file(path, 0o644, path.into()).unwrap();
            }
            layer.into_tar()
        };
        assert_eq!(layer(["/a", "/b/c", "/b/d"]), layer(["/b/d", "/a", "/b/c"]));
    }

    #[test]
    fn paths_outside_the_image_and_conflicting_paths_are_rejected() {
        let mut layer = Layer::new();
        layer.file("/a/b", 0o644, Vec::new()).unwrap();
        for path in
            ["", "/", "a", "/../a", "/a/../b", "/a//b", "/a/./b", "/a/", "/a/b", "/a", "/a/b/c", "/x\0"]
        {
            let refused = layer.file(path, 0o644, Vec::new());
            assert!(matches!(refused, Err(Error::Path { .. })), "{path:?} was taken");
        }
    }
}
