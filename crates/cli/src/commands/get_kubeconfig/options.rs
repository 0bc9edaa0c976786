//! The options of `get kubeconfig`: the flags that declare them, and their values.

use pinniped_go_compat::duration::GoDuration;
use pinniped_secret::SecretString;

use crate::flags::tree::flags::{
    AUTHENTICATOR_TYPES, IDENTITY_PROVIDER_FLOWS, IDENTITY_PROVIDER_TYPES, delivery, deprecated_namespace,
    kubeconfig, refresh_token_store, scopes, suffix,
};
use crate::flags::tree::{
    DEFAULT_CLIENT_ID, DEFAULT_INSTALL_HINT, DEFAULT_NAME_SUFFIX, DEFAULT_SCOPES, DEFAULT_SUFFIX,
};
use crate::flags::value::Kind;
use crate::flags::{
    ConciergeMode, Delivery, FlagSpec, LoginFlow, Parsed, RefreshTokenStore, Value, WorkloadTokenSource,
};

/// The default timeout of the whole command: ten minutes.
const DEFAULT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(600);

/// The flags, sorted by name.
pub(crate) static FLAGS: [FlagSpec; 48] = [
    FlagSpec::switch("all-contexts", "With --merge: do so for each context of the kubeconfig whose cluster has a Concierge"),
    suffix("concierge-api-group-suffix"),
    FlagSpec::text("concierge-authenticator-name", "Name of the authenticator (default: discovered)")
        .authenticators(),
    FlagSpec::text(
        "concierge-authenticator-type",
        "Type of the authenticator, either 'webhook' or 'jwt' (default: discovered)",
    )
    .values(AUTHENTICATOR_TYPES),
    FlagSpec::new(
        "concierge-ca-bundle",
        Kind::CaBundle,
        "PEM file of CA certificates for the Concierge; can be repeated (default: discovered)",
    ),
    FlagSpec::text("concierge-credential-issuer", "Name of the CredentialIssuer (default: discovered)"),
    FlagSpec::text("concierge-endpoint", "URL of the Concierge (default: discovered)"),
    FlagSpec::new("concierge-mode", Kind::Mode, "Method of access to the Concierge: 'TokenCredentialRequestAPI', 'ImpersonationProxy' or 'ServiceAccountToken'; one of the first two is discovered if not given")
        .or_text("TokenCredentialRequestAPI"),
    deprecated_namespace(),
    FlagSpec::switch("concierge-skip-wait", "Do not wait for strategies that are pending"),
    FlagSpec::text("context", "With --merge: name of the context, the cluster and the user (default: generated)"),
    FlagSpec::text("credential-cache", "Path of the file that caches cluster credentials").files(),
    FlagSpec::text("generated-name-suffix", "Suffix appended to the names of the cluster, context and user")
        .or_text(DEFAULT_NAME_SUFFIX),
    delivery("Component that sends the impersonation headers in mode ServiceAccountToken: 'auto' or 'kubeconfig' (fields of the kubeconfig), 'wrapper' (pinniped kubectl), 'proxy' (pinniped proxy) or 'exec-headers' (a client that sends the headers of the plugin; no kubectl does)"),
    FlagSpec::text("install-hint", "What kubectl prints when the pinniped command is missing")
        .or_text(DEFAULT_INSTALL_HINT),
    kubeconfig(),
    FlagSpec::text("kubeconfig-context", "Context of the kubeconfig to use (default: the current one)").contexts(),
    FlagSpec::switch("merge", "Merge the result into a kubeconfig: the file of --output, or the first existing one of KUBECONFIG, or ~/.kube/config"),
    FlagSpec::switch("no-concierge", "Send the token straight to the cluster, without a Concierge"),
    FlagSpec::new(
        "oidc-ca-bundle",
        Kind::CaBundle,
        "PEM file of CA certificates for the OIDC issuer; can be repeated",
    ),
    FlagSpec::text("oidc-client-id", "OIDC client ID").or_text(DEFAULT_CLIENT_ID),
    FlagSpec::text(
        "oidc-client-secret",
        "OIDC client secret, for providers that require one of command line programs; it is written into the kubeconfig",
    ),
    FlagSpec::switch("oidc-debug-session-cache", "Log events of the session cache").hidden(),
    FlagSpec::new(
        "oidc-flow",
        Kind::LoginFlow,
        "Flow of the login: 'browser' (authorization code), or 'device' (a code to enter on another device, RFC 8628)",
    )
    .or_text("browser"),
    FlagSpec::text("oidc-issuer", "OIDC issuer URL (default: discovered)"),
    FlagSpec::new(
        "oidc-listen-port",
        Kind::Uint16,
        "Port of the localhost listener (authorization code flow only)",
    ),
    refresh_token_store("oidc-refresh-token-store"),
    FlagSpec::text("oidc-request-audience", "Exchange the token for one of this audience (RFC 8693)"),
    scopes("oidc-scopes", "OIDC scopes to request; without this flag, scopes that the issuer does not list are omitted"),
    FlagSpec::text("oidc-session-cache", "Path of the file that caches OIDC sessions").files(),
    FlagSpec::switch("oidc-skip-browser", "Do not open a browser, only print the URL"),
    FlagSpec::switch("oidc-skip-listen", "Do not listen on localhost").hidden(),
    FlagSpec::text("output", "File to write to (default: stdout)").letter('o').files(),
    FlagSpec::switch("overwrite", "With --merge: replace entries of the same name, whatever they are"),
    FlagSpec::text("pinniped-cli-path", "Command that kubectl runs (default: this program's own path)").files(),
    FlagSpec::switch("portable", "Let kubectl find the command 'pinniped' in PATH, for a kubeconfig that is used on other machines"),
    FlagSpec::switch("set-current-context", "With --merge: make the merged context the current one, even if another one is"),
    FlagSpec::switch("skip-validation", "Write the kubeconfig without trying to connect"),
    FlagSpec::text("static-token", "Write this token into the kubeconfig instead of an OIDC login"),
    FlagSpec::text(
        "static-token-env",
        "Write the name of the environment variable that holds the token instead of an OIDC login",
    ),
    FlagSpec::new("timeout", Kind::Duration, "Time limit for the whole command; with --all-contexts, for each context").or_text("10m0s"),
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
    .values(IDENTITY_PROVIDER_TYPES),
    FlagSpec::text(
        "workload-token-audience",
        "Audience of the token, for --workload-token-from github-actions (default: that of --oidc-request-audience)",
    ),
    FlagSpec::text(
        "workload-token-env",
        "Name of the environment variable that holds the token, for --workload-token-from env and gitlab",
    ),
    FlagSpec::text(
        "workload-token-file",
        "File that holds the token, for --workload-token-from file and kubernetes",
    ).files(),
    FlagSpec::new(
        "workload-token-from",
        Kind::WorkloadTokenSource,
        "Log in with the token of a workload instead of an OIDC login; its source: 'file', 'env', 'github-actions', 'gitlab' or 'kubernetes'",
    ),
];

