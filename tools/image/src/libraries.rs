//! Which shared libraries an image must carry, and where in it they go.
//!
//! The names come from the files themselves (`DT_NEEDED`, followed to the end). The places come from the loader
//! that the program names: `loader --list program` maps it exactly as it would be run, run paths, caches and all,
//! and runs nothing of it. Taking only names that are needed keeps out what the machine preloads.
//!
//! In the image every library lies in the folder of the C library, because that is the one folder in which its
//! loader looks without a cache. The loader itself lies where programs name it (`PT_INTERP`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::elf::{self, Elf};
use crate::error::Error;
use crate::image::{elf_error, read};
use crate::origin::{self, Origin};

/// The C library's own resolver of host names by DNS. Where it is built in (glibc 2.34 and later), no other
/// library is loaded for names.
const BUILT_IN_DNS: &str = "_nss_dns_gethostbyname4_r";
/// What an older glibc loads by name while it looks up a host, so that no file says it is needed.
const NAME_SERVICES: [&str; 2] = ["libnss_dns.so.2", "libnss_files.so.2"];

/// A shared library, or the loader, that an image carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// The name under which it is looked up.
    pub name: String,
    /// Where on this machine it was taken from.
    pub path: PathBuf,
    /// Its path in the image.
    pub inside: String,
    /// Which package it is from.
    pub origin: Origin,
}

/// The libraries of the programs so far.
#[derive(Debug, Default)]
pub(crate) struct Libraries {
    /// Loaders, by the path that programs name.
    loaders: BTreeMap<String, PathBuf>,
    /// Places on this machine, by name.
    found: BTreeMap<String, PathBuf>,
}

impl Libraries {
    /// Adds all that a program needs. Static programs need nothing.
    pub(crate) fn add_program(&mut self, program: &Path, elf: &Elf) -> Result<(), Error> {
        let Some(loader) = &elf.interpreter else { return Ok(()) };
        let places = list(Path::new(loader), program)?;
        self.loaders.insert(loader.clone(), loader.into());
        self.add_closure(program, elf, &|name| places.get(name).cloned())
    }

    /// Walks from one file to all it needs, directly or not.
    fn add_closure(
        &mut self,
        user: &Path,
        elf: &Elf,
        place: &dyn Fn(&str) -> Option<PathBuf>,
    ) -> Result<(), Error> {
        let wanted = |user: &Path, elf: &Elf| {
            elf.needed.iter().map(|name| (name.clone(), user.to_owned())).collect::<Vec<_>>()
        };
        let mut open = wanted(user, elf);
        let mut walked = Vec::new();
        while let Some((name, user)) = open.pop() {
            // The C library says that it needs the loader, which is there already when it is loaded.
            let is_loader = |path: &PathBuf| path.file_name().is_some_and(|file| file == name.as_str());
            if walked.contains(&name) || self.loaders.values().any(is_loader) {
                continue;
            }
            let missing = || Error::LibraryMissing { name: name.clone(), user: user.clone() };
            let path = plain(&place(&name).ok_or_else(missing)?);
            if let Some(before) = self.found.get(&name)
                && !same_file(before, &path)
            {
                return Err(Error::LibraryTwice { name, one: before.clone(), other: path });
            }
            let elf = elf::read(&read(&path)?).map_err(|source| elf_error(&path, source))?;
            open.extend(wanted(&path, &elf.unwrap_or_default()));
            self.found.insert(name.clone(), path);
            walked.push(name);
        }
        Ok(())
    }

    /// All of them, sorted by their path in the image, with origins.
    pub(crate) fn finish(mut self) -> Result<Vec<Library>, Error> {
        self.add_name_services()?;
        let c_library = self.found.iter().find(|(name, _)| name.starts_with("libc."));
        let folder = match c_library.map(|(_, path)| path).or_else(|| self.loaders.values().next()) {
            None => return Ok(Vec::new()),
            Some(path) => path.parent().unwrap_or(Path::new("/")).to_owned(),
        };
        let mut all = Vec::new();
        for (inside, path) in self.loaders {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            all.push((inside, name, path));
        }
        for (name, path) in self.found {
            all.push((folder.join(&name).to_string_lossy().into_owned(), name, path));
        }
        all.sort();
        let library = |(inside, name, path): (String, String, PathBuf)| {
            let origin = origin::of(&path);
            Library { name, path, inside, origin }
        };
        Ok(all.into_iter().map(library).collect())
    }

