//! Opens the browser of the user's desktop, with the program that the system has for it.
//!
//! It depends on no desktop library. The browser gets a process group of its own, so that Ctrl-C in
//! the terminal does not close it, and no standard input; its standard output goes to standard
//! error, because kubectl reads the standard output of this process.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::environment::Environment;
use crate::platform::{MORE_DIRECTORIES, NEEDS_DISPLAY, OPENERS, is_program_file, own_process_group};

/// The time for which the end of the program is awaited. A program that still runs after it counts
/// as successful, because some programs run for as long as the browser does.
const EXIT_TIMEOUT: Duration = Duration::from_secs(3);

/// No browser was opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum BrowserError {
    /// The session has no display.
    #[error("this is an SSH session without a display")]
    NoDisplay,
    /// No program was found.
    #[error("exec: \"{}\": executable file not found in $PATH", OPENERS.map(|(name, _)| name).join(","))]
    NoProgram,
    /// The program cannot be run.
    #[error("could not run {}", .program.display())]
    Run {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The program failed.
    #[error("{} failed: {status}", .program.display())]
    Failed { program: PathBuf, status: std::process::ExitStatus },
}

/// The browser of the session, which opens addresses.
#[derive(Debug)]
pub(super) struct Browser {
    path: Option<String>,
    /// Whether this is an SSH session.
    ssh: bool,
    /// Whether a browser could be displayed.
    display: bool,
}

impl Browser {
    /// Creates the browser of a session with this environment.
    pub(super) fn new(environment: &Environment) -> Self {
        let set = |name| environment.non_empty(name).is_some();
        Self {
            path: environment.variable("PATH").map(str::to_owned),
            ssh: set("SSH_CONNECTION"),
            display: !NEEDS_DISPLAY || ["DISPLAY", "WAYLAND_DISPLAY", "BROWSER"].into_iter().any(set),
        }
    }

    /// Returns whether this is an SSH session: a browser on this machine is not that of the user.
    pub(super) fn is_remote(&self) -> bool {
        self.ssh
    }

    /// Opens an address.
    pub(super) async fn open(&self, url: &str) -> Result<(), BrowserError> {
        if self.ssh && !self.display {
            return Err(BrowserError::NoDisplay);
        }
        let (program, arguments) = self.find().ok_or(BrowserError::NoProgram)?;
        let failed = |source| BrowserError::Run { program: program.clone(), source };
        let mut command = Command::new(&program);
        command.args(arguments).arg(url).stdin(Stdio::null()).stdout(io::stderr());
        own_process_group(command.as_std_mut());
        let mut child = command.spawn().map_err(failed)?;
        match tokio::time::timeout(EXIT_TIMEOUT, child.wait()).await {
            Err(_runs) => Ok(()),
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(BrowserError::Failed { program, status }),
            Ok(Err(source)) => Err(failed(source)),
        }
    }

    fn find(&self) -> Option<(PathBuf, &'static [&'static str])> {
        let listed = self.path.iter().flat_map(std::env::split_paths);
        let directories: Vec<PathBuf> = listed.chain(MORE_DIRECTORIES.map(PathBuf::from)).collect();
        OPENERS.into_iter().find_map(|(name, arguments)| {
            let found =
                directories.iter().map(|directory| directory.join(name)).find(|path| is_program(path));
            Some((found?, arguments))
        })
    }
}

/// Returns whether a file can be run. A relative path is not: it depends on the directory in which
/// kubectl was started.
fn is_program(path: &Path) -> bool {
    path.is_absolute() && path.metadata().is_ok_and(|found| found.is_file() && is_program_file(&found))
}

#[cfg(all(test, unix, not(target_os = "macos")))]
mod tests {
    use std::collections::HashMap;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn browser(variables: &[(&str, &str)]) -> Browser {
        let variables: HashMap<String, String> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Browser::new(&Environment::new(Vec::new(), variables))
    }

    #[tokio::test]
    async fn the_first_program_of_the_path_gets_the_address() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_str().unwrap();
        let script = dir.path().join("xdg-open");
        let write = |text: &str| {
            std::fs::write(&script, text).unwrap();
            std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        write(&format!("#!/bin/sh\n/bin/echo \"$1\" > {path}/opened\n"));
        browser(&[("PATH", path)]).open("https://a/?b&c").await.unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("opened")).unwrap(), "https://a/?b&c\n");
        write("#!/bin/sh\nexit 3\n");
        let error = browser(&[("PATH", path)]).open("https://a").await.unwrap_err();
        assert!(matches!(error, BrowserError::Failed { .. }), "{error}");
    }

    #[tokio::test]
    async fn an_ssh_session_needs_a_display() {
        let ssh = ("SSH_CONNECTION", "1.2.3.4 1 1.2.3.4 22");
        let remote = browser(&[ssh]);
        assert!(remote.is_remote());
        assert!(matches!(remote.open("https://a").await, Err(BrowserError::NoDisplay)));
        assert!(browser(&[ssh, ("DISPLAY", ":0")]).display);
        assert!(!browser(&[]).is_remote());
    }

    #[test]
    fn programs_are_not_looked_for_in_relative_directories() {
        assert!(!is_program(Path::new("xdg-open")) && !is_program(Path::new("./xdg-open")));
        assert!(is_program(Path::new("/bin/sh")) && !is_program(Path::new("/bin")));
    }
}
