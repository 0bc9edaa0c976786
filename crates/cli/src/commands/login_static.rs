//! `pinniped login static`: kubectl's exec plugin with a fixed token.
//!
//! kubectl runs this for every call, so the usual way, a credential from the cache, needs no network, no runtime
//! and no TLS. A cached credential that is about to end is still given out at once, while a child process of this
//! one fetches the next; so nobody waits at the moment of expiry.

use std::process::{Command, Stdio};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use pinniped_api::client_auth::{ExecCredential, ExecCredentialStatus};
use pinniped_api::gojson::{self, quote};

use super::block_on;
use crate::concierge::{Concierge, ConciergeParams};
use crate::dial::Dialer;
use crate::environment::{Environment, KUBERNETES_EXEC_INFO, PINNIPED_RENEW_IN_BACKGROUND};
use crate::flags::Parsed;
use crate::flags::tree::DEFAULT_SUFFIX;
use crate::login::exec_cache::{ExecCache, static_key};
use crate::login::exec_info;
use crate::printer::Printer;
use crate::write;

/// Limit for the exchange.
const EXCHANGE_LIMIT: Duration = Duration::from_secs(30);

/// Prints an `ExecCredential`.
pub(crate) fn run(parsed: &Parsed, environment: &Environment, printer: Printer) -> Result<(), String> {
    let (token, token_env) = (parsed.string("token"), parsed.string("token-env"));
    if token.is_empty() && token_env.is_empty() {
        return Err("one of --token or --token-env must be set".into());
    }
    let params = concierge_params(parsed);
    let concierge = if parsed.bool("enable-concierge") {
        let concierge =
            Concierge::new(&params).map_err(|why| format!("invalid Concierge parameters: {why}"))?;
        Some(concierge)
    } else {
        None
    };
    let token = if token_env.is_empty() {
        token
    } else {
        match environment.variable(&token_env) {
            None => return Err(format!("--token-env variable {} is not set", quote(&token_env))),
            Some("") => return Err(format!("--token-env variable {} is empty", quote(&token_env))),
            Some(token) => token.to_owned(),
        }
    };

    let cache = credential_cache(parsed, environment)?;
    let cluster = exec_info::cluster(environment.variable(KUBERNETES_EXEC_INFO));
    let key = static_key(&environment.args, &token, cluster.as_ref());
    let renewing = environment.variable(PINNIPED_RENEW_IN_BACKGROUND).is_some();
    // Held until this process ends.
    let mut _only_renewal = None;
    if let Some(cache) = &cache {
        if renewing {
            let Some(lock) = cache.renewal_lock() else { return Ok(()) };
            _only_renewal = Some(lock);
        } else if let Some(hit) = cache.get(&key, Timestamp::now()) {
            printer.debug("using cached cluster credential.", &[]);
            if hit.renewal_due && concierge.is_some() {
                renew_in_background(environment);
            }
            return print(hit.credential, printer);
        }
    }

    let Some(concierge) = concierge else {
        let status = ExecCredentialStatus { token: token.into(), ..ExecCredentialStatus::default() };
        return print(status, printer);
    };
    printer.debug(
        "exchanging static token for cluster credential",
        &[
            ("endpoint", json!(params.endpoint)),
            ("authenticator type", json!(params.authenticator_type)),
            ("authenticator name", json!(params.authenticator_name)),
        ],
    );
    let credential = block_on(async {
        let exchange = concierge.exchange(&token, Dialer::new(environment), printer);
        tokio::time::timeout(EXCHANGE_LIMIT, exchange)
            .await
            .unwrap_or_else(|_| Err("could not login: context deadline exceeded".into()))
    })
    .map_err(|why| format!("could not complete Concierge credential exchange: {why}"))?;
    printer.debug("exchanged static token for cluster credential", &[]);
    if let Some(cache) = &cache {
        // A credential that cannot be kept is as good as any other.
        let _ = cache.put(&key, credential.clone(), Timestamp::now());
    }
    print(credential, printer)
}

fn concierge_params(parsed: &Parsed) -> ConciergeParams {
    ConciergeParams {
        endpoint: parsed.string("concierge-endpoint"),
        ca_bundle_data: parsed.string("concierge-ca-bundle-data"),
        authenticator_type: parsed.string("concierge-authenticator-type"),
        authenticator_name: parsed.string("concierge-authenticator-name"),
        api_group_suffix: parsed.string_or("concierge-api-group-suffix", DEFAULT_SUFFIX),
    }
}

/// The cache that was asked for; none if it was turned off.
fn credential_cache(parsed: &Parsed, environment: &Environment) -> Result<Option<ExecCache>, String> {
    let path = match parsed.given("credential-cache") {
        Some(path) => path.to_owned(),
        None => environment.config_file("credentials.yaml").ok_or(
            "could not find the credential cache: neither XDG_CONFIG_HOME nor HOME is set, \
             set one of them or use --credential-cache",
        )?,
    };
    Ok((!path.is_empty()).then(|| ExecCache::new(path)))
}

/// Starts this program again with the same arguments, to fill the cache and say nothing.
fn renew_in_background(environment: &Environment) {
    let Some(executable) = &environment.executable else { return };
    let mut command = Command::new(executable);
    command
        .args(&environment.args)
        .env(PINNIPED_RENEW_IN_BACKGROUND, "true")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // Ctrl-C at kubectl is not meant for it.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    // It outlives this process by design: it ends by itself within the limit of the exchange. If it cannot be
    // started, the next run after expiry fetches the credential.
    drop(command.spawn());
}

fn print(status: ExecCredentialStatus, printer: Printer) -> Result<(), String> {
    write(printer, format!("{}\n", gojson::to_string(&ExecCredential::answer(status))).as_bytes())
}
