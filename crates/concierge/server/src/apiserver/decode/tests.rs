use std::cell::Cell;

use pinniped_concierge_api::login::CredentialType;

use super::reader::{MAX_NODES, MAX_TEXT_BYTES, MAX_TOKEN_BYTES};
use super::warnings::{LONGEST_PATH, MAX_WARNINGS};
use super::*;

thread_local! {
    /// The bytes of all names in the paths that this thread formatted.
    pub(super) static FORMATTED_BYTES: Cell<usize> = const { Cell::new(0) };
}

fn status(form: BodyForm, body: &str, validation: FieldValidation) -> Result<Decoded, Box<Status>> {
    decode(Kind::TokenCredentialRequest, &GroupSuffix::default(), form, body.as_bytes(), validation)
}

fn read(suffix: &str, body: &str, validation: FieldValidation) -> Result<Decoded, String> {
    let suffix = GroupSuffix::parse(suffix).expect("a suffix");
    let decoded = decode(Kind::TokenCredentialRequest, &suffix, BodyForm::Json, body.as_bytes(), validation);
    decoded.map_err(|status| {
        assert_eq!(status.code, 400);
        status.message
    })
}

fn token(decoded: &Decoded) -> Option<&str> {
    decoded.spec.token.as_ref().map(|token| token.expose())
}

#[test]
fn kind_and_version_default_to_those_of_the_url() {
    let decoded = read("tuna.io", "{}", FieldValidation::Strict).expect("an object");
    assert_eq!((decoded.name.as_str(), token(&decoded)), ("", None));
    let body = r#"{"kind":"TokenCredentialRequest","apiVersion":"login.concierge.pinniped.dev/v1alpha1",
        "metadata":{"name":"foo","creationTimestamp":null,"labels":{"a":"b"}},
        "spec":{"token":"t","authenticator":{"apiGroup":"g","kind":"k","name":"n"}},"status":{}}"#;
    let decoded = read("pinniped.dev", body, FieldValidation::Strict).expect("an object");
    assert_eq!(decoded.name, "foo");
    let authenticator = &decoded.spec.authenticator;
    assert_eq!(
        (authenticator.api_group.as_deref(), &*authenticator.kind, &*authenticator.name),
        (Some("g"), "k", "n")
    );
    assert!(decoded.warnings.is_empty());
}

/// A request as kubectl sends one for a file that it applied, with fields of all types.
const OF_KUBECTL: &str = r#"{
    "apiVersion": "login.concierge.pinniped.dev/v1alpha1", "kind": "TokenCredentialRequest",
    "metadata": {
        "name": "foo", "generateName": "foo-", "namespace": "ns", "generation": 1, "uid": "u",
        "creationTimestamp": "2026-01-02T03:04:05Z", "labels": {"a": "b"}, "finalizers": ["f"],
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{\"spec\":{}}\n"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true}],
        "managedFields": [{
            "manager": "kubectl-create", "operation": "Update", "time": "2026-01-02T03:04:05Z",
            "apiVersion": "login.concierge.pinniped.dev/v1alpha1", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:token": {}, "f:authenticator": {".": {}, "f:name": {}}}}
        }]
    },
    "spec": {
        "token": "t", "authenticator": {"apiGroup": "g", "kind": "k", "name": "n"},
        "acceptCredentialTypes": ["Passkey", "ServiceAccountToken"]
    },
    "status": {"credential": {"expirationTimestamp": null}, "message": "m"}
}"#;

#[test]
fn a_request_of_kubectl_is_valid_and_only_its_used_members_are_retained() {
    for form in [BodyForm::Json, BodyForm::Yaml] {
        let decoded = status(form, OF_KUBECTL, FieldValidation::Strict).expect("an object");
        assert_eq!((decoded.name.as_str(), token(&decoded)), ("foo", Some("t")));
        assert_eq!(decoded.spec.authenticator.name, "n");
        assert_eq!(
            decoded.spec.accept_credential_types,
            [CredentialType::from("Passkey"), CredentialType::ServiceAccountToken]
        );
        assert!(decoded.warnings.is_empty());
    }
}

