//! Identifies the inputs from which an authenticator was built.

use aws_lc_rs::digest;
use data_encoding::HEXLOWER;
use pinniped_concierge_api::authentication::JwtAuthenticatorSpec;

/// Returns a text that is equal for two objects exactly when their tokens are verified in the same
/// way: issuer, audience, claims, rules and trusted roots are equal. `roots` identifies the roots
/// that `spec.tls` resolves to, and replaces it: the same bundle may move to another object.
pub fn of(spec: &JwtAuthenticatorSpec, roots: &str) -> String {
    let spec = JwtAuthenticatorSpec { tls: None, ..spec.clone() };
    let text = pinniped_go_compat::json::to_string(&spec);
    format!("{} {roots}", HEXLOWER.encode(digest::digest(&digest::SHA256, text.as_bytes()).as_ref()))
}

#[cfg(test)]
mod tests {
    use pinniped_concierge_api::authentication::{
        ClaimValidationRule, ExtraMapping, TlsSpec, UserValidationRule,
    };

    use super::*;

    #[test]
    fn every_input_except_the_place_of_the_bundle_counts() {
        let spec = JwtAuthenticatorSpec {
            issuer: "https://i".to_owned(),
            audience: "a".to_owned(),
            ..JwtAuthenticatorSpec::default()
        };
        let changed = |change: fn(&mut JwtAuthenticatorSpec)| {
            let mut spec = spec.clone();
            change(&mut spec);
            of(&spec, "roots")
        };
        let same = of(&spec, "roots");
        assert_eq!(same, changed(|spec| spec.tls = Some(TlsSpec::default())));
        let all = [
            of(&spec, "other roots"),
            changed(|spec| spec.issuer.push('/')),
            changed(|spec| spec.audience.push('b')),
            changed(|spec| spec.claims.username = "u".to_owned()),
            changed(|spec| spec.claims.username_expression = "u".to_owned()),
            changed(|spec| spec.claims.groups = "u".to_owned()),
            changed(|spec| spec.claims.groups_expression = "u".to_owned()),
            changed(|spec| spec.claims.extra.push(ExtraMapping::default())),
            changed(|spec| spec.claim_validation_rules.push(ClaimValidationRule::default())),
            changed(|spec| spec.user_validation_rules.push(UserValidationRule::default())),
        ];
        for (at, one) in all.iter().enumerate() {
            assert_ne!(*one, same);
            assert!(!all[..at].contains(one), "{at}");
        }
    }
}
