//! The API server's audit log as a stream that is read and truncated, so that it stays small.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use pinniped_test_support::wait;
use serde::Deserialize;

/// The part of an event that shows the API server's interpretation of a request.
#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ObjectRef {
    pub(super) resource: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) api_group: String,
    pub(super) api_version: String,
    pub(super) subresource: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    #[serde(rename = "auditID")]
    audit_id: String,
    stage: String,
    #[serde(rename = "requestURI", default)]
    request_uri: String,
    #[serde(default)]
    verb: String,
    object_ref: Option<ObjectRef>,
}

/// One request in the log.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) verb: String,
    pub(super) request_uri: String,
    pub(super) object_ref: Option<ObjectRef>,
    /// Whether the log contains the stage that only requests without a deadline have.
    pub(super) response_started: bool,
    complete: bool,
}

/// The log while the API server writes it.
pub(super) struct AuditLog {
    path: PathBuf,
    file: File,
    rest: Vec<u8>,
    seen: HashMap<String, Seen>,
}

impl AuditLog {
    /// Creates a log. The file exists before the API server starts, which then appends to it, so
    /// that it can be truncated.
    pub(super) fn create(path: &Path) -> anyhow::Result<Self> {
        let file = OpenOptions::new().create_new(true).read(true).write(true).open(path);
        let file = file.with_context(|| format!("could not create {}", path.display()))?;
        Ok(Self { path: path.to_owned(), file, rest: Vec::new(), seen: HashMap::new() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for all events of each of these requests and returns them; afterwards the log is
    /// empty. A request that ends at once (true in `audit_ids`) has one event, whose stage is not
    /// the last one.
    pub(super) async fn take(&mut self, audit_ids: &[(&str, bool)]) -> anyhow::Result<HashMap<String, Seen>> {
        wait::until_ok(Duration::from_secs(30), "every request to be in the audit log", async || {
            self.read_on()?;
            let is_there = |(id, at_once): &&(&str, bool)| {
                self.seen.get(*id).is_some_and(|seen| seen.complete || *at_once && seen.response_started)
            };
            match audit_ids.iter().find(|id| !is_there(id)) {
                Some((missing, _)) => anyhow::bail!("{missing:?} is missing"),
                None => Ok(()),
            }
        })
        .await?;
        anyhow::ensure!(self.rest.is_empty(), "half an event behind the last one");
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        Ok(std::mem::take(&mut self.seen))
    }

    fn read_on(&mut self) -> anyhow::Result<()> {
        self.file.read_to_end(&mut self.rest)?;
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else { return Ok(()) };
        let lines: Vec<u8> = self.rest.drain(..=end).collect();
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let event: Event = serde_json::from_slice(line)
                .with_context(|| format!("no event: {}", String::from_utf8_lossy(line)))?;
            let seen = self.seen.entry(event.audit_id).or_default();
            match event.stage.as_str() {
                "ResponseStarted" => seen.response_started = true,
                "ResponseComplete" | "Panic" => seen.complete = true,
                stage => anyhow::bail!("stage {stage} is not in the policy"),
            }
            seen.verb = event.verb;
            seen.request_uri = event.request_uri;
            seen.object_ref = event.object_ref;
        }
        Ok(())
    }
}
