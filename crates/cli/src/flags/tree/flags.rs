//! The flags of each command, sorted by name, except those of `get kubeconfig`
//! ([`crate::commands::get_kubeconfig::options`]).

use super::{DEFAULT_CLIENT_ID, DEFAULT_SCOPES, DEFAULT_SUFFIX, Default, FlagSpec};
use crate::flags::value::{CLIENT_CERTIFICATE, Kind};

/// The values of the flags for the type of an authenticator.
pub(crate) const AUTHENTICATOR_TYPES: &[&str] = &["webhook", "jwt"];
/// The values of the flags for the type of a Supervisor's identity provider.
pub(crate) const IDENTITY_PROVIDER_TYPES: &[&str] = &["oidc", "ldap", "activedirectory", "github"];
/// The values of the flags for the flow of a Supervisor's identity provider.
pub(crate) const IDENTITY_PROVIDER_FLOWS: &[&str] = &["cli_password", "browser_authcode"];

pub(crate) const fn deprecated_namespace() -> FlagSpec {
    let mut flag = FlagSpec::text("concierge-namespace", "Namespace of the Concierge").hidden();
    flag.default = Default::Text("pinniped-concierge");
    flag.deprecated = Some("not needed anymore");
    flag
}

pub(crate) const fn suffix(name: &'static str) -> FlagSpec {
    FlagSpec::text(name, "Suffix of the Concierge's API groups").or_text(DEFAULT_SUFFIX)
}

pub(crate) const fn kubeconfig() -> FlagSpec {
    FlagSpec::text("kubeconfig", "Path of the kubeconfig to use").or(Default::Kubeconfig).files()
}

pub(crate) const fn scopes(name: &'static str, usage: &'static str) -> FlagSpec {
    FlagSpec::new(name, Kind::Strings, usage).or_text(DEFAULT_SCOPES)
}

pub(crate) const fn refresh_token_store(name: &'static str) -> FlagSpec {
    FlagSpec::new(
        name,
        Kind::RefreshTokenStore,
        "Store of refresh tokens: 'file' (the session cache), or 'keyring' (the keyring of the operating system)",
    )
    .or_text("file")
}

/// The flag for the credential type of a login.
const fn credential_type() -> FlagSpec {
    FlagSpec::new(
        "concierge-credential-type",
        Kind::CredentialType,
        "Kind of cluster credential to request from the Concierge: 'client-certificate' or 'service-account-token'",
    )
    .or_text(CLIENT_CERTIFICATE)
}

pub(crate) const fn delivery(usage: &'static str) -> FlagSpec {
    FlagSpec::new("impersonation-delivery", Kind::Delivery, usage).or_text("auto")
}

const fn login_delivery() -> FlagSpec {
    delivery(
        "Component that sends the impersonation headers of a service account token: 'auto', 'kubeconfig', 'wrapper', 'proxy' or 'exec-headers'",
    )
}

const fn expected_identity() -> FlagSpec {
    FlagSpec::new(
        "expected-identity",
        Kind::Identity,
        "Digest of the identity that the kubeconfig impersonates; a service account token for another identity is not printed",
    )
}

pub(super) static LOGIN_STATIC: [FlagSpec; 13] = [
    suffix("concierge-api-group-suffix"),
    FlagSpec::text("concierge-authenticator-name", "Name of the authenticator").authenticators(),
    FlagSpec::text("concierge-authenticator-type", "Type of the authenticator, either 'webhook' or 'jwt'")
        .values(AUTHENTICATOR_TYPES),
    FlagSpec::text("concierge-ca-bundle-data", "CA certificates for the Concierge: base64 of PEM"),
    credential_type(),
    FlagSpec::text("concierge-endpoint", "URL of the Concierge"),
    deprecated_namespace(),
    FlagSpec::text("credential-cache", "Path of the file that caches cluster credentials; '' for none")
        .files()
        .or(Default::CredentialCache),
    FlagSpec::switch("enable-concierge", "Exchange the token for a cluster credential at the Concierge"),
    expected_identity(),
    login_delivery(),
    FlagSpec::text("token", "The token"),
    FlagSpec::text("token-env", "Name of the environment variable that holds the token"),
];

