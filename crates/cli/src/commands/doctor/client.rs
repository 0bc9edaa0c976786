//! Checks the client's side: plugin, proxies, name, connection, certificate, clock, login and the
//! authenticated user.

use jiff::{SignedDuration, Timestamp};
use pinniped_pki::Certificate;
use pinniped_pki::tls::PresentedTls;

use super::certificate::{TrustError, is_for, names, trusted};
use super::finding::{Check, Checked, Finding};
use super::observed::EndpointProbe;
use super::observed_client::{
    IssuerProblem, LoginResult, ObservedClient, ObservedIssuer, ObservedPlugin, RefusedRequest,
    is_about_proxy,
};
use crate::explanations;
use crate::explanations::client_errors::{self, NO_CONCIERGE, REGENERATE};

/// A larger difference of two clocks makes credentials invalid that were just issued: the Concierge
/// and other verifiers of ID tokens accept one minute.
const MAX_SKEW: SignedDuration = SignedDuration::from_secs(60);

/// The remedy of a name without an address.
const DNS: &str = "see the DNS settings of this machine, and whether it needs a VPN";

/// The user that API servers report for requests without a credential.
const ANONYMOUS: &str = "system:anonymous";

/// Checks the client.
pub(super) fn check(client: &ObservedClient, own_version: &str, now: Timestamp) -> Vec<Checked> {
    let mut findings = Vec::new();
    proxies(client, &mut findings);
    if let Some(plugin) = &client.plugin {
        check_plugin(client, plugin, own_version, &mut findings);
        keyring(client, plugin, &mut findings);
    }
    connection(client, now, &mut findings);
    clock(client, &mut findings);
    issuer(client, &mut findings);
    login(client, now, &mut findings);
    findings
}

fn proxies(client: &ObservedClient, findings: &mut Vec<Checked>) {
    let ObservedClient { server, proxied, proxy_variables, .. } = client;
    let variables = proxy_variables.join(", ");
    let dead = match (&client.probe, &client.issuer) {
        (EndpointProbe::Unreachable(why), _) if is_about_proxy(why) => Some((server, why)),
        (_, Some(ObservedIssuer { url, problem: Some(IssuerProblem::Proxy(why)) })) => Some((url, why)),
        _ => None,
    };
    if let Some((url, why)) = dead {
        let what =
            format!("the proxy for {url} cannot be used: {}", why.trim_start_matches("proxyconnect tcp: "));
        let remedy = match variables.as_str() {
            "" => "see whether the proxy runs, or correct proxy-url of the kubeconfig".to_owned(),
            variables => format!(
                "see whether the proxy runs, and whether this machine needs a VPN; or correct {variables}"
            ),
        };
        findings.push((Check::ProxyEnvironment, Finding::problem(what, remedy)));
        return;
    }
    let finding = match proxied {
        Err(why) => Finding::problem(
            format!("the proxy for {server} cannot be used: {why}"),
            format!("correct the environment variables {variables}"),
        ),
        Ok(true) if variables.is_empty() => {
            Finding::Fine(format!("requests to {server} go through the proxy of the kubeconfig"))
        }
        Ok(true) => Finding::Fine(format!("requests to {server} go through a proxy ({variables})")),
        Ok(false) if variables.is_empty() => return,
        Ok(false) => Finding::Fine(format!("requests to {server} go through no proxy ({variables})")),
    };
    findings.push((Check::ProxyEnvironment, finding));
}

fn check_plugin(
    client: &ObservedClient,
    plugin: &ObservedPlugin,
    own_version: &str,
    findings: &mut Vec<Checked>,
) {
    let ObservedPlugin { command, program, version, .. } = plugin;
    let user = format!("user {} of kubeconfig {}", client.user, client.file);
    let Some(program) = program else {
        findings.push((
            Check::Plugin,
            Finding::problem(
                format!("the plugin {command} of {user} does not exist"),
                "install it, or correct `command` of the user",
            ),
        ));
        return;
    };
    let program = program.display();
    findings.push((
        Check::Plugin,
        match version {
            None => Finding::Fine(format!("the plugin of {user} is {program}")),
            Some(Ok(version)) if version == own_version => {
                Finding::Fine(format!("the plugin of {user} is {program}, {version}"))
            }
            Some(Ok(version)) if differs(version, own_version) => Finding::warning(
                format!("the plugin of {user} is {program}, {version}, but this program is {own_version}"),
                "use the same release of both, unless you want another one for logins",
            ),
            Some(Ok(version)) => Finding::Fine(format!(
                "the plugin of {user} is {program}, {version}; this program is {own_version}"
            )),
            Some(Err(why)) => Finding::problem(
                format!("the plugin {program} of {user} does not run: {why}"),
                "install it again, for this operating system and architecture",
            ),
        },
    ));
}