/// All options. An empty text means "not given" if the discovery can determine the value.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) static_token: String,
    pub(super) static_token_env: String,
    pub(super) no_concierge: bool,
    pub(super) concierge: ConciergeOptions,
    pub(super) oidc: OidcOptions,
    pub(super) workload_token: WorkloadTokenOptions,
    pub(super) kubeconfig: Option<String>,
    pub(super) kubeconfig_context: String,
    pub(super) skip_validation: bool,
    pub(super) timeout: GoDuration,
    pub(super) output: String,
    pub(super) generated_name_suffix: String,
    pub(super) credential_cache: Option<String>,
    pub(super) pinniped_cli_path: String,
    pub(super) install_hint: Option<String>,
    /// Whether the command is found in `PATH`.
    pub(super) portable: bool,
    /// `None` if the result is a kubeconfig of its own.
    pub(super) merge: Option<MergeOptions>,
}

/// The merge into an existing kubeconfig.
#[derive(Clone, Debug)]
pub(super) struct MergeOptions {
    pub(super) all_contexts: bool,
    /// The name of the merged entries; empty for the generated names.
    pub(super) context: String,
    pub(super) overwrite: bool,
    pub(super) set_current_context: bool,
    /// The limit for each of several contexts, if it is given.
    pub(super) limit: Option<GoDuration>,
}

