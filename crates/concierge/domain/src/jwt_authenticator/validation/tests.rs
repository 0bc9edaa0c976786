//! Tests of the validation with a compiler that recognizes a few texts.

use serde_json::{Value, json};

use super::*;

/// Compiles every text except those with `is not`. A text with `==` has the type `bool`.
struct Texts;

/// The text and the variable of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Text(String, Variable);

impl Program for Text {
    fn is_bool(&self) -> bool {
        self.0.contains("==")
    }

    fn selects_claim(&self, claim: &str) -> bool {
        let wanted = format!("claims.{claim}");
        self.0.split_whitespace().any(|word| word == wanted)
    }
}

impl Compiler for Texts {
    type Program = Text;

    fn compile(&self, expression: &str, variable: Variable) -> Result<Text, CompileFailure> {
        match expression.contains("is not") {
            true => {
                let text = format!("compilation failed: ERROR in {}", variable.name());
                Err(CompileFailure::Invalid(text.into()))
            }
            false => Ok(Text(expression.to_owned(), variable)),
        }
    }
}

fn result(spec: &Value) -> Result<IdentityRules<Text>, FieldErrors> {
    let mut full = json!({"issuer": "https://example.com", "audience": "a"});
    full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    validate(&serde_json::from_value(full).unwrap(), &Texts)
}

fn message(spec: &Value) -> String {
    result(spec).map_or_else(|errors| errors.to_string(), |_| "valid".to_owned())
}

fn expression(text: &str, variable: Variable) -> Expression<Text> {
    Expression { text: text.to_owned(), program: Text(text.to_owned(), variable) }
}

#[test]
fn an_empty_spec_has_the_default_claims() {
    let wanted = IdentityRules {
        username: Source::Claim("username".to_owned()),
        groups: Source::Claim("groups".to_owned()),
        extra: vec![],
        required_claims: vec![],
        claim_rules: vec![],
        user_rules: vec![],
    };
    assert_eq!(result(&json!({})), Ok(wanted));
}

#[test]
fn every_field_has_its_place_in_the_rules() {
    let rules = result(&json!({
        "claims": {
            "usernameExpression": "name",
            "groups": "roles",
            "extra": [{"key": "acme.io/a", "valueExpression": "x"}, {"key": "acme.io/b", "valueExpression": "y"}]
        },
        "claimValidationRules": [
            {"claim": "hd", "requiredValue": "example.com"}, {"expression": "c == 1", "message": "m"},
            {"claim": "empty"}
        ],
        "userValidationRules": [{"expression": "u == 1", "message": "n"}, {"expression": "u == 2"}]
    }));
    let rule = |text: &str, variable, message: &str| Rule {
        expression: expression(text, variable),
        message: message.to_owned(),
    };
    let required =
        |claim: &str, value: &str| RequiredClaim { claim: claim.to_owned(), value: value.to_owned() };
    let extra =
        |key: &str, text: &str| Extra { key: key.to_owned(), value: expression(text, Variable::Claims) };
    let wanted = IdentityRules {
        username: Source::Expression(expression("name", Variable::Claims)),
        groups: Source::Claim("roles".to_owned()),
        extra: vec![extra("acme.io/a", "x"), extra("acme.io/b", "y")],
        required_claims: vec![required("hd", "example.com"), required("empty", "")],
        claim_rules: vec![rule("c == 1", Variable::Claims, "m")],
        user_rules: vec![rule("u == 1", Variable::User, "n"), rule("u == 2", Variable::User, "")],
    };
    assert_eq!(rules, Ok(wanted));
}

