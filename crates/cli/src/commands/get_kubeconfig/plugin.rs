//! The exec plugin entry: the login command and its arguments, in order.

use super::options::{Options, WorkloadTokenOptions};
use crate::environment::Environment;
use crate::flags::tree::{DEFAULT_INSTALL_HINT, ROOT};
use crate::flags::value::SERVICE_ACCOUNT_TOKEN;
use crate::flags::{ConciergeMode, LoginFlow, RefreshTokenStore, WorkloadTokenSource};
use crate::kubeconfig::generated::ExecPlugin;
use pinniped_go_compat::base64 as gobase64;

/// The hint that kubectl prints if the command is not in `PATH`.
const PORTABLE_INSTALL_HINT: &str =
    concat!("The command pinniped was not found in PATH. To install it, see ", env!("CARGO_PKG_REPOSITORY"),);

/// Audiences that Pinniped reserves; clients get no tokens for them.
const RESERVED_AUDIENCE: &str = ".pinniped.dev";

/// The options do not describe a login.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The path of this program is not known.
    #[error("could not determine the Pinniped executable path: the system does not report it")]
    NoExecutable,
    /// The command is given twice.
    #[error("only one of --portable and --pinniped-cli-path can be specified")]
    PortableAndPath,
    /// The token is given twice.
    #[error("only one of --static-token and --static-token-env can be specified")]
    TwoTokens,
    /// There is a static token and the token of a workload.
    #[error("only one of --static-token, --static-token-env and --workload-token-from can be specified")]
    StaticAndWorkload,
    /// The token of a workload has no source.
    #[error("--{0} needs --workload-token-from")]
    NoSource(&'static str),
    /// The source of a workload's token is not complete.
    #[error("--workload-token-from {source_name} needs --workload-{flag}")]
    IncompleteSource {
        /// The source.
        source_name: &'static str,
        /// The flag of `login token`.
        flag: &'static str,
    },
    /// The issuer is missing.
    #[error("could not autodiscover --oidc-issuer and none was provided")]
    NoIssuer,
    /// The issuer would issue no ID token: no login would succeed.
    #[error("--oidc-scopes must contain openid, without which the issuer does not issue an ID token")]
    NoOpenId,
    /// The audience is reserved.
    #[error("request audience is not allowed to include the substring '{RESERVED_AUDIENCE}': {0}")]
    ReservedAudience(String),
}

/// Creates the entry.
pub(super) fn plugin(options: &Options, environment: &Environment) -> Result<ExecPlugin, PluginError> {
    let command = match (options.pinniped_cli_path.as_str(), &environment.executable) {
        ("", _) if options.portable => ROOT.name.to_owned(),
        (_, _) if options.portable => return Err(PluginError::PortableAndPath),
        ("", Some(path)) => path.to_string_lossy().into_owned(),
        ("", None) => return Err(PluginError::NoExecutable),
        (path, _) => path.to_owned(),
    };
    let default_hint = if options.portable { PORTABLE_INSTALL_HINT } else { DEFAULT_INSTALL_HINT };
    let install_hint = options.install_hint.clone().unwrap_or_else(|| default_hint.to_owned());
    check_source(&options.workload_token)?;
    let mut args = vec!["login".to_owned()];
    let mut concierge = Vec::new();
    if !options.no_concierge {
        let flags = &options.concierge;
        concierge.push("--enable-concierge".to_owned());
        concierge.push(format!("--concierge-api-group-suffix={}", flags.api_group_suffix));
        concierge.push(format!("--concierge-authenticator-name={}", flags.authenticator_name));
        concierge.push(format!("--concierge-authenticator-type={}", flags.authenticator_type));
        concierge.push(format!("--concierge-endpoint={}", flags.endpoint));
        concierge.push(format!("--concierge-ca-bundle-data={}", gobase64::encode(&flags.ca_bundle)));
        if flags.mode == ConciergeMode::ServiceAccountToken {
            concierge.push(format!("--concierge-credential-type={SERVICE_ACCOUNT_TOKEN}"));
            concierge.push(format!("--impersonation-delivery={}", flags.delivery.as_str()));
        }
    }
    if let Some(path) = &options.credential_cache {
        concierge.push(format!("--credential-cache={path}"));
    }

    if !options.static_token.is_empty() || !options.static_token_env.is_empty() {
        if !options.static_token.is_empty() && !options.static_token_env.is_empty() {
            return Err(PluginError::TwoTokens);
        }
        if options.workload_token.source.is_some() {
            return Err(PluginError::StaticAndWorkload);
        }
        args.push("static".to_owned());
        args.extend(concierge);
        push_set(&mut args, "--token", &options.static_token);
        push_set(&mut args, "--token-env", &options.static_token_env);
    } else if let Some(source) = options.workload_token.source {
        args.push("token".to_owned());
        args.extend(concierge);
        push_workload_token(&mut args, source, options)?;
    } else {
        args.push("oidc".to_owned());
        args.extend(concierge);
        push_oidc(&mut args, options)?;
    }
    Ok(ExecPlugin { command, args, install_hint })
}