#[test]
fn null_and_repeated_members_have_the_effect_that_they_have_in_go() {
    let spec = |text: &str| {
        read("pinniped.dev", &format!(r#"{{"spec":{text}}}"#), FieldValidation::Ignore).expect(text).spec
    };
    assert_eq!(spec("null"), TokenCredentialRequestSpec::default());
    let merged = spec(
        r#"{"token":"a","token":null,"authenticator":{"apiGroup":"g","kind":"k"},
            "authenticator":{"apiGroup":null,"kind":null,"name":"n"},
            "acceptCredentialTypes":["ClientCertificate"],"acceptCredentialTypes":null}"#,
    );
    assert_eq!(merged.token.as_ref().map(|token| token.expose()), Some("a"));
    let authenticator = &merged.authenticator;
    assert_eq!((&authenticator.api_group, &*authenticator.kind, &*authenticator.name), (&None, "k", "n"));
    assert!(merged.accept_credential_types.is_empty());
    let types = |list: &str| spec(&format!(r#"{{"acceptCredentialTypes":{list}}}"#)).accept_credential_types;
    let certificate = CredentialType::ClientCertificate;
    assert_eq!(types("[null]"), [CredentialType::from("")]);
    assert_eq!(types(r#"["a","ClientCertificate","b","ClientCertificate"]"#), ["a".into(), certificate]);
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
                "TokenCredentialRequest in version \"v1alpha1\" {handled}json: cannot unmarshal number into Go struct field TokenCredentialRequestSpec.spec.token of type string"
            ),
        ),
        (
            "pinniped.dev",
            r#"{"metadata":{"ownerReferences":[{"name":"a"},{"name":[{}]}]},"spec":7}"#,
            format!(
                "TokenCredentialRequest in version \"v1alpha1\" {handled}json: cannot unmarshal array into Go struct field OwnerReference.metadata.ownerReferences.name of type string"
            ),
        ),
        (
            "pinniped.dev",
            r#"{"metadata":{"labels":{"a":true},"managedFields":{}}}"#,
            format!(
                "TokenCredentialRequest in version \"v1alpha1\" {handled}json: cannot unmarshal bool into Go struct field ObjectMeta.metadata.labels of type string"
            ),
        ),
        (
            "pinniped.dev",
            r#"{"metadata":{"managedFields":{}}}"#,
            format!(
                "TokenCredentialRequest in version \"v1alpha1\" {handled}json: cannot unmarshal object into Go struct field ObjectMeta.metadata.managedFields of type []v1.ManagedFieldsEntry"
            ),
        ),
        (
            "pinniped.dev",
            r#"{"kind":{}}"#,
            format!(
                "{unrecognized}json: cannot unmarshal object into Go struct field .kind of type string ({{\"kind\":{{}}}})"
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
        "TokenCredentialRequest in version \"v1alpha1\" cannot be handled as a TokenCredentialRequest: strict decoding error: unknown field \"spec.foo\", duplicate field \"spec.token\""
    );
    let warned = read("pinniped.dev", body, FieldValidation::Warn).expect("an object");
    assert_eq!(warned.warnings, ["unknown field \"spec.foo\"", "duplicate field \"spec.token\""]);
    assert_eq!(token(&warned), Some("b"));
    assert!(read("pinniped.dev", body, FieldValidation::Ignore).expect("an object").warnings.is_empty());
    let body = r#"{"foo":{"a":1,"a":2,"b":[{"c":1}]},"foo":1,
        "metadata":{"labels":{"a":"","a":""},"managedFields":[{},{"x":1,"fieldsV1":{"f:a":1,"f:a":2}}]}}"#;
    let warned = read("pinniped.dev", body, FieldValidation::Warn).expect("an object");
    // As in Go, the content of unknown fields and of sets of fields is not checked.
    assert_eq!(
        warned.warnings,
        [
            "unknown field \"foo\"",
            "duplicate field \"metadata.labels.a\"",
            "unknown field \"metadata.managedFields[1].x\""
        ]
    );
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
    let body = "spec:\n  token: \"123\"\n  authenticator: {kind: k, name: my-webhook}\n";
    let decoded = status(BodyForm::Yaml, body, FieldValidation::Strict).expect("an object");
    assert_eq!(token(&decoded), Some("123"));
    let body = "a: &a {kind: k, name: my-webhook}\nspec: {token: t, authenticator: *a}\n";
    let decoded = status(BodyForm::Yaml, body, FieldValidation::Warn).expect("an object");
    assert_eq!(decoded.spec.authenticator.name, "my-webhook");

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
            let read = status(BodyForm::Yaml, &body, FieldValidation::Warn);
            read.map(|decoded| decoded.warnings.len()).map_err(|status| status.code)
        })
    });
    let decisions = decisions.expect("a thread").join().expect("no overflow");
    let [laughs, nested @ ..] = decisions;
    assert!(matches!(laughs, Err(400 | 413)), "{laughs:?}");
    assert_eq!(nested, [Err(400); 5]);
}

