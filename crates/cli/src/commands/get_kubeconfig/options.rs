//! The options of the command line.

use pinniped_go_compat::duration::GoDuration;

use crate::flags::tree::{
    DEFAULT_CLIENT_ID, DEFAULT_INSTALL_HINT, DEFAULT_NAME_SUFFIX, DEFAULT_SCOPES, DEFAULT_SUFFIX,
};
use crate::flags::{ConciergeMode, Delivery, Parsed, Value};

/// The default timeout of the whole command: ten minutes.
const DEFAULT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(600);

/// All options. An empty text means "not given" if the discovery can determine the value.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) static_token: String,
    pub(super) static_token_env: String,
    pub(super) no_concierge: bool,
    pub(super) concierge: ConciergeOptions,
    pub(super) oidc: OidcOptions,
    pub(super) kubeconfig: Option<String>,
    pub(super) kubeconfig_context: String,
    pub(super) skip_validation: bool,
    pub(super) timeout: GoDuration,
    pub(super) output: String,
    pub(super) generated_name_suffix: String,
    pub(super) credential_cache: Option<String>,
    pub(super) pinniped_cli_path: String,
    pub(super) install_hint: String,
}

/// The Concierge and its authenticator.
#[derive(Clone, Debug)]
pub(super) struct ConciergeOptions {
    pub(super) credential_issuer: String,
    pub(super) authenticator_type: String,
    pub(super) authenticator_name: String,
    pub(super) api_group_suffix: String,
    pub(super) skip_wait: bool,
    /// PEM.
    pub(super) ca_bundle: Vec<u8>,
    pub(super) endpoint: String,
    pub(super) mode: ConciergeMode,
    pub(super) delivery: Delivery,
}

/// The OIDC login for the users of the kubeconfig.
#[derive(Clone, Debug)]
pub(super) struct OidcOptions {
    pub(super) issuer: String,
    pub(super) client_id: String,
    pub(super) listen_port: u16,
    pub(super) scopes: Vec<String>,
    pub(super) skip_browser: bool,
    pub(super) skip_listen: bool,
    pub(super) session_cache: String,
    /// PEM.
    pub(super) ca_bundle: Vec<u8>,
    pub(super) debug_session_cache: bool,
    pub(super) request_audience: String,
    pub(super) idp_name: String,
    pub(super) idp_type: String,
    pub(super) idp_flow: String,
}

impl Options {
    pub(super) fn new(parsed: &Parsed) -> Self {
        let bundle = |name| match parsed.value(name) {
            Some(Value::CaBundle(pem)) => pem.clone(),
            _ => Vec::new(),
        };
        Self {
            static_token: parsed.string("static-token"),
            static_token_env: parsed.string("static-token-env"),
            no_concierge: parsed.bool("no-concierge"),
            concierge: ConciergeOptions {
                credential_issuer: parsed.string("concierge-credential-issuer"),
                authenticator_type: parsed.string("concierge-authenticator-type"),
                authenticator_name: parsed.string("concierge-authenticator-name"),
                api_group_suffix: parsed.string_or("concierge-api-group-suffix", DEFAULT_SUFFIX),
                skip_wait: parsed.bool("concierge-skip-wait"),
                ca_bundle: bundle("concierge-ca-bundle"),
                endpoint: parsed.string("concierge-endpoint"),
                mode: match parsed.value("concierge-mode") {
                    Some(Value::Mode(mode)) => *mode,
                    _ => ConciergeMode::Auto,
                },
                delivery: match parsed.value("impersonation-delivery") {
                    Some(Value::Delivery(delivery)) => *delivery,
                    _ => Delivery::Auto,
                },
            },
            oidc: OidcOptions {
                issuer: parsed.string("oidc-issuer"),
                client_id: parsed.string_or("oidc-client-id", DEFAULT_CLIENT_ID),
                listen_port: match parsed.value("oidc-listen-port") {
                    Some(Value::Uint16(port)) => *port,
                    _ => 0,
                },
                scopes: match parsed.value("oidc-scopes") {
                    Some(Value::Strings(scopes)) => scopes.clone(),
                    _ => DEFAULT_SCOPES.split(',').map(str::to_owned).collect(),
                },
                skip_browser: parsed.bool("oidc-skip-browser"),
                skip_listen: parsed.bool("oidc-skip-listen"),
                session_cache: parsed.string("oidc-session-cache"),
                ca_bundle: bundle("oidc-ca-bundle"),
                debug_session_cache: parsed.bool("oidc-debug-session-cache"),
                request_audience: parsed.string("oidc-request-audience"),
                idp_name: parsed.string("upstream-identity-provider-name"),
                idp_type: parsed.string("upstream-identity-provider-type"),
                idp_flow: parsed.string("upstream-identity-provider-flow"),
            },
            kubeconfig: parsed.given("kubeconfig").map(str::to_owned),
            kubeconfig_context: parsed.string("kubeconfig-context"),
            skip_validation: parsed.bool("skip-validation"),
            timeout: match parsed.value("timeout") {
                Some(Value::Duration(limit)) => *limit,
                _ => DEFAULT_TIMEOUT.into(),
            },
            output: parsed.string("output"),
            generated_name_suffix: parsed.string_or("generated-name-suffix", DEFAULT_NAME_SUFFIX),
            credential_cache: parsed.given("credential-cache").map(str::to_owned),
            pinniped_cli_path: parsed.string("pinniped-cli-path"),
            install_hint: parsed.string_or("install-hint", DEFAULT_INSTALL_HINT),
        }
    }
}
