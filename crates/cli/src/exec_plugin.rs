//! Runs the credential plugin of a kubeconfig user, as kubectl does.
//!
//! kube's implementation is not used, because it runs the plugin twice (for the connection and for
//! the header), includes the plugin's output, which may be a credential, in error texts, and panics
//! if a token is not a valid header value.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::process::{Output, Stdio};

use http::{HeaderName, HeaderValue};
use jiff::Timestamp;
use kube::config::{AuthInfo, ExecConfig, ExecInteractiveMode};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;

use pinniped_go_compat::{json as gojson, json::quote};
use pinniped_kube_types::client_auth::{ExecCredential, ExecCredentialStatus, KIND};

use crate::environment::{Environment, KUBERNETES_EXEC_INFO, PINNIPED_EXEC_REQUEST_HEADERS};
use crate::printer::print_message;
use pinniped_go_compat::base64 as gobase64;
use pinniped_go_compat::io::GoIoError;

/// A plugin returned no credential, with the text of client-go. It never contains the plugin's
/// standard error.
#[derive(Debug, thiserror::Error)]
pub enum ExecPluginError {
    /// The entry names no program.
    #[error("command must be specified to use exec authentication plugin")]
    NoCommand,
    /// The plugin needs the cluster entry, which the kubeconfig does not have.
    #[error("exec: the kubeconfig does not describe the cluster")]
    NoCluster,
    /// The plugin needs a user.
    #[error("exec plugin cannot support interactive mode: the command involves no user")]
    Interactive,
    /// The cluster entry cannot be passed to the plugin.
    #[error("exec")]
    Cluster(#[source] serde_json::Error),
    /// The program does not exist.
    #[error("{}", not_found(.name, .hint.as_deref()))]
    NotFound {
        /// The program.
        name: String,
        /// The text for the user to install it.
        hint: Option<String>,
    },
    /// The program cannot be started.
    #[error("exec: {name}")]
    Start {
        /// The program.
        name: String,
        /// The failed call.
        #[source]
        source: GoIoError,
    },
    /// The program failed.
    #[error("exec: executable {name} failed with exit code {code}")]
    Failed {
        /// The program.
        name: String,
        /// Its exit code.
        code: i32,
    },
    /// A signal terminated the program.
    #[error("exec: executable {0} was terminated by a signal")]
    Signal(String),
    /// The output is not a credential. The parser's error is dropped, because it may quote the
    /// output.
    #[error("decoding stdout: executable {0} did not print an {KIND}")]
    Decode(String),
    /// The output has another version than the entry.
    #[error("exec plugin is configured to use API version {configured}, plugin returned version {returned}")]
    Version {
        /// The version of the entry.
        configured: String,
        /// The version of the output.
        returned: String,
    },
    /// The output has no status.
    #[error("exec plugin didn't return a status field")]
    NoStatus,
    /// The status has no credential.
    #[error("exec plugin didn't return a token or cert/key pair")]
    NoCredential,
    /// The status has one half of a client certificate.
    #[error("exec plugin returned only certificate or key, not both")]
    HalfCertificate,
    /// The status has a header that does not impersonate.
    #[error("exec plugin returned the header {}, which is not one of impersonation", quote(.0))]
    Header(String),
    /// The status has a header with a value that HTTP cannot carry.
    #[error("exec plugin returned an invalid value for the header {}", quote(.0))]
    HeaderValue(String),
}

/// The parts of a plugin's response that a user entry cannot contain.
#[derive(Debug, Default)]
pub(crate) struct PluginResult {
    /// The headers that every request needs.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    /// The end of the validity of the credential, if the plugin returned it.
    pub(crate) expires: Option<Timestamp>,
}

/// The way in which a plugin runs.
#[derive(Debug)]
pub(crate) enum PluginRun<'a> {
    /// It may involve the user.
    Interactive,
    /// It may involve the user. The last error that it prints to its standard error, where the user
    /// sees it too, replaces the text.
    Watched(&'a mut String),
    /// It must not involve the user: its input has `interactive: false`. Its standard error is
    /// discarded, because a plugin that ignores this prints its prompt there.
    InBackground,
}

/// Replaces the plugin in `user` with its result, unless another credential takes precedence.
/// Dropping the future ends the plugin.
///
/// # Errors
///
/// Returns an error with the text of client-go; it never contains the plugin's standard error.
pub(crate) async fn resolve(
    user: &mut AuthInfo,
    how: PluginRun<'_>,
) -> Result<PluginResult, ExecPluginError> {
    if is_overridden(user) {
        return Ok(PluginResult::default());
    }
    let Some(exec) = user.exec.take() else { return Ok(PluginResult::default()) };
    let credential = run(&exec, how).await?;
    let headers = read_headers(&credential)?;
    let expires = credential.expiration_timestamp.as_ref().map(|time| time.0);
    if !credential.token.is_empty() {
        user.token = Some(credential.token.expose().to_owned().into());
    }
    if !credential.client_certificate_data.is_empty() {
        user.client_certificate_data = Some(gobase64::encode(credential.client_certificate_data.as_bytes()));
        user.client_key_data = Some(gobase64::encode(credential.client_key_data.expose().as_bytes()).into());
    }
    Ok(PluginResult { headers, expires })
}

/// Returns whether another credential of the user takes precedence over a plugin.
pub(crate) fn is_overridden(user: &AuthInfo) -> bool {
    let basic = user.username.is_some() && user.password.is_some();
    user.auth_provider.is_some() || basic || user.token.is_some() || user.token_file.is_some()
}

/// Returns the file that runs for a command: a path, or a name in one of the folders of `PATH`.
pub(crate) fn find_program(command: &str, environment: &Environment) -> Option<PathBuf> {
    if command.is_empty() {
        return None;
    }
    let is_path = command.contains(std::path::is_separator);
    let folders: Vec<PathBuf> = match is_path {
        true => vec![PathBuf::new()],
        false => std::env::split_paths(environment.variable("PATH").unwrap_or_default()).collect(),
    };
    let suffix = std::env::consts::EXE_SUFFIX;
    let names = [command.to_owned(), format!("{command}{suffix}")];
    let mut candidates = folders.iter().flat_map(|folder| names.iter().map(|name| folder.join(name)));
    candidates.find(|path| path.is_file())
}

/// Reads the request headers of a plugin, which may only contain impersonation headers.
fn read_headers(
    credential: &ExecCredentialStatus,
) -> Result<Vec<(HeaderName, HeaderValue)>, ExecPluginError> {
    let mut headers = Vec::new();
    for (name, values) in &credential.request_headers {
        let parsed = HeaderName::from_bytes(name.as_bytes())
            .ok()
            .filter(|parsed| parsed.as_str().starts_with("impersonate-"))
            .ok_or_else(|| ExecPluginError::Header(name.clone()))?;
        for value in values {
            let value = HeaderValue::from_bytes(value.as_bytes())
                .map_err(|_| ExecPluginError::HeaderValue(name.clone()))?;
            headers.push((parsed.clone(), value));
        }
    }
    Ok(headers)
}

/// The maximum length in bytes of a line of a plugin's standard error.
const MAX_LINE: usize = 4096;

/// Runs a command and returns its standard output. Its standard error is that of this program; with
/// `last_error`, the last line of it that begins with `Error: ` replaces this text.
async fn output(command: &mut Command, last_error: Option<&mut String>) -> io::Result<Output> {
    command.stdout(Stdio::piped()).kill_on_drop(true);
    let Some(last_error) = last_error else { return command.spawn()?.wait_with_output().await };
    let mut child = command.stderr(Stdio::piped()).spawn()?;
    let stderr = child.stderr.take();
    let passed_on = async {
        if let Some(stderr) = stderr {
            pass_on(stderr, last_error).await;
        }
    };
    tokio::join!(passed_on, child.wait_with_output()).1
}

/// Copies at once what arrives, because it may be a prompt.
async fn pass_on(mut from: impl AsyncRead + Unpin, last_error: &mut String) {
    let mut buffer = [0; 1024];
    let mut line = Vec::new();
    while let Ok(count) = from.read(&mut buffer).await
        && count > 0
    {
        let part = &buffer[..count];
        print_message(&String::from_utf8_lossy(part));
        for byte in part {
            if *byte != b'\n' {
                if line.len() < MAX_LINE {
                    line.push(*byte);
                }
                continue;
            }
            if let Some(error) = String::from_utf8_lossy(&line).strip_prefix("Error: ") {
                error.clone_into(last_error);
            }
            line.clear();
        }
    }
}

async fn run(exec: &ExecConfig, how: PluginRun<'_>) -> Result<ExecCredentialStatus, ExecPluginError> {
    let name = match exec.command.as_deref() {
        None | Some("") => return Err(ExecPluginError::NoCommand),
        Some(name) => name,
    };
    let mut command = Command::new(name);
    command.args(exec.args.iter().flatten());
    let variables = exec.env.iter().flatten();
    command.envs(variables.filter_map(|entry| Some((entry.get("name")?, entry.get("value")?))));
    let (in_background, last_error) = match how {
        PluginRun::Interactive => (false, None),
        PluginRun::Watched(text) => (false, Some(text)),
        PluginRun::InBackground => (true, None),
    };
    if in_background && exec.interactive_mode == Some(ExecInteractiveMode::Always) {
        return Err(ExecPluginError::Interactive);
    }
    let interactive = !in_background && exec.interactive_mode != Some(ExecInteractiveMode::Never);
    command.stdin(if interactive { Stdio::inherit() } else { Stdio::null() });
    if in_background {
        command.stderr(Stdio::null());
    }

    let version = exec.api_version.clone().unwrap_or_default();
    let mut spec = json!({ "interactive": interactive });
    if exec.provide_cluster_info {
        let cluster = exec.cluster.as_ref().ok_or(ExecPluginError::NoCluster)?;
        spec["cluster"] = serde_json::to_value(cluster).map_err(ExecPluginError::Cluster)?;
    }
    // Behaves like a kubectl that supports such headers.
    command.env(PINNIPED_EXEC_REQUEST_HEADERS, "true");
    let info = json!({ "kind": KIND, "apiVersion": version, "spec": spec });
    command.env(KUBERNETES_EXEC_INFO, gojson::to_string(&info));

    let name = name.to_owned();
    let output = match output(&mut command, last_error).await {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(ExecPluginError::NotFound { name, hint: exec.install_hint.clone() });
        }
        Err(error) => return Err(ExecPluginError::Start { name, source: error.into() }),
    };
    if !output.status.success() {
        return Err(match output.status.code() {
            Some(code) => ExecPluginError::Failed { name, code },
            None => ExecPluginError::Signal(name),
        });
    }
    let response: ExecCredential =
        serde_saphyr::from_slice(&output.stdout).map_err(|_| ExecPluginError::Decode(name))?;
    if response.api_version != version {
        return Err(ExecPluginError::Version { configured: version, returned: response.api_version });
    }
    let status = response.status.ok_or(ExecPluginError::NoStatus)?;
    let (certificate, key) = (&status.client_certificate_data, &status.client_key_data);
    if status.token.is_empty() && certificate.is_empty() && key.is_empty() {
        return Err(ExecPluginError::NoCredential);
    }
    if certificate.is_empty() != key.is_empty() {
        return Err(ExecPluginError::HalfCertificate);
    }
    Ok(status)
}

