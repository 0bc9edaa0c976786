//! The inputs that the program takes from its process, read once: environment variables, arguments,
//! the path of the executable.
//!
//! Only `main` accesses the process, so that all other code can be tested with values.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use pinniped_http_client::proxy_environment::ProxyEnvironment;

use crate::platform;

/// The default of `--kubeconfig`; a list of paths as in kubectl.
pub const KUBECONFIG: &str = "KUBECONFIG";
/// The parent of the cache directory.
pub const XDG_CONFIG_HOME: &str = "XDG_CONFIG_HOME";
/// The value `true` enables debug logs of the login commands.
pub const PINNIPED_DEBUG: &str = "PINNIPED_DEBUG";
/// The cluster information that kubectl passes to an exec plugin.
pub const KUBERNETES_EXEC_INFO: &str = "KUBERNETES_EXEC_INFO";
/// The value `true` makes the plugin return the headers that a service account token needs, for a
/// kubectl that sends them.
pub const PINNIPED_EXEC_REQUEST_HEADERS: &str = "PINNIPED_EXEC_REQUEST_HEADERS";
/// The digest of the identity that the flags of kubectl impersonate.
pub const PINNIPED_EXPECTED_IDENTITY: &str = "PINNIPED_EXPECTED_IDENTITY";
/// Replaces `--upstream-identity-provider-flow`, even if it is empty.
pub const PINNIPED_UPSTREAM_IDENTITY_PROVIDER_FLOW: &str = "PINNIPED_UPSTREAM_IDENTITY_PROVIDER_FLOW";
/// The value `true` omits the address of the login if a browser was opened.
pub const PINNIPED_SKIP_PRINT_LOGIN_URL: &str = "PINNIPED_SKIP_PRINT_LOGIN_URL";
/// Replaces `--refresh-token-store`, unless it is empty.
pub const PINNIPED_REFRESH_TOKEN_STORE: &str = "PINNIPED_REFRESH_TOKEN_STORE";
/// The username for a login without a browser.
pub const PINNIPED_USERNAME: &str = "PINNIPED_USERNAME";
/// The password for a login without a browser.
pub const PINNIPED_PASSWORD: &str = "PINNIPED_PASSWORD";
/// Set by this program for the child that renews a credential in the background.
pub const PINNIPED_RENEW_IN_BACKGROUND: &str = "PINNIPED_RENEW_IN_BACKGROUND";

/// The file name by which kubectl finds its plugin `pinniped`.
const KUBECTL_PLUGIN: &str = "kubectl-pinniped";
/// The file name by which kubectl finds the completion of its plugin `pinniped`.
const KUBECTL_COMPLETION: &str = "kubectl_complete-pinniped";

/// The inputs of the process.
#[derive(Clone, Default)]
pub struct Environment {
    /// The arguments after the program name.
    pub args: Vec<String>,
    /// `KUBECONFIG`, unless empty.
    pub kubeconfig: Option<String>,
    /// The home directory, unless empty.
    pub home: Option<PathBuf>,
    /// The absolute path of the running program; `None` if unknown.
    pub executable: Option<PathBuf>,
    /// Whether kubectl started the program as its plugin: `kubectl pinniped`.
    pub kubectl_plugin: bool,
    /// The process ID of the parent.
    pub parent: Option<u32>,
    pub(crate) variables: HashMap<String, String>,
}

/// Prints no values, because environment variables may contain tokens.
impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Environment").field("variables", &self.variables.len()).finish_non_exhaustive()
    }
}

/// The proxies that the variables configure.
impl From<&Environment> for ProxyEnvironment {
    fn from(environment: &Environment) -> Self {
        Self::from_variables(|name| environment.non_empty(name).map(str::to_owned))
    }
}

impl Environment {
    /// Reads the inputs of the process. Invalid Unicode in variables and arguments is replaced.
    pub fn of_this_process() -> Self {
        let variables: HashMap<String, String> = std::env::vars_os()
            .map(|(name, value)| {
                let name = platform::variable_name(name.to_string_lossy()).into_owned();
                (name, value.to_string_lossy().into_owned())
            })
            .collect();
        let mut args = std::env::args_os();
        let called = Called::of(args.next().map(PathBuf::from));
        let args = args.map(|arg| arg.to_string_lossy().into_owned());
        let args = called.first_argument.iter().map(|word| (*word).to_owned()).chain(args).collect();
        Self {
            executable: called.executable.or_else(|| std::env::current_exe().ok()),
            kubectl_plugin: called.kubectl_plugin,
            parent: platform::parent_process(),
            ..Self::new(args, variables)
        }
    }

    /// Creates an environment from values.
    pub fn new(args: Vec<String>, variables: HashMap<String, String>) -> Self {
        let set = |name: &str| variables.get(name).filter(|value| !value.is_empty()).cloned();
        let home = set(platform::HOME).map(PathBuf::from);
        Self { args, kubeconfig: set(KUBECONFIG), home, variables, ..Self::default() }
    }

    /// Returns the environment for documents: defaults that depend on the user are printed as the
    /// variables that they come from.
    pub fn for_documents() -> Self {
        Self { kubeconfig: Some("$KUBECONFIG".into()), home: Some("$HOME".into()), ..Self::default() }
    }

