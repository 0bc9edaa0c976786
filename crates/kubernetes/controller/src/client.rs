//! The gate for all writes: only the pod that holds the Lease may write.
//!
//! Reads need no gate and use a plain [`kube::Api`]. A write calls [`Writer::guard`] first, so that
//! the write of a follower fails without a request to the API server, with the error text of
//! upstream's client wrapper.

use std::fmt::Debug;

use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::lease::Leadership;

/// This pod does not hold the Lease. This is not a failure: the pod that holds it does the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write attempt rejected as client is not leader")]
pub struct NotLeader;

/// The reasons why a write failed.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Another pod is the leader.
    #[error(transparent)]
    NotLeader(#[from] NotLeader),
    /// The API server refused the request, or could not be reached.
    #[error("{}", error_text(.0))]
    Api(#[source] kube::Error),
}

impl WriteError {
    /// Returns whether another client changed or created the object concurrently (HTTP 409):
    /// reading it again resolves the conflict.
    pub fn is_race(&self) -> bool {
        matches!(self, Self::Api(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() || status.code == 409)
    }

    /// Returns whether the object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Api(kube::Error::Api(status)) if status.is_not_found() || status.code == 404)
    }

    /// Returns whether validation refused the object.
    pub fn is_invalid(&self) -> bool {
        matches!(self, Self::Api(kube::Error::Api(status)) if status.is_invalid() || status.code == 422)
    }

    /// Returns whether the object exceeds the size limit of the API server or its database.
    pub fn is_too_large(&self) -> bool {
        // The API server returns size errors of the database as an internal error with one of two
        // texts.
        let words = ["request is too large", "trying to send message larger than max"];
        matches!(self, Self::Api(kube::Error::Api(status))
            if status.code == 413 || words.iter().any(|words| status.message.contains(words)))
    }

    /// Returns whether the service account lacks a permission.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Api(error) if is_forbidden(error))
    }
}

/// Returns whether the API server responded with 403.
pub fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_forbidden() || status.code == 403)
}

/// Formats the error like Go's client: the message of the server, or the cause chain of the
/// transport.
pub fn error_text(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => pinniped_error::chain(other).to_string(),
    }
}

/// Performs the writes of all controllers, while this pod is the leader.
#[derive(Clone, Debug)]
pub struct Writer {
    leadership: Leadership,
}

impl Writer {
    /// Creates a writer that allows writes while `leadership` is held.
    pub fn new(leadership: Leadership) -> Self {
        Self { leadership }
    }

    /// Checks whether this pod may write.
    ///
    /// # Errors
    /// [`NotLeader`] when another pod holds the Lease.
    pub fn guard(&self) -> Result<(), NotLeader> {
        if self.leadership.is_leader() { Ok(()) } else { Err(NotLeader) }
    }

    /// Creates an object.
    ///
    /// # Errors
    /// [`WriteError`]: not leader, or the error of the API server.
    pub async fn create<K>(&self, api: &Api<K>, object: &K) -> Result<K, WriteError>
    where
        K: Clone + DeserializeOwned + Debug + Serialize,
    {
        self.guard()?;
        api.create(&PostParams::default(), object).await.map_err(WriteError::Api)
    }

    /// Replaces an object, on the condition that its resource version is still the one that was
    /// read.
    ///
    /// # Errors
    /// [`WriteError`]: not leader, or the error of the API server.
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
    /// [`WriteError`]: not leader, or the error of the API server.
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
    /// [`WriteError`]: not leader, or the error of the API server.
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

    /// Deletes the object only in the state that was read: its UID and resource version are
    /// preconditions. An object that no longer exists counts as deleted.
    ///
    /// # Errors
    /// [`WriteError`]: not leader, or the error of the API server; a conflict when the object has
    /// changed.
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

    /// Calls [`Writer::delete_exactly`] for an object.
    ///
    /// # Errors
    /// As [`Writer::delete_exactly`].
    pub async fn delete_object<K>(&self, api: &Api<K>, object: &K) -> Result<(), WriteError>
    where
        K: Clone + DeserializeOwned + Debug + Resource,
    {
        let meta = object.meta();
        let name = meta.name.as_deref().unwrap_or_default();
        self.delete_exactly(api, name, meta.uid.as_deref(), meta.resource_version.as_deref()).await
    }
}
