//! Writes objects directly to etcd that today's API server would reject, as in clusters that have
//! stored them for a long time.
//!
//! etcd accepts JSON besides gRPC, and the API server reads objects in JSON as well as in protobuf.

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use pinniped_test_support::world::World;
use serde_json::{Value, json};
use tokio::net::TcpStream;

/// Returns the key of an Ingress, whose kind was once in another group.
pub(super) fn ingress_key(namespace: &str, name: &str) -> String {
    format!("/registry/ingress/{namespace}/{name}")
}

/// Returns the value of a key.
pub(super) async fn get(world: &World, key: &str) -> anyhow::Result<Vec<u8>> {
    let response = send_request(world, "/v3/kv/range", &json!({"key": STANDARD.encode(key)})).await?;
    let value = response["kvs"][0]["value"].as_str().with_context(|| format!("nothing lies at {key}"))?;
    Ok(STANDARD.decode(value)?)
}

/// Replaces the value of a key by an object.
pub(super) async fn replace(world: &World, key: &str, object: &Value) -> anyhow::Result<()> {
    get(world, key).await.context("this is not where the API server keeps it")?;
    let put = json!({"key": STANDARD.encode(key), "value": STANDARD.encode(object.to_string())});
    send_request(world, "/v3/kv/put", &put).await.map(drop)
}

async fn send_request(world: &World, path: &str, question: &Value) -> anyhow::Result<Value> {
    let address = world.control_plane().etcd();
    let stream = TcpStream::connect(address).await.context("could not reach etcd")?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let request = http::Request::post(path)
        .header("host", address.to_string())
        .header("content-type", "application/json")
        .body(Full::<Bytes>::from(question.to_string()))?;
    let received = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        anyhow::ensure!(status.is_success(), "{status}: {}", String::from_utf8_lossy(&body));
        Ok(serde_json::from_slice(&body)?)
    };
    tokio::select! {
        received = received => received,
        ended = connection => Err(anyhow::anyhow!("etcd ended the connection: {ended:?}")),
    }
}
