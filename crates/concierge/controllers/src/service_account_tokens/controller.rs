//! `service-account-token-controller`.

use std::time::Duration;

use jiff::Timestamp;
use pinniped_concierge_api::config::{CredentialIssuer, StrategyReason, StrategyType};
use pinniped_concierge_domain::service_account_tokens::settings::SettingsError;
use pinniped_concierge_domain::service_account_tokens::strategy::{self, Entry, Objects};
use pinniped_concierge_domain::service_account_tokens::{Form, Maker, Settings};
use pinniped_concierge_domain::strategy::cert_agent::cluster_info;
use tokio::time::Instant;

use super::account::Account;
use super::collector::{Collected, Collector};
use super::constrained::Constrained;
use super::permissions::Rights;
use super::switch::{Active, Switch};
use crate::cert_agent::ClusterInfo;
use crate::context::Context;
use crate::credential_issuer::CredentialIssuers;
use pinniped_controller::runtime::{Action, Reconcile, ReconcileError};

/// How often all objects are looked at.
const COLLECT_EVERY: Duration = Duration::from_secs(30);

/// How soon something that was missing is looked for again: whoever applies the manifest waits for it.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// How long after the mode was disabled another replica may still be at work on a login that began before.
const LAST_LOGINS: Duration = Duration::from_secs(10);

/// What the controller needs beside the context.
pub struct TokensParams {
    /// What logins are told.
    pub switch: Switch,
    /// Who writes roles and bindings.
    pub account: Account,
    /// The API server's URL as the configuration has it.
    pub discovery_url: Option<String>,
    /// The CA that this pod verifies the API server with: PEM as base64.
    pub own_ca: String,
    /// Whether objects may name people.
    pub name_users: bool,
}

/// The controller.
pub struct ServiceAccountTokenController {
    context: Context,
    params: TokensParams,
    issuers: CredentialIssuers,
    cluster_info: ClusterInfo,
    rights: Rights,
    constrained: Constrained,
    collector: Collector,
    /// When all objects are due to be looked at.
    next_collection: Instant,
    /// Since when nothing was found after the mode was disabled.
    empty_since: Option<Instant>,
    /// That the installed definition has no such strategy is in the log.
    unknown_type: bool,
    said: Option<String>,
}