/// Returns an error for `--workload-token-*` flags without `--workload-token-from`.
fn check_source(token: &WorkloadTokenOptions) -> Result<(), PluginError> {
    let given = [
        ("workload-token-audience", &token.audience),
        ("workload-token-env", &token.env),
        ("workload-token-file", &token.file),
    ];
    match given.into_iter().find(|(_, value)| !value.is_empty()) {
        Some((flag, _)) if token.source.is_none() => Err(PluginError::NoSource(flag)),
        _ => Ok(()),
    }
}

fn push_workload_token(
    args: &mut Vec<String>,
    source: WorkloadTokenSource,
    options: &Options,
) -> Result<(), PluginError> {
    let token = &options.workload_token;
    // By default, the audience is that of the authenticator, discovered or given by a flag.
    let audience = match (token.audience.as_str(), source) {
        ("", WorkloadTokenSource::GithubActions) => &options.oidc.request_audience,
        _ => &token.audience,
    };
    let values = [("audience", audience), ("token-env", &token.env), ("token-file", &token.file)];
    let is_missing = |flag| values.iter().any(|(name, value)| *name == flag && value.is_empty());
    if let Some(flag) = source.required_flag().filter(|flag| is_missing(*flag)) {
        return Err(PluginError::IncompleteSource { source_name: source.as_str(), flag });
    }
    args.push(format!("--from={}", source.as_str()));
    for (flag, value) in values {
        push_set(args, &format!("--{flag}"), value);
    }
    Ok(())
}

fn push_oidc(args: &mut Vec<String>, options: &Options) -> Result<(), PluginError> {
    let oidc = &options.oidc;
    if oidc.issuer.is_empty() {
        return Err(PluginError::NoIssuer);
    }
    if !oidc.scopes.iter().any(|scope| scope == "openid") {
        return Err(PluginError::NoOpenId);
    }
    if oidc.request_audience.contains(RESERVED_AUDIENCE) {
        return Err(PluginError::ReservedAudience(oidc.request_audience.clone()));
    }
    args.push(format!("--issuer={}", oidc.issuer));
    args.push(format!("--client-id={}", oidc.client_id));
    push_set(args, "--client-secret", oidc.client_secret.expose());
    args.push(format!("--scopes={}", oidc.scopes.join(",")));
    if oidc.skip_browser {
        args.push("--skip-browser".to_owned());
    }
    if oidc.skip_listen {
        args.push("--skip-listen".to_owned());
    }
    if oidc.listen_port != 0 {
        args.push(format!("--listen-port={}", oidc.listen_port));
    }
    if !oidc.ca_bundle.is_empty() {
        args.push(format!("--ca-bundle-data={}", gobase64::encode(&oidc.ca_bundle)));
    }
    push_set(args, "--session-cache", &oidc.session_cache);
    if oidc.debug_session_cache {
        args.push("--debug-session-cache".to_owned());
    }
    push_set(args, "--request-audience", &oidc.request_audience);
    push_set(args, "--upstream-identity-provider-name", &oidc.idp_name);
    push_set(args, "--upstream-identity-provider-type", &oidc.idp_type);
    push_set(args, "--upstream-identity-provider-flow", &oidc.idp_flow);
    if oidc.flow != LoginFlow::default() {
        args.push(format!("--flow={}", oidc.flow.as_str()));
    }
    if oidc.refresh_token_store != RefreshTokenStore::default() {
        args.push(format!("--refresh-token-store={}", oidc.refresh_token_store.as_str()));
    }
    Ok(())
}

