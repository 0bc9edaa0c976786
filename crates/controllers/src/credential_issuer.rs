//! Writes a strategy's entry into the `CredentialIssuer`'s status, when it says something new.
//!
//! Two controllers write into the same list. A write that loses against the other one's looks again, with the object
//! as it is by then, so each changes only its own entry.

use kube::Api;
use kube::runtime::reflector::Store;
use pinniped_api::config::{CredentialIssuer, CredentialIssuerStrategy};
use pinniped_api::suffix::GroupSuffix;
use pinniped_core::strategy::status;

use crate::client::{WriteError, Writer, error_text};
use crate::context::Context;
use crate::runtime::ReconcileError;
use crate::watch::get_named;

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
}

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
        }
    }

    /// The object as the cache has it.
    pub fn get(&self) -> Option<std::sync::Arc<CredentialIssuer>> {
        get_named(&self.store, self.suffix.clone(), None, &self.name)
    }

    /// What upstream answers when the object is missing.
    pub fn missing(&self) -> String {
        let group = self.suffix.replace("config.concierge.pinniped.dev");
        let name = pinniped_api::gojson::quote(&self.name);
        format!("could not get CredentialIssuer to update: credentialissuer.{group} {name} not found")
    }

    /// Puts `entry` into the list, unless the list says the same already.
    ///
    /// # Errors
    /// [`ReportError`]: the object is missing, not leader, or the API server's answer.
    pub async fn report(&self, entry: &CredentialIssuerStrategy) -> Result<(), ReportError> {
        let Some(cached) = self.get() else { return Err(ReportError::Missing(self.missing())) };
        let mut issuer = cached.as_ref().clone();
        for _ in 1..TRIES {
            match self.write(issuer, entry).await {
                Err(error) if error.is_race() => {
                    tracing::debug!(%error, "status of the CredentialIssuer changed meanwhile, trying again");
                }
                done => return done.map_err(ReportError::Write),
            }
            issuer = self.api.get(&self.name).await.map_err(ReportError::Read)?;
        }
        self.write(issuer, entry).await.map_err(ReportError::Write)
    }

    async fn write(
        &self,
        mut issuer: CredentialIssuer,
        entry: &CredentialIssuerStrategy,
    ) -> Result<(), WriteError> {
        let current = issuer.status.get_or_insert_default();
        let Some(merged) = status::merge(&current.strategies, entry.clone()) else { return Ok(()) };
        current.strategies = merged;
        // A cached object comes from a list and may lack its own type.
        let CredentialIssuer { kind, api_version, .. } = CredentialIssuer::new(&self.suffix, "");
        let issuer = CredentialIssuer { kind, api_version, ..issuer };
        self.writer.replace_status(&self.api, &self.name, &issuer).await.map(drop)
    }
}
