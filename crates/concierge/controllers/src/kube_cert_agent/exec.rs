//! Reads the key from the agent: runs `print` in its container through the API server.
//!
//! ```text
//! exec.rs               selection of the protocol, deadline, status of the command
//! exec/web_socket.rs    WebSocket: a GET; RBAC requires get on pods/exec (and create, since 1.35)
//! exec/spdy.rs          SPDY/3.1: a POST; RBAC requires create on pods/exec
//! ```
//!
//! Like client-go, it tries WebSocket first, and SPDY if that is forbidden or the upgrade is
//! refused. Upstream's Role has only `create` (`docs/adr/0001-exec-over-spdy.md`). No input is sent
//! to the command. Its output is secret: it is held in one buffer that is overwritten after use,
//! and never becomes part of an error.

mod spdy;
mod web_socket;

use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::Resource as _;
use kube::api::AttachParams;
use pinniped_concierge_domain::strategy::kube_cert_agent::{AGENT_CONTAINER, AGENT_PROGRAM, AgentPod};
use pinniped_kube_types::partial::Pod;
use zeroize::Zeroizing;

use pinniped_controller::client::{error_text, is_forbidden};

/// Maximum size of the output: two files of at most 256 KiB as base64, with a margin.
const MAX_OUTPUT: usize = 1 << 20;

/// Argument of the agent's program that prints the key.
const PRINT_COMMAND: &str = "print";

/// Status codes with which the API server, or a proxy in front of it, refuses the upgrade to a
/// WebSocket: the verb of a GET is not granted (403), or WebSockets are not supported.
const REFUSED_UPGRADE_CODES: [u16; 5] = [400, 403, 405, 426, 501];

/// Deadline of the whole command. Starting a program on a busy node takes a while.
const DEADLINE: Duration = Duration::from_secs(30);

/// Reasons why the agent returned no key.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The API server refused the request, the pod does not exist, or there was no connection.
    #[error("{}", error_text(.0))]
    Api(#[source] Box<kube::Error>),
    /// The command failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The API server did not switch to SPDY; the text has the status code or the error in the
    /// response.
    #[error("upgrade to SPDY was refused: {0}")]
    Upgrade(String),
    /// The connection broke.
    #[error("connection to the pod failed: {0}")]
    Connection(String),
    /// The connection closed before the command finished: the pod was deleted.
    #[error("connection to the pod closed before the command terminated")]
    Closed,
    /// The status of the command could not be read.
    #[error("result of the command could not be read")]
    Status,
    /// The output is larger than that of any agent.
    #[error("output of the command is larger than {MAX_OUTPUT} bytes")]
    TooLarge,
    /// The deadline was exceeded.
    #[error("command did not terminate within {} seconds", .0.as_secs())]
    Deadline(Duration),
}

/// The reason why the command failed, with the text of Kubernetes.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The command terminated with this exit code.
    #[error("command terminated with exit code {0}")]
    ExitCode(String),
    /// The command could not be started, or terminated otherwise; the text is the runtime's.
    #[error("{}", .0.as_deref().unwrap_or("command failed"))]
    Other(Option<String>),
}

impl ExecError {
    /// Returns whether the service account lacks a permission on `pods/exec`.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Api(error) if is_forbidden(error))
    }
}

impl From<kube::Error> for ExecError {
    fn from(error: kube::Error) -> Self {
        Self::Api(Box::new(error))
    }
}

/// Runs the command of agents.
pub trait AgentExec: Send + Sync {
    /// Returns the standard output of `print` in the agent's container.
    fn print<'a>(&'a self, agent: &'a AgentPod) -> BoxFuture<'a, Result<Zeroizing<Vec<u8>>, ExecError>>;
}

/// Runs the command through the API server.
pub struct ApiServerExec {
    client: kube::Client,
    deadline: Duration,
}

impl ApiServerExec {
    /// Returns an executor; `client` must support upgraded connections.
    pub fn new(client: kube::Client) -> Self {
        Self { client, deadline: DEADLINE }
    }

    async fn run(&self, agent: &AgentPod) -> Result<Zeroizing<Vec<u8>>, ExecError> {
        let result = web_socket::print(&self.client, request(agent)?).await;
        match result {
            Err(ExecError::Api(error)) if is_refused_upgrade(&error) => {
                let reason = error_text(&error);
                tracing::debug!(pod = %agent.name, %reason, "exec over WebSocket was refused, using SPDY");
                spdy::print(&self.client, request(agent)?).await
            }
            result => result,
        }
    }
}

impl AgentExec for ApiServerExec {
    fn print<'a>(&'a self, agent: &'a AgentPod) -> BoxFuture<'a, Result<Zeroizing<Vec<u8>>, ExecError>> {
        Box::pin(async move {
            let output = tokio::time::timeout(self.deadline, self.run(agent)).await;
            output.map_err(|_| ExecError::Deadline(self.deadline))?
        })
    }
}

/// Returns the GET request of the WebSocket. The SPDY request differs in method and upgrade.
fn request(agent: &AgentPod) -> Result<http::Request<Vec<u8>>, ExecError> {
    let params = AttachParams::default().container(AGENT_CONTAINER).stdout(true).stderr(false);
    let request = kube::core::Request::new(Pod::url_path(&(), Some(&agent.namespace)))
        .exec(&agent.name, [AGENT_PROGRAM, PRINT_COMMAND], &params)
        .map_err(kube::Error::BuildRequest)?;
    Ok(request)
}

/// Returns whether the WebSocket was refused, see [`REFUSED_UPGRADE_CODES`]. Other errors, such as
/// a missing pod, do not depend on the protocol.
fn is_refused_upgrade(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => REFUSED_UPGRADE_CODES.contains(&status.code),
        kube::Error::UpgradeConnection(_) => true,
        _ => false,
    }
}

/// Returns the buffer for the output, allocated at its final size, because a vector that grows
/// leaves key material in freed memory. Unwritten pages cost nothing.
fn output_buffer() -> Zeroizing<Vec<u8>> {
    Zeroizing::new(Vec::with_capacity(MAX_OUTPUT))
}

/// Appends to the output.
fn append(output: &mut Vec<u8>, data: &[u8]) -> Result<(), ExecError> {
    if output.len() + data.len() > MAX_OUTPUT {
        return Err(ExecError::TooLarge);
    }
    output.extend_from_slice(data);
    Ok(())
}

/// Parses the status as client-go does: an exit code has a specific text.
fn succeeded(status_bytes: &[u8]) -> Result<(), ExecError> {
    let status: Status = serde_json::from_slice(status_bytes).map_err(|_| ExecError::Status)?;
    if status.status.as_deref() == Some("Success") {
        return Ok(());
    }
    let code =
        status.details.iter().flat_map(|details| details.causes.iter().flatten()).find_map(|cause| {
            cause.message.as_deref().filter(|_| cause.reason.as_deref() == Some("ExitCode"))
        });
    Err(ExecError::Command(match (status.reason.as_deref(), code) {
        (Some("NonZeroExitCode"), Some(code)) => CommandError::ExitCode(code.to_owned()),
        _ => CommandError::Other(status.message),
    }))
}

#[cfg(test)]
mod tests;
