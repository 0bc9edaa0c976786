//! Writes the entries of strategies and the conditions into the status of the `CredentialIssuer`.
//! Their content is decided in `pinniped_concierge_domain::credential_issuer`.
//!
//! Several controllers write to the same list. After a conflict the write is repeated on the
//! current object, so each controller changes only its own entry. Every write also brings the
//! condition `Ready` up to date, which depends on all entries.

use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use kube::runtime::reflector::Store;
use kube::{Api, Resource as _};
use pinniped_concierge_api::config::{
    CredentialIssuer, CredentialIssuerStatus, CredentialIssuerStrategy, ServingCertificateStatus,
    StrategyType,
};
use pinniped_concierge_domain::credential_issuer::MissingCredentialIssuer;
use pinniped_concierge_domain::credential_issuer::conditions::{self, ConditionReport, DroppedConditions};
use pinniped_concierge_domain::credential_issuer::events;
use pinniped_concierge_domain::credential_issuer::ready::{ObservedGenerations, ready};
use pinniped_concierge_domain::credential_issuer::strategies::{self, EntryChange};
use pinniped_kube_types::condition::wire_time;
use pinniped_kube_types::event::NewEvent;
use pinniped_kube_types::suffix::GroupSuffix;
use pinniped_logging::value::ALWAYS;
use tokio::time::Instant;

use crate::context::Context;
use pinniped_controller::client::{WriteError, Writer, error_text};
use pinniped_controller::event::EventRecorder;
use pinniped_controller::runtime::ReconcileError;
use pinniped_controller::watch::get_named;

/// Maximum number of attempts of a conflicting write in one pass.
const MAX_ATTEMPTS: u32 = 4;

/// Maximum number of Events that wait until the object is in the cache.
const MAX_WAITING_EVENTS: usize = 16;

/// Access to the `CredentialIssuer` of this installation.
#[derive(Clone)]
pub struct CredentialIssuers {
    api: Api<CredentialIssuer>,
    store: Store<CredentialIssuer>,
    suffix: GroupSuffix,
    name: String,
    writer: Writer,
    events: EventRecorder,
    memory: Arc<Mutex<Memory>>,
}

/// The memory of this process about the object, which the status does not contain.
#[derive(Debug, Default)]
struct Memory {
    dropped: DroppedConditions,
    observed: ObservedGenerations,
    /// Events that occurred before the object was in the cache, at most [`MAX_WAITING_EVENTS`].
    waiting_events: Vec<NewEvent>,
    /// The last entry of each strategy that was logged.
    logged: Vec<CredentialIssuerStrategy>,
}

/// A change of the list.
enum ListChange<'a> {
    /// The list must contain this entry.
    Set(&'a CredentialIssuerStrategy),
    /// The list must not contain an entry of this type.
    Removal(&'a StrategyType),
}

impl ListChange<'_> {
    fn type_(&self) -> &StrategyType {
        match self {
            Self::Set(entry) => &entry.type_,
            Self::Removal(type_) => type_,
        }
    }
}

