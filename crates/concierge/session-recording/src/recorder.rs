//! Decides which requests are recorded, and begins recordings.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use jiff::Timestamp;
use pinniped_error::chain;
use pinniped_fair_semaphore::FairSemaphore;
use pinniped_kube_request::attributes::{Attributes, ResourceAttributes};
use pinniped_kube_request::identity::User;
use pinniped_kube_request::request_info::{first_query_value, query_pairs};
use pinniped_kube_types::status::Status;
use pinniped_metrics::Metrics;
use pinniped_reverse_proxy::Tap;
use tokio::sync::mpsc;

use crate::cast::{Header, SessionMetadata};
use crate::directory::{Directory, FileError, NameParts, RecordingFile, WhenFull};
use crate::metrics::{RecordingMetrics, RecordingResult};
use crate::session::Session;
use crate::streams::{StreamsError, Upgrade};
use crate::tap::{SessionTap, Settings};
use crate::writer::{Job, Writer};

/// The memory in bytes for text of all sessions that is not written yet.
const BUFFERS: usize = 16 << 20;

/// Maximum size of the buffer of one session in bytes.
const MAX_BUFFER: usize = 1 << 20;

/// Maximum length in bytes of a text in the header of a recording, and of a list.
const MAX_TEXT: usize = 1 << 10;
const MAX_LIST: usize = 4 << 10;
/// The mark of a longer one.
const TRUNCATED: &str = " [truncated]";

/// Time in which the file of a recording must be created.
const CREATE_TIMEOUT: Duration = Duration::from_secs(5);

/// The handling of sessions that cannot be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The session continues, and its recording is incomplete or missing.
    BestEffort,
    /// The session does not begin, or it ends.
    Required,
}

/// The parameters of recordings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordingParams {
    /// The directory of the files.
    pub directory: PathBuf,
    /// The handling of sessions that cannot be recorded.
    pub mode: Mode,
    /// Whether the input of users is recorded, which contains passwords that they type.
    pub record_input: bool,
    /// The handling of a full directory.
    pub when_full: WhenFull,
    /// Maximum number of sessions that are recorded at the same time.
    pub max_sessions: usize,
    /// Maximum size of the recording of one session in bytes; at least 1 MiB.
    pub max_session: u64,
    /// Maximum size of all recordings in bytes.
    pub max_total: u64,
}

/// The reason why the recorder cannot start.
#[derive(Debug, thiserror::Error)]
#[error("could not open the directory of recordings {} (recording.sessions.directory)", path.display())]
pub struct RecordingError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// A request that may begin a session.
#[derive(Clone, Copy, Debug)]
pub struct SessionRequest<'a> {
    /// The object of the request.
    pub attributes: &'a ResourceAttributes,
    /// Path and query.
    pub uri: &'a str,
    /// The user.
    pub user: &'a User,
    /// The client, if it impersonates the user.
    pub impersonated_by: Option<&'a User>,
    /// The identifier of the request.
    pub audit_id: &'a str,
    /// The value of the header `Upgrade`.
    pub protocol: &'a HeaderValue,
    /// The header fields.
    pub headers: &'a HeaderMap,
    /// Whether the request has a body. Servers may read it as the beginning of the session.
    pub has_body: bool,
}

/// A recording that has a file.
pub struct Begun {
    /// The observer of the session.
    pub tap: Box<dyn Tap>,
    /// The name of the file.
    pub file: String,
}

/// The refusal of a session that must be recorded.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.message)]
pub struct Refused(pub Box<Status>);

/// The reasons why a session is not recorded.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error(transparent)]
    Protocol(#[from] StreamsError),
    #[error("a request for a session must not have a body")]
    Body,
    #[error(
        "the limit of {0} concurrent recordings, or the share of one client of it, is reached (recording.sessions.maxSessions)"
    )]
    TooMany(usize),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("the directory of recordings did not respond within {} s", CREATE_TIMEOUT.as_secs())]
    Slow,
    #[error("the Concierge is shutting down")]
    Stopping,
}

