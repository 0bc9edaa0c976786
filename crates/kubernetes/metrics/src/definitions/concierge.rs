//! Metrics of the Concierge only: logins, controllers, certificates, authenticators, and the
//! connections of the impersonation proxy to the API server.

use super::{CONCIERGE, Definition, LabelValue, REQUEST_SECONDS, bounded, counter, gauge, histogram, label};

/// Values of the label `authenticator_kind`.
pub const AUTHENTICATOR_KINDS: &[LabelValue] = &[
    ("webhook", "A WebhookAuthenticator"),
    ("jwt", "A JWTAuthenticator"),
    ("unknown", "The authenticator does not exist, or is not ready"),
];

/// Values of the label `strategy`: the strategy whose credential was issued.
pub const STRATEGIES: &[LabelValue] = &[
    (
        "KubeClusterSigningCertificate",
        "The credential is a certificate that the cluster's signing key signed",
    ),
    ("KubeCertificateSigningRequest", "The credential is a certificate that the cluster's signer signed"),
    (
        "ImpersonationProxy",
        "The credential is a certificate that the signer of the impersonation proxy signed",
    ),
    ("ServiceAccountToken", "The credential is a service account token"),
    ("none", "No credential was issued"),
];

/// Values of the label `result` of logins.
pub const LOGIN_RESULTS: &[LabelValue] = &[
    ("issued", "A credential was issued"),
    ("rejected", "The authenticator rejected the token, or the ID token is not valid or lacks a claim"),
    ("authenticator_failed", "The webhook or the issuer did not respond, or returned an error"),
    ("no_authenticator", "The authenticator does not exist, or is not ready"),
    ("issuer_failed", "The token is accepted, but no credential could be issued"),
    ("overloaded", "There were too many logins"),
    ("abandoned", "The client cancelled the login, or the deadline of the request passed"),
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

/// Values of the label `result` of reconciles.
pub const RECONCILE_RESULTS: &[LabelValue] = &[
    ("success", "The reconcile completed"),
    ("not_leader", "Nothing was written, because another pod is the leader"),
    ("forbidden", "A permission is missing"),
    ("failed", "Another failure; the log has the error"),
];

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
pub const CERTIFICATE_USES: &[LabelValue] = &[
    ("serving", "A server presents the certificate"),
    ("signing", "The certificate is that of a signer of client certificates"),
];

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
pub const PROXY_RESULTS: &[LabelValue] = &[
    ("forwarded", "The API server responded"),
    ("upgraded", "The API server responded, and the connection was upgraded, as for `kubectl exec`"),
    ("bad_request", "The request is malformed, or its head is too large"),
    ("unauthenticated", "The client is not authenticated"),
    ("forbidden", "The user does not have the permission, or may not impersonate another user"),
    ("review_failed", "The API server did not respond to a review"),
    ("overloaded", "There were too many requests or reviews"),
    ("cannot_act", "The proxy cannot act as the user"),
    ("bad_gateway", "The API server did not respond"),
    ("deadline", "The deadline of the request passed"),
    ("shutting_down", "The proxy stops"),
    ("panicked", "The proxy has an error; the log has the panic"),
    ("abandoned", "The client cancelled the request, or its connection ended, before the response began"),
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
