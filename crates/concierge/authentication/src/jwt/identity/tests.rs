//! Tables of claims and rules, with the resulting user or error.

use std::collections::BTreeMap;

use pinniped_concierge_domain::jwt_authenticator::validation::validate;
use serde_json::{Value, json};

use super::super::expression::ExpressionCompiler;
use super::*;

/// Validates a spec with these fields.
fn validated(fields: &Value) -> Result<IdentityRules<Program>, String> {
    let mut spec = json!({"issuer": "https://example.com", "audience": "a"});
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let spec = serde_json::from_value(spec).unwrap();
    validate(&spec, &ExpressionCompiler::default()).map_err(|errors| errors.to_string())
}

/// Returns the rules of a spec with these fields.
fn rules(fields: &Value) -> IdentityRules<Program> {
    validated(fields).unwrap_or_else(|errors| panic!("{errors}"))
}

fn user(fields: &Value, claims: &Value) -> Result<User, String> {
    user_of(claims.as_object().unwrap(), &rules(fields)).map_err(|error| error.to_string())
}

fn named(name: &str, groups: &[&str]) -> Result<User, String> {
    let groups = groups.iter().map(|group| (*group).to_owned()).collect();
    Ok(User { name: name.to_owned(), groups, ..User::default() })
}

fn fails(message: &str) -> Result<User, String> {
    Err(message.to_owned())
}

#[test]
fn a_literal_that_fails_is_an_internal_error_unless_the_type_of_the_rule_is_wrong() {
    let fields = json!({
        "claims": {"usernameExpression": "string(b'\\xff')"},
        "claimValidationRules": [{"expression": "int('x')"}, {"expression": "int('x') == 1"}],
        "userValidationRules": [{"expression": "user.username.find('(')"}, {"expression": "'a'.find('(') == ''"}],
    });
    let wanted = [
        r#"claimValidationRules[0].expression: Invalid value: "int('x')": must evaluate to bool"#,
        "claimValidationRules[1].expression: Internal error: program instantiation failed: type conversion error from \
         'string' to 'int'",
        "claims.usernameExpression: Internal error: program instantiation failed: invalid UTF-8 in bytes, cannot \
         convert to string",
        r#"userValidationRules[0].expression: Invalid value: "user.username.find('(')": must evaluate to bool"#,
        "userValidationRules[1].expression: Internal error: program instantiation failed: error parsing regexp: missing \
         closing ): `(`",
    ];
    assert_eq!(validated(&fields).unwrap_err(), format!("[{}]", wanted.join(", ")));
}