fn not_found(name: &str, hint: Option<&str>) -> String {
    let mut text = format!(
        "exec: executable {name} not found\n\nIt looks like you are trying to use a client-go credential plugin \
         that is not installed.\n\nTo learn more about this feature, consult the documentation available at:\n      \
         https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins"
    );
    if let Some(hint) = hint.filter(|hint| !hint.is_empty()) {
        text.push_str("\n\n");
        text.push_str(hint);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn a_program_is_found_by_its_path_or_in_the_folders_of_path() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("tool");
        std::fs::write(&program, "").unwrap();
        let path = dir.path().to_str().unwrap().to_owned();
        let environment = Environment::new(Vec::new(), HashMap::from([("PATH".to_owned(), path)]));
        let absolute = program.to_str().unwrap();
        for (command, found) in [
            ("tool", Some(&program)),
            (absolute, Some(&program)),
            ("other", None),
            ("", None),
            ("./no/tool", None),
        ] {
            assert_eq!(find_program(command, &environment).as_ref(), found, "{command}");
        }
        assert_eq!(find_program("tool", &Environment::default()), None);
    }

    fn plugin(script: &str) -> ExecConfig {
        ExecConfig {
            api_version: Some("client.authentication.k8s.io/v1beta1".into()),
            command: Some("/bin/sh".into()),
            args: Some(vec!["-c".into(), script.into()]),
            ..serde_json::from_str("{}").unwrap()
        }
    }

    async fn shell(script: &str) -> Result<ExecCredentialStatus, ExecPluginError> {
        run(&plugin(script), PluginRun::Interactive).await
    }

    fn print(status: &str) -> String {
        format!(
            r#"echo '{{"apiVersion":"client.authentication.k8s.io/v1beta1","kind":"ExecCredential","status":{status}}}'"#
        )
    }

    #[tokio::test]
    async fn a_plugin_receives_the_version_and_returns_a_credential() {
        let reported = r#"[ "$KUBERNETES_EXEC_INFO" = '{"apiVersion":"client.authentication.k8s.io/v1beta1","kind":"ExecCredential","spec":{"interactive":true}}' ] || exit 9"#;
        let script = format!("{reported}; {}", print(r#"{"token":"t"}"#));
        assert_eq!(shell(&script).await.unwrap().token.expose(), "t");
    }

    #[tokio::test]
    async fn a_plugin_in_the_background_does_not_reach_the_user() {
        let script = r#"case "$KUBERNETES_EXEC_INFO" in *'"interactive":false'*) ;; *) exit 9;; esac; read line && exit 8; "#;
        let mut exec = plugin(&format!("{script} {}", print(r#"{"token":"t"}"#)));
        assert_eq!(run(&exec, PluginRun::InBackground).await.unwrap().token.expose(), "t");
        exec.interactive_mode = Some(ExecInteractiveMode::Always);
        assert_eq!(
            run(&exec, PluginRun::InBackground).await.unwrap_err().to_string(),
            "exec plugin cannot support interactive mode: the command involves no user"
        );
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_plugin_ends_with_the_wait_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let exec = plugin(&format!("exec > {}; echo started; exec sleep 600", pipe.display()));
        // A reader sees the end of the pipe when the last writer has ended.
        let mut reader = tokio::net::unix::pipe::OpenOptions::new().open_receiver(&pipe).unwrap();
        let mut text = [0; 8];
        tokio::select! {
            result = run(&exec, PluginRun::InBackground) => panic!("{result:?}"),
            read = reader.read_exact(&mut text) => assert_eq!((read.unwrap(), &text), (8, b"started\n")),
        }
        assert_eq!(reader.read(&mut text).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn the_error_of_a_failing_plugin_contains_its_name_but_not_its_output() {
        for (script, error) in [
            ("echo hush; exit 3".to_owned(), "exec: executable /bin/sh failed with exit code 3"),
            ("echo hush".to_owned(), "decoding stdout: executable /bin/sh did not print an ExecCredential"),
            (
                "echo '{\"apiVersion\":\"v1\",\"status\":{\"token\":\"hush\"}}'".to_owned(),
                "exec plugin is configured to use API version client.authentication.k8s.io/v1beta1, plugin returned version v1",
            ),
            (print("null"), "exec plugin didn't return a status field"),
            (print("{}"), "exec plugin didn't return a token or cert/key pair"),
            (print(r#"{"clientKeyData":"hush"}"#), "exec plugin returned only certificate or key, not both"),
        ] {
            assert_eq!(shell(&script).await.unwrap_err().to_string(), error, "{script}");
        }
    }

    #[tokio::test]
    async fn the_last_error_of_a_plugin_is_recorded() {
        for (text, expected) in
            [("Log in here\nError: a\nError: b: c\ntry: d\n", "b: c"), ("Error: not complete", ""), ("", "")]
        {
            let mut last = String::new();
            pass_on(text.as_bytes(), &mut last).await;
            assert_eq!(last, expected, "{text}");
        }
    }

    #[tokio::test]
    async fn a_missing_plugin_prints_its_hint() {
        let exec = ExecConfig {
            command: Some("/no/such/plugin".into()),
            install_hint: Some("please install it".into()),
            ..serde_json::from_str("{}").unwrap()
        };
        let error = run(&exec, PluginRun::Interactive).await.unwrap_err().to_string();
        assert!(error.starts_with("exec: executable /no/such/plugin not found\n\nIt looks like "), "{error}");
        assert!(error.ends_with("\n\nplease install it"), "{error}");
    }
}