fn push_set(args: &mut Vec<String>, flag: &str, value: &str) {
    if !value.is_empty() {
        args.push(format!("{flag}={value}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::parse;
    use crate::flags::parse::ParseResult;
    use crate::flags::tree::Action;

    fn args(line: &str) -> Result<Vec<String>, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let ParseResult::Run(parsed) = parse(&ROOT, &words) else { panic!("{line}") };
        let environment = Environment { executable: Some("/bin/pinniped".into()), ..Environment::default() };
        plugin(&Options::new(&parsed).unwrap(), &environment)
            .map(|plugin| plugin.args)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_portable_command_has_no_path() {
        for (flags, expected) in [
            ("", Ok(("/bin/pinniped", DEFAULT_INSTALL_HINT))),
            ("--pinniped-cli-path p", Ok(("p", DEFAULT_INSTALL_HINT))),
            ("--portable", Ok(("pinniped", PORTABLE_INSTALL_HINT))),
            ("--portable --install-hint=hint", Ok(("pinniped", "hint"))),
            (
                "--portable --pinniped-cli-path p",
                Err("only one of --portable and --pinniped-cli-path can be specified"),
            ),
        ] {
            let line = format!("get kubeconfig --static-token-env T {flags}");
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let ParseResult::Run(parsed) = parse(&ROOT, &words) else { panic!("{line}") };
            let environment =
                Environment { executable: Some("/bin/pinniped".into()), ..Environment::default() };
            let found = plugin(&Options::new(&parsed).unwrap(), &environment);
            let found = found.map(|plugin| (plugin.command, plugin.install_hint));
            let expected = expected.map(|(command, hint)| (command.to_owned(), hint.to_owned()));
            assert_eq!(found.map_err(|error| error.to_string()), expected.map_err(str::to_owned), "{flags}");
        }
        assert!(PORTABLE_INSTALL_HINT.contains("://"), "{PORTABLE_INSTALL_HINT}");
    }

    #[test]
    fn arguments_have_a_fixed_order() {
        assert_eq!(
            args(
                "get kubeconfig --static-token-env T --credential-cache= --concierge-endpoint https://e --concierge-authenticator-name n --concierge-authenticator-type webhook"
            ),
            Ok([
                "login",
                "static",
                "--enable-concierge",
                "--concierge-api-group-suffix=pinniped.dev",
                "--concierge-authenticator-name=n",
                "--concierge-authenticator-type=webhook",
                "--concierge-endpoint=https://e",
                "--concierge-ca-bundle-data=",
                "--credential-cache=",
                "--token-env=T",
            ]
            .map(str::to_owned)
            .to_vec())
        );
        assert_eq!(
            args(
                "get kubeconfig --no-concierge --oidc-issuer https://i --oidc-skip-browser --oidc-skip-listen --oidc-listen-port 1234 --oidc-session-cache /s --oidc-debug-session-cache --oidc-request-audience a --upstream-identity-provider-name n --upstream-identity-provider-type ldap --upstream-identity-provider-flow cli_password --oidc-scopes z,openid,a --oidc-flow device --oidc-client-secret s --oidc-refresh-token-store keyring"
            ),
            Ok([
                "login",
                "oidc",
                "--issuer=https://i",
                "--client-id=pinniped-cli",
                "--client-secret=s",
                "--scopes=z,openid,a",
                "--skip-browser",
                "--skip-listen",
                "--listen-port=1234",
                "--session-cache=/s",
                "--debug-session-cache",
                "--request-audience=a",
                "--upstream-identity-provider-name=n",
                "--upstream-identity-provider-type=ldap",
                "--upstream-identity-provider-flow=cli_password",
                "--flow=device",
                "--refresh-token-store=keyring",
            ]
            .map(str::to_owned)
            .to_vec())
        );
    }

    #[test]
    fn the_token_of_a_workload_becomes_a_login_token_command() {
        for (flags, expected) in [
            (
                "--workload-token-from github-actions --workload-token-audience a",
                &["--from=github-actions", "--audience=a"][..],
            ),
            // The audience of the authenticator, as the discovery sets it.
            (
                "--workload-token-from github-actions --oidc-request-audience a",
                &["--from=github-actions", "--audience=a"],
            ),
            ("--workload-token-from github-actions", &["--from=github-actions"]),
            ("--workload-token-from gitlab --oidc-request-audience a", &["--from=gitlab"]),
            ("--workload-token-from gitlab --workload-token-env T", &["--from=gitlab", "--token-env=T"]),
            ("--workload-token-from env --workload-token-env T", &["--from=env", "--token-env=T"]),
            ("--workload-token-from file --workload-token-file /t", &["--from=file", "--token-file=/t"]),
            ("--workload-token-from kubernetes", &["--from=kubernetes"]),
        ] {
            let args = args(&format!("get kubeconfig --no-concierge --credential-cache= {flags}")).unwrap();
            assert_eq!(args[..3], ["login", "token", "--credential-cache="], "{flags}");
            assert_eq!(args[3..], *expected, "{flags}");
            let ParseResult::Run(parsed) = parse(&ROOT, &args) else { panic!("{args:?}") };
            assert_eq!(parsed.action, Action::LoginToken);
        }
    }

    #[test]
    fn contradictory_options_are_refused() {
        for (flags, error) in [
            (
                "--static-token a --static-token-env b",
                "only one of --static-token and --static-token-env can be specified",
            ),
            (
                "--static-token a --workload-token-from gitlab",
                "only one of --static-token, --static-token-env and --workload-token-from can be specified",
            ),
            ("--workload-token-env T", "--workload-token-env needs --workload-token-from"),
            ("--workload-token-from env", "--workload-token-from env needs --workload-token-env"),
            (
                "--workload-token-from file --workload-token-env T",
                "--workload-token-from file needs --workload-token-file",
            ),
            ("", "could not autodiscover --oidc-issuer and none was provided"),
            (
                "--oidc-issuer https://i --oidc-scopes email",
                "--oidc-scopes must contain openid, without which the issuer does not issue an ID token",
            ),
            (
                "--oidc-issuer https://i --oidc-request-audience x.pinniped.dev.y",
                "request audience is not allowed to include the substring '.pinniped.dev': x.pinniped.dev.y",
            ),
        ] {
            assert_eq!(args(&format!("get kubeconfig {flags}")), Err(error.to_owned()), "{flags}");
        }
    }
}
