//! The types and reasons in the status of CredentialIssuers and authenticators.

use super::{Explanation, Kind};

const fn strategy(topic: &'static str, meaning: &'static str, remedy: &'static str) -> Explanation {
    Explanation { topic, kind: Kind::Strategy, meaning, remedy, texts: &[] }
}

const fn strategy_reason(topic: &'static str, meaning: &'static str, remedy: &'static str) -> Explanation {
    Explanation { topic, kind: Kind::StrategyReason, meaning, remedy, texts: &[] }
}

const fn condition(topic: &'static str, meaning: &'static str, remedy: &'static str) -> Explanation {
    Explanation { topic, kind: Kind::Condition, meaning, remedy, texts: &[] }
}

const fn reason(topic: &'static str, meaning: &'static str, remedy: &'static str) -> Explanation {
    Explanation { topic, kind: Kind::ConditionReason, meaning, remedy, texts: &[] }
}

/// The condition of the certificate that the impersonation proxy serves.
pub const SERVING_CERTIFICATE_VALID: Explanation = condition(
    "ServingCertificateValid",
    "Reports whether clients can use the external certificate of the impersonation proxy. It is false if the \
     certificate is expired, is for another name, or does not verify with the advertised CA bundle. \
     spec.impersonationProxy.tls.validation decides whether such a certificate is served nevertheless.",
    "issue a certificate that clients can use; they refuse this one",
);

/// The condition of the admission objects that match the aggregated API.
pub const ADMISSION_APPLIED: Explanation = condition(
    "AdmissionApplied",
    "Reports whether admission webhooks and policies of the cluster match the API for logins. API servers do not run \
     admission for aggregated APIs, and the Concierge does not apply these objects: a rule that should deny a login \
     has no effect.",
    "exclude the Concierge's API groups from the rules of these objects, or list the plug-in in \
     aggregatedAPIServerDisableAdmissionPlugins",
);

/// The reason of [`ADMISSION_APPLIED`] while requests are refused.
pub const REFUSED: Explanation = reason(
    "Refused",
    "The Concierge refuses the requests that admission objects may match. It does so because \
     aggregatedAPIServerUnappliedAdmission is refuse; while it cannot read all objects, it refuses all requests.",
    "exclude the Concierge's API groups from the rules of these objects, or list the plug-in in \
     aggregatedAPIServerDisableAdmissionPlugins; or set aggregatedAPIServerUnappliedAdmission to report, so that \
     requests are served without admission",
);