impl ServiceAccountTokenController {
    pub(crate) fn new(
        context: Context,
        params: TokensParams,
        issuers: CredentialIssuers,
        cluster_info: ClusterInfo,
    ) -> Self {
        Self {
            collector: Collector::new(context.clone(), params.account.clone()),
            context,
            params,
            issuers,
            cluster_info,
            rights: Rights::default(),
            constrained: Constrained::default(),
            next_collection: Instant::now(),
            empty_since: None,
            unknown_type: false,
            said: None,
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

    /// While tokens are wanted.
    async fn enabled(
        &mut self,
        settings: Settings,
        form: Form,
        has_entry: bool,
    ) -> Result<Action, ReconcileError> {
        // Without its entry the strategy does not exist: where the installed definition has no such type, nobody may
        // be given what nobody is told of, and what nothing would clean up.
        let active = has_entry.then(|| Active { settings: settings.clone(), form });
        self.params.switch.set(active);
        if !self.context.leadership.is_leader() {
            return Ok(Action::done());
        }
        let outcome =
            match self.rights.check(&self.context.client, &self.params.account, &settings, form).await {
                Ok(()) => self.frontend(),
                Err(error) => Err(error),
            };
        let ready = outcome.is_ok();
        self.write(strategy::enabled(outcome, Timestamp::now())).await?;
        if !ready || self.unknown_type {
            return Ok(Action::recheck(LOOK_AGAIN));
        }
        let due = self.next_collection.saturating_duration_since(Instant::now());
        if !due.is_zero() {
            return Ok(Action::recheck(due));
        }
        let maker = self.maker(&settings.namespace, form);
        match self.collector.collect(&settings, &maker).await {
            Ok(Collected::All) => {
                self.next_collection = Instant::now() + COLLECT_EVERY;
                Ok(Action::recheck(COLLECT_EVERY))
            }
            Ok(Collected::Some) => Ok(Action::recheck(Duration::ZERO)),
            Err(error) => {
                self.rights.doubt();
                Err(error)
            }
        }
    }

    fn frontend(&self) -> Result<pinniped_concierge_api::config::ServiceAccountTokenInfo, String> {
        let url = self.params.discovery_url.as_deref();
        let found = cluster_info::info(&self.cluster_info.current(), url);
        strategy::frontend(found, url, &self.params.own_ca)
    }

    /// While they are not: what is left of the time when they were goes, and last the entry.
    async fn disabled(
        &mut self,
        namespace: &str,
        entry: Option<StrategyReason>,
    ) -> Result<Action, ReconcileError> {
        self.params.switch.set(None);
        self.next_collection = Instant::now();
        if entry.is_none() || !self.context.leadership.is_leader() {
            self.empty_since = None;
            return Ok(Action::done());
        }
        let now = Timestamp::now();
        if entry != Some(StrategyReason::Disabled) {
            self.write(strategy::disabled(true, &Objects::Left, now)).await?;
        }
        let maker = self.maker(namespace, Form::Plain);
        match self.collector.remove_all(namespace, &maker).await {
            Ok(Collected::Some) => {
                self.empty_since = None;
                Ok(Action::recheck(Duration::ZERO))
            }
            Ok(Collected::All) => {
                let since = *self.empty_since.get_or_insert_with(Instant::now);
                let left = LAST_LOGINS.saturating_sub(since.elapsed());
                if !left.is_zero() {
                    return Ok(Action::recheck(left));
                }
                self.empty_since = None;
                self.write(strategy::disabled(true, &Objects::Gone, now)).await?;
                Ok(Action::done())
            }
            Err(error) => {
                let stuck = Objects::Stuck(error.to_string());
                self.write(strategy::disabled(true, &stuck, now)).await?;
                Err(error)
            }
        }
    }

    async fn write(&mut self, entry: Entry) -> Result<(), ReconcileError> {
        let written = match &entry {
            Entry::None => return Ok(()),
            Entry::Removed => self.issuers.remove(&StrategyType::ServiceAccountToken).await,
            Entry::Says(entry) => {
                if self.said.as_ref() != Some(&entry.message) {
                    tracing::info!(status = entry.status.as_str(), reason = entry.reason.as_str(), message = %entry.message, "service account tokens");
                    self.said = Some(entry.message.clone());
                }
                self.issuers.report(entry).await
            }
        };
        match written {
            Err(error) if error.is_invalid() => {
                if !std::mem::replace(&mut self.unknown_type, true) {
                    tracing::warn!(
                        %error,
                        "the installed definition of CredentialIssuers does not know the strategy ServiceAccountToken, \
                         which therefore stays off: apply install-pinniped-concierge-crds.yaml"
                    );
                }
                Ok(())
            }
            Err(error) => Err(error.into()),
            Ok(()) => {
                self.unknown_type = false;
                Ok(())
            }
        }
    }

    /// The block is wrong: nothing is issued, and nothing removed either.
    async fn misconfigured(&mut self, error: SettingsError) -> Result<Action, ReconcileError> {
        self.params.switch.set(None);
        if self.context.leadership.is_leader() {
            self.write(strategy::enabled(Err(error.to_string()), Timestamp::now())).await?;
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
                    settings.constrained && self.constrained.is_there(&self.context.client).await;
                let form = if constrained { Form::Constrained } else { Form::Plain };
                self.enabled(settings, form, entry.is_some()).await
            }
        }
    }
}

/// The reason in the strategy's entry, if there is one.
fn entry_of(issuer: &CredentialIssuer) -> Option<StrategyReason> {
    let mut strategies = issuer.status.iter().flat_map(|status| &status.strategies);
    let entry = strategies.find(|strategy| strategy.type_ == StrategyType::ServiceAccountToken);
    entry.map(|entry| entry.reason.clone())
}
