//! The remedies of errors: what the user can try, in one line after the error.
//!
//! The texts that other commands print, too, are in [`crate::explanations`]. Scripts read the
//! errors that upstream has too, with nothing after them. Their remedies are printed on a terminal
//! only.

use super::CommandError;
use super::doctor::DoctorError;
use super::get_kubeconfig::GetKubeconfigError;
use super::get_kubeconfig::discovery::DiscoveryError;
use super::interruptible_login::InterruptibleLoginError;
use super::kubectl::KubectlError;
use super::login::LoginCommandError;
use super::logout::LogoutError;
use super::proxy::ProxyError;
use super::status::StatusError;
use super::whoami::{ConnectError, WhoAmIError};
use crate::admin::AdminError;
use crate::concierge::ExchangeError;
use crate::exec_plugin::ExecPluginError;
use crate::explanations::client_errors::{
    self, LOGIN_FAILED, NO_AUTHENTICATOR, NO_CONCIERGE, NO_CONTEXT, NO_PLUGIN, TIMEOUT,
};
use crate::login::session::{LoginError, SessionError};
use crate::printer::Printer;

/// A step that the user can try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// The text after `try: `.
    pub text: &'static str,
    /// Whether upstream has the same error.
    of_upstream: bool,
}

impl Remedy {
    const fn ours(text: &'static str) -> Self {
        Self { text, of_upstream: false }
    }

    const fn upstream(text: &'static str) -> Self {
        Self { text, of_upstream: true }
    }

    /// Returns whether the remedy is printed.
    pub fn is_for(self, printer: Printer) -> bool {
        !self.of_upstream || printer.messages_are_for_people()
    }
}

const CONTEXTS: Remedy = Remedy::upstream(NO_CONTEXT.remedy);
const OUR_CONTEXTS: Remedy = Remedy::ours(NO_CONTEXT.remedy);
/// The remedy of a kubeconfig that cannot be loaded.
const OTHER_FILE: &str = "correct the file, or name another one with --kubeconfig or KUBECONFIG";
const FILE: Remedy = Remedy::upstream(OTHER_FILE);
const OUR_FILE: Remedy = Remedy::ours(OTHER_FILE);
const DOCTOR: Remedy = Remedy::upstream(client_errors::DOCTOR);
const INSTALL: Remedy = Remedy::upstream(NO_CONCIERGE.remedy);
const PLUGIN: Remedy = Remedy::upstream(NO_PLUGIN.remedy);
const LOGIN: Remedy = Remedy::upstream(LOGIN_FAILED.remedy);

impl CommandError {
    /// Returns the remedy, if there is one that the error does not name itself.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::GetKubeconfig(error) => of_get_kubeconfig(error),
            Self::Login(LoginCommandError::Session(error)) => of_session(error),
            Self::Login(LoginCommandError::Login(error)) => of_login(error),
            Self::WhoAmI(error) => of_whoami(error),
            Self::Doctor(error) => of_doctor(error),
            Self::Kubectl(KubectlError::Login(error)) => of_login(error),
            Self::Kubectl(KubectlError::Session(error)) => of_session(error),
            Self::Logout(LogoutError::Load(_)) | Self::Status(StatusError::Load(_)) => Some(OUR_FILE),
            Self::Logout(LogoutError::Context(_)) | Self::Status(StatusError::Context(_)) => {
                Some(OUR_CONTEXTS)
            }
            Self::Status(StatusError::FailedChecks { .. }) => Some(Remedy::ours(
                "`pinniped doctor --kubeconfig-context NAME`, with the name of a context whose check failed",
            )),
            Self::Proxy(error) => of_proxy(error),
            Self::Logout(LogoutError::LoadForAll(_)) => Some(Remedy::ours(
                "--kubeconfig=/dev/null, which removes the sessions of the default caches, and may not revoke them",
            )),
            Self::Login(LoginCommandError::Response(_))
            | Self::GenerateMan(_)
            | Self::Explain(_)
            | Self::Logout(_)
            | Self::Status(_)
            | Self::Kubectl(_)
            | Self::Version(_)
            | Self::Output(_) => None,
        }
    }

    /// Returns the exit code of the program.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Doctor(error) => error.exit_code(),
            _ => 1,
        }
    }
}

fn of_get_kubeconfig(error: &GetKubeconfigError) -> Option<Remedy> {
    Some(match error {
        GetKubeconfigError::Context(_) => CONTEXTS,
        GetKubeconfigError::Load(_) => FILE,
        GetKubeconfigError::Timeout => Remedy::upstream(TIMEOUT.remedy),
        GetKubeconfigError::Client(error) => return of_client(error),
        GetKubeconfigError::Discovery(DiscoveryError::NoCredentialIssuer) => INSTALL,
        GetKubeconfigError::Discovery(DiscoveryError::NoAuthenticator) => {
            Remedy::upstream(NO_AUTHENTICATOR.remedy)
        }
        GetKubeconfigError::Discovery(DiscoveryError::NoStrategy | DiscoveryError::NoStrategyWithMode(_)) => {
            DOCTOR
        }
        GetKubeconfigError::Validate(_) => Remedy::upstream(
            "`pinniped doctor`, or --skip-validation if the cluster cannot be reached from here",
        ),
        _ => return None,
    })
}

