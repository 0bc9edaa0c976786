//! Issues a credential for a user: the first of the accepted types that can be issued.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use pinniped_concierge_api::login::{
    ClusterCredential, CredentialType, ImpersonatedUser, TokenCredentialRequestStatus,
};
use pinniped_concierge_domain::service_account_tokens::eligible::impersonated;
use pinniped_concierge_domain::service_account_tokens::objects::whole_seconds;
use pinniped_kube_request::identity::{self, User};
use pinniped_kube_types::status::Status;
use pinniped_pki::{ClientSubject, IssuedPair};
use pinniped_secret::text::SecretString;
use pinniped_traces::SpanKind;
use serde::Serialize;

use super::metrics::Strategy;
use super::{AuditedAuthenticator, Exchange, failed, too_many_requests};
use crate::client_cert_issuer;
use crate::token_issuer::{IssuedToken, TokenIssuerError};

/// The credential types for a client that specifies none, such as upstream's clients and older
/// versions of ours.
const DEFAULT_TYPES: [CredentialType; 1] = [CredentialType::ClientCertificate];

/// The reason in the audit log if no issuer issued a certificate.
const CERTIFICATE_FAILED: &str = "cert issuer returned an error";

/// A credential and its user.
enum Issued {
    Certificate(ClientSubject, IssuedPair, Strategy),
    Token(ImpersonatedUser, IssuedToken),
}

/// The reason why a credential of one type was not issued, as written to the audit log.
enum Refusal {
    /// The user cannot have a credential of this type.
    Unsupported(String),
    /// Issuing the credential failed.
    Failed { reason: &'static str, error: Option<String> },
    /// There are too many logins; the client should retry.
    Busy(String),
}

impl Refusal {
    /// Returns the type of the error in spans.
    fn error_type(&self) -> &'static str {
        match self {
            Self::Unsupported(_) => "unsupported",
            Self::Failed { .. } => "failed",
            Self::Busy(_) => "busy",
        }
    }
}

impl Exchange {
    /// Tries each type once, in the order of the client. When none can be issued, the audit log
    /// contains the reason for the preferred one, and the strategy is [`Strategy::None`].
    ///
    /// # Errors
    ///
    /// 429 when the issuer of the preferred type is busy.
    pub(super) async fn issue(
        &self,
        user: User,
        accepted: &[CredentialType],
        authenticator: &AuditedAuthenticator<'_>,
        audit_id: &str,
        now: Timestamp,
    ) -> Result<(TokenCredentialRequestStatus, Strategy), Box<Status>> {
        let accepted = if accepted.is_empty() { &DEFAULT_TYPES } else { accepted };
        let mut refusal = None;
        let mut tried: Vec<&CredentialType> = Vec::new();
        for type_ in accepted {
            if tried.contains(&type_) {
                continue;
            }
            let mut span = pinniped_traces::child("IssueCredential", SpanKind::Internal);
            let result = match type_ {
                CredentialType::ClientCertificate => self.certificate(&user, now).await,
                CredentialType::ServiceAccountToken => self.token(&user).await,
                // A type that is unknown to this version; a request may contain any number of them.
                CredentialType::Other(_) => continue,
            };
            if let Some(span) = &mut span {
                match &result {
                    Ok(_) => span.succeed(),
                    Err(refusal) => span.fail(refusal.error_type()),
                }
            }
            drop(span);
            match result {
                Ok(issued) => {
                    let strategy = match &issued {
                        Issued::Certificate(_, _, strategy) => *strategy,
                        Issued::Token(..) => Strategy::ServiceAccountToken,
                    };
                    return Ok((self.issued(issued, authenticator, audit_id, now), strategy));
                }
                Err(error) => {
                    refusal.get_or_insert(error);
                }
            }
            tried.push(type_);
        }
        let refused = self.refused(&user, refusal, authenticator, audit_id, now)?;
        Ok((refused, Strategy::None))
    }

    async fn certificate(&self, user: &User, now: Timestamp) -> Result<Issued, Refusal> {
        check(user).map_err(Refusal::Unsupported)?;
        let User { name, groups, extra, .. } = user.clone();
        let subject = ClientSubject { username: name, groups, extra };
        let lifetime = *self.credential_lifetime.borrow();
        match client_cert_issuer::issue(&self.issuers, &subject, lifetime, now).await {
            Ok((pair, issuer)) => Ok(Issued::Certificate(subject, pair, Strategy::of_issuer(issuer))),
            Err(error) if error.is_busy() => Err(Refusal::Busy(error.to_string())),
            Err(error) => Err(Refusal::Failed { reason: CERTIFICATE_FAILED, error: Some(error.to_string()) }),
        }
    }

    async fn token(&self, user: &User) -> Result<Issued, Refusal> {
        let user = impersonated(user.clone()).map_err(|error| Refusal::Unsupported(error.to_string()))?;
        match self.tokens.issue(&user).await {
            Ok(token) => Ok(Issued::Token(user, token)),
            Err(error @ TokenIssuerError::TooLarge(_)) => Err(Refusal::Unsupported(error.to_string())),
            Err(error @ TokenIssuerError::RbacNotYetEffective { .. }) => {
                Err(Refusal::Failed { reason: "rbac not yet effective", error: Some(error.to_string()) })
            }
            Err(error) => {
                let reason = "service account token issuer returned an error";
                Err(Refusal::Failed { reason, error: Some(error.to_string()) })
            }
        }
    }

