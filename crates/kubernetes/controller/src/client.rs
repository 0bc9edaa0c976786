//! Writes, all of them through one gate: only the pod that holds the Lease may write.
//!
//! Reads need no gate and use a plain [`kube::Api`]. A write asks [`Writer::guard`] first, so a follower's attempt
//! fails here and costs the API server nothing, with the text that upstream's client wrapper uses.

use std::fmt::Debug;

use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::lease::Leadership;

/// This pod does not hold the Lease. Not a fault: the pod which holds it does the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write attempt rejected as client is not leader")]
pub struct NotLeader;

/// Why a write did not happen.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Another pod is the leader.
    #[error(transparent)]
    NotLeader(#[from] NotLeader),
    /// The API server refused, or could not be reached.
    #[error("{}", error_text(.0))]
    Api(#[source] kube::Error),
}

impl WriteError {
    /// The object was changed or created by somebody else in the meantime (HTTP 409): looking again resolves it.
    pub fn is_race(&self) -> bool {
        matches!(self, Self::Api(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() || status.code == 409)
    }

    /// The object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Api(kube::Error::Api(status)) if status.is_not_found() || status.code == 404)
    }

    /// The object was refused by validation.
    pub fn is_invalid(&self) -> bool {
        matches!(self, Self::Api(kube::Error::Api(status)) if status.is_invalid() || status.code == 422)
    }

    /// The object is more than the API server or its database takes.
    pub fn is_too_large(&self) -> bool {
        // The database's refusals come through as an internal error with its words, of which there are two kinds.
        let words = ["request is too large", "trying to send message larger than max"];
        matches!(self, Self::Api(kube::Error::Api(status))
            if status.code == 413 || words.iter().any(|words| status.message.contains(words)))
    }

    /// The service account lacks a right.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Api(error) if is_forbidden(error))
    }
}

/// Whether the API server said 403.
pub fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_forbidden() || status.code == 403)
}

/// The error as Go's client prints it: the server's own message, or the transport's chain.
pub fn error_text(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => {
            let mut text = other.to_string();
            let mut cause = std::error::Error::source(other);
            while let Some(error) = cause {
                let next = error.to_string();
                if !text.contains(&next) {
                    text = format!("{text}: {next}");
                }
                cause = error.source();
            }
            text
        }
    }
}

/// Does the writes of all controllers, while this pod is the leader.
#[derive(Clone, Debug)]
pub struct Writer {
    leadership: Leadership,
}

impl Writer {
    /// A writer that is open while `leadership` is held.
    pub fn new(leadership: Leadership) -> Self {
        Self { leadership }
    }

    /// Asks the gate.
    ///
    /// # Errors
    /// [`NotLeader`] when another pod holds the Lease.
    pub fn guard(&self) -> Result<(), NotLeader> {
        if self.leadership.is_leader() { Ok(()) } else { Err(NotLeader) }
    }

    /// Creates an object.
    ///
    /// # Errors
    /// [`WriteError`]: not leader, or the API server's answer.
    pub async fn create<K>(&self, api: &Api<K>, object: &K) -> Result<K, WriteError>
    where
        K: Clone + DeserializeOwned + Debug + Serialize,
    {
        self.guard()?;
        api.create(&PostParams::default(), object).await.map_err(WriteError::Api)
    }

    /// Replaces an object; its resource version decides whether it is still the one that was read.
    ///
    /// # Errors
    /// [`WriteError`]: not leader, or the API server's answer.
    pub async fn replace<K>(&self, api: &Api<K>, name: &str, object: &K) -> Result<K, WriteError>
    where
        K: Clone + DeserializeOwned + Debug + Serialize,
    {
        self.guard()?;
        api.replace(name, &PostParams::default(), object).await.map_err(WriteError::Api)
    }

    /// Replaces the status subresource.
    ///
    /// # Errors
    /// [`WriteError`]: not leader, or the API server's answer.
    pub async fn replace_status<K>(&self, api: &Api<K>, name: &str, object: &K) -> Result<K, WriteError>
    where
        K: Clone + DeserializeOwned + Debug + Serialize,
    {
        self.guard()?;
        api.replace_status(name, &PostParams::default(), object).await.map_err(WriteError::Api)
    }

    /// Applies a JSON merge patch.
    ///
    /// # Errors
    /// [`WriteError`]: not leader, or the API server's answer.
    pub async fn merge_patch<K>(
        &self,
        api: &Api<K>,
        name: &str,
        patch: &serde_json::Value,
    ) -> Result<K, WriteError>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        self.guard()?;
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map_err(WriteError::Api)
    }

    /// Deletes exactly the object that was read: its UID and resource version are preconditions. An object that is
    /// already gone counts as deleted.
    ///
    /// # Errors
    /// [`WriteError`]: not leader, or the API server's answer; a conflict when the object has changed.
    pub async fn delete_exactly<K>(
        &self,
        api: &Api<K>,
        name: &str,
        uid: Option<&str>,
        resource_version: Option<&str>,
    ) -> Result<(), WriteError>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        self.guard()?;
        let params = DeleteParams::default().preconditions(Preconditions {
            uid: uid.map(str::to_owned),
            resource_version: resource_version.map(str::to_owned),
        });
        match api.delete(name, &params).await.map_err(WriteError::Api) {
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Ok(()),
        }
    }

    /// [`Writer::delete_exactly`] of a whole object.
    ///
    /// # Errors
    /// As there.
    pub async fn delete_object<K>(&self, api: &Api<K>, object: &K) -> Result<(), WriteError>
    where
        K: Clone + DeserializeOwned + Debug + Resource,
    {
        let meta = object.meta();
        let name = meta.name.as_deref().unwrap_or_default();
        self.delete_exactly(api, name, meta.uid.as_deref(), meta.resource_version.as_deref()).await
    }
}
