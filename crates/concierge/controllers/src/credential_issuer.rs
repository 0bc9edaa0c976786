//! Writes a strategy's entry into the `CredentialIssuer`'s status if it changes the status.
//!
//! Several controllers write to the same list. After a conflict the write is repeated on the
//! current object, so each controller changes only its own entry.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kube::Api;
use kube::runtime::reflector::Store;
use pinniped_concierge_api::config::{
    CredentialIssuer, CredentialIssuerStatus, CredentialIssuerStrategy, StrategyType,
};
use pinniped_concierge_domain::strategy::status;
use pinniped_kube_types::condition::{self, Wanted};
use pinniped_kube_types::suffix::GroupSuffix;
use tokio::time::Instant;

use crate::context::Context;
use pinniped_controller::client::{WriteError, Writer, error_text};
use pinniped_controller::runtime::ReconcileError;
use pinniped_controller::watch::get_named;

/// Maximum number of attempts of a conflicting write in one pass.
const MAX_ATTEMPTS: u32 = 4;

/// Access to the `CredentialIssuer` of this installation.
#[derive(Clone)]
pub struct CredentialIssuers {
    api: Api<CredentialIssuer>,
    store: Store<CredentialIssuer>,
    suffix: GroupSuffix,
    name: String,
    writer: Writer,
    pruned: Arc<Mutex<Option<Pruned>>>,
}

/// A change of the list.
enum Change<'a> {
    /// The list must contain this entry.
    Entry(&'a CredentialIssuerStrategy),
    /// The list must not contain an entry of this type.
    Removal(&'a StrategyType),
}

/// A change of one condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConditionChange {
    /// The condition must have this content.
    Set(Wanted),
    /// The status must not contain a condition of this type.
    Remove(&'static str),
}

/// A change of one condition, and the generation from which it was derived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionReport {
    /// The change of the condition.
    pub change: ConditionChange,
    /// The generation of the observed object.
    pub generation: Option<i64>,
}

/// A condition that the API server dropped, because the installed definition has no conditions,
/// like upstream's.
#[derive(Clone, Debug)]
struct Pruned {
    wanted: Wanted,
    since: Instant,
}

/// Time after which a dropped condition is written again, because the definition may have been
/// replaced.
const PRUNED_RETRY: Duration = Duration::from_secs(600);

