//! Asks the agent for the key: `print` in its container, over a WebSocket.
//!
//! Kubernetes' remote commands come as messages whose first byte is a channel (`v4.channel.k8s.io` and
//! `v5.channel.k8s.io`): 1 is the standard output, 3 the outcome as a `Status`. Nothing is ever sent. The answer is a
//! secret, so it is kept in one buffer that is emptied after use, and never gets into an error.

use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::Resource as _;
use kube::api::AttachParams;
use pinniped_api::partial::Pod;
use pinniped_core::strategy::cert_agent::{AGENT_CONTAINER, AGENT_PROGRAM, AgentPod};
use zeroize::Zeroizing;

use crate::client::{error_text, is_forbidden};

/// Two files of at most 256 KiB, as base64, with room to spare.
const MAX_ANSWER: usize = 1 << 20;

/// How long all of it may take. Starting a program on a busy node takes its time.
const DEADLINE: Duration = Duration::from_secs(30);

/// Channel of the command's standard output.
const STDOUT: u8 = 1;

/// Channel of the command's outcome.
const OUTCOME: u8 = 3;

/// Why the agent gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The API server refused, the pod is gone, or there was no connection.
    #[error("{}", refusal(.0))]
    Api(#[source] Box<kube::Error>),
    /// The command failed; Kubernetes' words, such as an exit code.
    #[error("{0}")]
    Command(String),
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
    #[error("output of the command is larger than {MAX_ANSWER} bytes")]
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

/// The API server's words. Since Kubernetes 1.35 it asks for the right to `create` in addition, when the WebSocket itself
/// is allowed already, and refuses without a reason.
fn refusal(error: &kube::Error) -> String {
    let mut text = error_text(error);
    if is_forbidden(error) && text.ends_with(" is forbidden: ") {
        text.push_str("the verb create on pods/exec is missing");
    }
    text
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

/// Asks through the API server.
pub struct WebSocketExec {
    client: kube::Client,
    deadline: Duration,
}

impl WebSocketExec {
    /// `client` has to be able to upgrade connections.
    pub fn new(client: kube::Client) -> Self {
        Self { client, deadline: DEADLINE }
    }

    async fn ask(&self, agent: &AgentPod) -> Result<Zeroizing<Vec<u8>>, ExecError> {
        let params = AttachParams::default().container(AGENT_CONTAINER).stdout(true).stderr(false);
        let request = kube::core::Request::new(Pod::url_path(&(), Some(&agent.namespace)))
            .exec(&agent.name, [AGENT_PROGRAM, "print"], &params)
            .map_err(kube::Error::BuildRequest)?;
        let mut messages = self.client.connect(request).await?.into_stream();
        // Of its final size from the start: a vector that grows leaves its old memory behind. Untouched pages cost
        // nothing.
        let mut answer = Zeroizing::new(Vec::with_capacity(MAX_ANSWER));
        while let Some(message) = messages.next().await {
            let message = message.map_err(|error| ExecError::Connection(error.to_string()))?;
            if !message.is_binary() {
                continue;
            }
            let message = message.into_data();
            match message.split_first() {
                Some((&STDOUT, output)) if answer.len() + output.len() <= MAX_ANSWER => {
                    answer.extend_from_slice(output);
                }
                Some((&STDOUT, _)) => return Err(ExecError::TooLarge),
                // Every channel begins with an empty message.
                Some((&OUTCOME, outcome)) if !outcome.is_empty() => {
                    succeeded(outcome)?;
                    return Ok(answer);
                }
                _ => {}
            }
        }
        Err(ExecError::Ended)
    }
}

impl AgentExec for WebSocketExec {
    fn print<'a>(&'a self, agent: &'a AgentPod) -> BoxFuture<'a, Result<Zeroizing<Vec<u8>>, ExecError>> {
        Box::pin(async move {
            let answer = tokio::time::timeout(self.deadline, self.ask(agent)).await;
            answer.map_err(|_| ExecError::Deadline(self.deadline))?
        })
    }
}

/// Reads the outcome as client-go does: an exit code has words of its own.
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