/// A change of the status.
struct Change<'a> {
    entry: Option<ListChange<'a>>,
    conditions: ConditionReport,
    /// The serving certificate of the proxy, if the change is that of its controller.
    serving_certificate: Option<Option<ServingCertificateStatus>>,
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
            events: context.events.clone(),
            memory: Arc::default(),
        }
    }

    /// Returns the object from the cache.
    pub fn get(&self) -> Option<std::sync::Arc<CredentialIssuer>> {
        get_named(&self.store, self.suffix.clone(), None, &self.name)
    }

    /// Records an Event about the object, if this pod is the leader. An Event that occurs before
    /// the object is in the cache is recorded with the next one, or with the next status.
    pub fn record(&self, event: NewEvent) {
        if !self.events.is_active() {
            return;
        }
        self.record_all([event]);
    }

    fn record_all(&self, new: impl IntoIterator<Item = NewEvent>) {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.waiting_events.extend(new);
        match self.get() {
            Some(issuer) => {
                let regarding = issuer.object_ref(&self.suffix);
                for event in memory.waiting_events.drain(..) {
                    self.events.record(regarding.clone(), event);
                }
            }
            None => memory.waiting_events.truncate(MAX_WAITING_EVENTS),
        }
    }

    /// Returns the error for a missing object.
    pub fn missing(&self) -> MissingCredentialIssuer {
        let group = self.suffix.replace("config.concierge.pinniped.dev");
        MissingCredentialIssuer { group, name: self.name.clone() }
    }

    /// Writes `entry` to the list unless it is unchanged. `generation` is that of the object from
    /// which the entry was derived.
    ///
    /// # Errors
    ///
    /// Returns [`ReportError`] if the object is missing, this process is not the leader, or the API
    /// server refuses the write.
    pub async fn report(
        &self,
        entry: &CredentialIssuerStrategy,
        generation: Option<i64>,
    ) -> Result<(), ReportError> {
        self.log(entry);
        let conditions = ConditionReport { generation, ..ConditionReport::default() };
        let entry = Some(ListChange::Set(entry));
        self.change(&Change { entry, conditions, serving_certificate: None }).await
    }

    /// Writes `entry`, conditions, and the expiry of the proxy's serving certificate in one
    /// request.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Self::report`].
    pub async fn report_proxy(
        &self,
        entry: &CredentialIssuerStrategy,
        conditions: ConditionReport,
        not_after: Option<Timestamp>,
    ) -> Result<(), ReportError> {
        self.log(entry);
        let certificate = not_after.map(|time| ServingCertificateStatus { not_after: wire_time(time) });
        let entry = Some(ListChange::Set(entry));
        self.change(&Change { entry, conditions, serving_certificate: Some(certificate) }).await
    }

    /// Writes conditions that belong to no strategy.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Self::report`].
    pub async fn report_conditions(&self, conditions: ConditionReport) -> Result<(), ReportError> {
        self.change(&Change { entry: None, conditions, serving_certificate: None }).await
    }

    /// Reports that a strategy is not in use: its entry is removed, if there is one.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Self::report`].
    pub async fn remove(&self, type_: &StrategyType, generation: Option<i64>) -> Result<(), ReportError> {
        let conditions = ConditionReport { generation, ..ConditionReport::default() };
        let entry = Some(ListChange::Removal(type_));
        self.change(&Change { entry, conditions, serving_certificate: None }).await
    }

    /// Logs an entry that this pod decided, if it differs from the last one of the strategy.
    fn log(&self, entry: &CredentialIssuerStrategy) {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(logged) = strategies::merge(&memory.logged, entry.clone()) else { return };
        memory.logged = logged;
        let CredentialIssuerStrategy { type_, status, reason, message, .. } = entry;
        tracing::info!(
            target: ALWAYS,
            object = format!("CredentialIssuer/{}", self.name),
            strategy = %type_, %status, %reason, text = %message,
            "strategy of the CredentialIssuer"
        );
    }

    async fn change(&self, change: &Change<'_>) -> Result<(), ReportError> {
        let Some(cached) = self.get() else { return Err(self.missing().into()) };
        let mut issuer = cached.as_ref().clone();
        for _ in 1..MAX_ATTEMPTS {
            match self.write(issuer, change).await {
                Err(error) if error.is_race() => {
                    tracing::debug!(%error, "status of the CredentialIssuer changed meanwhile, trying again");
                }
                done => return done.map_err(ReportError::Write),
            }
            issuer = self.api.get(&self.name).await.map_err(ReportError::Read)?;
        }
        self.write(issuer, change).await.map_err(ReportError::Write)
    }

    async fn write(&self, mut issuer: CredentialIssuer, change: &Change<'_>) -> Result<(), WriteError> {
        let current = issuer.status.get_or_insert_default();
        let merged = match change.entry {
            Some(ListChange::Set(entry)) => strategies::merge(&current.strategies, entry.clone()),
            Some(ListChange::Removal(type_)) => strategies::without(&current.strategies, type_),
            None => None,
        };
        let events = match &merged {
            Some(merged) => events::of_strategies(&current.strategies, merged),
            None => Vec::new(),
        };
        let mut must_write = merged.is_some();
        if let Some(merged) = merged {
            current.strategies = merged;
        }
        let type_ = change.entry.as_ref().map(ListChange::type_);
        let generation = change.conditions.generation;
        let ready = {
            let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
            let observed = match type_ {
                Some(type_) => memory.observed.with(type_, generation),
                None => memory.observed.clone(),
            };
            let ready = ready(&current.strategies, &current.conditions, &observed);
            let now = Instant::now().into_std();
            for report in [&change.conditions, &ready] {
                let now = (Timestamp::now(), now);
                must_write |= conditions::apply(&mut current.conditions, report, &memory.dropped, now);
            }
            let drops_additions = memory.dropped.is_recent(now);
            must_write |= change.serving_certificate.as_ref().is_some_and(|certificate| {
                set_serving_certificate(current, certificate.clone()) && !drops_additions
            });
            ready
        };
        if must_write {
            // A cached object comes from a list and may lack kind and API version.
            let CredentialIssuer { kind, api_version, .. } = CredentialIssuer::new(&self.suffix, "");
            let issuer = CredentialIssuer { kind, api_version, ..issuer };
            let written = self.writer.replace_status(&self.api, &self.name, &issuer).await?;
            let stored = written.status.as_ref().map_or(&[][..], |status| &status.conditions);
            {
                let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
                for report in [&change.conditions, &ready] {
                    memory.dropped.record(report, stored, Instant::now().into_std());
                }
            }
            self.record_all(events);
        }
        if let Some(type_) = type_ {
            let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
            memory.observed.record(type_, generation);
        }
        Ok(())
    }
}

