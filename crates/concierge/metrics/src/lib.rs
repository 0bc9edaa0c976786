//! The definitions of the metrics of the Concierge: logins, certificates, authenticators, and the
//! impersonation proxy.
//!
//! [`of_the_program`] lists all metrics of the program, including those of `pinniped_kube_metrics`.

#![forbid(unsafe_code)]

use pinniped_kube_metrics::{
    REQUEST_SECONDS, audit, capacity, connections, controllers, permits, program, requests, reviews, traces,
};
use pinniped_metrics::{Definition, Label, LabelValue};

/// The names of listeners, in metrics of connections.
pub mod listeners {
    /// The listener of the aggregated API.
    pub const AGGREGATED_API: &str = "aggregated_api";
    /// The listener of the impersonation proxy.
    pub const IMPERSONATION_PROXY: &str = "impersonation_proxy";
}

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
    (
        "abandoned",
        "The login ended without a result: its client cancelled it, its deadline passed, or the program has an error",
    ),
];

const AUTHENTICATOR: Label = Label::bounded("authenticator", "the name of the object", 1);

const LOGIN_AUTHENTICATOR: Label = Label::bounded(
    "authenticator",
    "the name of the object; empty if its kind is unknown, and `_other` for objects after the first 64 with logins since the start",
    1,
);

/// Logins.
pub static LOGINS: Definition = Definition::counter("pinniped_logins", "Logins (TokenCredentialRequests)")
    .by(&[
        Label::of("authenticator_kind", AUTHENTICATOR_KINDS),
        Label::of("strategy", STRATEGIES),
        Label::of("result", LOGIN_RESULTS),
        LOGIN_AUTHENTICATOR,
    ]);

/// The duration of logins.
pub static LOGIN_DURATION: Definition = Definition::histogram(
    "pinniped_login_duration_seconds",
    "Duration of logins, including the time that the webhook or the issuer needs",
    REQUEST_SECONDS,
)
.by(&[Label::of("authenticator_kind", AUTHENTICATOR_KINDS), LOGIN_AUTHENTICATOR]);

/// Values of the label `use`.
pub const CERTIFICATE_USES: &[LabelValue] = &[
    ("serving", "A server presents the certificate"),
    ("signing", "The certificate is that of a signer of client certificates"),
];

/// Values of the label `certificate`.
pub const CERTIFICATES: &[LabelValue] = &[
    (
        "concierge-serving-cert",
        "The serving certificate of the aggregated API, by default in the Secret `pinniped-concierge-api-tls-serving-certificate`",
    ),
    (
        "impersonation-proxy-serving-cert",
        "The serving certificate of the impersonation proxy, by default in the Secret `pinniped-concierge-impersonation-proxy-tls-serving-certificate`, or in the one that the CredentialIssuer has in `spec.impersonationProxy.tls.secretName`",
    ),
    (
        "concierge-kube-signing-cert",
        "The signing certificate of the cluster, which the kube-cert-agent reads on a node of the control plane; not in a Secret",
    ),
    (
        "impersonation-proxy-signing-cert",
        "The signing certificate of the impersonation proxy, by default in the Secret `pinniped-concierge-impersonation-proxy-signer-ca-certificate`",
    ),
];

/// The end of certificates.
pub static CERTIFICATE_EXPIRY: Definition = Definition::gauge(
    "pinniped_certificate_expiry_timestamp_seconds",
    "Time at which a certificate in use expires, as Unix time",
)
.by(&[Label::of("certificate", CERTIFICATES), Label::of("use", CERTIFICATE_USES)]);

/// The validity of an external serving certificate.
pub static SERVING_CERTIFICATE_VALID: Definition = Definition::gauge(
    "pinniped_impersonation_proxy_serving_certificate_valid",
    "Whether the serving certificate from outside can work for clients",
)
.present("an external serving certificate is checked");

/// The age of keys.
pub static KEYS_AGE: Definition = Definition::gauge(
    "pinniped_jwt_authenticator_keys_age_seconds",
    "Time since the keys of the issuer were last fetched",
)
.by(&[AUTHENTICATOR])
.present("a JWTAuthenticator is ready");

/// Failed fetches of keys.
pub static KEYS_FETCH_FAILED: Definition = Definition::gauge(
    "pinniped_jwt_authenticator_keys_fetch_failed",
    "Whether the latest attempt to fetch the keys of the issuer failed",
)
.by(&[AUTHENTICATOR])
.present("a JWTAuthenticator is ready");

/// Values of the label `result` of the impersonation proxy's requests.
pub const PROXY_RESULTS: &[LabelValue] = &[
    ("forwarded", "The API server responded"),
    ("upgraded", "The API server responded, and the connection was upgraded, as for `kubectl exec`"),
    (
        "bad_request",
        "The request is malformed (400), or its head, with the headers that the proxy adds, is too large for the API server (431). A head over the limit of the proxy itself also gets 431, but does not count",
    ),
    ("unauthenticated", "The client is not authenticated"),
    ("forbidden", "The user does not have the permission, or may not impersonate another user"),
    ("review_failed", "The API server did not respond to a review"),
    ("overloaded", "There were too many requests or reviews"),
    ("cannot_act", "The proxy cannot act as the user, cannot interpret the path, or has an internal error"),
    ("bad_gateway", "The API server did not respond"),
    ("deadline", "The deadline of the request passed"),
    ("shutting_down", "The proxy stops"),
    ("panicked", "The proxy panicked while it served the request; the log has the panic"),
    ("abandoned", "The client cancelled the request, or its connection ended, before the response began"),
];

