use super::*;

pub(crate) const NAMES: &str = include_str!("../../testdata/names.yaml");

/// Returns a configuration with only the required values.
pub(crate) fn only_names() -> Config {
    with("").unwrap()
}

pub(super) fn with(more: &str) -> Result<Config, ConfigError> {
    parse(&format!("{NAMES}{more}"))
}

#[test]
fn only_the_names_are_required() {
    let config = with("").unwrap();
    assert_eq!(config.serving_certificate_duration, Duration::from_secs(31_536_000));
    assert_eq!(config.serving_certificate_renew_before, Duration::from_secs(23_328_000));
    assert_eq!(config.api_group_suffix.as_str(), "pinniped.dev");
    assert_eq!(config.aggregated_api_server_port, 10250);
    assert_eq!(config.unapplied_admission, UnappliedAdmission::Report);
    for (value, handling) in [
        ("''", UnappliedAdmission::Report),
        ("report", UnappliedAdmission::Report),
        ("refuse", UnappliedAdmission::Refuse),
    ] {
        let config = with(&format!("aggregatedAPIServerUnappliedAdmission: {value}")).unwrap();
        assert_eq!(config.unapplied_admission, handling, "{value}");
    }
    assert_eq!(config.impersonation_proxy_server_port, 8444);
    assert_eq!(config.kube_cert_agent.name_prefix, "pinniped-kube-cert-agent-");
    assert_eq!(config.kube_cert_agent.image, None);
    assert_eq!(config.log_level, LogLevel::Warning);
    assert!(!config.log_usernames_and_groups);
    assert_eq!(config.credential_lifetime, Duration::from_secs(300));
    assert_eq!(config.shutdown.delay, Duration::from_secs(3));
    assert_eq!(config.shutdown.grace, Duration::from_secs(10));
    assert!(config.uid_impersonation);
    assert_eq!(config.upstream_limits(), UpstreamLimits::default());
    let config = with("upstreamHTTP2Only: true").unwrap();
    assert_eq!(config.upstream_limits(), UpstreamLimits { short_reads: 0, ..UpstreamLimits::default() });
    let config = with("").unwrap();
    assert!(matches!(with("upstreamHTTP2Only: sometimes"), Err(ConfigError::Decode(_))));
    assert_eq!((config.max_connections, config.max_connections_per_address), (16_384, None));
    assert_eq!(config.proxy_serving_lifetime, None);
    let config = with("maxConnections: 5\nmaxConnectionsPerAddress: 2").unwrap();
    assert_eq!((config.max_connections, config.max_connections_per_address), (5, NonZero::new(2)));
    let config = with("impersonationProxyServingCertDays: 30").unwrap();
    assert_eq!(config.proxy_serving_lifetime, Some(Duration::from_secs(2_592_000)));
}

#[test]
fn key_case_nulls_and_unknown_and_repeated_keys_are_accepted() {
    let config = with(
        "
APIGroupSuffix: tuna.io
discovery: {url: null}
log: {level: info, format: null}
log: {level: debug}
notAKey: {deep: [1, 2]}
kubeCertAgent: {ImagePullSecrets: [one], runAsUser: null, PriorityClassName: null}
labels: {App: Mixed-Case}
tls: {onedottwo: {allowedCiphers: null}}
audit: null
",
    )
    .unwrap();
    assert_eq!(config.api_group_suffix.as_str(), "tuna.io");
    assert_eq!(config.discovery_url, None);
    assert_eq!(config.log_level, LogLevel::Debug);
    assert_eq!(config.kube_cert_agent.image_pull_secrets, ["one"]);
    assert_eq!(config.labels["App"], "Mixed-Case");
}

#[test]
fn the_configuration_that_upstream_ships_is_accepted() {
    let manifest = include_str!("../../../../../testdata/upstream/manifests/upstream-concierge.yaml");
    let text = manifest
        .lines()
        .find_map(|line| line.trim().strip_prefix("pinniped.yaml: "))
        .map(|quoted| serde_saphyr::from_str::<String>(quoted).unwrap())
        .unwrap();
    let config = parse(&text).unwrap();
    assert_eq!(config.names.api_service, "pinniped-concierge-api");
    assert_eq!(config.serving_certificate_duration, Duration::from_secs(2_592_000));
    assert_eq!(config.labels["app"], "pinniped-concierge");
    assert_eq!(unknown_keys(&text), []);
}

