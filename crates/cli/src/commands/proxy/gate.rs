//! Who may use the proxy: whoever knows the secret of this run.
//!
//! Every user of the machine, and every page in a browser on it, can reach the port. So a request must carry the secret,
//! and must mean this machine: a page whose name was made to resolve to it (DNS rebinding) says its own name in `Host`,
//! and gets nothing, not even the question for the secret. Which port it says does not matter: `kubectl proxy` in front
//! of us may say its own.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::error::Unspecified;
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderMap, Uri};
use pinniped_secret::text::SecretString;

/// Bytes of a secret.
const SECRET: usize = 32;
/// Names of this machine to itself, as `kubectl proxy` has them.
const NAMES: [&str; 3] = ["127.0.0.1", "localhost", "[::1]"];
const SCHEME: &[u8] = b"Bearer ";

/// Knows the secret of this run.
pub(super) struct Gate {
    secret: SecretString,
}

impl Gate {
    /// With a new secret, which is given back for whom to tell it.
    pub(super) fn new() -> Result<(Self, SecretString), Unspecified> {
        let mut bytes = [0; SECRET];
        aws_lc_rs::rand::fill(&mut bytes)?;
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let secret = SecretString::from(digits);
        Ok((Self { secret: secret.clone() }, secret))
    }

    /// Does the request mean this machine, wherever it says whom it means?
    pub(super) fn is_meant(uri: &Uri, headers: &HeaderMap) -> bool {
        let mut said = headers.get_all(HOST).iter().map(|host| host.to_str().unwrap_or_default()).peekable();
        let authority = uri.authority().map(http::uri::Authority::as_str);
        (authority.is_some() || said.peek().is_some()) && authority.into_iter().chain(said).all(is_own)
    }

    /// Does the request carry the secret? Takes as long for a good guess as for a bad one.
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
    fn only_this_machine_by_its_own_names_is_meant() {
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
    fn only_the_secret_of_this_run_opens() {
        let (gate, secret) = Gate::new().unwrap();
        let secret = secret.expose();
        assert_eq!(secret.len(), 2 * SECRET);
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
