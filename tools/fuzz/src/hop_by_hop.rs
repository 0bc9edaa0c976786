//! Hop-by-hop headers and the head of an upgrade. Input: header lines.

use http::header::{
    CONNECTION, HeaderMap, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING,
    UPGRADE,
};
use pinniped_http_headers::hop_by_hop;
use pinniped_kube_request::identity::User;
use pinniped_kube_request::impersonation::{BearerTokenReview, Plan, UidImpersonation, plan};

use crate::input;

/// Checks one input; see the module.
pub fn check(data: &[u8]) {
    let given = input::headers(data);
    let named = named_by_connection(&given);

    let mut request = given.clone();
    hop_by_hop::strip_request(&mut request);
    assert_stripped(&given, &request, &named, true);
    let mut twice = request.clone();
    hop_by_hop::strip_request(&mut twice);
    assert_eq!(twice, request, "stripping again changed something");

    let mut response = given.clone();
    hop_by_hop::strip_response(&mut response);
    assert_stripped(&given, &response, &named, false);

    upgrade(&given, &named);
    identity(&given);
}

/// Returns the header names in `Connection`, parsed in the simplest way.
fn named_by_connection(headers: &HeaderMap) -> Vec<String> {
    let values: Vec<String> = headers.get_all(CONNECTION).iter().map(input::text).collect();
    values.join(",").split(',').map(|name| name.trim_matches([' ', '\t']).to_ascii_lowercase()).collect()
}

fn assert_stripped(given: &HeaderMap, left: &HeaderMap, named: &[String], request: bool) {
    let te_trailers =
        given.get_all(TE).iter().any(|value| input::text(value).to_ascii_lowercase().contains("trailers"));
    for name in left.keys() {
        assert!(given.contains_key(name), "{name} was not there");
        if request && name == TE {
            assert!(te_trailers && left[TE] == "trailers" && left.get_all(TE).iter().count() == 1);
            continue;
        }
        assert!(!named.iter().any(|named| named == name.as_str()), "{name} is named by Connection");
        assert!(!is_hop_by_hop(name), "{name} is for one hop");
        assert!(given.get_all(name).iter().eq(left.get_all(name)), "{name} was changed");
    }
    for name in given.keys() {
        let stays = left.contains_key(name);
        assert!(
            stays || is_hop_by_hop(name) || named.iter().any(|named| named == name.as_str()),
            "{name} was lost"
        );
    }
}

fn is_hop_by_hop(name: &HeaderName) -> bool {
    [CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE].contains(name)
        || ["proxy-connection", "keep-alive"].contains(&name.as_str())
}

fn upgrade(given: &HeaderMap, named: &[String]) {
    match hop_by_hop::upgrade_type(given) {
        Some(protocol) => {
            assert!(named.iter().any(|name| name == "upgrade"));
            assert!(!protocol.is_empty() && Some(&protocol) == given.get(UPGRADE));
            assert!(hop_by_hop::wants_http1(given), "an upgrade is HTTP/1.1");
        }
        None => {
            let asks = named.iter().any(|name| name == "upgrade");
            assert!(!asks || given.get(UPGRADE).is_none_or(|value| value.is_empty()));
        }
    }
    for token in
        named.iter().filter(|name| !name.is_empty() && name.is_ascii() && !name.contains(['\t', ' ']))
    {
        assert!(hop_by_hop::has_token(given, &CONNECTION, token));
    }
}

/// Checks that a client cannot use its `Connection` header to remove the proxy's headers.
fn identity(given: &HeaderMap) {
    let user = User { name: "u".to_owned(), groups: vec!["g".to_owned()], ..User::default() }.into();
    let Plan::Impersonate(impersonation) =
        plan(&user, None, &BearerTokenReview::None, UidImpersonation::Enabled)
    else {
        panic!("a plain user is impersonated");
    };
    let mut headers = given.clone();
    headers.retain_other_than("impersonate");
    hop_by_hop::strip_request(&mut headers);
    impersonation.write(&mut headers).expect("plain text can be written");
    assert_eq!(headers["impersonate-user"], "u");
    assert_eq!(headers["impersonate-group"], "g");
    assert_eq!(headers.keys().filter(|name| name.as_str().starts_with("impersonate")).count(), 2);
}

trait Retain {
    fn retain_other_than(&mut self, prefix: &str);
}

impl Retain for HeaderMap {
    /// Removes the headers with this prefix, because a request with such headers is refused before
    /// the hop-by-hop headers are processed.
    fn retain_other_than(&mut self, prefix: &str) {
        let names: Vec<HeaderName> =
            self.keys().filter(|name| name.as_str().starts_with(prefix)).cloned().collect();
        for name in names {
            self.remove(name);
        }
    }
}