pub(super) static LOGIN_TOKEN: [FlagSpec; 14] = [
    FlagSpec::text("audience", "Audience of the token, for --from github-actions"),
    suffix("concierge-api-group-suffix"),
    FlagSpec::text("concierge-authenticator-name", "Name of the authenticator").authenticators(),
    FlagSpec::text("concierge-authenticator-type", "Type of the authenticator, either 'webhook' or 'jwt'")
        .values(AUTHENTICATOR_TYPES),
    FlagSpec::text("concierge-ca-bundle-data", "CA certificates for the Concierge: base64 of PEM"),
    credential_type(),
    FlagSpec::text("concierge-endpoint", "URL of the Concierge"),
    FlagSpec::text("credential-cache", "Path of the file that caches cluster credentials; '' for none")
        .files()
        .or(Default::CredentialCache),
    FlagSpec::switch("enable-concierge", "Exchange the token for a cluster credential at the Concierge"),
    expected_identity(),
    FlagSpec::new(
        "from",
        Kind::WorkloadTokenSource,
        "Source of the token: 'file', 'env', 'github-actions', 'gitlab' or 'kubernetes'",
    )
    .required(),
    login_delivery(),
    FlagSpec::text(
        "token-env",
        "Name of the environment variable that holds the token, for --from env and gitlab",
    ),
    FlagSpec::text("token-file", "File that holds the token, for --from file and kubernetes").files(),
];

pub(super) static LOGIN_OIDC: [FlagSpec; 28] = [
    FlagSpec::new("ca-bundle", Kind::Strings, "PEM file of CA certificates for the issuer; can be repeated"),
    FlagSpec::new(
        "ca-bundle-data",
        Kind::Strings,
        "CA certificates for the issuer: base64 of PEM; can be repeated",
    ),
    FlagSpec::text("client-id", "OIDC client ID").or_text(DEFAULT_CLIENT_ID),
    FlagSpec::text("client-secret", "OIDC client secret, for providers that require one of command line programs"),
    suffix("concierge-api-group-suffix"),
    FlagSpec::text("concierge-authenticator-name", "Name of the authenticator").authenticators(),
    FlagSpec::text("concierge-authenticator-type", "Type of the authenticator, either 'webhook' or 'jwt'").values(AUTHENTICATOR_TYPES),
    FlagSpec::text("concierge-ca-bundle-data", "CA certificates for the Concierge: base64 of PEM"),
    credential_type(),
    FlagSpec::text("concierge-endpoint", "URL of the Concierge"),
    deprecated_namespace(),
    FlagSpec::text("credential-cache", "Path of the file that caches cluster credentials; '' for none").files()
        .or(Default::CredentialCache),
    FlagSpec::switch("debug-session-cache", "Log events of the session cache").hidden(),
    FlagSpec::switch("enable-concierge", "Exchange the token for a cluster credential at the Concierge"),
    expected_identity(),
    FlagSpec::new(
        "flow",
        Kind::LoginFlow,
        "Flow of the login: 'browser' (authorization code), or 'device' (a code to enter on another device, RFC 8628)",
    )
    .or_text("browser"),
    login_delivery(),
    FlagSpec::text("issuer", "OIDC issuer URL").required(),
    FlagSpec::new(
        "listen-port",
        Kind::Uint16,
        "Port of the localhost listener (authorization code flow only)",
    ),
    refresh_token_store("refresh-token-store"),
    FlagSpec::text("request-audience", "Exchange the token for one of this audience (RFC 8693)"),
    scopes(
        "scopes",
        "OIDC scopes to request; without this flag, scopes that an issuer other than a Supervisor does not list are omitted",
    ),
    FlagSpec::text("session-cache", "Path of the file that caches OIDC sessions").files().or(Default::SessionCache),
    FlagSpec::switch("skip-browser", "Do not open a browser, only print the URL"),
    FlagSpec::switch("skip-listen", "Do not listen on localhost").hidden(),
    FlagSpec::text(
        "upstream-identity-provider-flow",
        "Flow of the Supervisor's identity provider: 'cli_password' or 'browser_authcode'",
    )
    .values(IDENTITY_PROVIDER_FLOWS),
    FlagSpec::text("upstream-identity-provider-name", "Name of the Supervisor's identity provider"),
    FlagSpec::text(
        "upstream-identity-provider-type",
        "Type of the Supervisor's identity provider: 'oidc', 'ldap', 'activedirectory' or 'github'",
    )
    .values(IDENTITY_PROVIDER_TYPES)
    .or_text("oidc"),
];