#[test]
fn invalid_values_have_the_error_texts_of_upstream() {
    for (more, text) in [
        (
            "api: {servingCertificate: {durationSeconds: 1, renewBeforeSeconds: 2}}",
            "validate api: durationSeconds cannot be smaller than renewBeforeSeconds",
        ),
        (
            "api: {servingCertificate: {durationSeconds: 1, renewBeforeSeconds: 0}}",
            "validate api: renewBefore must be positive",
        ),
        (
            "api: {servingCertificate: {durationSeconds: -10, renewBeforeSeconds: -20}}",
            "validate api: renewBefore must be positive",
        ),
        ("apiGroupSuffix: nodots", "validate apiGroupSuffix: must contain '.'"),
        (
            "aggregatedAPIServerDisableAdmissionPlugins: [Foo, NamespaceLifecycle, Bar]",
            "validate aggregatedAPIServerDisableAdmissionPlugins: admission plugin names not recognized: \
             [Foo Bar] (each must be one of [NamespaceLifecycle MutatingAdmissionPolicy \
             MutatingAdmissionWebhook ValidatingAdmissionPolicy ValidatingAdmissionWebhook])",
        ),
        (
            "aggregatedAPIServerUnappliedAdmission: apply",
            "validate aggregatedAPIServerUnappliedAdmission: valid choices are 'report', 'refuse', or empty \
             string (equivalent to 'report')",
        ),
        (
            "aggregatedAPIServerPort: 1023",
            "validate aggregatedAPIServerPort: must be within range 1024 to 65535",
        ),
        (
            "impersonationProxyServerPort: 65536",
            "validate impersonationProxyServerPort: must be within range 1024 to 65535",
        ),
        (
            "impersonationProxyServingCertDays: 0",
            "validate impersonationProxyServingCertDays: must be within range 1 to 36500",
        ),
        (
            "kubeCertAgent: {runAsUser: -1}",
            "validate kubeCertAgent: runAsUser must be 0 or greater (instead of -1)",
        ),
        (
            "kubeCertAgent: {deploymentStrategyType: x}",
            "validate kubeCertAgent: deploymentStrategyType must be one of [Recreate RollingUpdate] (instead of x)",
        ),
        (
            "log: {level: chatty}",
            "validate log level: invalid log level, valid choices are the empty string, info, debug, trace and all",
        ),
        (
            "log: {format: xml}",
            "decode yaml: error unmarshaling JSON: while decoding JSON: invalid log format, \
             valid choices are the empty string, 'json' or 'text'",
        ),
        (
            "audit: {logUsernamesAndGroups: maybe}",
            "validate audit: invalid logUsernamesAndGroups format, valid choices are 'enabled', 'disabled', \
             or empty string (equivalent to 'disabled')",
        ),
        (
            "credentialLifetimeSeconds: 59",
            "validate credentialLifetimeSeconds: must be within range 60 to 3600",
        ),
        ("maxConnections: 0", "validate maxConnections: must be within range 1 to 1000000"),
        (
            "maxConnectionsPerAddress: -1",
            "validate maxConnectionsPerAddress: must be within range 0 to 1000000",
        ),
        ("shutdownDelaySeconds: -1", "validate shutdownDelaySeconds: must be within range 0 to 60"),
        ("shutdownGraceSeconds: 3601", "validate shutdownGraceSeconds: must be within range 0 to 3600"),
    ] {
        assert_eq!(with(more).unwrap_err().to_string(), text, "for {more}");
    }
    let ciphers = with("tls: {onedottwo: {allowedCiphers: [nope]}}").unwrap_err().to_string();
    assert!(
        ciphers.starts_with("validate tls: unrecognized ciphers [nope], ciphers must be from list ["),
        "{ciphers}"
    );
}

#[test]
fn a_value_of_another_type_is_an_error_that_names_its_key() {
    for (more, text) in [
        (
            "CredentialLifetimeSeconds: ten",
            "credentialLifetimeSeconds must be a whole number (instead of \"ten\")",
        ),
        ("maxConnections: 1.5", "maxConnections must be a whole number (instead of 1.5)"),
        ("log: debug", "log must be a mapping of keys to values (instead of \"debug\")"),
        ("log: {level: 3}", "log.level must be text (put the value in quotes) (instead of 3)"),
        (
            "upstreamHTTP2Only: sometimes",
            "upstreamHTTP2Only must be true or false (instead of \"sometimes\")",
        ),
        (
            "kubeCertAgent: {imagePullSecrets: one}",
            "kubeCertAgent.imagePullSecrets must be a list of texts (put each value in quotes) \
             (instead of \"one\")",
        ),
        (
            "labels: {app: 1}",
            "labels must be a mapping of names to texts (put each value in quotes) (instead of a mapping)",
        ),
        ("tls: {onedottwo: [a]}", "tls.onedottwo must be a mapping of keys to values (instead of a list)"),
    ] {
        assert_eq!(with(more).unwrap_err().to_string(), format!("decode yaml: {text}"), "for {more}");
    }
    let error = parse("[names]").unwrap_err().to_string();
    assert_eq!(error, "decode yaml: the file must be a mapping of keys to values");
}

