//! Reads the key from the agent: runs `print` in its container through the API server.
//!
//! ```text
//! exec.rs               which protocol, deadline, the command's status
//! exec/web_socket.rs    WebSocket: a GET, for which RBAC demands the verb get on pods/exec (and create, since 1.35)
//! exec/spdy.rs          SPDY/3.1: a POST, for which RBAC demands the verb create
//! ```
//!
//! As client-go does: WebSocket first, and SPDY when that is forbidden or its upgrade is refused. Upstream's Role has
//! `create` alone (`docs/adr/0001-exec-over-spdy.md`). Nothing is ever sent to the command. Its output is a secret, so
//! it is held in one buffer that is overwritten after use, and never becomes part of an error.

mod spdy;
mod web_socket;

use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::Resource as _;
use kube::api::AttachParams;
use pinniped_concierge_domain::strategy::cert_agent::{AGENT_CONTAINER, AGENT_PROGRAM, AgentPod};
use pinniped_kube_types::partial::Pod;
use zeroize::Zeroizing;

use pinniped_controller::client::{error_text, is_forbidden};

/// Two files of at most 256 KiB, as base64, with room to spare.
const MAX_OUTPUT: usize = 1 << 20;

/// How long all of it may take. Starting a program on a busy node takes its time.
const DEADLINE: Duration = Duration::from_secs(30);

/// Why the agent gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The API server refused, the pod is gone, or there was no connection.
    #[error("{}", error_text(.0))]
    Api(#[source] Box<kube::Error>),
    /// The command failed; Kubernetes' words, such as an exit code.
    #[error("{0}")]
    Command(String),
    /// The API server did not switch to SPDY; the status code, or what is wrong with the response.
    #[error("upgrade to SPDY was refused: {0}")]
    Upgrade(String),
    /// The connection broke.
    #[error("connection to the pod failed: {0}")]
    Connection(String),
    /// The connection ended before the command did: the pod has gone away.
    #[error("connection to the pod ended before the command did")]
    Ended,
    /// The outcome could not be read.
    #[error("outcome of the command could not be read")]
    Outcome,
    /// No agent says so much.
    #[error("output of the command is larger than {MAX_OUTPUT} bytes")]
    TooLarge,
    /// It took too long.
    #[error("command did not end within {} seconds", .0.as_secs())]
    Deadline(Duration),
}

impl ExecError {
    /// The service account lacks a right to `pods/exec`.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Api(error) if is_forbidden(error))
    }
}

impl From<kube::Error> for ExecError {
    fn from(error: kube::Error) -> Self {
        Self::Api(Box::new(error))
    }
}

/// Asks agents.
pub trait AgentExec: Send + Sync {
    /// The standard output of `print` in the agent's container.
    fn print<'a>(&'a self, agent: &'a AgentPod) -> BoxFuture<'a, Result<Zeroizing<Vec<u8>>, ExecError>>;
}

/// Runs the command through the API server.
pub struct ApiServerExec {
    client: kube::Client,
    deadline: Duration,
}

impl ApiServerExec {
    /// `client` has to be able to upgrade connections.
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

/// The GET of the WebSocket. With another method and another upgrade it is that of SPDY.
fn request(agent: &AgentPod) -> Result<http::Request<Vec<u8>>, ExecError> {
    let params = AttachParams::default().container(AGENT_CONTAINER).stdout(true).stderr(false);
    let request = kube::core::Request::new(Pod::url_path(&(), Some(&agent.namespace)))
        .exec(&agent.name, [AGENT_PROGRAM, "print"], &params)
        .map_err(kube::Error::BuildRequest)?;
    Ok(request)
}

/// Whether a WebSocket is what was refused: the verb of a GET is not granted, or the API server or a proxy before it
/// does not upgrade to WebSockets. Whether the pod exists, for example, does not depend on the protocol.
fn is_refused_upgrade(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => matches!(status.code, 400 | 403 | 405 | 426 | 501),
        kube::Error::UpgradeConnection(_) => true,
        _ => false,
    }
}

/// The buffer for the output. It has its final size from the start: a vector that grows leaves its old memory behind.
/// Pages that are not written cost nothing.
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

/// Reads the status as client-go does: an exit code has words of its own.
fn succeeded(outcome: &[u8]) -> Result<(), ExecError> {
    let status: Status = serde_json::from_slice(outcome).map_err(|_| ExecError::Outcome)?;
    if status.status.as_deref() == Some("Success") {
        return Ok(());
    }
    let code =
        status.details.iter().flat_map(|details| details.causes.iter().flatten()).find_map(|cause| {
            cause.message.as_deref().filter(|_| cause.reason.as_deref() == Some("ExitCode"))
        });
    Err(ExecError::Command(match (status.reason.as_deref(), code) {
        (Some("NonZeroExitCode"), Some(code)) => format!("command terminated with exit code {code}"),
        _ => status.message.unwrap_or_else(|| "command failed".to_owned()),
    }))
}

#[cfg(test)]
mod tests;
