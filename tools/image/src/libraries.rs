//! Finds the shared libraries of an image, and their paths in it.
//!
//! The names come from the files (`DT_NEEDED`, followed recursively). The paths come from the
//! loader that the program names: `loader --list program` maps the program exactly as for its
//! execution, including run paths and caches, and executes none of it. Only needed names are used,
//! which excludes the machine's preloaded libraries.
//!
//! In the image every library is in the folder of the C library, because that is the only folder
//! that the loader searches without a cache. The loader itself is at the path that programs name
//! (`PT_INTERP`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::elf::{self, Elf};
use crate::error::Error;
use crate::image::{elf_error, read};
use crate::origin::{self, Origin};

/// The C library's own DNS resolver. Where it is built in (glibc 2.34 and later), name resolution
/// loads no other library.
const BUILT_IN_DNS: &str = "_nss_dns_gethostbyname4_r";
/// Libraries that an older glibc loads by name during name resolution, so that no file lists them.
const NAME_SERVICES: [&str; 2] = ["libnss_dns.so.2", "libnss_files.so.2"];

/// A shared library, or the loader, in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// The name by which programs load it.
    pub name: String,
    /// Its path on this machine.
    pub path: PathBuf,
    /// Its path in the image.
    pub inside: String,
    /// Its package.
    pub origin: Origin,
}

/// The libraries of the programs so far.
#[derive(Debug, Default)]
pub(crate) struct Libraries {
    /// Loaders by the path that programs name.
    loaders: BTreeMap<String, PathBuf>,
    /// Paths on this machine by name.
    found: BTreeMap<String, PathBuf>,
}

impl Libraries {
    /// Adds all libraries of a program. Static programs need none.
    pub(crate) fn add_program(&mut self, program: &Path, elf: &Elf) -> Result<(), Error> {
        let Some(loader) = &elf.interpreter else { return Ok(()) };
        let places = list(Path::new(loader), program)?;
        self.loaders.insert(loader.clone(), loader.into());
        self.add_closure(program, elf, &|name| places.get(name).cloned())
    }

    /// Adds the direct and indirect libraries of a file.
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
            // The C library lists the loader as needed, which is already loaded at that time.
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

    /// Returns all libraries sorted by their path in the image, with their packages.
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

    /// Adds the libraries that the C library loads for name resolution.
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

/// Runs the loader to locate a program's libraries.
fn list(loader: &Path, program: &Path) -> Result<BTreeMap<String, PathBuf>, Error> {
    let failed = |message: String| Error::Loader {
        loader: loader.to_owned(),
        program: program.to_owned(),
        message: message.trim().to_owned(),
    };
    let mut command = Command::new(loader);
    command.arg("--list").arg(program);
    // These variables would change the result.
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

/// Returns the library that glibc's loader reports as missing.
fn missing(printed: &str) -> Option<&str> {
    let (_, rest) = printed.split_once("error while loading shared libraries: ")?;
    Some(rest.split_once(": cannot open shared object file")?.0)
}

/// Parses lines such as `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f5b8a000000)`.
fn places(listed: &str) -> BTreeMap<String, PathBuf> {
    let line = |line: &str| {
        let (name, rest) = line.trim().split_once(" => ")?;
        let path = rest.rsplit_once(" (0x").map_or(rest, |(path, _)| path);
        path.starts_with('/').then(|| (name.to_owned(), PathBuf::from(path)))
    };
    listed.lines().filter_map(line).collect()
}

/// Replaces a library that was selected for this machine's processor by the one for every processor
/// of the architecture (`glibc-hwcaps/x86-64-v3/libx.so` is below the folder of the plain
/// `libx.so`).
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
    fn the_output_of_the_loader_is_parsed() {
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
    fn a_library_selected_for_this_processor_is_replaced_by_the_plain_one() {
        let folder = tempfile::tempdir().unwrap();
        let chosen = folder.path().join("glibc-hwcaps/x86-64-v3");
        std::fs::create_dir_all(&chosen).unwrap();
        assert_eq!(plain(&chosen.join("libx.so")), chosen.join("libx.so"), "there is no plain one");
        std::fs::write(folder.path().join("libx.so"), "").unwrap();
        assert_eq!(plain(&chosen.join("libx.so")), folder.path().join("libx.so"));
        assert_eq!(plain(Path::new("/lib/libx.so")), Path::new("/lib/libx.so"));
    }
}