    /// Returns a copy with these variables set, as for a child process.
    #[must_use]
    pub fn with_variables(&self, more: HashMap<String, String>) -> Self {
        let mut variables = self.variables.clone();
        let name = |name: String| platform::variable_name(name.into()).into_owned();
        variables.extend(more.into_iter().map(|(key, value)| (name(key), value)));
        Self {
            executable: self.executable.clone(),
            kubectl_plugin: self.kubectl_plugin,
            parent: self.parent,
            ..Self::new(self.args.clone(), variables)
        }
    }

    /// Returns the value of a variable, which may be empty, or `None`.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(&*platform::variable_name(name.into())).map(String::as_str)
    }

    /// Returns the value of a variable that is set and not empty.
    pub fn non_empty(&self, name: &str) -> Option<&str> {
        self.variable(name).filter(|value| !value.is_empty())
    }

    /// Returns whether the login commands log debug messages.
    pub fn debug(&self) -> bool {
        self.variable(PINNIPED_DEBUG) == Some("true")
    }

    /// Returns whether the caller of the plugin sends the headers that the plugin returns.
    pub fn sends_request_headers(&self) -> bool {
        self.variable(PINNIPED_EXEC_REQUEST_HEADERS) == Some("true")
    }

    /// Returns the kubeconfig in the command line of the parent process: kubectl passes its
    /// environment variables to plugins, but not its `--kubeconfig` flag. Only a hint, and only on
    /// Linux.
    pub fn kubeconfig_of_parent(&self) -> Option<PathBuf> {
        kubeconfig_flag(platform::command_line(self.parent?)?)
    }

    /// Returns the identity of the program that called this one as its credential plugin; `None`
    /// if none did, or if it is not known. On Linux, a later process with the same ID has another
    /// identity.
    pub fn plugin_caller(&self) -> Option<String> {
        self.non_empty(KUBERNETES_EXEC_INFO)?;
        platform::process_identity(self.parent?)
    }

    /// Returns the path of a file in the cache directory; `None` without a home directory.
    pub fn config_file(&self, name: &str) -> Option<String> {
        let parent = match self.non_empty(XDG_CONFIG_HOME) {
            Some(dir) => PathBuf::from(dir),
            None => self.home.as_ref()?.join(".config"),
        };
        Some(parent.join("pinniped").join(name).to_string_lossy().into_owned())
    }
}

/// The consequences of the name by which the program was called.
#[derive(Debug, Default, PartialEq, Eq)]
struct Called {
    kubectl_plugin: bool,
    /// The path to use for later calls, if it is not that of the running program.
    executable: Option<PathBuf>,
    /// An argument before those of the caller.
    first_argument: Option<&'static str>,
}

impl Called {
    fn of(program: Option<PathBuf>) -> Self {
        let name = program.as_deref().and_then(Path::file_stem).and_then(OsStr::to_str);
        match name {
            // The program that runs may be in a directory of this version only, as with krew. The
            // path in a kubeconfig must be that of the link, which stays.
            Some(KUBECTL_PLUGIN) => Self {
                kubectl_plugin: true,
                executable: program.filter(|path| path.is_absolute()),
                first_argument: None,
            },
            Some(KUBECTL_COMPLETION) => Self { first_argument: Some("__complete"), ..Self::default() },
            _ => Self::default(),
        }
    }
}

/// Returns the last `--kubeconfig` before a `--`.
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
    fn caches_are_in_the_config_home_or_in_the_home_directory() {
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
    fn a_caller_is_a_process_that_passed_the_information_for_plugins() {
        let parent = Some(std::process::id());
        let of = |variables: &[(&str, &str)]| Environment { parent, ..with(variables) }.plugin_caller();
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[(KUBERNETES_EXEC_INFO, "")]), None);
        let called = of(&[(KUBERNETES_EXEC_INFO, "{}")]).unwrap();
        assert_eq!(called.split(' ').next(), Some(std::process::id().to_string().as_str()));
        assert_eq!(called.split(' ').count(), if cfg!(target_os = "linux") { 2 } else { 1 });
        assert_eq!(with(&[(KUBERNETES_EXEC_INFO, "{}")]).plugin_caller(), None);
    }

    #[test]
    fn the_name_of_the_program_selects_its_role() {
        let of = |path: &str| Called::of(Some(PathBuf::from(path)));
        assert_eq!(Called::of(None), Called::default());
        for path in ["pinniped", "/opt/pinniped", "/opt/kubectl-pinniped/pinniped"] {
            assert_eq!(of(path), Called::default(), "{path}");
        }
        let here = std::env::current_dir().unwrap().join("kubectl-pinniped");
        let plugin = Called { kubectl_plugin: true, ..Called::default() };
        assert_eq!(of("kubectl-pinniped.exe"), plugin);
        assert_eq!(of(here.to_str().unwrap()), Called { executable: Some(here), ..plugin });
        assert_eq!(of("/opt/kubectl_complete-pinniped").first_argument, Some("__complete"));
    }

    #[test]
    fn debug_requires_exactly_true() {
        assert!(with(&[("PINNIPED_DEBUG", "true")]).debug());
        assert!(!with(&[("PINNIPED_DEBUG", "1")]).debug());
        assert!(!with(&[]).debug());
    }
}
