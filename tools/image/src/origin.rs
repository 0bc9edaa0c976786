//! Finds the system package of a file.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The origin of a system file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A package of the system.
    Package {
        /// Its name.
        name: String,
        /// Its version, including the distribution's.
        version: String,
    },
    /// A file that belongs to no package: its path after following links.
    Path(PathBuf),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Package { name, version } => write!(f, "{name} {version}"),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

/// Queries the available package managers.
pub(crate) fn of(path: &Path) -> Origin {
    let canonical = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    for name in names(path, &canonical) {
        if let Some(package) = debian(&name).or_else(|| rpm(&name)) {
            return package;
        }
    }
    Origin::Path(canonical)
}

/// Returns the paths under which a package may have registered a file: `/lib` and `/usr/lib` are
/// the same folder on most systems, and packages use either.
fn names(path: &Path, canonical: &Path) -> Vec<PathBuf> {
    let mut names = vec![path.to_owned()];
    for path in [path, canonical] {
        let other = match path.strip_prefix("/usr") {
            Ok(rest) => Path::new("/").join(rest),
            Err(_) => Path::new("/usr").join(path.strip_prefix("/").unwrap_or(path)),
        };
        names.extend([path.to_owned(), other]);
    }
    names.dedup();
    names
}

fn debian(path: &Path) -> Option<Origin> {
    // `libc6:amd64: /lib/x86_64-linux-gnu/libc.so.6`
    let owners = output(Command::new("dpkg").arg("-S").arg(path))?;
    let owner = owners.lines().find(|line| !line.starts_with("diversion "))?.rsplit_once(": ")?.0;
    let owner = owner.split(", ").next()?;
    let version = output(Command::new("dpkg-query").args(["-W", "-f", "${Version}", owner]))?;
    Some(Origin::Package { name: owner.to_owned(), version })
}

fn rpm(path: &Path) -> Option<Origin> {
    let owner =
        output(Command::new("rpm").args(["-qf", "--qf", "%{NAME} %{VERSION}-%{RELEASE}\n"]).arg(path))?;
    let (name, version) = owner.lines().next()?.split_once(' ')?;
    Some(Origin::Package { name: name.to_owned(), version: version.to_owned() })
}

/// Returns the output of a program that exists and succeeds.
fn output(command: &mut Command) -> Option<String> {
    let output = command.env("LC_ALL", "C").output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok().filter(|text| !text.is_empty())
}