fn of_session(error: &SessionError) -> Option<Remedy> {
    Some(match error {
        SessionError::NoToken => Remedy::upstream(
            "--token-env VARIABLE, with the name of an environment variable that holds the token",
        ),
        SessionError::TokenVariableNotSet(_) | SessionError::TokenVariableEmpty(_) => {
            Remedy::upstream("set the environment variable to the token")
        }
        SessionError::Concierge(_) => {
            Remedy::upstream("create the kubeconfig again with `pinniped get kubeconfig`")
        }
        _ => return None,
    })
}

fn of_login(error: &InterruptibleLoginError) -> Option<Remedy> {
    match error {
        // The text of `RefusedForNow` has the remedy.
        InterruptibleLoginError::Login(LoginError::Exchange(ExchangeError::RefusedForNow(_))) => None,
        InterruptibleLoginError::Login(_) => Some(LOGIN),
        InterruptibleLoginError::Start(_) | InterruptibleLoginError::Interrupted => None,
    }
}

fn of_whoami(error: &WhoAmIError) -> Option<Remedy> {
    Some(match error {
        WhoAmIError::Connect(ConnectError::Context(_) | ConnectError::NoConfiguration) => CONTEXTS,
        WhoAmIError::Connect(ConnectError::Load(_)) => FILE,
        WhoAmIError::Connect(ConnectError::Client(error)) => return of_client(error),
        WhoAmIError::Timeout => Remedy::upstream(TIMEOUT.remedy),
        WhoAmIError::Response(_) | WhoAmIError::NotServed(_) => DOCTOR,
        WhoAmIError::Format(_) => Remedy::upstream("--output text, wide, json or yaml"),
        _ => return None,
    })
}

fn of_doctor(error: &DoctorError) -> Option<Remedy> {
    Some(match error {
        DoctorError::Load(_) | DoctorError::Connect(ConnectError::Load(_)) => OUR_FILE,
        DoctorError::Connect(ConnectError::Context(_) | ConnectError::NoConfiguration) => OUR_CONTEXTS,
        DoctorError::Connect(ConnectError::Cluster(_) | ConnectError::User(_) | ConnectError::Client(_)) => {
            Remedy::ours(client_errors::REGENERATE)
        }
        DoctorError::Format(_) => Remedy::ours("--output text, json or yaml"),
        _ => return None,
    })
}

fn of_proxy(error: &ProxyError) -> Option<Remedy> {
    Some(match error {
        ProxyError::Load(_) => OUR_FILE,
        ProxyError::Context(_) => OUR_CONTEXTS,
        ProxyError::Session(_) | ProxyError::Target(_) => Remedy::ours(client_errors::REGENERATE),
        ProxyError::Login(_) | ProxyError::Upstream { .. } => Remedy::ours(client_errors::DOCTOR),
        ProxyError::Listen { .. } => Remedy::ours("another --port, or 0 for a free one"),
        _ => return None,
    })
}

fn of_client(error: &AdminError) -> Option<Remedy> {
    match error {
        // The text has the install hint of the kubeconfig, if there is one.
        AdminError::Plugin(ExecPluginError::NotFound { .. }) => Some(PLUGIN),
        AdminError::Plugin(_) | AdminError::Credential(_) => Some(DOCTOR),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubeconfig::{LoadError, ResolveError};
    use crate::printer::Level;

    fn no_file() -> LoadError {
        let source = std::io::Error::from(std::io::ErrorKind::NotFound).into();
        LoadError::Stat { path: "f".to_owned(), source }
    }

    #[test]
    fn errors_of_upstream_have_a_remedy_on_a_terminal_only() {
        let printer = Printer::new(Level::Warning);
        for (error, text, in_scripts) in [
            (
                CommandError::from(WhoAmIError::from(ConnectError::Context("x".into()))),
                Some(CONTEXTS.text),
                false,
            ),
            (
                CommandError::from(DoctorError::from(ConnectError::Context("x".into()))),
                Some(CONTEXTS.text),
                true,
            ),
            (
                CommandError::from(ProxyError::from(ResolveError::Context("x".into()))),
                Some(CONTEXTS.text),
                true,
            ),
            (CommandError::from(StatusError::from(no_file())), Some(OTHER_FILE), true),
            (CommandError::from(WhoAmIError::from(ConnectError::from(no_file()))), Some(OTHER_FILE), false),
            (
                CommandError::from(LoginCommandError::from(SessionError::NoToken)),
                Some("--token-env VARIABLE, with the name of an environment variable that holds the token"),
                false,
            ),
            (
                CommandError::from(GetKubeconfigError::from(DiscoveryError::NoCredentialIssuer)),
                Some(INSTALL.text),
                false,
            ),
            (CommandError::from(WhoAmIError::from(crate::kubeconfig::NoKubeconfig)), None, false),
        ] {
            let remedy = error.remedy();
            assert_eq!(remedy.map(|remedy| remedy.text), text, "{error:?}");
            assert_eq!(remedy.is_some_and(|remedy| remedy.is_for(printer)), in_scripts, "{error:?}");
        }
    }
}