pub(super) static KUBECTL: [FlagSpec; 1] =
    [FlagSpec::text("kubectl-path", "Path or name of kubectl").files().or_text("kubectl")];

pub(super) static WHOAMI: [FlagSpec; 5] = [
    suffix("api-group-suffix"),
    kubeconfig(),
    FlagSpec::text("kubeconfig-context", "Context of the kubeconfig to use (default: the current one)").contexts(),
    FlagSpec::text(
        "output",
        "Output format: 'text', 'wide' (also UID, extras and the end of the credential, as on a terminal), 'json' or 'yaml'",
    )
    .letter('o')
    .or_text("text")
    .values(&["text", "wide", "json", "yaml"]),
    FlagSpec::new("timeout", Kind::Duration, "Time limit for the request; 0 for none"),
];

pub(super) static PROXY: [FlagSpec; 4] = [
    kubeconfig(),
    FlagSpec::text("kubeconfig-context", "Context of the kubeconfig to use (default: the current one)").contexts(),
    FlagSpec::text("output", "File for the kubeconfig of clients, readable by its owner only and removed on exit (default: stdout)")
        .letter('o').files(),
    FlagSpec::new("port", Kind::Uint16, "Port on 127.0.0.1; 0 selects a free one"),
];

pub(super) static DOCTOR: [FlagSpec; 8] = [
    FlagSpec::text(
        "check-kubeconfig",
        "Kubeconfig of a user, to log in with and to compare with the values that the cluster advertises",
    )
    .files(),
    suffix("concierge-api-group-suffix"),
    FlagSpec::text("concierge-credential-issuer", "Name of the CredentialIssuer (default: the only one)"),
    FlagSpec::switch(
        "debug-state",
        "Also read the state of each Concierge pod through a port-forward, for which you need the permission for the path /debug/state",
    ),
    kubeconfig(),
    FlagSpec::text("kubeconfig-context", "Context of the kubeconfig to use (default: the current one)")
        .contexts(),
    FlagSpec::text("output", "Output format: 'text', 'json' or 'yaml'")
        .letter('o')
        .or_text("text")
        .values(&["text", "json", "yaml"]),
    FlagSpec::new("timeout", Kind::Duration, "Time limit for each step, such as the login; 0 for none")
        .or_text("1m0s"),
];

pub(super) static LOGOUT: [FlagSpec; 4] = [
    FlagSpec::switch("all", "Remove all sessions and cached credentials, also those that no context uses"),
    kubeconfig(),
    FlagSpec::text("kubeconfig-context", "Context of the kubeconfig to use (default: the current one)")
        .contexts(),
    FlagSpec::new(
        "timeout",
        Kind::Duration,
        "Time limit for the revocation of each refresh token; 0 for none",
    )
    .or_text("30s"),
];

pub(super) static STATUS: [FlagSpec; 5] = [
    FlagSpec::switch(
        "check",
        "Also request the user that each cluster authenticates, and exit with 1 if a check fails; logins of this program ask you nothing, and other plugins get `interactive: false`",
    ),
    kubeconfig(),
    FlagSpec::text("kubeconfig-context", "The only context to print (default: all)").contexts(),
    FlagSpec::text("output", "Output format: 'text', 'json' or 'yaml'")
        .letter('o')
        .or_text("text")
        .values(&["text", "json", "yaml"]),
    FlagSpec::new("timeout", Kind::Duration, "Time limit for the check of each context; 0 for none")
        .or_text("30s"),
];

pub(super) static VERSION: [FlagSpec; 1] =
    [FlagSpec::text("output", "Output format: 'json' or 'yaml' (default: one line)")
        .letter('o')
        .values(&["json", "yaml"])];

pub(super) static SHELL: [FlagSpec; 1] = [FlagSpec::switch("no-descriptions", "Leave the descriptions out")];