    fn issued(
        &self,
        issued: Issued,
        authenticator: &AuditedAuthenticator<'_>,
        audit_id: &str,
        now: Timestamp,
    ) -> TokenCredentialRequestStatus {
        let event = self.audit.event("TokenCredentialRequest Authenticated User", audit_id, now);
        match issued {
            Issued::Certificate(subject, pair, _) => {
                #[derive(Serialize)]
                #[serde(rename_all = "camelCase")]
                struct AuditedCredential {
                    not_before: String,
                    not_after: String,
                }
                let audited = AuditedCredential {
                    not_before: whole_seconds(pair.validity.not_before).to_string(),
                    not_after: whole_seconds(pair.validity.not_after).to_string(),
                };
                event
                    .personal_text("username", &subject.username)
                    .personal_list("groups", &subject.groups)
                    .personal_map("extras", &subject.extra)
                    .field("issuedClientCert", &audited)
                    .field("authenticator", authenticator)
                    .emit();
                certificate_status(&pair)
            }
            Issued::Token(user, issued) => {
                #[derive(Serialize)]
                #[serde(rename_all = "camelCase")]
                struct AuditedCredential<'a> {
                    service_account: &'a str,
                    bound_secret: &'a str,
                    jti: &'a str,
                    not_after: String,
                }
                let audited = AuditedCredential {
                    service_account: &issued.service_account,
                    bound_secret: &issued.bound_secret,
                    jti: &issued.jti,
                    not_after: issued.expires.to_string(),
                };
                let event = event.personal_text("username", &user.username);
                // Certificates have no UID, so upstream's event has no such member.
                let event = if user.uid.is_empty() { event } else { event.personal_text("uid", &user.uid) };
                event
                    .personal_list("groups", &user.groups)
                    .personal_map("extras", &user.extra)
                    .field("issuedServiceAccountToken", &audited)
                    .field("authenticator", authenticator)
                    .emit();
                token_status(user, issued)
            }
        }
    }

    fn refused(
        &self,
        user: &User,
        refusal: Option<Refusal>,
        authenticator: &AuditedAuthenticator<'_>,
        audit_id: &str,
        now: Timestamp,
    ) -> Result<TokenCredentialRequestStatus, Box<Status>> {
        Ok(match refusal {
            Some(Refusal::Unsupported(error)) => {
                let event = self
                    .audit
                    .event("TokenCredentialRequest Unsupported UserInfo", audit_id, now)
                    .personal_text("userInfoName", &user.name)
                    .personal_text("userInfoUID", &user.uid)
                    .field("userInfoExtrasCount", &user.extra.len());
                let reason = "unsupported value in userInfo returned by authenticator";
                failed(event, reason, Some(&error), authenticator)
            }
            Some(Refusal::Failed { reason, error }) => {
                let event = self.audit.event("TokenCredentialRequest Unexpected Error", audit_id, now);
                failed(event, reason, error.as_deref(), authenticator)
            }
            Some(Refusal::Busy(error)) => {
                let event = self.audit.event("TokenCredentialRequest Unexpected Error", audit_id, now);
                failed(event, CERTIFICATE_FAILED, Some(&error), authenticator);
                return Err(too_many_requests());
            }
            None => {
                let event = self.audit.event("TokenCredentialRequest Unexpected Error", audit_id, now);
                failed(event, "no credential type that the client accepts is supported", None, authenticator)
            }
        })
    }
}

/// Checks that a certificate can represent the user: a name, groups, and extras with keys of a
/// certain form; no UID.
fn check(user: &User) -> Result<(), String> {
    if user.name.is_empty() {
        return Err("empty username is not allowed".to_owned());
    }
    if !user.uid.is_empty() {
        return Err("UIDs are not supported".to_owned());
    }
    identity::check_extra_keys(&user.extra)
}

fn certificate_status(pair: &IssuedPair) -> TokenCredentialRequestStatus {
    TokenCredentialRequestStatus {
        credential: Some(ClusterCredential {
            expiration_timestamp: Some(Time(whole_seconds(pair.validity.not_after))),
            client_certificate_data: pair.certificate_pem.clone(),
            client_key_data: SecretString::new(pair.private_key_pem.as_str()),
            ..ClusterCredential::default()
        }),
        ..TokenCredentialRequestStatus::default()
    }
}

fn token_status(user: ImpersonatedUser, issued: IssuedToken) -> TokenCredentialRequestStatus {
    TokenCredentialRequestStatus {
        credential: Some(ClusterCredential {
            expiration_timestamp: Some(Time(issued.expires)),
            token: issued.token,
            ..ClusterCredential::default()
        }),
        impersonate: Some(user),
        ..TokenCredentialRequestStatus::default()
    }
}