/// Returns whether two versions have other major or minor numbers.
fn differs(version: &str, own: &str) -> bool {
    let numbers = pinniped_version::numbers_of;
    numbers(version).is_some_and(|found| Some(found) != numbers(own))
}

fn keyring(client: &ObservedClient, plugin: &ObservedPlugin, findings: &mut Vec<Checked>) {
    let Some(keyring) = &plugin.keyring else { return };
    let user = format!("user {} of kubeconfig {}", client.user, client.file);
    let finding = match keyring {
        Ok(()) => Finding::Fine(format!("the plugin of {user} stores refresh tokens in the keyring")),
        Err(why) => Finding::problem(
            format!("the plugin of {user} cannot store refresh tokens in the keyring: {why}"),
            "start or unlock the keyring, or set PINNIPED_REFRESH_TOKEN_STORE=file to store them in the session cache",
        ),
    };
    findings.push((Check::Keyring, finding));
}

fn connection(client: &ObservedClient, now: Timestamp, findings: &mut Vec<Checked>) {
    let server = &client.server;
    match &client.probe {
        EndpointProbe::Malformed(why) => findings.push((
            Check::Connection,
            Finding::problem(format!("the server {server} of the kubeconfig is no URL: {why}"), REGENERATE),
        )),
        // The finding about the proxies has the reason.
        EndpointProbe::Unreachable(why) if is_about_proxy(why) => {}
        EndpointProbe::Unreachable(why) => {
            if let Some(Err(why)) = &client.addresses {
                findings.push((
                    Check::Name,
                    Finding::problem(format!("the name of {server} has no address: {why}"), DNS),
                ));
            }
            findings.push((
                Check::Connection,
                Finding::problem(
                    format!("no server responds at {server} from here: {why}"),
                    "see whether the cluster runs, and that no firewall, VPN or proxy is in between",
                ),
            ));
        }
        EndpointProbe::NoCertificate(why) => findings.push((
            Check::Connection,
            Finding::problem(
                format!("{server} responds, but presents no certificate: {why}"),
                "see whether the address of the server is right, and that no other program listens there",
            ),
        )),
        EndpointProbe::Connected { shown, system } => {
            findings.push((Check::Certificate, certificate(client, shown, system.as_deref(), now)));
        }
    }
}

fn certificate(
    client: &ObservedClient,
    shown: &PresentedTls,
    system: Option<&str>,
    now: Timestamp,
) -> Finding {
    let ObservedClient { server, server_name, .. } = client;
    let Some(ca) = &client.ca else {
        return Finding::Fine(format!(
            "the certificate of {server} is not verified: the kubeconfig has insecure-skip-tls-verify"
        ));
    };
    let ca = match ca {
        Ok(ca) => ca,
        Err(why) => {
            return Finding::problem(
                format!("the CA certificates of the kubeconfig cannot be read: {why}"),
                REGENERATE,
            );
        }
    };
    let leaf = match shown.chain.first().map(|leaf| Certificate::parse_der(leaf)) {
        Some(Ok(leaf)) => leaf,
        Some(Err(why)) => {
            return Finding::problem(
                format!("{server} presents no usable certificate: {why}"),
                "the administrator of the server has to replace it",
            );
        }
        None => return Finding::unseen(format!("the certificate of {server}"), "none was presented"),
    };
    let clocks = "compare the clock of this machine with the time; otherwise, the administrator of the server has to \
                  issue the certificate again";
    if now < leaf.not_before {
        return Finding::problem(
            format!("the certificate of {server} is not valid before {}", leaf.not_before),
            clocks,
        );
    }
    if now > leaf.not_after {
        return Finding::problem(
            format!("the certificate of {server} expired at {}", leaf.not_after),
            clocks,
        );
    }
    if !is_for(&leaf, server_name) {
        return Finding::problem(
            format!("the certificate of {server} is for [{}], not for {server_name}", names(&leaf)),
            "use one of these names in the kubeconfig, or see whether a proxy or another server responds",
        );
    }
    match trusted(&leaf, shown, ca, system, now) {
        Ok(()) => Finding::Fine(format!(
            "{server} presents a certificate that the kubeconfig trusts, until {}",
            leaf.not_after
        )),
        Err(why @ (TrustError::Bundle(_) | TrustError::Base64(_))) => Finding::problem(
            format!("the CA certificates of the kubeconfig cannot be used: {why}"),
            REGENERATE,
        ),
        Err(why) => Finding::problem(
            format!("the kubeconfig does not trust the certificate of {server}: {why}"),
            "create the kubeconfig again if the cluster has a new CA; otherwise a proxy or another server responds",
        ),
    }
}