impl Problem {
    fn result(&self) -> RecordingResult {
        match self {
            Self::Protocol(_) | Self::Body => RecordingResult::Unsupported,
            Self::TooMany(_) => RecordingResult::OverLimit,
            Self::File(_) | Self::Slow | Self::Stopping => RecordingResult::NotStarted,
        }
    }
}

/// Records sessions. Clones share the recordings.
#[derive(Clone, Debug)]
pub struct Recorder(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    directory: Arc<Directory>,
    settings: Settings,
    max_sessions: usize,
    /// Shared fairly between clients.
    free: FairSemaphore,
    jobs: mpsc::Sender<Job>,
    metrics: RecordingMetrics,
}

/// Returns the attributes of a request for a session in a pod.
pub fn session_of(attributes: &Attributes) -> Option<&ResourceAttributes> {
    match attributes {
        Attributes::Resource(resource)
            if resource.group.is_empty()
                && resource.resource == "pods"
                && matches!(resource.subresource.as_str(), "exec" | "attach") =>
        {
            Some(resource)
        }
        _ => None,
    }
}

impl Recorder {
    /// Opens the directory, and returns the writer to run.
    ///
    /// # Errors
    /// If the directory cannot be created or read.
    pub fn open(params: RecordingParams) -> Result<(Self, Writer), RecordingError> {
        let RecordingParams {
            directory,
            mode,
            record_input,
            when_full,
            max_sessions,
            max_session,
            max_total,
        } = params;
        let failed = |source| RecordingError { path: directory.clone(), source };
        let opened = Directory::open(directory.clone(), when_full, max_session, max_total).map_err(failed)?;
        let metrics = RecordingMetrics::new();
        let (jobs, received) = mpsc::channel(max_sessions);
        let inner = Inner {
            directory: Arc::new(opened),
            settings: Settings { mode, record_input, max_session },
            max_sessions,
            free: FairSemaphore::new(max_sessions, 0),
            jobs,
            metrics: metrics.clone(),
        };
        Ok((Self(Arc::new(inner)), Writer::new(received, metrics)))
    }

    /// Registers the metrics.
    pub fn register_metrics(&self, metrics: &Metrics) {
        self.0.metrics.register(metrics, self.0.free.clone());
    }

    /// Begins the recording of a session. `None` if the session continues without a recording.
    ///
    /// # Errors
    /// Returns the response for a session that must be recorded, and cannot be.
    pub async fn begin(&self, request: &SessionRequest<'_>) -> Result<Option<Begun>, Refused> {
        let problem = match self.create(request).await {
            Ok(begun) => return Ok(Some(begun)),
            Err(problem) => problem,
        };
        let inner = &self.0;
        inner.metrics.ended(problem.result());
        let is_refused = inner.settings.mode == Mode::Required;
        tracing::warn!(
            auditID = request.audit_id,
            namespace = request.attributes.namespace,
            pod = request.attributes.name,
            isSessionRefused = is_refused,
            error = %chain(&problem),
            "a session cannot be recorded"
        );
        if !is_refused {
            return Ok(None);
        }
        // The log has the cause, too, such as an error of the file system.
        let message = format!("this session must be recorded, and it cannot be: {problem}");
        Err(Refused(Box::new(match problem {
            Problem::Protocol(_) | Problem::Body => Status::bad_request(message),
            _ => Status::service_unavailable(message),
        })))
    }

