use std::cell::Cell;

use pinniped_concierge_api::login::TokenCredentialRequest;

use super::*;

thread_local! {
    /// The bytes of all names in the paths that this thread formatted.
    pub(super) static FORMATTED_BYTES: Cell<usize> = const { Cell::new(0) };
}

fn read(
    suffix: &str,
    body: &str,
    validation: FieldValidation,
) -> Result<Decoded<TokenCredentialRequest>, String> {
    let suffix = GroupSuffix::parse(suffix).expect("a suffix");
    decode(Kind::TokenCredentialRequest, &suffix, BodyForm::Json, body.as_bytes(), validation).map_err(
        |status| {
            assert_eq!(status.code, 400);
            status.message
        },
    )
}

#[test]
fn kind_and_version_default_to_those_of_the_url() {
    let decoded = read("tuna.io", "{}", FieldValidation::Strict).expect("an object");
    assert_eq!(decoded.object.kind, "TokenCredentialRequest");
    assert_eq!(decoded.object.api_version, "login.concierge.tuna.io/v1alpha1");
    let body = r#"{"kind":"TokenCredentialRequest","apiVersion":"login.concierge.pinniped.dev/v1alpha1",
        "metadata":{"name":"foo","creationTimestamp":null,"labels":{"a":"b"}},
        "spec":{"token":"t","authenticator":{"apiGroup":"g","kind":"k","name":"n"}},"status":{}}"#;
    let decoded = read("pinniped.dev", body, FieldValidation::Strict).expect("an object");
    assert_eq!(decoded.object.metadata.name.as_deref(), Some("foo"));
    assert_eq!(decoded.object.spec.authenticator.name, "n");
    assert!(decoded.warnings.is_empty());
}

#[test]
fn refused_bodies_have_an_error_message() {
    let unrecognized = "the object provided is unrecognized (must be of type TokenCredentialRequest): couldn't get version/kind; json parse error: ";
    let handled = "cannot be handled as a TokenCredentialRequest: ";
    let cases = [
        ("pinniped.dev", "", format!("{unrecognized}unexpected end of JSON input (<empty>)")),
        (
            "pinniped.dev",
            "garbage",
            format!("{unrecognized}invalid character 'g' looking for beginning of value (67617262616765)"),
        ),
        ("pinniped.dev", "{\"a\":", format!("{unrecognized}unexpected end of JSON input ({{\"a\":)")),
        (
            "pinniped.dev",
            r#"{"kind":"WhoAmIRequest","apiVersion":"identity.concierge.pinniped.dev/v1alpha1"}"#,
            format!(
                "WhoAmIRequest in version \"v1alpha1\" {handled}converting (v1alpha1.WhoAmIRequest) to (login.TokenCredentialRequest): unknown conversion"
            ),
        ),
        (
            "pinniped.dev",
            r#"{"kind":"TokenCredentialRequest","apiVersion":"login.concierge.pinniped.dev/v1alpha2"}"#,
            format!(
                "TokenCredentialRequest in version \"v1alpha2\" {handled}no kind \"TokenCredentialRequest\" is registered for version \"login.concierge.pinniped.dev/v1alpha2\" in scheme \"pinniped-concierge\""
            ),
        ),
        (
            "tuna.io",
            r#"{"kind":"TokenCredentialRequest","apiVersion":"login.concierge.pinniped.dev/v1alpha1"}"#,
            format!(
                "TokenCredentialRequest in version \"v1alpha1\" {handled}no kind \"TokenCredentialRequest\" is registered for version \"login.concierge.pinniped.dev/v1alpha1\" in scheme \"pinniped-concierge\""
            ),
        ),
        (
            "pinniped.dev",
            r#"{"spec":{"token":7}}"#,
            format!(
                "TokenCredentialRequest in version \"v1alpha1\" {handled}json: cannot unmarshal number into Go struct field TokenCredentialRequest.spec.token of type string"
            ),
        ),
        (
            "pinniped.dev",
            r#"{"spec":"x"}"#,
            format!(
                "TokenCredentialRequest in version \"v1alpha1\" {handled}json: cannot unmarshal string into Go struct field TokenCredentialRequest.spec of type v1alpha1.TokenCredentialRequestSpec"
            ),
        ),
    ];
    for (suffix, body, wanted) in cases {
        assert_eq!(read(suffix, body, FieldValidation::Warn).expect_err(body), wanted);
    }
}

#[test]
fn unknown_and_duplicate_fields_are_errors_warnings_or_nothing() {
    let body = r#"{"spec":{"foo":1,"token":"a","token":"b"}}"#;
    let strict = read("pinniped.dev", body, FieldValidation::Strict).expect_err("strict");
    assert_eq!(
        strict,
        "TokenCredentialRequest in version \"v1alpha1\" cannot be handled as a TokenCredentialRequest: strict decoding error: duplicate field \"spec.token\", unknown field \"spec.foo\""
    );
    let warned = read("pinniped.dev", body, FieldValidation::Warn).expect("an object");
    assert_eq!(warned.warnings, ["duplicate field \"spec.token\"", "unknown field \"spec.foo\""]);
    assert_eq!(warned.object.spec.token.as_ref().map(|token| token.expose()), Some("b"));
    assert!(read("pinniped.dev", body, FieldValidation::Ignore).expect("an object").warnings.is_empty());
}

