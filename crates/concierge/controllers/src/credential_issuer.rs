//! Writes a strategy's entry into the `CredentialIssuer`'s status, when it says something new.
//!
//! Two controllers write into the same list. A write that loses against the other one's looks again, with the object
//! as it is by then, so each changes only its own entry.

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

/// How often a write that lost against another is tried again within one pass.
const TRIES: u32 = 4;

/// The `CredentialIssuer` of this installation.
#[derive(Clone)]
pub struct CredentialIssuers {
    api: Api<CredentialIssuer>,
    store: Store<CredentialIssuer>,
    suffix: GroupSuffix,
    name: String,
    writer: Writer,
    pruned: Arc<Mutex<Option<Pruned>>>,
}

/// What becomes of the list.
enum Change<'a> {
    /// This is in it.
    Entry(&'a CredentialIssuerStrategy),
    /// Nothing of this type is in it.
    Removal(&'a StrategyType),
}

/// What becomes of one condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConditionChange {
    /// It says this.
    Set(Wanted),
    /// The one of this type goes.
    Remove(&'static str),
}

/// What becomes of one condition, and which state of the object was judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionReport {
    /// What it says.
    pub change: ConditionChange,
    /// The generation of the object that was judged.
    pub generation: Option<i64>,
}

/// A condition that the API server did not keep: the installed definition has no conditions, as upstream's.
#[derive(Clone, Debug)]
struct Pruned {
    wanted: Wanted,
    since: Instant,
}

/// After this long a condition that was not kept is offered again: the definition may have been replaced.
const OFFER_AGAIN: Duration = Duration::from_secs(600);

/// Why an entry did not get into the status.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// There is no object; the text is upstream's.
    #[error("{0}")]
    Missing(String),
    /// It could not be read again after a lost race.
    #[error("failed to update CredentialIssuer status: {}", error_text(.0))]
    Read(#[source] kube::Error),
    /// It could not be written.
    #[error("failed to update CredentialIssuer status: {0}")]
    Write(#[source] WriteError),
}

impl ReportError {
    /// The schema of the installed CRD refuses the entry.
    pub fn is_invalid(&self) -> bool {
        matches!(self, Self::Write(error) if error.is_invalid())
    }

    /// With the entry the object would be larger than one may be.
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
    /// Reads from `store`, writes through the context's gate.
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

    /// The object as the cache has it.
    pub fn get(&self) -> Option<std::sync::Arc<CredentialIssuer>> {
        get_named(&self.store, self.suffix.clone(), None, &self.name)
    }

    /// What upstream answers when the object is missing.
    pub fn missing(&self) -> String {
        let group = self.suffix.replace("config.concierge.pinniped.dev");
        let name = pinniped_go_compat::json::quote(&self.name);
        format!("could not get CredentialIssuer to update: credentialissuer.{group} {name} not found")
    }

    /// Puts `entry` into the list, unless the list says the same already.
    ///
    /// # Errors
    /// [`ReportError`]: the object is missing, not leader, or the API server's answer.
    pub async fn report(&self, entry: &CredentialIssuerStrategy) -> Result<(), ReportError> {
        self.report_with(entry, None).await
    }

    /// The same, and a condition beside it, in one write.
    ///
    /// # Errors
    /// As [`Self::report`].
    pub async fn report_with(
        &self,
        entry: &CredentialIssuerStrategy,
        condition: Option<&ConditionReport>,
    ) -> Result<(), ReportError> {
        self.change(&Change::Entry(entry), condition).await
    }

    /// Takes the entry of this type out of the list, if there is one.
    ///
    /// # Errors
    /// As [`Self::report`].
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
        for _ in 1..TRIES {
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
        let judged = condition.is_some_and(|condition| self.judge(current, condition));
        if unchanged && !judged {
            return Ok(());
        }
        // A cached object comes from a list and may lack its own type.
        let CredentialIssuer { kind, api_version, .. } = CredentialIssuer::new(&self.suffix, "");
        let issuer = CredentialIssuer { kind, api_version, ..issuer };
        let written = self.writer.replace_status(&self.api, &self.name, &issuer).await?;
        if let Some(ConditionReport { change: ConditionChange::Set(wanted), .. }) = condition {
            self.remember_pruned(written.status.as_ref(), wanted);
        }
        Ok(())
    }

    /// Changes the conditions, and tells whether that is worth a write.
    fn judge(&self, status: &mut CredentialIssuerStatus, report: &ConditionReport) -> bool {
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
                    .is_some_and(|pruned| pruned.wanted == *wanted && pruned.since.elapsed() < OFFER_AGAIN);
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
