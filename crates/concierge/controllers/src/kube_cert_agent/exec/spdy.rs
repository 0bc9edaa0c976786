//! Runs the command over SPDY/3.1 (`v4.channel.k8s.io`): one stream for the status of the command,
//! one for its standard output.
//!
//! The server writes the status after all output, then resets both streams and closes the
//! connection. Like client-go, the client waits for the end of both streams or of the connection.

use http::header::{CONNECTION, CONTENT_LENGTH, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper_util::rt::TokioIo;
use kube::client::Body;
use kube::core::Status;
use pinniped_spdy::{Client, Event};
use zeroize::Zeroizing;

use super::{ExecError, MAX_OUTPUT, append, output_buffer, succeeded};

const SPDY: HeaderValue = HeaderValue::from_static("SPDY/3.1");
const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
/// The last protocol version whose streams are the same in all versions of Kubernetes; the fifth is
/// for WebSockets.
const V4: HeaderValue = HeaderValue::from_static("v4.channel.k8s.io");

/// Maximum size of a command's status, and of the body of a refusal.
const MAX_STATUS: usize = 64 << 10;

pub(super) async fn print(
    client: &kube::Client,
    request: Request<Vec<u8>>,
) -> Result<Zeroizing<Vec<u8>>, ExecError> {
    let io = connect(client, request).await?;
    let mut spdy = Client::new(io, MAX_OUTPUT as u32);
    let broken = |error: pinniped_spdy::ClientError| ExecError::Connection(error.to_string());
    let status_stream = spdy.open(&[("streamtype", "error")]).await.map_err(broken)?;
    let output_stream = spdy.open(&[("streamtype", "stdout")]).await.map_err(broken)?;
    let (mut output, mut status) = (output_buffer(), Vec::new());
    let mut open = [status_stream, output_stream].to_vec();
    while !open.is_empty() {
        match spdy.next().await {
            Ok(Some(Event::Data(stream, data))) if stream == output_stream => append(&mut output, data)?,
            Ok(Some(Event::Data(_, data))) if status.len() + data.len() <= MAX_STATUS => {
                status.extend_from_slice(data);
            }
            Ok(Some(Event::Data(..))) => return Err(ExecError::Status),
            Ok(Some(Event::Closed(closed))) => open.retain(|stream| *stream != closed),
            Ok(Some(Event::Refused(_))) => {
                return Err(ExecError::Connection("server refused a stream".to_owned()));
            }
            // The status comes last, so an error of the connection after it loses nothing.
            Ok(None) | Err(_) if !status.is_empty() => break,
            Ok(None) => return Err(ExecError::Closed),
            Err(error) => return Err(broken(error)),
        }
    }
    if status.is_empty() {
        return Err(ExecError::Closed);
    }
    succeeded(&status)?;
    Ok(output)
}

/// Upgrades a connection.
async fn connect(
    client: &kube::Client,
    request: Request<Vec<u8>>,
) -> Result<TokioIo<hyper::upgrade::Upgraded>, ExecError> {
    let (mut parts, _) = request.into_parts();
    parts.method = Method::POST;
    parts.headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    parts.headers.insert(UPGRADE, SPDY);
    parts.headers.insert(STREAM_PROTOCOL, V4);
    parts.headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    let response = client.send(Request::from_parts(parts, Body::empty())).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(refusal(response).await);
    }
    check_upgrade(response.headers())?;
    let upgraded = hyper::upgrade::on(response).await;
    Ok(TokioIo::new(upgraded.map_err(|error| ExecError::Connection(error.to_string()))?))
}

fn check_upgrade(headers: &HeaderMap) -> Result<(), ExecError> {
    let has = |name: HeaderName, value: &HeaderValue| {
        headers.get(name).is_some_and(|found| found.as_bytes().eq_ignore_ascii_case(value.as_bytes()))
    };
    if !has(UPGRADE, &SPDY) {
        return Err(ExecError::Upgrade("response is not for SPDY/3.1".to_owned()));
    }
    if !has(STREAM_PROTOCOL, &V4) {
        return Err(ExecError::Upgrade("response is not for v4.channel.k8s.io".to_owned()));
    }
    Ok(())
}

/// Returns the API server's error text if it has one, as `kube` does for other requests.
async fn refusal(response: Response<Body>) -> ExecError {
    let code = response.status();
    let body = Limited::new(response.into_body(), MAX_STATUS).collect().await;
    let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    match serde_json::from_slice::<Status>(&body) {
        Ok(status) if !status.message.is_empty() => kube::Error::Api(status.boxed()).into(),
        _ => ExecError::Upgrade(code.to_string()),
    }
}