    /// What the C library loads to look up names.
    fn add_name_services(&mut self) -> Result<(), Error> {
        let Some(glibc) = self.found.get("libc.so.6").cloned() else { return Ok(()) };
        if elf::defines(&read(&glibc)?, BUILT_IN_DNS).map_err(|source| elf_error(&glibc, source))? {
            return Ok(());
        }
        let folder = glibc.parent().unwrap_or(Path::new("/")).to_owned();
        let needed = Elf { needed: NAME_SERVICES.map(str::to_owned).into(), ..Elf::default() };
        self.add_closure(&glibc, &needed, &|name| Some(folder.join(name)).filter(|path| path.is_file()))
    }
}

/// Asks the loader where it finds a program's libraries.
fn list(loader: &Path, program: &Path) -> Result<BTreeMap<String, PathBuf>, Error> {
    let failed = |message: String| Error::Loader {
        loader: loader.to_owned(),
        program: program.to_owned(),
        message: message.trim().to_owned(),
    };
    let mut command = Command::new(loader);
    command.arg("--list").arg(program);
    // These would change what is found.
    for name in ["LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "LD_DEBUG", "LD_TRACE_LOADED_OBJECTS"] {
        command.env_remove(name);
    }
    command.env("LC_ALL", "C");
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    let printed = String::from_utf8_lossy(&output.stderr);
    if let Some(name) = missing(&printed) {
        return Err(Error::LibraryMissing { name: name.to_owned(), user: program.to_owned() });
    }
    if !output.status.success() {
        return Err(failed(format!("{}: {printed}", output.status)));
    }
    Ok(places(&String::from_utf8_lossy(&output.stdout)))
}

/// The library that glibc's loader says it cannot find.
fn missing(printed: &str) -> Option<&str> {
    let (_, rest) = printed.split_once("error while loading shared libraries: ")?;
    Some(rest.split_once(": cannot open shared object file")?.0)
}

/// Reads lines such as `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f5b8a000000)`.
fn places(listed: &str) -> BTreeMap<String, PathBuf> {
    let line = |line: &str| {
        let (name, rest) = line.trim().split_once(" => ")?;
        let path = rest.rsplit_once(" (0x").map_or(rest, |(path, _)| path);
        path.starts_with('/').then(|| (name.to_owned(), PathBuf::from(path)))
    };
    listed.lines().filter_map(line).collect()
}

/// A library for every processor of the kind, in place of one chosen for this machine's own abilities
/// (`glibc-hwcaps/x86-64-v3/libx.so` lies below the folder of the plain `libx.so`).
fn plain(path: &Path) -> PathBuf {
    let chosen = || {
        let file = path.file_name()?;
        let hwcaps = path.parent()?.parent()?;
        let plain =
            hwcaps.file_name().filter(|name| *name == "glibc-hwcaps").and(hwcaps.parent())?.join(file);
        plain.is_file().then_some(plain)
    };
    chosen().unwrap_or_else(|| path.to_owned())
}

fn same_file(one: &Path, other: &Path) -> bool {
    one == other || one.canonicalize().ok().zip(other.canonicalize().ok()).is_some_and(|(a, b)| a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loaders_list_is_read() {
        let listed = "\tlinux-vdso.so.1 (0x00007f51f615d000)\n\
                      \tlibgcc_s.so.1 => /lib/x86_64-linux-gnu/libgcc_s.so.1 (0x00007f51f612c000)\n\
                      \tlibodd.so => /opt/a (b)/libodd.so (0x1)\n\
                      \tlibc.musl-x86_64.so.1 => /lib/ld-musl-x86_64.so.1 (0x7f00)\n\
                      \t/lib64/ld-linux-x86-64.so.2 (0x00007f51f615f000)\n\
                      \tlibnone.so => not found\n";
        let wanted = [
            ("libc.musl-x86_64.so.1", "/lib/ld-musl-x86_64.so.1"),
            ("libgcc_s.so.1", "/lib/x86_64-linux-gnu/libgcc_s.so.1"),
            ("libodd.so", "/opt/a (b)/libodd.so"),
        ];
        let found = places(listed);
        let found: Vec<_> =
            found.iter().map(|(name, path)| (name.as_str(), path.to_str().unwrap())).collect();
        assert_eq!(found, wanted);
    }

    #[test]
    fn a_library_chosen_for_this_processor_is_replaced_by_the_plain_one() {
        let folder = tempfile::tempdir().unwrap();
        let chosen = folder.path().join("glibc-hwcaps/x86-64-v3");
        std::fs::create_dir_all(&chosen).unwrap();
        assert_eq!(plain(&chosen.join("libx.so")), chosen.join("libx.so"), "there is no plain one");
        std::fs::write(folder.path().join("libx.so"), "").unwrap();
        assert_eq!(plain(&chosen.join("libx.so")), folder.path().join("libx.so"));
        assert_eq!(plain(Path::new("/lib/libx.so")), Path::new("/lib/libx.so"));
    }
}
