//! Writes the entries of strategies and the conditions into the status of the `CredentialIssuer`.
//! Their content is decided in `pinniped_concierge_domain::credential_issuer`.
//!
//! Several controllers write to the same list. After a conflict the write is repeated on the
//! current object, so each controller changes only its own entry.

use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use kube::Api;
use kube::runtime::reflector::Store;
use pinniped_concierge_api::config::{CredentialIssuer, CredentialIssuerStrategy, StrategyType};
use pinniped_concierge_domain::credential_issuer::conditions::{self, ConditionReport, DroppedConditions};
use pinniped_concierge_domain::credential_issuer::{MissingCredentialIssuer, strategies};
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
    dropped: Arc<Mutex<DroppedConditions>>,
}

/// A change of the list.
enum Change<'a> {
    /// The list must contain this entry.
    Entry(&'a CredentialIssuerStrategy),
    /// The list must not contain an entry of this type.
    Removal(&'a StrategyType),
}

/// Reasons why an entry was not written to the status.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The object does not exist.
    #[error(transparent)]
    Missing(#[from] MissingCredentialIssuer),
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
            ReportError::Missing(missing) => Self::Failed(missing.to_string()),
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
            dropped: Arc::default(),
        }
    }

    /// Returns the object from the cache.
    pub fn get(&self) -> Option<std::sync::Arc<CredentialIssuer>> {
        get_named(&self.store, self.suffix.clone(), None, &self.name)
    }

    /// Returns the error for a missing object.
    pub fn missing(&self) -> MissingCredentialIssuer {
        let group = self.suffix.replace("config.concierge.pinniped.dev");
        MissingCredentialIssuer { group, name: self.name.clone() }
    }

    /// Writes `entry` to the list unless it is unchanged.
    ///
    /// # Errors
    ///
    /// Returns [`ReportError`] if the object is missing, this process is not the leader, or the API
    /// server refuses the write.
    pub async fn report(&self, entry: &CredentialIssuerStrategy) -> Result<(), ReportError> {
        self.report_with(entry, &ConditionReport::default()).await
    }

    /// Writes `entry` and conditions in one request.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Self::report`].
    pub async fn report_with(
        &self,
        entry: &CredentialIssuerStrategy,
        conditions: &ConditionReport,
    ) -> Result<(), ReportError> {
        self.change(&Change::Entry(entry), conditions).await
    }

    /// Removes the entry of this type from the list, if there is one.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Self::report`].
    pub async fn remove(&self, type_: &StrategyType) -> Result<(), ReportError> {
        self.change(&Change::Removal(type_), &ConditionReport::default()).await
    }

    async fn change(&self, change: &Change<'_>, conditions: &ConditionReport) -> Result<(), ReportError> {
        let Some(cached) = self.get() else { return Err(self.missing().into()) };
        let mut issuer = cached.as_ref().clone();
        for _ in 1..MAX_ATTEMPTS {
            match self.write(issuer, change, conditions).await {
                Err(error) if error.is_race() => {
                    tracing::debug!(%error, "status of the CredentialIssuer changed meanwhile, trying again");
                }
                done => return done.map_err(ReportError::Write),
            }
            issuer = self.api.get(&self.name).await.map_err(ReportError::Read)?;
        }
        self.write(issuer, change, conditions).await.map_err(ReportError::Write)
    }

    async fn write(
        &self,
        mut issuer: CredentialIssuer,
        change: &Change<'_>,
        report: &ConditionReport,
    ) -> Result<(), WriteError> {
        let current = issuer.status.get_or_insert_default();
        let merged = match change {
            Change::Entry(entry) => strategies::merge(&current.strategies, (*entry).clone()),
            Change::Removal(type_) => strategies::without(&current.strategies, type_),
        };
        let unchanged = merged.is_none();
        if let Some(merged) = merged {
            current.strategies = merged;
        }
        let conditions_changed = {
            let dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
            let now = (Timestamp::now(), Instant::now().into_std());
            conditions::apply(&mut current.conditions, report, &dropped, now)
        };
        if unchanged && !conditions_changed {
            return Ok(());
        }
        // A cached object comes from a list and may lack kind and API version.
        let CredentialIssuer { kind, api_version, .. } = CredentialIssuer::new(&self.suffix, "");
        let issuer = CredentialIssuer { kind, api_version, ..issuer };
        let written = self.writer.replace_status(&self.api, &self.name, &issuer).await?;
        let stored = written.status.as_ref().map_or(&[][..], |status| &status.conditions);
        let mut dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        dropped.record(report, stored, Instant::now().into_std());
        Ok(())
    }
}