#[test]
fn the_issuer_and_the_audience_are_checked_again() {
    for (spec, wanted) in [
        (json!({"issuer": ""}), "issuer.url: Required value"),
        (
            json!({"issuer": "https://u:p@example.com"}),
            r#"issuer.url: Invalid value: "https://u:p@example.com": URL must not contain a username or password"#,
        ),
        (
            json!({"issuer": "https://example.com?;"}),
            r#"issuer.url: Invalid value: "https://example.com?;": URL must not contain a query"#,
        ),
        (
            json!({"issuer": "http://u@example.com#f"}),
            concat!(
                r#"[issuer.url: Invalid value: "http://u@example.com#f": URL scheme must be https, "#,
                r#"issuer.url: Invalid value: "http://u@example.com#f": URL must not contain a username or password, "#,
                r#"issuer.url: Invalid value: "http://u@example.com#f": URL must not contain a fragment]"#
            ),
        ),
        (json!({"issuer": ":x"}), r#"issuer.url: Invalid value: ":x": parse ":x": missing protocol scheme"#),
        (
            json!({"audience": ""}),
            "issuer.audiences: Required value: at least one jwt[0].issuer.audiences is required",
        ),
    ] {
        assert_eq!(message(&spec), wanted);
    }
}

#[test]
fn username_and_groups_have_one_source_each() {
    for (claims, wanted) in [
        (
            json!({"username": "u", "usernameExpression": "e"}),
            r#"claims.username: Invalid value: "": claim and expression can't both be set"#,
        ),
        (
            json!({"groups": "u", "groupsExpression": "e"}),
            r#"claims.groups: Invalid value: "": claim and expression can't both be set"#,
        ),
        (
            json!({"usernameExpression": "this is not a CEL expression", "groupsExpression": "nor is not this"}),
            concat!(
                r#"[claims.usernameExpression: Invalid value: "this is not a CEL expression": "#,
                "compilation failed: ERROR in claims, ",
                r#"claims.groupsExpression: Invalid value: "nor is not this": compilation failed: ERROR in claims]"#
            ),
        ),
        (json!({"usernameExpression": "no bool", "groupsExpression": "no bool"}), "valid"),
    ] {
        assert_eq!(message(&json!({"claims": claims})), wanted);
    }
}

#[test]
fn a_rule_for_claims_is_either_a_claim_or_an_expression() {
    for (rules, wanted) in [
        (
            json!([{"claim": "foo", "expression": "e"}]),
            r#"claimValidationRules[0]: Invalid value: "foo": claim and expression can't both be set"#,
        ),
        (json!([{}]), "claimValidationRules[0]: Required value: claim or expression is required"),
        (
            json!([{"claim": "c", "message": "m"}]),
            r#"claimValidationRules[0].message: Invalid value: "m": may not be specified when claim is set"#,
        ),
        (
            json!([{"expression": "1 == 1", "requiredValue": "v"}]),
            r#"claimValidationRules[0].requiredValue: Invalid value: "v": may not be specified when expression is set"#,
        ),
        (
            json!([{"claim": "a"}, {"claim": "b"}, {"claim": "a"}]),
            r#"claimValidationRules[2].claim: Duplicate value: "a""#,
        ),
        (
            json!([{"expression": "a == 1"}, {"expression": "a == 1"}]),
            r#"claimValidationRules[1].expression: Duplicate value: "a == 1""#,
        ),
        (
            json!([{"expression": "claims.hd"}]),
            r#"claimValidationRules[0].expression: Invalid value: "claims.hd": must evaluate to bool"#,
        ),
        (
            json!([{"expression": "is not"}]),
            r#"claimValidationRules[0].expression: Invalid value: "is not": compilation failed: ERROR in claims"#,
        ),
    ] {
        assert_eq!(message(&json!({"claimValidationRules": rules})), wanted);
    }
}

#[test]
fn a_rule_for_the_user_is_an_expression() {
    for (rules, wanted) in [
        (json!([{"expression": ""}]), "userValidationRules[0].expression: Required value"),
        (
            json!([{"expression": "a == 1"}, {"expression": "a == 1"}]),
            r#"userValidationRules[1].expression: Duplicate value: "a == 1""#,
        ),
        (
            json!([{"expression": "user.username"}]),
            r#"userValidationRules[0].expression: Invalid value: "user.username": must evaluate to bool"#,
        ),
        (
            json!([{"expression": "is not"}]),
            r#"userValidationRules[0].expression: Invalid value: "is not": compilation failed: ERROR in user"#,
        ),
    ] {
        assert_eq!(message(&json!({"userValidationRules": rules})), wanted);
    }
}

#[test]
fn extra_keys_are_paths_under_a_domain() {
    let reserved = "k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use";
    for (keys, wanted) in [
        (&[""][..], "claims.extra[0].key: Required value".to_owned()),
        (
            &["k"],
            r#"claims.extra[0].key: Invalid value: "k": must be a domain-prefixed path (such as "acme.io/foo")"#
                .to_owned(),
        ),
        (
            &["acme.io/Foo"],
            r#"claims.extra[0].key: Invalid value: "acme.io/Foo": must be lowercase"#.to_owned(),
        ),
        (&["acme.io/a", "acme.io/a"], r#"claims.extra[1].key: Duplicate value: "acme.io/a""#.to_owned()),
        (
            &["k8s.io/a", "x.kubernetes.io/a", "notk8s.io/a"],
            format!(
                r#"[claims.extra[0].key: Invalid value: "k8s.io/a": {reserved}, claims.extra[1].key: Invalid value: "x.kubernetes.io/a": {reserved}]"#
            ),
        ),
        (
            &["acme.io/a=b"],
            r#"claims.extra[0].key: Invalid value: "acme.io/a=b": Pinniped does not allow extra key names to contain equals sign"#
                .to_owned(),
        ),
    ] {
        let extra: Vec<_> = keys.iter().map(|key| json!({"key": key, "valueExpression": "x"})).collect();
        assert_eq!(message(&json!({"claims": {"extra": extra}})), wanted);
    }
    assert_eq!(
        message(&json!({"claims": {"extra": [{"key": "acme.io/a", "valueExpression": ""}]}})),
        "claims.extra[0].valueExpression: Required value"
    );
}

#[test]
fn an_email_address_as_username_needs_email_verified_somewhere() {
    let error = r#"claims.usernameExpression: Invalid value: "claims.email": claims.email_verified must be used in claims.usernameExpression or claims.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used in claims.usernameExpression"#;
    let email = "claims.email";
    let verified = "claims.email_verified == true";
    for (spec, wanted) in [
        (json!({"claims": {"usernameExpression": email}}), error),
        (json!({"claims": {"usernameExpression": "claims.email + claims.email_verified"}}), "valid"),
        (
            json!({"claims": {"usernameExpression": email,
                "extra": [{"key": "acme.io/a", "valueExpression": verified}]}}),
            "valid",
        ),
        (
            json!({"claims": {"usernameExpression": email}, "claimValidationRules": [{"expression": verified}]}),
            "valid",
        ),
        // A required value does not count, nor does a rule for the user or the groups.
        (
            json!({"claims": {"usernameExpression": email, "groupsExpression": verified},
                "claimValidationRules": [{"claim": "email_verified", "requiredValue": "true"}],
                "userValidationRules": [{"expression": verified}]}),
            error,
        ),
        (json!({"claims": {"username": "email"}}), "valid"),
        (json!({"claims": {"groupsExpression": email}}), "valid"),
    ] {
        assert_eq!(message(&spec), wanted);
    }
}

#[test]
fn errors_are_in_the_order_of_upstream() {
    let spec = json!({
        "issuer": "https://u@example.com",
        "claims": {
            "username": "a", "usernameExpression": "b", "groups": "a", "groupsExpression": "b",
            "extra": [{"key": "a=b", "valueExpression": ""}]
        },
        "claimValidationRules": [{}],
        "userValidationRules": [{"expression": ""}]
    });
    let errors = result(&spec).unwrap_err();
    let fields: Vec<_> =
        errors.0.iter().map(|error| error.to_string().split(": ").next().unwrap().to_owned()).collect();
    assert_eq!(
        fields,
        [
            "issuer.url",
            "claimValidationRules[0]",
            "claims.username",
            "claims.groups",
            "claims.extra[0].key",
            "claims.extra[0].valueExpression",
            "userValidationRules[0].expression",
            "claims.extra[0].key",
        ]
    );
}
