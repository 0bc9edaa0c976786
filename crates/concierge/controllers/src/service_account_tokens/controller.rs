//! `service-account-token-controller`: applies `spec.serviceAccountTokens` and reports the
//! strategy.
//!
//! `pinniped_concierge_domain::service_account_tokens` decides about settings, objects and the
//! entry.

use jiff::Timestamp;
use pinniped_concierge_api::config::{CredentialIssuer, StrategyReason, StrategyType};
use pinniped_concierge_domain::credential_issuer::strategies::EntryChange;
use pinniped_concierge_domain::service_account_tokens::schedule::{Next, Schedule};
use pinniped_concierge_domain::service_account_tokens::settings::SettingsError;
use pinniped_concierge_domain::service_account_tokens::strategy::{self, Cleanup, SetupError};
use pinniped_concierge_domain::service_account_tokens::{Form, Maker, Settings};
use pinniped_concierge_domain::status_text::StatusText;
use tokio::time::Instant;

use super::account::Account;
use super::collector::Collector;
use super::constrained_impersonation::ConstrainedImpersonation;
use super::permissions::PermissionCheck;
use super::switch::{Active, Switch};
use crate::api_server_address::ApiServerAddress;
use crate::context::Context;
use crate::credential_issuer::{AdditionalEntry, CredentialIssuers};
use pinniped_controller::runtime::{Action, Reconcile, ReconcileError};

/// Parameters of the controller besides the context.
pub struct TokensParams {
    /// The current settings for logins.
    pub switch: Switch,
    /// The account that writes roles and bindings.
    pub account: Account,
    /// Whether objects may contain usernames.
    pub name_users: bool,
}

/// The controller.
pub struct ServiceAccountTokenController {
    context: Context,
    params: TokensParams,
    issuers: CredentialIssuers,
    address: ApiServerAddress,
    entry: AdditionalEntry,
    permissions: PermissionCheck,
    constrained: ConstrainedImpersonation,
    collector: Collector,
    schedule: Schedule,
    /// Generation of the observed `CredentialIssuer`.
    generation: Option<i64>,
}

impl ServiceAccountTokenController {
    pub(crate) fn new(
        context: Context,
        params: TokensParams,
        issuers: CredentialIssuers,
        address: ApiServerAddress,
    ) -> Self {
        Self {
            entry: AdditionalEntry::new(issuers.clone(), StrategyType::ServiceAccountToken),
            collector: Collector::new(context.clone(), params.account.clone()),
            context,
            params,
            issuers,
            address,
            permissions: PermissionCheck::default(),
            constrained: ConstrainedImpersonation::default(),
            schedule: Schedule::default(),
            generation: None,
        }
    }

    fn maker(&self, namespace: &str, form: Form) -> Maker {
        Maker {
            namespace: namespace.to_owned(),
            labels: self.context.labels.clone(),
            form,
            name_users: self.params.name_users,
        }
    }

    /// Runs a pass in mode `enabled`.
    async fn enabled(
        &mut self,
        settings: Settings,
        form: Form,
        has_entry: bool,
    ) -> Result<Action, ReconcileError> {
        // The strategy is active only once it has an entry. If the installed definition does not
        // have the type, clients would not see the strategy and its objects would not be cleaned
        // up.
        let active = has_entry.then(|| Active { settings: settings.clone(), form });
        self.params.switch.set(active);
        if !self.context.leadership.is_leader() {
            return Ok(Action::done());
        }
        let setup =
            match self.permissions.check(&self.context.client, &self.params.account, &settings, form).await {
                Ok(()) => self.address.current().map_err(SetupError::from),
                Err(error) => Err(SetupError::Permissions(StatusText::of(&error))),
            };
        self.write(strategy::enabled(&setup, Timestamp::now())).await?;
        match self.schedule.enabled(setup.is_ok() && !self.entry.has_unknown_type(), now()) {
            Next::Recheck(delay) => return Ok(Action::recheck(delay)),
            Next::Collect => {}
        }
        let maker = self.maker(&settings.namespace, form);
        match self.collector.collect(&settings, &maker).await {
            Ok(progress) => Ok(Action::recheck(self.schedule.collected(progress, now()))),
            Err(error) => {
                self.permissions.invalidate();
                Err(error)
            }
        }
    }

    /// Runs a pass in mode `disabled`: deletes the remaining objects, then the entry.
    async fn disabled(
        &mut self,
        namespace: &str,
        entry: Option<StrategyReason>,
    ) -> Result<Action, ReconcileError> {
        self.params.switch.set(None);
        self.schedule.disabled();
        if entry.is_none() || !self.context.leadership.is_leader() {
            self.schedule.idle();
            if self.context.leadership.is_leader() {
                self.write(EntryChange::Remove).await?;
            }
            return Ok(Action::done());
        }
        let time = Timestamp::now();
        if entry != Some(StrategyReason::Disabled) {
            self.write(strategy::disabled(true, &Cleanup::InProgress, time)).await?;
        }
        let maker = self.maker(namespace, Form::Plain);
        match self.collector.remove_all(namespace, &maker).await {
            Ok(progress) => {
                let (cleanup, recheck_after) = self.schedule.removed(progress, now());
                if cleanup == Cleanup::Complete {
                    self.write(strategy::disabled(true, &cleanup, time)).await?;
                }
                Ok(Action { recheck_after })
            }
            Err(error) => {
                let failed = Cleanup::Failed(StatusText::of(&error));
                self.write(strategy::disabled(true, &failed, time)).await?;
                Err(error)
            }
        }
    }

    async fn write(&mut self, change: EntryChange) -> Result<(), ReconcileError> {
        self.entry.write(&change, self.generation).await
    }

    /// Runs a pass with an invalid block: no token is issued, and nothing is deleted.
    async fn misconfigured(&mut self, error: SettingsError) -> Result<Action, ReconcileError> {
        self.params.switch.set(None);
        if self.context.leadership.is_leader() {
            self.write(strategy::enabled(&Err(error.into()), Timestamp::now())).await?;
        }
        Ok(Action::done())
    }
}

impl Reconcile for ServiceAccountTokenController {
    fn name(&self) -> &'static str {
        "service-account-token-controller"
    }

    async fn reconcile(&mut self) -> Result<Action, ReconcileError> {
        let Some(issuer) = self.issuers.get() else {
            self.params.switch.set(None);
            return Ok(Action::done());
        };
        self.generation = issuer.metadata.generation;
        let spec = issuer.spec.as_ref().and_then(|spec| spec.service_account_tokens.as_ref());
        let entry = entry_of(&issuer);
        match Settings::parse(spec, &self.context.namespace) {
            Err(error) => self.misconfigured(error).await,
            Ok(None) => {
                let named = spec.and_then(|spec| spec.namespace.clone()).filter(|name| !name.is_empty());
                let namespace = named.unwrap_or_else(|| self.context.namespace.clone());
                self.disabled(&namespace, entry).await
            }
            Ok(Some(settings)) => {
                let constrained =
                    settings.constrained && self.constrained.is_supported(&self.context.client).await;
                let form = if constrained { Form::Constrained } else { Form::Plain };
                self.enabled(settings, form, entry.is_some()).await
            }
        }
    }
}

/// Returns the present time on the monotonic clock, which tests can pause.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}

/// Returns the reason in the strategy's entry, if there is one.
fn entry_of(issuer: &CredentialIssuer) -> Option<StrategyReason> {
    let mut strategies = issuer.status.iter().flat_map(|status| &status.strategies);
    let entry = strategies.find(|strategy| strategy.type_ == StrategyType::ServiceAccountToken);
    entry.map(|entry| entry.reason.clone())
}