/// Reasons why an entry was not written to the status.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The object does not exist; the text is upstream's.
    #[error("{0}")]
    Missing(String),
    /// The object could not be read again after a conflict.
    #[error("failed to update CredentialIssuer status: {}", error_text(.0))]
    Read(#[source] kube::Error),
    /// The status could not be written.
    #[error("failed to update CredentialIssuer status: {0}")]
    Write(#[source] WriteError),
}

impl ReportError {
    /// Returns whether the schema of the installed CRD rejects the entry.
    pub fn is_invalid(&self) -> bool {
        matches!(self, Self::Write(error) if error.is_invalid())
    }

    /// Returns whether the object would exceed the maximum size of an object.
    pub fn is_too_large(&self) -> bool {
        matches!(self, Self::Write(error) if error.is_too_large())
    }
}

impl From<ReportError> for ReconcileError {
    fn from(error: ReportError) -> Self {
        let prefix = "failed to update CredentialIssuer status";
        match error {
            ReportError::Missing(text) => Self::Failed(text),
            ReportError::Read(error) => Self::from(error).context(prefix),
            ReportError::Write(error) => Self::from(error).context(prefix),
        }
    }
}

impl CredentialIssuers {
    /// Returns access that reads from `store` and writes through the context's writer.
    pub fn new(context: &Context, store: Store<CredentialIssuer>) -> Self {
        Self {
            api: Api::all_with(context.client.clone(), &context.suffix),
            store,
            suffix: context.suffix.clone(),
            name: context.names.credential_issuer.clone(),
            writer: context.writer(),
            pruned: Arc::default(),
        }
    }

    /// Returns the object from the cache.
    pub fn get(&self) -> Option<std::sync::Arc<CredentialIssuer>> {
        get_named(&self.store, self.suffix.clone(), None, &self.name)
    }

    /// Returns upstream's error text for a missing object.
    pub fn missing(&self) -> String {
        let group = self.suffix.replace("config.concierge.pinniped.dev");
        let name = pinniped_go_compat::json::quote(&self.name);
        format!("could not get CredentialIssuer to update: credentialissuer.{group} {name} not found")
    }

    /// Writes `entry` to the list unless it is unchanged.
    ///
    /// # Errors
    ///
    /// Returns [`ReportError`] if the object is missing, this process is not the leader, or the API
    /// server refuses the write.
    pub async fn report(&self, entry: &CredentialIssuerStrategy) -> Result<(), ReportError> {
        self.report_with(entry, None).await
    }

    /// Writes `entry` and a condition in one request.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Self::report`].
    pub async fn report_with(
        &self,
        entry: &CredentialIssuerStrategy,
        condition: Option<&ConditionReport>,
    ) -> Result<(), ReportError> {
        self.change(&Change::Entry(entry), condition).await
    }

    /// Removes the entry of this type from the list, if there is one.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Self::report`].
    pub async fn remove(&self, type_: &StrategyType) -> Result<(), ReportError> {
        self.change(&Change::Removal(type_), None).await
    }

    async fn change(
        &self,
        change: &Change<'_>,
        condition: Option<&ConditionReport>,
    ) -> Result<(), ReportError> {
        let Some(cached) = self.get() else { return Err(ReportError::Missing(self.missing())) };
        let mut issuer = cached.as_ref().clone();
        for _ in 1..MAX_ATTEMPTS {
            match self.write(issuer, change, condition).await {
                Err(error) if error.is_race() => {
                    tracing::debug!(%error, "status of the CredentialIssuer changed meanwhile, trying again");
                }
                done => return done.map_err(ReportError::Write),
            }
            issuer = self.api.get(&self.name).await.map_err(ReportError::Read)?;
        }
        self.write(issuer, change, condition).await.map_err(ReportError::Write)
    }

    async fn write(
        &self,
        mut issuer: CredentialIssuer,
        change: &Change<'_>,
        condition: Option<&ConditionReport>,
    ) -> Result<(), WriteError> {
        let current = issuer.status.get_or_insert_default();
        let merged = match change {
            Change::Entry(entry) => status::merge(&current.strategies, (*entry).clone()),
            Change::Removal(type_) => status::without(&current.strategies, type_),
        };
        let unchanged = merged.is_none();
        if let Some(merged) = merged {
            current.strategies = merged;
        }
        let condition_changed = condition.is_some_and(|condition| self.change_condition(current, condition));
        if unchanged && !condition_changed {
            return Ok(());
        }
        // A cached object comes from a list and may lack kind and API version.
        let CredentialIssuer { kind, api_version, .. } = CredentialIssuer::new(&self.suffix, "");
        let issuer = CredentialIssuer { kind, api_version, ..issuer };
        let written = self.writer.replace_status(&self.api, &self.name, &issuer).await?;
        if let Some(ConditionReport { change: ConditionChange::Set(wanted), .. }) = condition {
            self.remember_pruned(written.status.as_ref(), wanted);
        }
        Ok(())
    }

    /// Changes the conditions and returns whether the change must be written.
    fn change_condition(&self, status: &mut CredentialIssuerStatus, report: &ConditionReport) -> bool {
        match &report.change {
            ConditionChange::Remove(type_) => {
                let before = status.conditions.len();
                status.conditions.retain(|condition| condition.type_ != *type_);
                status.conditions.len() < before
            }
            ConditionChange::Set(wanted) => {
                let there = status.conditions.iter().any(|condition| condition.type_ == wanted.type_);
                let now = Timestamp::now();
                let changed =
                    condition::merge(&mut status.conditions, [wanted.clone()], report.generation, now);
                let pruned = self.pruned.lock().unwrap_or_else(PoisonError::into_inner);
                let is_pruned = pruned
                    .as_ref()
                    .is_some_and(|pruned| pruned.wanted == *wanted && pruned.since.elapsed() < PRUNED_RETRY);
                changed && (there || !is_pruned)
            }
        }
    }

    fn remember_pruned(&self, kept: Option<&CredentialIssuerStatus>, wanted: &Wanted) {
        let is_kept = kept
            .is_some_and(|status| status.conditions.iter().any(|condition| condition.type_ == wanted.type_));
        let pruned = (!is_kept).then(|| Pruned { wanted: wanted.clone(), since: Instant::now() });
        *self.pruned.lock().unwrap_or_else(PoisonError::into_inner) = pruned;
    }
}
