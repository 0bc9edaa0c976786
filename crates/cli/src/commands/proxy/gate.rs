//! Access control of the proxy: clients must present the secret of this run.
//!
//! Every user of the machine, and every web page in a browser on it, can reach the port. A request
//! must therefore present the secret and name this machine as its host: a page whose name was made
//! to resolve to this machine (DNS rebinding) has its own name in `Host` and is refused before
//! authentication. The port in `Host` is not checked: `kubectl proxy` in front of this proxy may
//! send its own.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::error::Unspecified;
use data_encoding::HEXLOWER;
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderMap, Uri};
use pinniped_secret::text::SecretString;

/// The length of a secret in bytes.
const SECRET_BYTES: usize = 32;
/// The host names of this machine for itself, the same as in `kubectl proxy`.
const NAMES: [&str; 3] = ["127.0.0.1", "localhost", "[::1]"];
const SCHEME: &[u8] = b"Bearer ";

/// Checks requests against the secret of this run.
pub(super) struct Gate {
    secret: SecretString,
}

impl Gate {
    /// Creates a gate with a new secret, which is also returned for the clients.
    pub(super) fn new() -> Result<(Self, SecretString), Unspecified> {
        let mut bytes = [0; SECRET_BYTES];
        aws_lc_rs::rand::fill(&mut bytes)?;
        let secret = SecretString::from(HEXLOWER.encode(&bytes));
        Ok((Self { secret: secret.clone() }, secret))
    }

    /// Returns whether every host that the request names is this machine.
    pub(super) fn is_meant(uri: &Uri, headers: &HeaderMap) -> bool {
        let mut host_headers =
            headers.get_all(HOST).iter().map(|host| host.to_str().unwrap_or_default()).peekable();
        let authority = uri.authority().map(http::uri::Authority::as_str);
        (authority.is_some() || host_headers.peek().is_some())
            && authority.into_iter().chain(host_headers).all(is_own)
    }

    /// Returns whether the request presents the secret. Compares in constant time.
    pub(super) fn admits(&self, headers: &HeaderMap) -> bool {
        let mut all = headers.get_all(AUTHORIZATION).iter();
        let (Some(given), None) = (all.next(), all.next()) else { return false };
        let Some((scheme, given)) = given.as_bytes().split_at_checked(SCHEME.len()) else { return false };
        scheme.eq_ignore_ascii_case(SCHEME)
            && verify_slices_are_equal(given, self.secret.expose().as_bytes()).is_ok()
    }
}

fn is_own(host: &str) -> bool {
    let port = |text: &str| text.parse::<u16>().is_ok();
    let name = match host.rsplit_once(':') {
        Some((name, behind)) if port(behind) => name,
        _ => host,
    };
    NAMES.iter().any(|own| own.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_the_names_of_this_machine_are_accepted() {
        for (uri, hosts, wanted) in [
            ("/x", &["127.0.0.1:8443"][..], true),
            ("/x", &["LocalHost:8443"], true),
            ("/x", &["localhost"], true),
            ("/x", &["[::1]:8001"], true),
            ("https://127.0.0.1:8443/x", &[], true),
            ("https://127.0.0.1:8443/x", &["localhost:8001"], true),
            ("/x", &[], false),
            ("/x", &[""], false),
            ("/x", &[":8443"], false),
            ("/x", &["127.0.0.1:8443:8443"], false),
            ("/x", &["127.0.0.1:port"], false),
            ("/x", &["127.0.0.2:8443"], false),
            ("/x", &["evil.example:8443"], false),
            ("/x", &["127.0.0.1.evil.example:8443"], false),
            ("/x", &["evil.example/127.0.0.1"], false),
            ("/x", &["user@127.0.0.1:8443"], false),
            ("/x", &["127.0.0.1:8443", "evil.example:8443"], false),
            ("https://evil.example:8443/x", &["127.0.0.1:8443"], false),
            ("https://127.0.0.1:8443/x", &["evil.example:8443"], false),
        ] {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(HOST, HeaderValue::from_static(host));
            }
            assert_eq!(Gate::is_meant(&uri.parse().unwrap(), &headers), wanted, "{uri} {hosts:?}");
        }
    }

    #[test]
    fn only_the_secret_of_this_run_is_accepted() {
        let (gate, secret) = Gate::new().unwrap();
        let secret = secret.expose();
        assert_eq!(secret.len(), 2 * SECRET_BYTES);
        let (_, other) = Gate::new().unwrap();
        for (values, wanted) in [
            (vec![format!("Bearer {secret}")], true),
            (vec![format!("bearer {secret}")], true),
            (vec![], false),
            (vec![String::new()], false),
            (vec!["Bearer ".to_owned()], false),
            (vec![secret.to_owned()], false),
            (vec![format!("Basic {secret}")], false),
            (vec![format!("Bearer  {secret}")], false),
            (vec![format!("Bearer {secret}x")], false),
            (vec![format!("Bearer {}", &secret[1..])], false),
            (vec![format!("Bearer {}", other.expose())], false),
            (vec![format!("Bearer {secret}"), "Bearer x".to_owned()], false),
        ] {
            let mut headers = HeaderMap::new();
            for value in &values {
                headers.append(AUTHORIZATION, value.parse().unwrap());
            }
            assert_eq!(gate.admits(&headers), wanted, "{values:?}");
        }
    }
}