/// Lists, maps and objects of many small values, 3 MiB at most.
fn many_values() -> [(BodyForm, String); 9] {
    let items = |item: &str, separator: &str| {
        let count = (2 << 20) / (item.len() + separator.len());
        vec![item; count].join(separator)
    };
    let names = |value: &str| {
        let members: Vec<_> = (0..200_000).map(|at| format!("\"{at}\":{value}")).collect();
        members.join(",")
    };
    let json = [
        format!(r#"{{"metadata":{{"managedFields":[{}]}}}}"#, items("{}", ",")),
        format!(r#"{{"metadata":{{"ownerReferences":[{}]}}}}"#, items("{}", ",")),
        format!(r#"{{"metadata":{{"finalizers":[{}]}}}}"#, items(r#""""#, ",")),
        format!(r#"{{"metadata":{{"annotations":{{{}}}}}}}"#, names(r#""""#)),
        format!(r#"{{"metadata":{{"managedFields":[{{"fieldsV1":{{{}}}}}]}}}}"#, names("{}")),
        format!(r#"{{"spec":{{"acceptCredentialTypes":[{}]}}}}"#, items(r#""a""#, ",")),
        format!(r#"{{"unknown":[{}]}}"#, items("0", ",")),
        format!(r#"{{{}}}"#, names("0")),
    ];
    let yaml = format!("metadata:\n  managedFields:\n{}", items("  - {}", "\n"));
    let mut bodies = json.map(|body| (BodyForm::Json, body)).to_vec();
    bodies.push((BodyForm::Yaml, yaml));
    bodies.try_into().expect("nine bodies")
}

#[test]
fn the_number_of_names_and_values_is_limited() {
    for (form, body) in many_values() {
        for validation in [FieldValidation::Ignore, FieldValidation::Strict] {
            let refused = status(form, &body, validation).expect_err(&body[..40]);
            assert_eq!(
                (refused.code, &*refused.reason, &*refused.message),
                (413, "RequestEntityTooLarge", "Request entity too large: limit is 10000 names and values"),
                "{}",
                &body[..40]
            );
        }
    }
    // The root, four names with their values, and the items of the list.
    let within = |items: usize| {
        format!(
            r#"{{"spec":{{"token":"t"}},"metadata":{{"finalizers":[{}]}}}}"#,
            vec![r#""""#; items].join(",")
        )
    };
    let around = 1 + 4 * 2;
    let decoded = status(BodyForm::Json, &within(MAX_NODES - around), FieldValidation::Strict);
    assert_eq!(token(&decoded.expect("an object")), Some("t"));
    let refused = status(BodyForm::Json, &within(MAX_NODES - around + 1), FieldValidation::Strict);
    assert_eq!(refused.expect_err("one too many").code, 413);
}

#[test]
fn retained_texts_are_limited_and_others_are_not() {
    let long = "a".repeat(100 << 10);
    let cases = [
        (r#"{"spec":{"token":"TEXT"}}"#, MAX_TOKEN_BYTES, "65536 bytes for spec.token"),
        (r#"{"metadata":{"name":"TEXT"}}"#, MAX_TEXT_BYTES, "1024 bytes for metadata.name"),
        (r#"{"kind":"TEXT"}"#, 0, "1024 bytes for kind"),
        (r#"{"apiVersion":"TEXT"}"#, 0, "1024 bytes for apiVersion"),
        (
            r#"{"spec":{"authenticator":{"name":"TEXT"}}}"#,
            MAX_TEXT_BYTES,
            "1024 bytes for spec.authenticator.name",
        ),
        (
            r#"{"spec":{"acceptCredentialTypes":["TEXT"]}}"#,
            MAX_TEXT_BYTES,
            "1024 bytes for spec.acceptCredentialTypes",
        ),
    ];
    for form in [BodyForm::Json, BodyForm::Yaml] {
        for (body, most, limit) in cases {
            let fits = status(form, &body.replace("TEXT", &long[..most]), FieldValidation::Strict);
            fits.expect(body);
            let refused =
                status(form, &body.replace("TEXT", &long), FieldValidation::Strict).expect_err(body);
            assert_eq!(
                (refused.code, refused.message),
                (413, format!("Request entity too large: limit is {limit}"))
            );
        }
        let annotation = format!(r#"{{"metadata":{{"annotations":{{"a":"{long}"}}}}}}"#);
        status(form, &annotation, FieldValidation::Strict).expect("an object");
    }
}

#[test]
fn errors_of_nesting_and_aliases_name_the_limit() {
    let nested = |depth: usize| format!(r#"{{"a":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
    for form in [BodyForm::Json, BodyForm::Yaml] {
        assert!(status(form, &nested(MAX_DEPTH - 1), FieldValidation::Warn).is_ok(), "{form:?}");
        for depth in [MAX_DEPTH, 100] {
            let refused = status(form, &nested(depth), FieldValidation::Warn).expect_err("too deep");
            assert_eq!(refused.code, 400);
            assert!(refused.message.contains("exceeded max depth of 64"), "{}", refused.message);
        }
    }
    let aliases = format!("a: &a x\nb: [{}]\n", vec!["*a"; 101].join(", "));
    let refused = status(BodyForm::Yaml, &aliases, FieldValidation::Warn).expect_err("too many");
    assert_eq!(refused.code, 400);
    assert!(refused.message.contains("document contains excessive aliasing"), "{}", refused.message);
}

#[test]
fn the_cost_of_long_names_is_proportional_to_their_length() {
    let items = "0,".repeat(5_000) + "0";
    let members: String = (0..4_000).map(|at| format!("\"{at}\":0,")).collect();
    let bodies = |name: &str| {
        [
            format!("{{\"{name}\":[{items}]}}"),
            format!("{{\"{name}\":{{{members}\"a\":0}}}}"),
            format!("{{\"{name}\":{{{}\"a\":0}}}}", "\"a\":0,".repeat(4_000)),
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
