//! Programs that Debian packages, for tests that need a typical distribution: an old kubectl, and a
//! shell for containers.
//!
//! apt downloads them, and they are unpacked into the user's cache; nothing is installed, and root
//! is not needed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use super::{cache, succeed};

/// Environment variable with a folder of the programs, in place of the cache.
pub(crate) const ENV: &str = "PINNIPED_DEBIAN_TOOLS";
/// Folder of the cache. Another version of a package uses another folder.
const KEY: &str = "kubectl-1.20-busybox";

/// The keys of Debian's package lists, on Debian and, with a package, on Ubuntu.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A program of a package.
struct Program {
    name: &'static str,
    /// The package, as an argument of apt.
    package: &'static str,
    /// The possible paths in the package; Debian moved `/bin` into `/usr`.
    inside: [&'static str; 2],
    /// Arguments that identify the program, and the expected part of its output.
    version_args: &'static [&'static str],
    version_output: &'static str,
}

const PROGRAMS: [Program; 2] = [
    Program {
        name: "kubectl",
        package: "kubernetes-client=1.20*",
        inside: ["usr/bin/kubectl", "usr/bin/kubectl"],
        version_args: &["version", "--client", "--short"],
        version_output: "v1.20.",
    },
    Program {
        name: "busybox",
        package: "busybox-static",
        inside: ["bin/busybox", "usr/bin/busybox"],
        version_args: &["--list"],
        version_output: "httpd",
    },
];

/// Returns the folder with `kubectl` 1.20 and `busybox`.
///
/// # Errors
/// Returns an error with the reason when they are neither cached nor available.
pub(crate) fn find_or_fetch(offline: bool) -> anyhow::Result<PathBuf> {
    if let Some(dir) = std::env::var_os(ENV).map(PathBuf::from) {
        return check(&dir).map(|()| dir).context(ENV);
    }
    let dir = cache::fetched("debian", KEY, |work| {
        anyhow::ensure!(
            !offline,
            "offline, and these packages are not in the cache yet: kubernetes-client, busybox-static; run the same \
             command once with network"
        );
        eprintln!("fetching Debian's kubectl 1.20 and busybox once (9 MB)");
        fetch(work)
    })?;
    check(&dir).map(|()| dir)
}

/// Downloads packages into `work` and moves their programs into a folder of it.
fn fetch(work: &Path) -> anyhow::Result<PathBuf> {
    let packages = PROGRAMS.map(|program| program.package);
    let first = apt(work, &[]).arg("download").args(packages).output();
    let first = first.context(
        "`apt-get` is not installed: these programs are available on Debian and derived distributions only",
    )?;
    if !first.status.success() {
        // The machine has no package lists, outdated ones, or those of another release or
        // distribution: download the lists of Debian 12, which has these packages.
        let (lists, archives) = (work.join("lists"), work.join("archives"));
        for folder in [&lists, &archives] {
            std::fs::create_dir_all(folder.join("partial")).context("could not create a folder for apt")?;
        }
        anyhow::ensure!(
            Path::new(KEYRING).is_file(),
            "{KEYRING} is missing (package debian-archive-keyring), and this machine's own packages lack one of {}",
            packages.join(", ")
        );
        let sources = work.join("debian.list");
        std::fs::write(
            &sources,
            format!("deb [signed-by={KEYRING}] http://deb.debian.org/debian bookworm main\n"),
        )
        .context("could not write a list of package sources")?;
        let options = [
            format!("Dir::Etc::sourcelist={}", sources.display()),
            "Dir::Etc::sourceparts=-".to_owned(),
            format!("Dir::State::lists={}", lists.display()),
            format!("Dir::Cache::archives={}", archives.display()),
            "Dir::Cache::pkgcache=".to_owned(),
            "Dir::Cache::srcpkgcache=".to_owned(),
        ];
        succeed(apt(work, &options).arg("update"), "apt-get update")?;
        succeed(apt(work, &options).arg("download").args(packages), "apt-get download")?;
    }
    let fresh = work.join("programs");
    std::fs::create_dir(&fresh).context("could not create a folder for the programs")?;
    for program in &PROGRAMS {
        unpack(work, program, &fresh)?;
    }
    check(&fresh)?;
    Ok(fresh)
}

/// Returns apt, configured to write as the current user.
fn apt(work: &Path, options: &[String]) -> Command {
    let mut command = Command::new("apt-get");
    command.current_dir(work).env("LC_ALL", "C").args(["-q", "-o", "APT::Sandbox::User=root"]);
    for option in options {
        command.args(["-o", option]);
    }
    command
}

fn unpack(work: &Path, program: &Program, to: &Path) -> anyhow::Result<()> {
    let package = program.package.split('=').next().unwrap_or_default();
    let archive = std::fs::read_dir(work)?.flatten().map(|entry| entry.path()).find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(&format!("{package}_")) && name.ends_with(".deb")
    });
    let archive = archive.with_context(|| format!("apt fetched no {package}"))?;
    let all = work.join(package);
    succeed(Command::new("dpkg-deb").arg("--extract").arg(&archive).arg(&all), "dpkg-deb")?;
    let found = program.inside.iter().map(|path| all.join(path)).find(|path| path.is_file());
    let found =
        found.with_context(|| format!("there is no {} in {}", program.inside[0], archive.display()))?;
    std::fs::rename(&found, to.join(program.name)).context("could not extract a program from a package")
}

/// Checks that the programs exist and are the expected ones.
fn check(dir: &Path) -> anyhow::Result<()> {
    for Program { name, version_args, version_output, .. } in &PROGRAMS {
        let file = dir.join(name);
        let output = Command::new(&file).args(*version_args).output();
        let output = output.with_context(|| format!("{} does not run", file.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        anyhow::ensure!(
            text.contains(version_output),
            "{} does not print {version_output:?}, but: {}",
            file.display(),
            text.trim()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn unexpected_programs_are_rejected_by_name() {
        let dir = std::env::temp_dir().join(format!("pinniped-xtask-debian-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let write = |name: &str, output: &str| {
            let file = dir.join(name);
            std::fs::write(&file, format!("#!/bin/sh\necho {output}\n")).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        assert!(check(&dir).unwrap_err().to_string().ends_with("kubectl does not run"));
        write("kubectl", "Client Version: v1.32.4");
        let wanted = "kubectl does not print \"v1.20.\", but: Client Version: v1.32.4";
        assert!(check(&dir).unwrap_err().to_string().ends_with(wanted));
        write("kubectl", "Client Version: v1.20.2");
        write("busybox", "httpd");
        check(&dir).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
