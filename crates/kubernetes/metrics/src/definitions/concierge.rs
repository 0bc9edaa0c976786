//! Metrics of the Concierge only: logins, controllers, certificates, authenticators, and the
//! connections of the impersonation proxy to the API server.

use super::{CONCIERGE, Definition, REQUEST_SECONDS, bounded, counter, gauge, histogram, label};

/// Values of the label `authenticator_kind`. An authenticator that does not exist is `unknown`.
pub const AUTHENTICATOR_KINDS: &[&str] = &["webhook", "jwt", "unknown"];

/// Values of the label `strategy`: the strategy whose credential was issued.
pub const STRATEGIES: &[&str] = &[
    "KubeClusterSigningCertificate",
    "KubeCertificateSigningRequest",
    "ImpersonationProxy",
    "ServiceAccountToken",
    "none",
];

/// Values of the label `result` of logins: a credential was issued; the authenticator rejected the
/// token, or a claim of it; the authenticator could not decide, because a webhook or an issuer did
/// not respond or returned an error; the authenticator does not exist; no credential could be
/// issued; too many logins; the client cancelled the login, or its deadline passed.
pub const LOGIN_RESULTS: &[&str] = &[
    "issued",
    "rejected",
    "authenticator_failed",
    "no_authenticator",
    "issuer_failed",
    "overloaded",
    "abandoned",
];

/// The maximum number of controllers.
const MOST_CONTROLLERS: usize = 40;

const AUTHENTICATOR: super::Label = bounded("authenticator", "the name of the object", 1);

/// Logins.
pub static LOGINS: Definition =
    counter("pinniped_logins", "Logins (TokenCredentialRequests)", CONCIERGE).by(&[
        label("authenticator_kind", AUTHENTICATOR_KINDS),
        label("strategy", STRATEGIES),
        label("result", LOGIN_RESULTS),
    ]);

/// The duration of logins.
pub static LOGIN_DURATION: Definition = histogram(
    "pinniped_login_duration_seconds",
    "Duration of logins, including the time that the webhook or the issuer needs",
    REQUEST_SECONDS,
    CONCIERGE,
)
.by(&[label("authenticator_kind", AUTHENTICATOR_KINDS)]);

/// Values of the label `result` of reconciles: completed; nothing written because another pod is the
/// leader; a permission is missing; another failure.
pub const RECONCILE_RESULTS: &[&str] = &["success", "not_leader", "forbidden", "failed"];

/// Reconciles of controllers.
pub static RECONCILES: Definition = counter(
    "pinniped_controller_reconciles",
    "Reconciles of controllers; all results except for success are retried",
    CONCIERGE,
)
.by(&[
    bounded("controller", "the name of the controller", MOST_CONTROLLERS),
    label("result", RECONCILE_RESULTS),
]);

/// Values of the label `use`.
pub const CERTIFICATE_USES: &[&str] = &["serving", "signing"];

/// The end of certificates.
pub static CERTIFICATE_EXPIRY: Definition = gauge(
    "pinniped_certificate_expiry_timestamp_seconds",
    "Time at which a certificate in use expires, as Unix time",
    CONCIERGE,
)
.by(&[
    bounded("certificate", "the certificate: one for each server and each signer of the Concierge", 4),
    label("use", CERTIFICATE_USES),
]);

/// The validity of an external serving certificate.
pub static SERVING_CERTIFICATE_VALID: Definition = gauge(
    "pinniped_impersonation_proxy_serving_certificate_valid",
    "Whether the serving certificate from outside can work for clients",
    CONCIERGE,
)
.present("an external serving certificate is checked");

/// The age of keys.
pub static KEYS_AGE: Definition = gauge(
    "pinniped_jwt_authenticator_keys_age_seconds",
    "Time since the keys of the issuer were last fetched",
    CONCIERGE,
)
.by(&[AUTHENTICATOR])
.present("a JWTAuthenticator is ready");

/// Failed fetches of keys.
pub static KEYS_FETCH_FAILED: Definition = gauge(
    "pinniped_jwt_authenticator_keys_fetch_failed",
    "Whether the latest attempt to fetch the keys of the issuer failed",
    CONCIERGE,
)
.by(&[AUTHENTICATOR])
.present("a JWTAuthenticator is ready");

/// Values of the label `result` of the impersonation proxy's requests.
pub const PROXY_RESULTS: &[&str] = &[
    "forwarded",
    "upgraded",
    "bad_request",
    "unauthenticated",
    "forbidden",
    "review_failed",
    "overloaded",
    "cannot_act",
    "bad_gateway",
    "deadline",
    "shutting_down",
    "panicked",
    "abandoned",
];

/// Requests of the impersonation proxy.
pub static PROXY_REQUESTS: Definition = counter(
    "pinniped_impersonation_proxy_requests",
    "Requests of the impersonation proxy by result",
    CONCIERGE,
)
.by(&[label("result", PROXY_RESULTS)]);

/// Upgraded connections.
pub static PROXY_UPGRADED: Definition = gauge(
    "pinniped_impersonation_proxy_upgraded_connections_open",
    "Upgraded connections through the impersonation proxy that are open",
    CONCIERGE,
)
.present("the impersonation proxy runs");

/// HTTP/2 connections.
pub static UPSTREAM_CONNECTIONS: Definition = gauge(
    "pinniped_impersonation_proxy_upstream_connections",
    "HTTP/2 connections to the API server",
    CONCIERGE,
)
.present("the impersonation proxy runs");

/// HTTP/2 streams.
pub static UPSTREAM_STREAMS: Definition =
    gauge("pinniped_impersonation_proxy_upstream_streams", "HTTP/2 streams to the API server", CONCIERGE)
        .present("the impersonation proxy runs");

/// HTTP/1.1 connections.
pub static UPSTREAM_HTTP1_CONNECTIONS: Definition = gauge(
    "pinniped_impersonation_proxy_upstream_http1_connections",
    "HTTP/1.1 connections to the API server for short reads",
    CONCIERGE,
)
.present("the impersonation proxy runs");

/// The definitions of this module.
pub const ALL: &[&Definition] = &[
    &LOGINS,
    &LOGIN_DURATION,
    &RECONCILES,
    &CERTIFICATE_EXPIRY,
    &SERVING_CERTIFICATE_VALID,
    &KEYS_AGE,
    &KEYS_FETCH_FAILED,
    &PROXY_REQUESTS,
    &PROXY_UPGRADED,
    &UPSTREAM_CONNECTIONS,
    &UPSTREAM_STREAMS,
    &UPSTREAM_HTTP1_CONNECTIONS,
];