#[test]
fn a_url_that_clients_cannot_use_is_an_error() {
    for url in ["https://api.example.com", "http://[fd00::1]:6443", "https://10.0.0.1:6443/k8s/c-1"] {
        let config = with(&format!("discovery: {{url: '{url}'}}")).unwrap();
        assert_eq!(config.discovery_url.as_deref(), Some(url));
    }
    for url in ["api.example.com", "ftp://api", "https://", "https://user:password@api", "HTTPS://api"] {
        let error = with(&format!("discovery: {{url: '{url}'}}")).unwrap_err().to_string();
        assert!(error.starts_with("validate discovery: url must be the URL of the API server"), "{error}");
    }
}

#[test]
fn an_unknown_key_has_the_nearest_known_name() {
    let text = "
credentialLifetimeSecond: 1
logLevel: info
runAsUser: 0
notAKey: {deep: [1, 2]}
kubeCertAgents: {}
names: {credentialIsuer: x, apiService: y}
api: {servingCertificate: {renewBefore: 1}}
labels: {anything: goes}
discovery: {uri: null}
";
    let found: Vec<_> = unknown_keys(text).into_iter().map(|key| (key.path, key.nearest)).collect();
    let mut wanted = [
        ("api.servingCertificate.renewBefore", Some("api.servingCertificate.renewBeforeSeconds")),
        ("credentialLifetimeSecond", Some("credentialLifetimeSeconds")),
        ("kubeCertAgents", Some("kubeCertAgent")),
        ("logLevel", Some("log.level")),
        ("names.credentialIsuer", Some("names.credentialIssuer")),
        ("notAKey", None),
        ("runAsUser", Some("kubeCertAgent.runAsUser")),
    ]
    .map(|(path, nearest)| (path.to_owned(), nearest));
    wanted.sort();
    let mut found = found;
    found.sort();
    assert_eq!(found, wanted);
    assert_eq!(unknown_keys(&format!("{}: 1", "k".repeat(1000)))[0].nearest, None);
    assert_eq!(unknown_keys("{{{"), []);
}

/// Returns the cells of a key's row in the reference page: key, default, effect, description.
fn row_of(key: &str) -> Vec<&'static str> {
    let page = include_str!("../../../../../docs/reference/configuration.md");
    let starts = [format!("| `{key}` |"), format!("| **+** `{key}` |")];
    let rows: Vec<_> =
        page.lines().filter(|line| starts.iter().any(|start| line.starts_with(start))).collect();
    let [row] = rows.as_slice() else { panic!("{key} has {} rows", rows.len()) };
    row.trim_matches('|').split('|').map(str::trim).collect()
}

#[test]
fn the_reference_page_has_every_key_and_when_a_change_takes_effect() {
    for key in &keys::KEYS {
        let effect = match key.effect {
            Effect::AtOnce => "at once",
            Effect::NextStart => "at the next start",
        };
        assert_eq!(row_of(key.path)[2], effect, "{}", key.path);
    }
}