fn clock(client: &ObservedClient, findings: &mut Vec<Checked>) {
    let Some(skew) = client.clock_skew else { return };
    let finding = if skew.abs() > MAX_SKEW {
        let direction = if skew.is_positive() { "behind" } else { "ahead of" };
        Finding::problem(
            format!(
                "the clock of this machine is {} seconds {direction} the clock of {}",
                skew.abs().as_secs(),
                client.server
            ),
            "synchronize the clocks, for example with NTP: credentials and certificates are valid for minutes",
        )
    } else {
        Finding::Fine(format!("the clocks of this machine and of {} agree", client.server))
    };
    findings.push((Check::Clock, finding));
}

fn issuer(client: &ObservedClient, findings: &mut Vec<Checked>) {
    let Some(ObservedIssuer { url, problem: Some(problem) }) = &client.issuer else { return };
    let finding = match problem {
        IssuerProblem::Name(why) => {
            Finding::problem(format!("the name of the issuer {url} has no address: {why}"), DNS)
        }
        IssuerProblem::Connection(why) => Finding::problem(
            format!("no server responds at the issuer {url} from here: {why}"),
            "see whether the identity provider runs, and that no firewall, VPN or proxy is in between",
        ),
        // The finding about the proxies has the reason.
        IssuerProblem::Proxy(_) => return,
    };
    findings.push((Check::Issuer, finding));
}

fn login(client: &ObservedClient, now: Timestamp, findings: &mut Vec<Checked>) {
    let name = format!("context {} of kubeconfig {}", client.context, client.file);
    let expires = match &client.login {
        LoginResult::LoggedIn { expires } => *expires,
        LoginResult::NoCredential => {
            let why = format!("user {} has no credential", client.user);
            findings.push((Check::Login, Finding::unseen(format!("the login with {name}"), why)));
            return;
        }
        // The finding about the plugin has the reason.
        LoginResult::NoPlugin(_) if client.plugin.as_ref().is_some_and(|plugin| plugin.program.is_none()) => {
            findings.push((
                Check::Login,
                Finding::problem(format!("the login with {name} is not possible"), "install the plugin"),
            ));
            return;
        }
        LoginResult::NoPlugin(plugin) => {
            let what = format!("the login with {name} fails: there is no program {plugin}");
            findings.push((Check::Login, Finding::problem(what, "install the plugin")));
            return;
        }
        LoginResult::Failed(why) => {
            findings.push((
                Check::Login,
                Finding::problem(format!("the login with {name} fails: {why}"), advice(why)),
            ));
            return;
        }
        LoginResult::Invalid(why) => {
            let what = format!("{name} cannot be used: {why}");
            findings.push((Check::Login, Finding::problem(what, REGENERATE)));
            return;
        }
    };
    if expires.is_some_and(|end| end <= now) {
        findings.push((
            Check::Login,
            Finding::problem(
                format!("the credential of {name} is not valid any more"),
                "log in again; or renew the credential in the kubeconfig",
            ),
        ));
    }
    let finding = match &client.user_info {
        None => return,
        Some(Ok(user)) if user.name == ANONYMOUS => Finding::problem(
            format!("the cluster does not accept the credential of {name}: the user is {ANONYMOUS}"),
            "log in again, or see whether a server in front of the cluster removes the credential",
        ),
        Some(Ok(user)) => {
            Finding::Fine(format!("{name} logs in as {}, with {} groups", user.name, user.groups))
        }
        Some(Err(RefusedRequest::NotServed(why))) => Finding::problem(why.clone(), NO_CONCIERGE.remedy),
        Some(Err(RefusedRequest::Other(why))) => Finding::problem(
            format!("the cluster does not accept requests with {name}: {why}"),
            "log in again; a token or certificate in the kubeconfig may be wrong, revoked or of another cluster",
        ),
    };
    findings.push((Check::WhoAmI, finding));
}

fn advice(why: &str) -> &'static str {
    explanations::of_message(client_errors::OF_LOGINS, why)
        .map_or("run the command again with PINNIPED_DEBUG=true for the steps of the login", |row| row.remedy)
}

#[cfg(test)]
mod tests;
