//! Everything the program takes from its process, read once: environment variables, arguments, own path.
//!
//! Nothing below `main` looks at the process, so that every part can be tested with values.

use std::collections::HashMap;
use std::path::PathBuf;

/// Default of `--kubeconfig`; a list as kubectl has it.
pub const KUBECONFIG: &str = "KUBECONFIG";
/// Parent of the directory for caches.
pub const XDG_CONFIG_HOME: &str = "XDG_CONFIG_HOME";
/// Exactly `true` turns on debug logs of the login commands.
pub const PINNIPED_DEBUG: &str = "PINNIPED_DEBUG";
/// What kubectl tells an exec plugin.
pub const KUBERNETES_EXEC_INFO: &str = "KUBERNETES_EXEC_INFO";
/// Exactly `true` makes the plugin tell which headers go with a service account's token. For a kubectl that sends them.
pub const PINNIPED_EXEC_REQUEST_HEADERS: &str = "PINNIPED_EXEC_REQUEST_HEADERS";
/// The digest of the identity that kubectl was told to impersonate by flags.
pub const PINNIPED_EXPECTED_IDENTITY: &str = "PINNIPED_EXPECTED_IDENTITY";
/// Set by this program for the child that renews a credential in the background.
pub const PINNIPED_RENEW_IN_BACKGROUND: &str = "PINNIPED_RENEW_IN_BACKGROUND";

/// What the process was given.
#[derive(Clone, Default)]
pub struct Environment {
    /// Arguments after the program's name.
    pub args: Vec<String>,
    /// `KUBECONFIG`, unless empty.
    pub kubeconfig: Option<String>,
    /// The home directory, unless empty.
    pub home: Option<PathBuf>,
    /// The absolute path of the running program, or why it is not known.
    pub executable: Option<PathBuf>,
    /// The process that runs this one.
    pub parent: Option<u32>,
    pub(crate) variables: HashMap<String, String>,
}

/// The environment may hold tokens: only its shape is shown.
impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Environment").field("variables", &self.variables.len()).finish_non_exhaustive()
    }
}

impl Environment {
    /// Reads the process. Variables and arguments that are not Unicode lose what cannot be read.
    pub fn of_this_process() -> Self {
        let variables: HashMap<String, String> = std::env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
            .collect();
        let args = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
        #[cfg(unix)]
        let parent = Some(std::os::unix::process::parent_id());
        #[cfg(not(unix))]
        let parent = None;
        Self { executable: std::env::current_exe().ok(), parent, ..Self::new(args, variables) }
    }

    /// An environment made of values.
    pub fn new(args: Vec<String>, variables: HashMap<String, String>) -> Self {
        let set = |name: &str| variables.get(name).filter(|value| !value.is_empty()).cloned();
        let home = if cfg!(windows) { set("USERPROFILE") } else { set("HOME") };
        let home = home.map(PathBuf::from);
        Self { args, kubeconfig: set(KUBECONFIG), home, executable: None, parent: None, variables }
    }

    /// The same with these variables set, as for a child process.
    #[must_use]
    pub fn with_variables(&self, more: HashMap<String, String>) -> Self {
        let mut variables = self.variables.clone();
        variables.extend(more);
        Self {
            executable: self.executable.clone(),
            parent: self.parent,
            ..Self::new(self.args.clone(), variables)
        }
    }

    /// The value of a variable, set or empty or `None`.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// The value of a variable that is set and not empty.
    pub fn non_empty(&self, name: &str) -> Option<&str> {
        self.variable(name).filter(|value| !value.is_empty())
    }

    /// Whether the login commands log debug messages.
    pub fn debug(&self) -> bool {
        self.variable(PINNIPED_DEBUG) == Some("true")
    }

    /// Whether whoever runs the plugin sends the headers that it tells of.
    pub fn sends_request_headers(&self) -> bool {
        self.variable(PINNIPED_EXEC_REQUEST_HEADERS) == Some("true")
    }

    /// The kubeconfig in the command line of the process that runs this one: kubectl tells its plugins what its
    /// variables say, but not its `--kubeconfig`. Only a hint, and only on Linux.
    pub fn kubeconfig_of_parent(&self) -> Option<PathBuf> {
        #[cfg(target_os = "linux")]
        {
            let line = std::fs::read(format!("/proc/{}/cmdline", self.parent?)).ok()?;
            kubeconfig_flag(line.split(|byte| *byte == 0).map(String::from_utf8_lossy))
        }
        #[cfg(not(target_os = "linux"))]
        None
    }

    /// The path of a file in the directory for caches; `None` without a home directory.
    pub fn config_file(&self, name: &str) -> Option<String> {
        let parent = match self.non_empty(XDG_CONFIG_HOME) {
            Some(dir) => PathBuf::from(dir),
            None => self.home.as_ref()?.join(".config"),
        };
        Some(parent.join("pinniped").join(name).to_string_lossy().into_owned())
    }
}

/// The last `--kubeconfig` before a `--`.
#[cfg(any(target_os = "linux", test))]
fn kubeconfig_flag<S: AsRef<str>>(args: impl IntoIterator<Item = S>) -> Option<PathBuf> {
    let mut found = None;
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        match arg.as_ref() {
            "--" => break,
            "--kubeconfig" => found = args.next().map(|path| PathBuf::from(path.as_ref())),
            arg => found = arg.strip_prefix("--kubeconfig=").map(PathBuf::from).or(found),
        }
    }
    found.filter(|path| !path.as_os_str().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Environment {
        let variables =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Environment::new(Vec::new(), variables)
    }

    #[test]
    fn caches_lie_in_the_config_home_or_in_the_home() {
        for (variables, path) in [
            (&[("XDG_CONFIG_HOME", "/x"), ("HOME", "/h")][..], Some("/x/pinniped/credentials.yaml")),
            (&[("XDG_CONFIG_HOME", ""), ("HOME", "/h")], Some("/h/.config/pinniped/credentials.yaml")),
            (&[("HOME", "/h")], Some("/h/.config/pinniped/credentials.yaml")),
            (&[("HOME", "")], None),
            (&[], None),
        ] {
            assert_eq!(with(variables).config_file("credentials.yaml").as_deref(), path, "{variables:?}");
        }
    }

    #[test]
    fn the_kubeconfig_of_a_command_line_is_found() {
        for (line, path) in [
            ("kubectl get pods --kubeconfig a", Some("a")),
            ("kubectl --kubeconfig=a get pods", Some("a")),
            ("kubectl --kubeconfig=a --kubeconfig b", Some("b")),
            ("kubectl exec p -- cmd --kubeconfig a", None),
            ("kubectl --kubeconfig", None),
            ("kubectl --kubeconfig= get", None),
        ] {
            assert_eq!(kubeconfig_flag(line.split(' ')), path.map(PathBuf::from), "{line}");
        }
    }

    #[test]
    fn debug_wants_exactly_true() {
        assert!(with(&[("PINNIPED_DEBUG", "true")]).debug());
        assert!(!with(&[("PINNIPED_DEBUG", "1")]).debug());
        assert!(!with(&[]).debug());
    }
}
