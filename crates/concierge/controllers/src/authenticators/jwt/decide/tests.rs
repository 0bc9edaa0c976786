//! Tables of observations and validations, with the resulting plan.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use pinniped_concierge_api::authentication::TlsSpec;
use pinniped_concierge_domain::jwt_authenticator::conditions::check_keys_url;
use pinniped_concierge_domain::jwt_authenticator::field_error::{FieldError, FieldErrors};

use super::*;

struct NoObjects;

impl CaObjects for NoObjects {
    fn namespace(&self) -> &str {
        "ns"
    }
    fn secret(&self, _: &str) -> Option<Arc<Secret>> {
        None
    }
    fn config_map(&self, _: &str) -> Option<Arc<ConfigMap>> {
        None
    }
}

fn spec() -> JwtAuthenticatorSpec {
    JwtAuthenticatorSpec {
        issuer: "https://issuer.example".to_owned(),
        audience: "a".to_owned(),
        ..JwtAuthenticatorSpec::default()
    }
}

fn inspection(spec: &JwtAuthenticatorSpec, ready: Option<Ready>) -> Inspection {
    inspect(Observed { spec, ca_objects: &NoObjects, ready })
}

fn rows(plan: &Plan<&'static str, StatusText>) -> Vec<String> {
    let conditions = plan.conditions.conditions().iter();
    conditions.map(|c| format!("{} {} {}: {}", c.type_, c.status, c.reason, c.message)).collect()
}

const TLS: &str = "TLSConfigurationValid True Success: spec.tls is valid: no TLS configuration provided: using \
                   default root CA bundle from container image";
const ISSUER: &str = "IssuerURLValid True Success: issuer is a valid URL";
const DISCOVERY: &str = "DiscoveryURLValid True Success: discovery performed successfully";
const URL: &str = "JWKSURLValid True Success: jwks_uri is a valid URL";
const FETCH: &str = "JWKSFetchValid True Success: successfully fetched jwks";
const BUILT: &str = "AuthenticatorValid True Success: authenticator initialized";
const READY: &str = "Ready True Success: the JWTAuthenticator is ready";
const NOT_READY: &str =
    "Ready False NotReady: the JWTAuthenticator is not ready: see other conditions for details";

fn unknown(type_: &str) -> String {
    format!("{type_} Unknown UnableToValidate: unable to validate; see other conditions for details")
}

#[test]
fn a_valid_authenticator_is_inserted_with_all_seven_conditions() {
    let inspection = inspection(&spec(), None);
    let Next::Validate { roots: Roots::System, fingerprint } = &inspection.next else {
        panic!("{inspection:?}");
    };
    let fingerprint = fingerprint.clone();
    let plan = conclude(inspection, Some(Ok("built")));
    assert_eq!(rows(&plan), [TLS, ISSUER, DISCOVERY, URL, FETCH, BUILT, READY]);
    assert!(plan.conditions.is_ready());
    assert_eq!((plan.entry, plan.error), (Entry::Insert { authenticator: "built", fingerprint }, None));
}

#[test]
fn unchanged_inputs_need_no_request_and_only_the_age_of_the_keys_is_reported() {
    let fingerprint = fingerprint::of(&spec(), "system");
    let fetched = "2026-01-01T00:00:00Z".parse().unwrap();
    let stale = "JWKSFetchValid True Success: successfully fetched jwks at 2026-01-01T00:00Z, but not since then: \
                 logins continue with these keys";
    for (keys, fetch) in [(KeysFreshness::Fresh, FETCH), (KeysFreshness::StaleSince(fetched), stale)] {
        let ready = Ready { fingerprint: fingerprint.clone(), keys };
        let inspection = inspection(&spec(), Some(ready));
        assert!(matches!(inspection.next, Next::Unchanged(_)), "{inspection:?}");
        let plan = conclude(inspection, None);
        assert_eq!(rows(&plan), [TLS, ISSUER, DISCOVERY, URL, fetch, BUILT, READY]);
        assert_eq!((plan.entry, plan.error), (Entry::Keep, None));
    }
}