    async fn create(&self, request: &SessionRequest<'_>) -> Result<Begun, Problem> {
        let inner = &self.0;
        if request.has_body {
            return Err(Problem::Body);
        }
        let upgrade = match Upgrade::requested(request.protocol.as_bytes(), request.headers) {
            // The server may agree on another protocol.
            Err(error @ StreamsError::Subprotocol(_)) if inner.settings.mode == Mode::BestEffort => {
                tracing::debug!(%error, "the recording of a session depends on its server");
                Upgrade::WebSocket
            }
            result => result?,
        };
        let client = request.impersonated_by.unwrap_or(request.user);
        let permit = inner.free.try_acquire(&[client.name.as_str()]);
        let permit = permit.ok_or(Problem::TooMany(inner.max_sessions))?;
        let now = Timestamp::now();
        let header = header(request, now);
        let directory = Arc::clone(&inner.directory);
        let ResourceAttributes { namespace, name, .. } = request.attributes;
        let (namespace, pod, audit_id) = (namespace.clone(), name.clone(), request.audit_id.to_owned());
        // The permit is part of the work, so that an unresponsive disk does not collect threads.
        let create = tokio::task::spawn_blocking(move || {
            let parts = NameParts { time: now, namespace: &namespace, pod: &pod, audit_id: &audit_id };
            directory.create(parts).map(|file| (Unused(Some(file)), permit))
        });
        let created = tokio::time::timeout(CREATE_TIMEOUT, create).await.map_err(|_| Problem::Slow)?;
        let (mut unused, permit) = created.map_err(|_| Problem::Stopping)??;
        let Some(file) = unused.0.take() else { return Err(Problem::Stopping) };
        let name = file.name().to_owned();
        let session = Arc::new(Session::new((BUFFERS / inner.max_sessions).min(MAX_BUFFER)));
        let audit_id = header.kubernetes.audit_id.clone();
        let job = Job { session: Arc::clone(&session), file, audit_id, permit };
        // There is room for each permit.
        if let Err(error) = inner.jobs.try_send(job) {
            drop(Unused(Some(error.into_inner().file)));
            return Err(Problem::Stopping);
        }
        let tap = SessionTap::new(session, inner.settings, upgrade, header, name.clone());
        Ok(Begun { tap: Box::new(tap), file: name })
    }
}

/// A file that is removed unless a session uses it.
struct Unused(Option<RecordingFile>);

impl Drop for Unused {
    fn drop(&mut self) {
        let Some(file) = self.0.take() else { return };
        let discard = move || {
            if let Err(error) = file.discard() {
                tracing::warn!(error = %chain(&error), "could not remove an unused recording");
            }
        };
        // A slow disk must not delay the thread of a request that its client has left.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(discard)),
            Err(_outside) => discard(),
        }
    }
}

/// Returns the beginning of a recording. Clients choose the texts, so their length is limited.
fn header(request: &SessionRequest<'_>, now: Timestamp) -> Header {
    let SessionRequest { attributes, uri, user, impersonated_by, audit_id, .. } = *request;
    let query = uri.split_once('?').map_or("", |(_, query)| query);
    // As the API server reads it.
    let flag = |name| {
        let value = first_query_value(query, name);
        value.is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    };
    let command = query_pairs(query).filter(|(name, _)| name == "command").map(|(_, value)| value);
    let command = limited(command);
    let text = |text: &str| shortened(text, MAX_TEXT);
    let container = text(&first_query_value(query, "container").unwrap_or_default());
    let (namespace, pod, username) = (text(&attributes.namespace), text(&attributes.name), text(&user.name));
    let subresource = attributes.subresource.clone();
    let title = format!("{username}: kubectl {subresource} in pod {namespace}/{pod}");
    Header {
        timestamp: now.as_second(),
        title,
        command: command.join(" "),
        kubernetes: SessionMetadata {
            audit_id: text(audit_id),
            username,
            groups: limited(user.groups.iter().cloned()),
            impersonated_by: impersonated_by.map(|client| text(&client.name)),
            namespace,
            pod,
            container,
            subresource,
            command,
            tty: flag("tty"),
            stdin: flag("stdin"),
        },
    }
}

/// Returns the text, or its beginning.
fn shortened(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    format!("{}{TRUNCATED}", &text[..text.floor_char_boundary(most)])
}

/// Returns the texts, or the first ones.
fn limited(texts: impl Iterator<Item = String>) -> Vec<String> {
    let (mut room, mut list) = (MAX_LIST, Vec::new());
    for text in texts {
        if room == 0 {
            list.push(TRUNCATED.to_owned());
            break;
        }
        let text = shortened(&text, room);
        // An empty text needs room, too.
        room = room.saturating_sub(text.len() + 1);
        list.push(text);
    }
    list
}

#[cfg(test)]
mod tests;