/// Defaults that are not values of the file, as the reference page describes them.
const DESCRIBED_DEFAULTS: [(&str, &str); 31] = [
    (
        "names.serviceAccountTokensServiceAccount",
        "`impersonationProxyServiceAccount` with the suffix `-service-account-tokens` instead of \
         `-impersonation-proxy`",
    ),
    ("kubeCertAgent.image", "the image of the Concierge's own container"),
    ("kubeCertAgent.runAsUser", "0"),
    ("kubeCertAgent.runAsGroup", "0"),
    ("log.level", "warnings"),
    ("tls.onedottwo.allowedCiphers", "all"),
    ("maxConnectionsPerAddress", "0"),
    ("impersonationProxyServingCertDays", "a hundred years"),
    ("kubeCertAgent.imagePullSecrets", "none"),
    ("audit.proxiedRequests.maxBodyBytes", "40960"),
    ("audit.proxiedRequests.log.path", "none, required for a log"),
    ("audit.proxiedRequests.log.maxAgeDays", "0"),
    ("audit.proxiedRequests.log.maxBackups", "0"),
    ("audit.proxiedRequests.log.maxSizeMegabytes", "100"),
    ("audit.proxiedRequests.log.mode", "`batch`"),
    ("audit.proxiedRequests.log.batchBufferSize", "10000"),
    ("audit.proxiedRequests.log.batchMaxSize", "400"),
    ("audit.proxiedRequests.log.batchMaxWaitSeconds", "1"),
    ("audit.proxiedRequests.webhook.kubeconfigFile", "none, required for a webhook"),
    ("audit.proxiedRequests.webhook.mode", "`batch`"),
    ("audit.proxiedRequests.webhook.initialBackoffSeconds", "10"),
    ("audit.proxiedRequests.webhook.batchBufferSize", "10000"),
    ("audit.proxiedRequests.webhook.batchMaxSize", "400"),
    ("audit.proxiedRequests.webhook.batchMaxWaitSeconds", "30"),
    ("recording.sessions.mode", "`bestEffort`"),
    ("recording.sessions.recordInput", "`false`"),
    ("recording.sessions.whenFull", "`removeOldest`; `keep` in mode `required`"),
    ("recording.sessions.maxSessions", "32"),
    ("recording.sessions.maxSessionMegabytes", "16"),
    ("recording.sessions.maxTotalMegabytes", "1024"),
    ("tracing.certificateAuthorityData", "the certificate authorities of the image"),
];

#[test]
fn the_reference_page_has_the_default_of_every_key() {
    let defaults = only_names();
    for key in &keys::KEYS {
        let value = (key.value)(&defaults);
        let name = key.path.strip_prefix("names.").map(|name| format!("{name}:"));
        let is_required = name.is_some_and(|name| NAMES.contains(&name));
        let described = DESCRIBED_DEFAULTS.iter().find(|(path, _)| *path == key.path);
        let wanted = match (described, &value) {
            _ if is_required => "none, required".to_owned(),
            (Some((_, text)), _) => (*text).to_owned(),
            (None, Value::Null) => "none".to_owned(),
            (None, Value::String(text)) if text.is_empty() => "none".to_owned(),
            (None, Value::String(text)) => format!("`{text}`"),
            (None, Value::Bool(enabled)) if key.path != "upstreamHTTP2Only" => {
                format!("`{}`", if *enabled { "enabled" } else { "disabled" })
            }
            (None, Value::Number(number)) => number.to_string(),
            (None, value) => format!("`{value}`"),
        };
        assert_eq!(row_of(key.path)[1], wanted, "{}", key.path);
    }
}

/// Returns the range in a description, such as `1 to 3600`.
fn range(description: &str) -> Option<(i64, i64)> {
    let words: Vec<_> = description.split([' ', ',', ';', '.']).collect();
    let ranges = words.windows(3).filter(|words| words[1] == "to");
    ranges.filter_map(|words| Some((words[0].parse().ok()?, words[2].parse().ok()?))).next()
}

/// Returns the text of a setting with this path, and of those that it requires.
fn setting(path: &str, value: i64) -> String {
    if let Some(key) = path.strip_prefix("audit.proxiedRequests.log.") {
        return format!(
            "audit: {{proxiedRequests: {{policyFile: /p, log: {{path: /l, {key}: {value}}}}}}}\n"
        );
    }
    if path == "audit.proxiedRequests.maxBodyBytes" {
        return format!(
            "audit: {{proxiedRequests: {{policyFile: /p, log: {{path: /l}}, maxBodyBytes: {value}}}}}\n"
        );
    }
    if let Some(key) = path.strip_prefix("audit.proxiedRequests.webhook.") {
        return format!(
            "audit: {{proxiedRequests: {{policyFile: /p, webhook: {{kubeconfigFile: /k, {key}: {value}}}}}}}\n"
        );
    }
    if let Some(key) = path.strip_prefix("recording.sessions.") {
        // One of the two sizes must not be larger than the other.
        let other = match key {
            "maxTotalMegabytes" => "maxSessionMegabytes: 1",
            _ => "maxTotalMegabytes: 10000000",
        };
        return format!("recording: {{sessions: {{directory: /r, {other}, {key}: {value}}}}}\n");
    }
    match path.strip_prefix("tracing.") {
        Some(key) => format!("tracing: {{endpoint: https://a, {key}: {value}}}\n"),
        None => format!("{path}: {value}\n"),
    }
}