#[test]
fn changed_inputs_are_validated_again() {
    let ready = Ready { fingerprint: fingerprint::of(&spec(), "system"), keys: KeysFreshness::Fresh };
    let mut changed = spec();
    changed.claims.username = "sub".to_owned();
    assert!(matches!(inspection(&changed, Some(ready.clone())).next, Next::Validate { .. }));
    let other = Ready { fingerprint: fingerprint::of(&spec(), "another CA"), ..ready };
    assert!(matches!(inspection(&spec(), Some(other)).next, Next::Validate { .. }));
}

#[test]
fn an_invalid_issuer_or_bundle_needs_no_request_and_is_not_retried() {
    let unknown = ["DiscoveryURLValid", "JWKSURLValid", "JWKSFetchValid", "AuthenticatorValid"].map(unknown);
    let invalid_issuer = JwtAuthenticatorSpec { issuer: "http://i".to_owned(), ..spec() };
    let bundle = TlsSpec { certificate_authority_data: Some("$".to_owned()), ..TlsSpec::default() };
    let invalid_bundle = JwtAuthenticatorSpec { tls: Some(bundle), ..spec() };
    let scheme = "IssuerURLValid False InvalidIssuerURLScheme: spec.issuer http://i has invalid scheme, require 'https'";
    let base64 = "TLSConfigurationValid False InvalidTLSConfig: spec.tls.certificateAuthorityData is invalid: illegal \
                  base64 data at input byte 0";
    for (spec, first) in [(invalid_issuer, [TLS, scheme]), (invalid_bundle, [base64, ISSUER])] {
        // Also if it was ready before.
        let ready = Ready { fingerprint: fingerprint::of(&spec, "system"), keys: KeysFreshness::Fresh };
        let inspection = inspection(&spec, Some(ready));
        assert!(matches!(inspection.next, Next::Invalid), "{inspection:?}");
        let plan = conclude(inspection, None);
        let mut wanted: Vec<String> = first.map(str::to_owned).to_vec();
        wanted.extend(unknown.clone());
        wanted.push(NOT_READY.to_owned());
        assert_eq!(rows(&plan), wanted);
        assert_eq!((plan.entry, plan.error), (Entry::Remove, None));
    }
}

#[test]
fn a_failure_of_the_provider_is_retried_and_an_invalid_field_is_not() {
    let fields = FieldErrors(vec![FieldError::required("claims.extra[0].key", "")]);
    let field_text = "could not initialize jwt authenticator: claims.extra[0].key: Required value";
    let discovery_text = "could not perform oidc discovery on provider issuer: no";
    let scheme_text = "jwks_uri http://k has invalid scheme, require 'https'";
    for (progress, tail, retried) in [
        (
            Progress::DiscoveryFailed("no".into()),
            [
                format!("DiscoveryURLValid False InvalidDiscoveryProbe: {discovery_text}"),
                unknown("JWKSURLValid"),
                unknown("JWKSFetchValid"),
                unknown("AuthenticatorValid"),
            ],
            Some(discovery_text),
        ),
        (
            Progress::KeysUrlInvalid(check_keys_url("http://k").unwrap_err()),
            [
                DISCOVERY.to_owned(),
                format!("JWKSURLValid False InvalidProviderJWKSURLScheme: {scheme_text}"),
                unknown("JWKSFetchValid"),
                unknown("AuthenticatorValid"),
            ],
            Some(scheme_text),
        ),
        (
            Progress::KeysNotFetched("no".into()),
            [
                DISCOVERY.to_owned(),
                URL.to_owned(),
                "JWKSFetchValid False InvalidCouldNotFetchJWKS: could not fetch keys: no".to_owned(),
                unknown("AuthenticatorValid"),
            ],
            Some("could not fetch keys: no"),
        ),
        (
            Progress::SpecInvalid(fields),
            [
                DISCOVERY.to_owned(),
                URL.to_owned(),
                FETCH.to_owned(),
                format!("AuthenticatorValid False InvalidAuthenticator: {field_text}"),
            ],
            None,
        ),
    ] {
        let plan = conclude(inspection(&spec(), None), Some(Err(progress)));
        let mut wanted = vec![TLS.to_owned(), ISSUER.to_owned()];
        wanted.extend(tail);
        wanted.push(NOT_READY.to_owned());
        assert_eq!(rows(&plan), wanted);
        assert!(!plan.conditions.is_ready());
        assert_eq!(plan.entry, Entry::Remove);
        assert_eq!(plan.error.map(|error| error.to_string()).as_deref(), retried);
    }
}
