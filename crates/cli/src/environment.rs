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
        Self { executable: std::env::current_exe().ok(), ..Self::new(args, variables) }
    }

    /// An environment made of values.
    pub fn new(args: Vec<String>, variables: HashMap<String, String>) -> Self {
        let set = |name: &str| variables.get(name).filter(|value| !value.is_empty()).cloned();
        let home = if cfg!(windows) { set("USERPROFILE") } else { set("HOME") };
        Self { args, kubeconfig: set(KUBECONFIG), home: home.map(PathBuf::from), executable: None, variables }
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

    /// The path of a file in the directory for caches; `None` without a home directory.
    pub fn config_file(&self, name: &str) -> Option<String> {
        let parent = match self.non_empty(XDG_CONFIG_HOME) {
            Some(dir) => PathBuf::from(dir),
            None => self.home.as_ref()?.join(".config"),
        };
        Some(parent.join("pinniped").join(name).to_string_lossy().into_owned())
    }
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
    fn debug_wants_exactly_true() {
        assert!(with(&[("PINNIPED_DEBUG", "true")]).debug());
        assert!(!with(&[("PINNIPED_DEBUG", "1")]).debug());
        assert!(!with(&[]).debug());
    }
}
