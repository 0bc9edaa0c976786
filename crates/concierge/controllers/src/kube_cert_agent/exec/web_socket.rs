//! Runs the command over a WebSocket: the first byte of each message is a channel
//! (`v4.channel.k8s.io` and `v5.channel.k8s.io`).

use futures::StreamExt as _;
use zeroize::Zeroizing;

use super::{ExecError, append, output_buffer, succeeded};

/// Channel of the command's standard output.
pub(super) const STDOUT: u8 = 1;

/// Channel of the command's status.
pub(super) const STATUS: u8 = 3;

pub(super) async fn print(
    client: &kube::Client,
    request: http::Request<Vec<u8>>,
) -> Result<Zeroizing<Vec<u8>>, ExecError> {
    let mut messages = client.connect(request).await?.into_stream();
    let mut output = output_buffer();
    while let Some(message) = messages.next().await {
        let message = message.map_err(|error| ExecError::Connection(error.to_string()))?;
        if !message.is_binary() {
            continue;
        }
        let message = message.into_data();
        match message.split_first() {
            Some((&STDOUT, data)) => append(&mut output, data)?,
            // Every channel starts with an empty message.
            Some((&STATUS, status)) if !status.is_empty() => {
                succeeded(status)?;
                return Ok(output);
            }
            _ => {}
        }
    }
    Err(ExecError::Closed)
}
