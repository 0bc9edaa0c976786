use pinniped_kube_request::identity::User;
use pinniped_kube_request::impersonation::{BearerTokenReview, Plan, UidImpersonation, plan};
use pinniped_test_support::log_events::LogEvents;
use tracing::Level;

use super::*;

fn request(uri: &str, headers: &[(&str, &str)]) -> Request<()> {
    let mut builder = Request::get(uri);
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(()).unwrap()
}

#[test]
fn headers_that_only_the_proxy_may_add_are_refused() {
    for (name, wanted) in [
        ("Authorization", Some("invalid authorization header")),
        ("Impersonate-User", Some("invalid impersonation")),
        ("Impersonate-Group", Some("invalid impersonation")),
        ("Impersonate-Extra-x", Some("invalid impersonation")),
        ("Impersonate-Something", Some("invalid impersonation")),
        ("X-Impersonate", None),
    ] {
        let refused = match check_clean(&request("/x", &[(name, "v")])) {
            Err(Refusal::Internal(message)) => Some(message),
            _ => None,
        };
        assert_eq!(refused, wanted, "{name}");
    }
}

fn rewritten(uri: &str, headers: &[(&str, &str)]) -> Request<()> {
    let user = KnownUser::from(User { name: "u".to_owned(), ..User::default() });
    let Plan::Impersonate(impersonation) =
        plan(&user, None, &BearerTokenReview::None, UidImpersonation::Disabled)
    else {
        panic!("a plain user is impersonated");
    };
    let mut request = request(uri, headers);
    let ours = Some(Arc::new(credential::ready(HeaderValue::from_static("Bearer ours"))));
    let address = Some(HeaderValue::from_static("10.0.0.7"));
    let added = rewrite(&mut request, &Identity::Impersonate(&user, impersonation), ours, address).unwrap();
    added.ready().iter().for_each(|fields| fields.append_to(request.headers_mut()).unwrap());
    request
}

#[test]
fn the_host_of_the_client_is_preserved_from_header_and_uri() {
    for (uri, headers, wanted) in [
        ("/a%2Fb?x", &[("host", "h:1")][..], "https://h:1/a%2Fb?x"),
        ("http://h2.example/a", &[], "https://h2.example/a"),
        ("http://h2.example/a", &[("host", "other")], "https://h2.example/a"),
        ("/a", &[], "/a"),
    ] {
        let request = rewritten(uri, headers);
        assert_eq!(request.uri().to_string(), wanted);
        assert!(!request.headers().contains_key("host"));
    }
}

#[test]
fn hop_by_hop_rules_cannot_remove_the_identity() {
    let request = rewritten(
        "/x",
        &[
            ("connection", "impersonate-user, authorization, x-forwarded-for"),
            ("x-forwarded-for", "1.2.3.4"),
            ("expect", "100-continue"),
        ],
    );
    let mut got: Vec<(&str, &str)> =
        request.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
    got.sort_unstable();
    let wanted =
        [("authorization", "Bearer ours"), ("impersonate-user", "u"), ("x-forwarded-for", "10.0.0.7")];
    assert_eq!(got, wanted);
}

#[test]
fn many_requests_without_a_response_of_the_api_server_are_logged_once() {
    let lines = LogEvents::record(&["pinniped_impersonation_proxy"], Level::ERROR);
    for _ in 0..1000 {
        failed(&"no API server in this test");
    }
    let logged = lines.all();
    let [line] = logged.as_slice() else { panic!("{logged:?}") };
    assert_eq!(line.field("message"), "could not RoundTrip impersonation proxy request to API server");
    assert_eq!(line.field("error"), "no API server in this test");
    // Only a line after suppressed ones has the number.
    assert_eq!(line.fields.len(), 2);
}