#[test]
fn the_ranges_of_the_reference_page_are_those_that_are_accepted() {
    let mut without_range = Vec::new();
    for key in keys::KEYS.iter().filter(|key| key.is_number()) {
        let Some((least, most)) = range(row_of(key.path)[3]) else {
            without_range.push(key.path);
            continue;
        };
        for (value, accepted) in [(least - 1, false), (least, true), (most, true), (most + 1, false)] {
            let result = with(&setting(key.path, value));
            assert_eq!(result.is_ok(), accepted, "{}: {value}: {result:?}", key.path);
        }
    }
    // Numbers of the pod's user, and lifetimes of which only the order is checked.
    let wanted = [
        "api.servingCertificate.durationSeconds",
        "api.servingCertificate.renewBeforeSeconds",
        "kubeCertAgent.runAsUser",
        "kubeCertAgent.runAsGroup",
    ];
    assert_eq!(without_range, wanted);
}

#[test]
fn a_file_that_is_too_large_is_an_error() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "#".repeat(1 << 20)).unwrap();
    assert_eq!(read(file.path()).unwrap().len(), 1 << 20);
    std::fs::write(file.path(), "#".repeat((1 << 20) + 1)).unwrap();
    assert!(read(file.path()).unwrap_err().to_string().ends_with(" is larger than 1048576 bytes"));
}

#[test]
fn missing_names_are_listed_in_the_order_of_the_file() {
    let error = parse("names: {credentialIssuer: x, apiService: ''}").unwrap_err().to_string();
    assert_eq!(
        error,
        "validate names: missing required names: servingCertificateSecret, apiService, \
         impersonationLoadBalancerService, impersonationClusterIPService, \
         impersonationTLSCertificateSecret, impersonationCACertificateSecret, impersonationSignerSecret, \
         agentServiceAccount, impersonationProxyServiceAccount, impersonationProxyLegacySecret"
    );
}

#[test]
fn a_missing_or_unparsable_file_is_an_error_that_names_it() {
    let error = read(Path::new("/does/not/exist.yaml")).unwrap_err().to_string();
    assert_eq!(error, "read file: open /does/not/exist.yaml: no such file or directory");
    assert!(parse("{{{").unwrap_err().to_string().starts_with("decode yaml: "));
    assert!(parse("names: 3").unwrap_err().to_string().starts_with("decode yaml: "));
    assert!(parse("").unwrap_err().to_string().starts_with("validate names: "));
}

#[test]
fn traces_are_off_without_an_endpoint() {
    assert_eq!(with("").unwrap().tracing, None);
    assert_eq!(with("tracing: {endpoint: '', samplingRatePerMillion: 0}").unwrap().tracing, None);
    let tracing = with("tracing: {endpoint: https://collector:4318}").unwrap().tracing.unwrap();
    assert_eq!(tracing.url.as_str(), "https://collector:4318/v1/traces");
    assert_eq!((tracing.sampling_rate_per_million, tracing.roots), (0, Roots::System));
}

#[test]
fn settings_of_traces_that_would_have_no_effect_are_errors() {
    for (keys, text) in [
        ("samplingRatePerMillion: 1", "endpoint is required with the other keys of tracing"),
        ("certificateAuthorityData: YQ==", "endpoint is required with the other keys of tracing"),
        (
            "endpoint: 'http://collector'",
            "endpoint: \"http://collector\" is not a URL of the form https://HOST[:PORT][/PATH]",
        ),
        (
            "endpoint: 'https://c', samplingRatePerMillion: 1000001",
            "samplingRatePerMillion must be within range 0 to 1000000",
        ),
        (
            "endpoint: 'https://c', samplingRatePerMillion: -1",
            "samplingRatePerMillion must be within range 0 to 1000000",
        ),
    ] {
        let error = with(&format!("tracing: {{{keys}}}")).unwrap_err().to_string();
        assert_eq!(error, format!("validate tracing: {text}"), "{keys}");
    }
    for data in ["'?'", "YQ=="] {
        let keys = format!("tracing: {{endpoint: 'https://c', certificateAuthorityData: {data}}}");
        let error = with(&keys).unwrap_err().to_string();
        let start = "validate tracing: certificateAuthorityData must be base64 of PEM certificates: ";
        assert!(error.starts_with(start), "{error}");
    }
}