#[test]
fn the_username_is_a_claim() {
    let default = json!({});
    let email = json!({"claims": {"username": "email"}});
    for (fields, claims, wanted) in [
        (&default, json!({"username": "u", "sub": "s"}), named("u", &[])),
        (&json!({"claims": {"username": "sub"}}), json!({"username": "u", "sub": "s"}), named("s", &[])),
        (&default, json!({}), fails(r#"oidc: parse username claims "username": claim not present"#)),
        (
            &default,
            json!({"username": 1}),
            fails(
                r#"oidc: parse username claims "username": json: cannot unmarshal number into Go value of type string"#,
            ),
        ),
        // The check of a TokenCredentialRequest refuses these.
        (&default, json!({"username": ""}), named("", &[])),
        (&default, json!({"username": null}), named("", &[])),
        (&email, json!({"email": "e"}), named("e", &[])),
        (&email, json!({"email": "e", "email_verified": true}), named("e", &[])),
        (&email, json!({"email": "e", "email_verified": false}), fails("oidc: email not verified")),
        (&email, json!({"email": "e", "email_verified": null}), fails("oidc: email not verified")),
        (
            &email,
            json!({"email": "e", "email_verified": "true"}),
            fails(
                "oidc: parse 'email_verified' claim: json: cannot unmarshal string into Go value of type bool",
            ),
        ),
        (&default, json!({"username": "u", "email": "e", "email_verified": false}), named("u", &[])),
    ] {
        assert_eq!(user(fields, &claims), wanted, "{fields} {claims}");
    }
}

#[test]
fn the_groups_are_a_claim_that_may_be_absent() {
    let default = json!({});
    let many: Vec<String> = (0..10_000).map(|number| format!("group-{number}")).collect();
    let many_texts: Vec<&str> = many.iter().map(String::as_str).collect();
    for (fields, groups, wanted) in [
        (&default, json!("g"), named("u", &["g"])),
        (&default, json!(["g", "", "h", "g"]), named("u", &["g", "", "h", "g"])),
        (&default, json!([]), named("u", &[])),
        (&default, json!(null), named("u", &[])),
        (&default, json!(many), named("u", &many_texts)),
        (
            &default,
            json!(["g", 1]),
            fails(
                r#"oidc: parse groups claim "groups": json: cannot unmarshal array into Go value of type string"#,
            ),
        ),
        (
            &default,
            json!({"g": 1}),
            fails(
                r#"oidc: parse groups claim "groups": json: cannot unmarshal object into Go value of type string"#,
            ),
        ),
        (&json!({"claims": {"groups": "roles"}}), json!(["g"]), named("u", &[])),
    ] {
        let claims = json!({"username": "u", "groups": groups});
        assert_eq!(user(fields, &claims), wanted, "{fields} {groups}");
    }
    assert_eq!(user(&default, &json!({"username": "u"})), named("u", &[]));
}

#[test]
fn the_id_of_the_token_is_an_extra_attribute() {
    for (jti, wanted) in
        [(json!("a b"), Some("JTI=a b")), (json!(""), None), (json!(null), None), (json!(1), None)]
    {
        let extra = wanted.map(|id| (CREDENTIAL_ID_EXTRA.to_owned(), vec![id.to_owned()]));
        let wanted = User { name: "u".to_owned(), extra: extra.into_iter().collect(), ..User::default() };
        assert_eq!(user(&json!({}), &json!({"username": "u", "jti": jti})), Ok(wanted), "{jti}");
    }
    assert_eq!(user(&json!({}), &json!({"username": "u"})).unwrap().extra, BTreeMap::new());
}

#[test]
fn required_claims_are_texts_with_a_certain_value() {
    let fields = json!({"claimValidationRules": [
        {"claim": "hd", "requiredValue": "x"}, {"claim": "empty"}]});
    for (claims, wanted) in [
        (json!({"hd": "x", "empty": ""}), named("u", &[])),
        (json!({"hd": "x", "empty": null}), named("u", &[])),
        (json!({"empty": ""}), fails("oidc: required claim hd not present in ID token")),
        (json!({"hd": "x"}), fails("oidc: required claim empty not present in ID token")),
        (
            json!({"hd": true, "empty": ""}),
            fails("oidc: parse claim hd: json: cannot unmarshal bool into Go value of type string"),
        ),
        (
            json!({"hd": ["x"], "empty": ""}),
            fails("oidc: parse claim hd: json: cannot unmarshal array into Go value of type string"),
        ),
        (
            json!({"hd": "y", "empty": ""}),
            fails("oidc: required claim hd value does not match. Got = y, want = x"),
        ),
    ] {
        let mut all = claims.clone();
        all["username"] = json!("u");
        assert_eq!(user(&fields, &all), wanted, "{claims}");
    }
}

#[test]
fn the_username_may_be_an_expression() {
    let with = |expression: &str| json!({"claims": {"usernameExpression": expression}});
    let claims =
        json!({"sub": "s", "empty": "", "n": 1, "nested": {"name": "x"}, "list": ["a"], "null": null});
    let prefix = "oidc: error evaluating username claim expression: ";
    for (expression, wanted) in [
        ("'oidc:' + claims.sub", named("oidc:s", &[])),
        ("claims.nested.name", named("x", &[])),
        ("claims.?missing.orValue('default')", named("default", &[])),
        ("claims.empty", fails("oidc: empty username via CEL expression is not allowed")),
        ("claims.n", fails(&format!("{prefix}username claim expression must return a string"))),
        ("claims.list", fails(&format!("{prefix}username claim expression must return a string"))),
        ("claims['null']", fails(&format!("{prefix}username claim expression must return a string"))),
        (
            "claims.nope",
            fails(&format!("{prefix}expression 'claims.nope' resulted in error: no such key: nope")),
        ),
    ] {
        assert_eq!(user(&with(expression), &claims), wanted, "{expression}");
    }
}

#[test]
fn the_groups_may_be_an_expression() {
    let with = |expression: &str| json!({"claims": {"groupsExpression": expression}});
    let claims = json!({"username": "u", "groups": ["not", "used"], "roles": ["a", "", "b"], "one": "x", "n": 1,
        "mixed": ["a", 1], "map": {"a": 1}, "null": null});
    let prefix = "oidc: error evaluating group claim expression: ";
    let type_error = fails(&format!("{prefix}expression must return a string or a list of strings"));
    for (expression, wanted) in [
        ("claims.roles", named("u", &["a", "b"])),
        ("claims.one", named("u", &["x"])),
        ("''", named("u", &[])),
        ("claims['null']", named("u", &[])),
        ("[]", named("u", &[])),
        ("['a', 'b']", named("u", &["a", "b"])),
        ("claims.n", type_error.clone()),
        ("claims.mixed", type_error.clone()),
        ("claims.map", type_error.clone()),
        ("true", type_error),
        (
            "claims.nope",
            fails(&format!("{prefix}expression 'claims.nope' resulted in error: no such key: nope")),
        ),
    ] {
        assert_eq!(user(&with(expression), &claims), wanted, "{expression}");
    }
}

#[test]
fn extra_attributes_are_expressions() {
    let with = |mappings: &[(&str, &str)]| {
        let extra: Vec<_> =
            mappings.iter().map(|(key, value)| json!({"key": key, "valueExpression": value})).collect();
        json!({"claims": {"extra": extra}})
    };
    let claims = json!({"username": "u", "a": "x", "b": ["y", "", "z"], "n": 1, "jti": "id"});
    let extra = |pairs: &[(&str, &[&str])]| {
        let values = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
        let mut extra: BTreeMap<_, _> =
            pairs.iter().map(|(key, all)| ((*key).to_owned(), values(all))).collect();
        extra.insert(CREDENTIAL_ID_EXTRA.to_owned(), vec!["JTI=id".to_owned()]);
        Ok(User { name: "u".to_owned(), extra, ..User::default() })
    };
    for (mappings, wanted) in [
        (
            &[
                ("acme.io/a", "claims.a"),
                ("acme.io/b", "claims.b"),
                ("acme.io/none", "''"),
                ("acme.io/l", "[]"),
            ][..],
            extra(&[("acme.io/a", &["x"]), ("acme.io/b", &["y", "z"])]),
        ),
        (
            &[("acme.io/n", "claims.n")],
            fails(
                "oidc: error evaluating extra claim expression: claims.n: expression must return a string or a list of \
                 strings",
            ),
        ),
        // All are evaluated before one is converted.
        (
            &[("acme.io/n", "claims.n"), ("acme.io/x", "claims.nope")],
            fails("expression 'claims.nope' resulted in error: no such key: nope"),
        ),
    ] {
        assert_eq!(user(&with(mappings), &claims), wanted, "{mappings:?}");
    }
}

#[test]
fn rules_for_claims_must_be_true() {
    let with = |rules: Value| json!({"claimValidationRules": rules});
    let claims = json!({"username": "u", "hd": "example.com", "n": 1});
    let prefix = "oidc: error evaluating claim validation expression: ";
    let yes = json!({"expression": "claims.hd == 'example.com' && claims.n == 1", "message": "m"});
    let no = json!({"expression": "claims.hd == 'x'", "message": "wrong domain"});
    let silent = json!({"expression": "claims.hd == 'y'"});
    let broken = json!({"expression": "claims.nope == 'x'"});
    let endless = json!({"expression": format!("{0}.all(a, {0}.all(b, {0}.all(c, {0}.all(d, {0}.all(e, {0}.all(f, a + \
        b + c + d + e + f > 0))))))", "[1,2,3,4,5,6,7,8,9,10]")});
    let failed = |expression: &str, message: &str| {
        fails(&format!("{prefix}validation expression '{expression}' failed: {message}"))
    };
    for (rules, wanted) in [
        (json!([yes]), named("u", &[])),
        (json!([yes, no]), failed("claims.hd == 'x'", "wrong domain")),
        (json!([silent, no]), failed("claims.hd == 'y'", "")),
        // All are evaluated before one is checked, and a required value comes first.
        (
            json!([no, broken]),
            fails(&format!("{prefix}expression 'claims.nope == 'x'' resulted in error: no such key: nope")),
        ),
        (json!([broken, {"claim": "absent"}]), fails("oidc: required claim absent not present in ID token")),
        (
            json!([endless]),
            fails(&format!(
                "{prefix}expression '{}' resulted in error: operation cancelled: actual cost limit exceeded",
                endless["expression"].as_str().unwrap()
            )),
        ),
    ] {
        assert_eq!(user(&with(rules.clone()), &claims), wanted, "{rules}");
    }
}

#[test]
fn rules_for_the_user_see_the_identity() {
    let with = |rule: &str| {
        json!({"claims": {"extra": [{"key": "acme.io/a", "valueExpression": "'x'"}]},
            "userValidationRules": [{"expression": rule, "message": "no"}]})
    };
    let claims = json!({"username": "system:u", "groups": ["a", "b"]});
    let user = |rule: &str| user(&with(rule), &claims).map(|user| user.name);
    for rule in [
        "user.username == 'system:u'",
        "user.uid == ''",
        "user.groups == ['a', 'b'] && 'b' in user.groups",
        "user.extra['acme.io/a'] == ['x']",
        "user.groups.all(group, !group.startsWith('system:'))",
    ] {
        assert_eq!(user(rule), Ok("system:u".to_owned()), "{rule}");
    }
    let prefix = "oidc: error evaluating user info validation rule: ";
    let rule = "!user.username.startsWith('system:')";
    assert_eq!(user(rule), Err(format!("{prefix}validation expression '{rule}' failed: no")));
    let rule = "user.extra['none'] == []";
    assert_eq!(user(rule), Err(format!("{prefix}expression '{rule}' resulted in error: no such key: none")));
}

#[test]
fn invalid_expressions_have_the_text_of_upstream() {
    let error = |fields: Value| {
        let mut spec = json!({"issuer": "https://example.com", "audience": "a"});
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        validate(&serde_json::from_value(spec).unwrap(), &ExpressionCompiler::default())
            .unwrap_err()
            .to_string()
    };
    let claim_rule = |expression: &str| {
        let text = error(json!({"claimValidationRules": [{"expression": expression}]}));
        let prefix = format!("claimValidationRules[0].expression: Invalid value: {}: ", quote(expression));
        text.strip_prefix(&prefix).unwrap_or(&text).to_owned()
    };
    assert_eq!(
        error(json!({"claims": {"usernameExpression": "this is not a valid CEL expression"}})),
        "claims.usernameExpression: Invalid value: \"this is not a valid CEL expression\": compilation failed: ERROR: \
         <input>:1:6: Syntax error: mismatched input 'is' expecting <EOF>\n | this is not a valid CEL expression\n | \
         .....^"
    );
    for (expression, part) in [
        ("claims.hd", "must evaluate to bool"),
        ("claims.?email_verified.orValue(true)", "must evaluate to bool"),
        ("foo == 1", "undeclared reference to 'foo' (in container '')"),
        ("user.username == 'x'", "undeclared reference to 'user' (in container '')"),
        ("1 == 'a'", "found no matching overload for '_==_' applied to '(int, string)'"),
        (
            "claims.groups.all(g, g == 'x')",
            "expression of type 'any' cannot be range of a comprehension (must be list, map, or dynamic)",
        ),
    ] {
        let text = claim_rule(expression);
        assert!(text.contains(part), "{expression}: {text}");
    }
    let text = error(json!({"userValidationRules": [{"expression": "user.foo == 'x'"}]}));
    assert!(text.contains("undefined field 'foo'"), "{text}");
    let email = json!({"claims": {"usernameExpression": "claims.email"}});
    let text = error(email);
    assert!(text.contains("claims.email_verified must be used in claims.usernameExpression or"), "{text}");
    for (username, rule) in [
        ("claims['email']", None),
        ("claims.email + string(claims.email_verified)", None),
        ("claims.?email.orValue('')", Some("claims.?email_verified.orValue(true) == true")),
    ] {
        let with: Vec<_> = rule.iter().map(|rule| json!({"expression": rule})).collect();
        rules(&json!({"claims": {"usernameExpression": username}, "claimValidationRules": with}));
    }
}