#[test]
fn error_messages_never_contain_a_token() {
    for body in [
        r#"{"spec":{"token":"SECRET","authenticator":[]}}"#,
        r#"{"metadata":{"creationTimestamp":"not a time"},"spec":{"token":"SECRET"}}"#,
        r#"{"metadata":{"name":"a-name-of-some-length"},"spec":{"token":"SECRET"},}"#,
    ] {
        let message = read("pinniped.dev", body, FieldValidation::Warn).expect_err(body);
        assert!(!message.contains("SECRET"), "{message}");
    }
}

#[test]
fn yaml_is_accepted_and_other_formats_are_refused() {
    let body = b"spec:\n  token: \"123\"\n  authenticator: {kind: k, name: my-webhook}\n";
    let decoded: Decoded<TokenCredentialRequest> = decode(
        Kind::TokenCredentialRequest,
        &GroupSuffix::default(),
        BodyForm::Yaml,
        body,
        FieldValidation::Strict,
    )
    .expect("an object");
    assert_eq!(decoded.object.spec.token.as_ref().map(|token| token.expose()), Some("123"));

    let form = |content_type: Option<&'static str>| {
        let mut headers = HeaderMap::new();
        if let Some(content_type) = content_type {
            headers.insert(CONTENT_TYPE, http::HeaderValue::from_static(content_type));
        }
        body_form(&headers)
    };
    assert_eq!(form(None).expect("JSON"), BodyForm::Json);
    assert_eq!(form(Some("application/json; charset=utf-8")).expect("JSON"), BodyForm::Json);
    assert_eq!(form(Some("application/yaml")).expect("YAML"), BodyForm::Yaml);
    let refused = form(Some("text/plain")).expect_err("unknown");
    assert_eq!(refused.code, 415);
    assert_eq!(
        refused.message,
        "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf"
    );
}

#[test]
fn hostile_nesting_and_aliases_are_refused() {
    let laughs = "a: &a [x, x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]\n\
                  c: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b]\nd: &d [*c, *c, *c, *c, *c, *c, *c, *c, *c]\n\
                  e: &e [*d, *d, *d, *d, *d, *d, *d, *d, *d]\nf: &f [*e, *e, *e, *e, *e, *e, *e, *e, *e]\n\
                  g: &g [*f, *f, *f, *f, *f, *f, *f, *f, *f]\nh: [*g, *g, *g, *g, *g, *g, *g, *g, *g]\n";
    let nested = |depth: usize| format!("spec: {}{}", "[".repeat(depth), "]".repeat(depth));
    let block =
        |depth: usize| (0..depth).map(|indent| format!("{}a:\n", " ".repeat(indent))).collect::<String>();
    // The stack size of a worker of the runtime.
    let worker = std::thread::Builder::new().stack_size(2 << 20);
    let bodies = [laughs.to_owned(), nested(100_000), nested(1_900), nested(900), block(1_900), block(900)];
    let decisions = worker.spawn(move || {
        bodies.map(|body| {
            let form = BodyForm::Yaml;
            let read: Result<Decoded<TokenCredentialRequest>, _> = decode(
                Kind::TokenCredentialRequest,
                &GroupSuffix::default(),
                form,
                body.as_bytes(),
                FieldValidation::Warn,
            );
            read.map(|decoded| decoded.warnings.len()).map_err(|status| status.code)
        })
    });
    let decisions = decisions.expect("a thread").join().expect("no overflow");
    assert_eq!(decisions, [Err(400); 6]);
}

#[test]
fn the_cost_of_long_names_is_proportional_to_their_length() {
    let items = "0,".repeat(100_000) + "0";
    let members: String = (0..20_000).map(|at| format!("\"{at}\":0,")).collect();
    let bodies = |name: &str| {
        [
            format!("{{\"{name}\":[{items}]}}"),
            format!("{{\"{name}\":{{{members}\"a\":0}}}}"),
            format!("{{\"{name}\":{{{}\"a\":0}}}}", "\"a\":0,".repeat(50_000)),
            format!("{{{members}\"{name}\":0,\"{name}\":0}}"),
        ]
    };
    let counted = |body: &str| {
        FORMATTED_BYTES.set(0);
        let decoded = read("pinniped.dev", body, FieldValidation::Warn).expect("an object");
        (decoded, FORMATTED_BYTES.get())
    };
    for (short, long) in bodies("n").iter().zip(bodies(&"n".repeat(256 << 10))) {
        let (_, usual) = counted(short);
        let (decoded, formatted) = counted(&long);
        // With a path formatted for each value it would be gigabytes.
        assert!(formatted <= usual, "{formatted} bytes of names instead of {usual}");
        assert!(usual <= short.len(), "{usual} bytes of names for {} bytes", short.len());
        assert!(!decoded.warnings.is_empty() && decoded.warnings.len() <= MAX_WARNINGS);
        assert!(decoded.warnings.iter().all(|warning| warning.len() < LONGEST_PATH + 30));
        let error = read("pinniped.dev", &long, FieldValidation::Strict).expect_err("strict");
        assert!(error.len() < 50_000, "{}", error.len());
    }
}
