//! The protocols of the streams, from the API server's audit log.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};
use pinniped_node::Node;
use serde_json::Value;

use super::session::{Session, Version};

/// Checks the protocol. WebSocket starts with a GET and SPDY with a POST, which the log records as
/// `get` and `create`.
pub(super) fn were_used(node: &Node, session: &Session<'_>) -> anyhow::Result<()> {
    let verb = match session.version {
        Version::Today => "get",
        Version::Old => "create",
    };
    let wanted = ["attach", "exec", "portforward"].map(|kind| (kind.to_owned(), verb.to_owned()));
    let seen = streams(node, session)?;
    ensure!(
        seen == BTreeSet::from(wanted.clone()),
        "kubectl {}: the API server saw streams {seen:?} of the user instead of {wanted:?}",
        session.version.name()
    );
    Ok(())
}

/// Returns subresource and verb of each kind of the user's streams.
fn streams(node: &Node, session: &Session<'_>) -> anyhow::Result<BTreeSet<(String, String)>> {
    let file = node.layout().logs().join("audit.log");
    let log = std::fs::read_to_string(&file).with_context(|| format!("could not read {}", file.display()))?;
    let mark = format!("/namespaces/{}/pods/", session.namespace);
    let agent = format!("kubectl/v{}.", session.version.name());
    let mut seen = BTreeSet::new();
    for line in log.lines().filter(|line| line.contains(&mark)) {
        let event: Value = serde_json::from_str(line)?;
        let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let switched = event.pointer("/responseStatus/code") == Some(&Value::from(101));
        if !switched {
            continue;
        }
        ensure!(text("/impersonatedUser/username") == "pinny", "a stream of somebody else: {line}");
        ensure!(text("/userAgent").starts_with(&agent), "a stream of another program: {line}");
        seen.insert((text("/objectRef/subresource").to_owned(), text("/verb").to_owned()));
    }
    Ok(seen)
}