/// Sets the expiry of the serving certificate, and returns whether it changed.
fn set_serving_certificate(
    status: &mut CredentialIssuerStatus,
    certificate: Option<ServingCertificateStatus>,
) -> bool {
    let changed = status.serving_certificate != certificate;
    status.serving_certificate = certificate;
    changed
}

/// The entry of a strategy that upstream does not have. The installed definition may not have its
/// type; the strategy then has no entry.
pub(crate) struct AdditionalEntry {
    issuers: CredentialIssuers,
    type_: StrategyType,
    /// Whether the installed definition does not have the type.
    unknown_type: bool,
}

impl AdditionalEntry {
    /// Returns the entry of this strategy.
    pub(crate) fn new(issuers: CredentialIssuers, type_: StrategyType) -> Self {
        Self { issuers, type_, unknown_type: false }
    }

    /// Returns whether the installed definition does not have the type, so that clients do not see
    /// the strategy.
    pub(crate) fn has_unknown_type(&self) -> bool {
        self.unknown_type
    }

    /// Applies the change. `generation` is that of the object from which it was derived.
    ///
    /// # Errors
    ///
    /// Returns an error if the object is missing, this process is not the leader, or the API server
    /// refuses the write for another reason than an unknown type.
    pub(crate) async fn write(
        &mut self,
        change: &EntryChange,
        generation: Option<i64>,
    ) -> Result<(), ReconcileError> {
        let written = match change {
            EntryChange::Remove => self.issuers.remove(&self.type_, generation).await,
            EntryChange::Set(entry) => self.issuers.report(entry, generation).await,
        };
        match written {
            Err(error) if error.is_invalid() => {
                if !std::mem::replace(&mut self.unknown_type, true) {
                    tracing::warn!(
                        %error,
                        strategy = self.type_.as_str(),
                        "the installed CredentialIssuer CRD does not have a strategy, so it stays disabled: \
                         apply install-pinniped-concierge-crds.yaml"
                    );
                }
                Ok(self.issuers.remove(&self.type_, generation).await?)
            }
            Err(error) => Err(error.into()),
            Ok(()) => {
                self.unknown_type = false;
                Ok(())
            }
        }
    }
}