/// Requests of the impersonation proxy.
pub static PROXY_REQUESTS: Definition = Definition::counter(
    "pinniped_impersonation_proxy_requests",
    "Requests of the impersonation proxy by result",
)
.by(&[Label::of("result", PROXY_RESULTS)]);

/// Values of the label `direction`.
pub const DIRECTIONS: &[LabelValue] =
    &[("from_clients", "To the API server"), ("to_clients", "From the API server")];

/// Bytes of the impersonation proxy.
pub static PROXY_BYTES: Definition = Definition::counter(
    "pinniped_impersonation_proxy_bytes",
    "Bytes of the bodies of forwarded requests and of their responses, and of upgraded connections",
)
.by(&[Label::of("direction", DIRECTIONS)]);

/// Upgraded connections.
pub static PROXY_UPGRADED: Definition = Definition::gauge(
    "pinniped_impersonation_proxy_upgraded_connections_open",
    "Upgraded connections through the impersonation proxy that are open",
)
.present("the impersonation proxy runs");

/// HTTP/2 connections.
pub static UPSTREAM_CONNECTIONS: Definition = Definition::gauge(
    "pinniped_impersonation_proxy_upstream_connections",
    "HTTP/2 connections to the API server that the proxy and the controllers share",
)
.present("the impersonation proxy runs");

/// HTTP/2 streams.
pub static UPSTREAM_STREAMS: Definition =
    Definition::gauge("pinniped_impersonation_proxy_upstream_streams", "HTTP/2 streams of these connections")
        .present("the impersonation proxy runs");

/// HTTP/1.1 connections.
pub static UPSTREAM_HTTP1_CONNECTIONS: Definition = Definition::gauge(
    "pinniped_impersonation_proxy_upstream_http1_connections",
    "HTTP/1.1 connections to the API server for short reads",
)
.present("the impersonation proxy runs");

/// Values of the label `result` of recordings.
pub const RECORDING_RESULTS: &[LabelValue] = &[
    ("complete", "The recording is complete"),
    ("lost", "Text is lost, because the disk was slower than the session; a marker in the file has its size"),
    ("limit", "The session had more text than a recording may have"),
    (
        "unreadable",
        "The bytes of the session, or its protocol, cannot be read, or there was no usable response of the API server",
    ),
    ("failed", "The file could not be written; the log has the error"),
    (
        "not_started",
        "There is no file, because the directory is full or cannot be written, or the Concierge stops: the session is not recorded, or it was refused; the log has the reason",
    ),
    (
        "unsupported",
        "There is no file, because the protocol of the session cannot be recorded, or its request has a body",
    ),
    (
        "over_limit",
        "There is no file, because there were too many recordings in progress, of all clients or of one",
    ),
];

/// Recordings of sessions.
pub static RECORDINGS: Definition = Definition::counter(
    "pinniped_session_recordings",
    "Recordings that have ended, and sessions that could not be recorded, by result",
)
.by(&[Label::of("result", RECORDING_RESULTS)])
.present("sessions are recorded");

/// Recordings in progress.
pub static RECORDINGS_ACTIVE: Definition =
    Definition::gauge("pinniped_session_recordings_active", "Sessions that are being recorded")
        .present("sessions are recorded");

/// Bytes of recordings.
pub static RECORDING_BYTES: Definition =
    Definition::counter("pinniped_session_recording_bytes", "Bytes of recordings that were written")
        .present("sessions are recorded");

/// Lost bytes of recordings.
pub static RECORDING_BYTES_LOST: Definition = Definition::counter(
    "pinniped_session_recording_bytes_lost",
    "Bytes of recordings that were not written, because the disk was slower than the session",
)
.present("sessions are recorded");

/// The definitions of this crate.
pub const ALL: &[&Definition] = &[
    &LOGINS,
    &LOGIN_DURATION,
    &CERTIFICATE_EXPIRY,
    &SERVING_CERTIFICATE_VALID,
    &KEYS_AGE,
    &KEYS_FETCH_FAILED,
    &PROXY_REQUESTS,
    &PROXY_BYTES,
    &PROXY_UPGRADED,
    &UPSTREAM_CONNECTIONS,
    &UPSTREAM_STREAMS,
    &UPSTREAM_HTTP1_CONNECTIONS,
    &RECORDINGS,
    &RECORDINGS_ACTIVE,
    &RECORDING_BYTES,
    &RECORDING_BYTES_LOST,
];

/// Returns the definitions of all metrics of the program.
pub fn of_the_program() -> impl Iterator<Item = &'static Definition> {
    [
        program::ALL,
        ALL,
        controllers::ALL,
        reviews::ALL,
        requests::ALL,
        permits::ALL,
        audit::ALL,
        connections::ALL,
        capacity::ALL,
        traces::ALL,
    ]
    .into_iter()
    .flatten()
    .copied()
}