/// The flags of a merge contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeOptionsError {
    /// There is no merge.
    #[error("--{0} needs --merge")]
    NeedsMerge(&'static str),
    /// Several contexts cannot have one name or one source.
    #[error("only one of --all-contexts and --{0} can be specified")]
    SeveralContexts(&'static str),
}

/// Reads the flags of a merge.
fn merge(parsed: &Parsed) -> Result<Option<MergeOptions>, MergeOptionsError> {
    const FLAGS: [&str; 4] = ["all-contexts", "context", "overwrite", "set-current-context"];
    let is_given = |name: &str| parsed.bool(name) || !parsed.string(name).is_empty();
    let given = FLAGS.into_iter().find(|name| is_given(name));
    if !parsed.bool("merge") {
        return given.map_or(Ok(None), |name| Err(MergeOptionsError::NeedsMerge(name)));
    }
    let all_contexts = parsed.bool("all-contexts");
    let mut single = ["context", "kubeconfig-context", "set-current-context"].into_iter();
    match single.find(|name| all_contexts && is_given(name)) {
        Some(name) => Err(MergeOptionsError::SeveralContexts(name)),
        None => Ok(Some(MergeOptions {
            all_contexts,
            context: parsed.string("context"),
            overwrite: parsed.bool("overwrite"),
            set_current_context: parsed.bool("set-current-context"),
            limit: parsed.duration("timeout"),
        })),
    }
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
    pub(super) client_secret: SecretString,
    pub(super) flow: LoginFlow,
    pub(super) refresh_token_store: RefreshTokenStore,
    pub(super) listen_port: u16,
    pub(super) scopes: Vec<String>,
    /// Whether the scopes are the default. Those that an issuer other than a Supervisor does not
    /// list are then removed.
    pub(super) has_default_scopes: bool,
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

/// The token of the workload that uses the kubeconfig.
#[derive(Clone, Debug)]
pub(super) struct WorkloadTokenOptions {
    /// `None` if users log in.
    pub(super) source: Option<WorkloadTokenSource>,
    pub(super) audience: String,
    /// The name of the environment variable.
    pub(super) env: String,
    /// The path of the file.
    pub(super) file: String,
}

impl Options {
    pub(super) fn new(parsed: &Parsed) -> Result<Self, MergeOptionsError> {
        let bundle = |name| match parsed.value(name) {
            Some(Value::CaBundle(pem)) => pem.clone(),
            _ => Vec::new(),
        };
        Ok(Self {
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
                client_secret: parsed.string("oidc-client-secret").into(),
                flow: match parsed.value("oidc-flow") {
                    Some(Value::LoginFlow(flow)) => *flow,
                    _ => LoginFlow::default(),
                },
                refresh_token_store: match parsed.value("oidc-refresh-token-store") {
                    Some(Value::RefreshTokenStore(store)) => *store,
                    _ => RefreshTokenStore::default(),
                },
                listen_port: match parsed.value("oidc-listen-port") {
                    Some(Value::Uint16(port)) => *port,
                    _ => 0,
                },
                scopes: match parsed.value("oidc-scopes") {
                    Some(Value::Strings(scopes)) => scopes.clone(),
                    _ => DEFAULT_SCOPES.split(',').map(str::to_owned).collect(),
                },
                has_default_scopes: parsed.value("oidc-scopes").is_none(),
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
            workload_token: WorkloadTokenOptions {
                source: match parsed.value("workload-token-from") {
                    Some(Value::WorkloadTokenSource(source)) => Some(*source),
                    _ => None,
                },
                audience: parsed.string("workload-token-audience"),
                env: parsed.string("workload-token-env"),
                file: parsed.string("workload-token-file"),
            },
            kubeconfig: parsed.given("kubeconfig").map(str::to_owned),
            kubeconfig_context: parsed.string("kubeconfig-context"),
            skip_validation: parsed.bool("skip-validation"),
            timeout: parsed.duration("timeout").unwrap_or(DEFAULT_TIMEOUT.into()),
            output: parsed.string("output"),
            generated_name_suffix: parsed.string_or("generated-name-suffix", DEFAULT_NAME_SUFFIX),
            credential_cache: parsed.given("credential-cache").map(str::to_owned),
            pinniped_cli_path: parsed.string("pinniped-cli-path"),
            install_hint: parsed.given("install-hint").map(str::to_owned),
            portable: parsed.bool("portable"),
            merge: merge(parsed)?,
        })
    }
}