/// The rows.
pub const ALL: &[Explanation] = &[
    strategy(
        "KubeClusterSigningCertificate",
        "Issues client certificates that are signed with the cluster's own signing key. The Concierge reads the key \
         with an agent on a control plane node, and clients send their requests directly to the API server.",
        "on a managed control plane the key is not accessible: use the impersonation proxy",
    ),
    strategy(
        "KubeCertificateSigningRequest",
        "Issues client certificates through the cluster's certificate API, without access to the signing key. In mode \
         auto, it is used only while the signing key is not available and the impersonation proxy is off, and if the \
         cluster signs a test request.",
        "spec.certificateSigningRequests.mode switches it on or off",
    ),
    strategy(
        "ImpersonationProxy",
        "Serves a proxy in front of the API server, for clusters whose signing key is not accessible. Clients \
         authenticate to the proxy, which forwards their requests with impersonation headers.",
        "spec.impersonationProxy.mode switches it on or off",
    ),
    strategy(
        "ServiceAccountToken",
        "Issues tokens of service accounts that have no permissions but to impersonate one user. Clients send their \
         requests directly to the API server, with impersonation headers.",
        "spec.serviceAccountTokens.mode switches it on or off",
    ),
    strategy_reason(
        "Listening",
        "The strategy works. The impersonation proxy, the cluster's signer and service account tokens have this \
         reason; the cluster's signing key has FetchedKey.",
        "",
    ),
    strategy_reason(
        "Pending",
        "The result is not known yet. The impersonation proxy waits for a prerequisite, such as the address of its \
         load balancer, or not every controller has observed the CredentialIssuer.",
        "wait a moment; if it stays, the message names the prerequisite",
    ),
    strategy_reason(
        "Disabled",
        "The strategy is switched off, by the configuration, or automatically because another one works.",
        "",
    ),
    strategy_reason(
        "ErrorDuringSetup",
        "The strategy could not be set up. The message of the strategy has the cause.",
        "run `pinniped doctor`, or `pinniped explain` with the message",
    ),
    strategy_reason(
        "CouldNotFetchKey",
        "The Concierge could not read the cluster's signing key. This is expected on a managed control plane, whose \
         nodes run no pods. Elsewhere, the agent of the Concierge does not run, or does not find the key.",
        "use the impersonation proxy (spec.impersonationProxy.mode: enabled) if the control plane is not accessible; \
         otherwise see the pods of the kube-cert-agent in the Concierge's namespace",
    ),
    strategy_reason(
        "CouldNotGetClusterInfo",
        "The Concierge does not know the address or the CA of the API server. It reads them from the ConfigMap \
         cluster-info in the namespace kube-public.",
        "set discovery.url in the Concierge's configuration",
    ),
    strategy_reason("FetchedKey", "The Concierge has the cluster's signing key.", ""),
    condition(
        "Ready",
        "Summarizes the other conditions, or the strategies of the CredentialIssuer. It is true if users can log in \
         with the object.",
        "see the other conditions or the strategies: kubectl describe",
    ),
    SERVING_CERTIFICATE_VALID,
    ADMISSION_APPLIED,
    condition(
        "TLSConfigurationValid",
        "Reports whether spec.tls of an authenticator has a usable CA bundle. The bundle is in the object itself, in \
         a Secret or in a ConfigMap.",
        "write a PEM bundle; in certificateAuthorityData, its base64",
    ),
    condition(
        "EndpointURLValid",
        "Reports whether spec.endpoint of a WebhookAuthenticator is an https URL.",
        "correct spec.endpoint",
    ),
    condition(
        "WebhookConnectionValid",
        "Reports whether the Concierge can connect to the webhook of a WebhookAuthenticator. The certificate of the \
         webhook has to verify with the CA bundle of spec.tls.",
        "see the message: either the address does not respond, or spec.tls has another CA than the webhook's",
    ),
    condition(
        "IssuerURLValid",
        "Reports whether spec.issuer of a JWTAuthenticator is an https URL without query and fragment.",
        "write the issuer exactly as the provider's discovery document has it",
    ),
    condition(
        "DiscoveryURLValid",
        "Reports whether the issuer of a JWTAuthenticator serves its discovery document to the Concierge.",
        "see the message: the address may be wrong or not reachable from the cluster, or spec.tls lacks the issuer's \
         CA",
    ),
    condition(
        "JWKSURLValid",
        "Reports whether the discovery document of a JWTAuthenticator's issuer has an https URL of its keys.",
        "correct jwks_uri at the provider",
    ),
    condition(
        "JWKSFetchValid",
        "Reports whether the Concierge has the keys of a JWTAuthenticator's issuer. Without them, no token verifies. \
         If later fetches fail, logins continue with the last keys.",
        "see whether jwks_uri is reachable from the cluster",
    ),
    condition(
        "AuthenticatorValid",
        "Reports whether the authenticator is built and accepts logins.",
        "see the message, and the other conditions first",
    ),
    reason("Success", "The condition is true.", ""),
    reason(
        "NotReady",
        "Another condition of the authenticator is not true.",
        "see the other conditions: kubectl describe",
    ),
    reason(
        "UnableToValidate",
        "The condition depends on another one that is not true.",
        "see the other conditions: kubectl describe",
    ),
    reason(
        "NoWorkingStrategy",
        "No strategy of the CredentialIssuer works, so users cannot log in.",
        "run `pinniped doctor`; if the control plane is not accessible, enable the impersonation proxy: \
         spec.impersonationProxy.mode: enabled",
    ),
    reason("Valid", "All checks of the certificate succeeded.", ""),
    reason(
        "Invalid",
        "A check of the certificate failed; the message has the failed checks.",
        SERVING_CERTIFICATE_VALID.remedy,
    ),
    reason("NotChecked", "The certificate was not checked; the message has the cause.", ""),
    reason("NothingMatches", "No admission object matches the API for logins.", ""),
    reason(
        "NotApplied",
        "Admission objects match the API for logins and have no effect; the message lists them.",
        ADMISSION_APPLIED.remedy,
    ),
    REFUSED,
    reason(
        "NotRead",
        "The Concierge could not read all admission objects.",
        "let the Concierge's service account list webhook configurations and admission policies",
    ),
    reason(
        "InvalidTLSConfig",
        "spec.tls of the authenticator has no usable CA bundle.",
        "write a PEM bundle; in certificateAuthorityData, its base64",
    ),
    reason("InvalidEndpointURL", "spec.endpoint is not a URL.", "correct spec.endpoint"),
    reason("InvalidEndpointURLScheme", "spec.endpoint is not an https URL.", "use an https URL"),
    reason(
        "InvalidEndpointCannotDetermineProxy",
        "The proxy for spec.endpoint cannot be determined from the environment of the Concierge.",
        "correct HTTPS_PROXY and NO_PROXY of the Concierge's Deployment",
    ),
    reason(
        "UnableToDialServer",
        "The Concierge cannot connect to the webhook, or does not trust its certificate.",
        "see whether the address responds from the cluster, and whether spec.tls has the CA of the webhook",
    ),
    reason(
        "UnableToInstantiateWebhook",
        "The Concierge connected to the webhook, and could not create its client.",
        "see the message",
    ),
    reason("InvalidIssuerURL", "spec.issuer is not a URL.", "correct spec.issuer"),
    reason("InvalidIssuerURLScheme", "spec.issuer is not an https URL.", "use an https URL"),
    reason(
        "InvalidIssuerURLContainsFragment",
        "spec.issuer has a fragment.",
        "remove the # and the text after it",
    ),
    reason(
        "InvalidIssuerURLContainsQueryParams",
        "spec.issuer has a query.",
        "remove the ? and the text after it",
    ),
    reason(
        "InvalidIssuerURLContainsWellKnownEndpoint",
        "spec.issuer is the address of the discovery document, not that of the issuer.",
        "remove /.well-known/openid-configuration",
    ),
    reason(
        "InvalidDiscoveryProbe",
        "The Concierge could not read the discovery document of the issuer.",
        "see the message: the address may be wrong or not reachable from the cluster, or spec.tls lacks the issuer's \
         CA",
    ),
    reason(
        "InvalidProviderJWKSURL",
        "The discovery document of the issuer has no usable URL of its keys.",
        "correct jwks_uri at the provider",
    ),
    reason(
        "InvalidProviderJWKSURLScheme",
        "The discovery document of the issuer has a URL of its keys that is not https.",
        "correct jwks_uri at the provider",
    ),
    reason(
        "InvalidCouldNotFetchJWKS",
        "The Concierge could not fetch the keys of the issuer.",
        "see whether jwks_uri is reachable from the cluster",
    ),
    reason(
        "InvalidAuthenticator",
        "The rules of the JWTAuthenticator are not valid; the message names the fields.",
        "correct the fields",
    ),
];
