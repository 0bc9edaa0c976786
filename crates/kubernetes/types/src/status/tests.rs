//! Compares the bodies of upstream's tests and of the Go API server byte for byte.

use super::*;

fn media_types() -> [&'static str; 3] {
    ["application/json", "application/yaml", crate::protobuf::MEDIA_TYPE]
}

#[test]
fn bodies_have_the_bytes_of_upstream() {
    let forbidden = StatusDetails {
        name: "foo".into(),
        group: "apps".into(),
        kind: "deployments".into(),
        ..Default::default()
    };
    for (status, code, body) in [
        (
            Status::unauthorized(),
            401,
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}"#,
        ),
        (
            Status::forbidden("User \"a&lt;b\"", forbidden),
            403,
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"User \"a\u0026lt;b\"","reason":"Forbidden","details":{"name":"foo","group":"apps","kind":"deployments"},"code":403}"#,
        ),
        (
            Status::object_forbidden("g", "rs", "n", "why"),
            403,
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"rs.g \"n\" is forbidden: why","reason":"Forbidden","details":{"name":"n","group":"g","kind":"rs"},"code":403}"#,
        ),
        (
            Status::object_forbidden("g", "rs", "", "why"),
            403,
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"rs.g is forbidden: why","reason":"Forbidden","details":{"group":"g","kind":"rs"},"code":403}"#,
        ),
        (
            Status::forbidden("m", StatusDetails::default()),
            403,
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"m","reason":"Forbidden","details":{},"code":403}"#,
        ),
        (
            Status::bad_request("b"),
            400,
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"b","reason":"BadRequest","code":400}"#,
        ),
        (
            Status::internal_error("unable to act as user"),
            500,
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Internal error occurred: unable to act as user","reason":"InternalError","details":{"causes":[{"message":"unable to act as user"}]},"code":500}"#,
        ),
        (
            Status::not_found(),
            404,
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the server could not find the requested resource","reason":"NotFound","details":{},"code":404}"#,
        ),
        (
            Status::timeout(),
            504,
            r#"{"metadata":{},"status":"Failure","message":"Timeout: request did not complete within the allotted timeout","reason":"Timeout","details":{},"code":504}"#,
        ),
        (
            Status::too_many_requests("slow down", 1),
            429,
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"slow down","reason":"TooManyRequests","details":{"retryAfterSeconds":1},"code":429}"#,
        ),
        (
            Status::invalid(
                "login.concierge.pinniped.dev",
                "",
                "foo",
                vec![StatusCause::required("spec.token.value", "token must be supplied")],
            ),
            422,
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":".login.concierge.pinniped.dev \"foo\" is invalid: spec.token.value: Required value: token must be supplied","reason":"Invalid","details":{"name":"foo","group":"login.concierge.pinniped.dev","causes":[{"reason":"FieldValueRequired","message":"Required value: token must be supplied","field":"spec.token.value"}]},"code":422}"#,
        ),
    ] {
        assert_eq!(status.code(), code);
        assert_eq!(status.to_json(), body);
        let back: Status = serde_json::from_str(body).unwrap();
        assert_eq!(back, status);
    }
}

#[test]
fn messages_have_the_wording_of_upstream() {
    for (status, code, reason, message) in [
        (
            Status::method_not_supported("login.concierge.tuna.io", "tokencredentialrequests", "watch"),
            405,
            "MethodNotAllowed",
            "watch is not supported on resources of kind \"tokencredentialrequests.login.concierge.tuna.io\"",
        ),
        (
            Status::method_not_allowed(),
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        ),
        (
            Status::not_acceptable(&media_types()),
            406,
            "NotAcceptable",
            "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf",
        ),
        (
            Status::no_acceptable_representation(&media_types()),
            406,
            "NotAcceptable",
            "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, application/vnd.kubernetes.protobuf",
        ),
        (
            Status::unsupported_media_type(&media_types()),
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf",
        ),
        (
            Status::invalid(
                "meta.k8s.io",
                "CreateOptions",
                "",
                vec![StatusCause::not_supported("dryRun", "[\"foo\"]", &["All"])],
            ),
            422,
            "Invalid",
            "CreateOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: [\"foo\"]: supported values: \"All\"",
        ),
        (
            Status::invalid(
                "login.concierge.pinniped.dev",
                "",
                "foo",
                vec![StatusCause::not_supported("dryRun", "[\"All\"]", &[])],
            ),
            422,
            "Invalid",
            ".login.concierge.pinniped.dev \"foo\" is invalid: dryRun: Unsupported value: [\"All\"]",
        ),
        (
            Status::invalid(
                "g",
                "K",
                "n",
                vec![StatusCause::required("a", ""), StatusCause::required("b", "why")],
            ),
            422,
            "Invalid",
            "K.g \"n\" is invalid: [a: Required value, b: Required value: why]",
        ),
        (Status::object_not_found("", "pods", "p"), 404, "NotFound", "pods \"p\" not found"),
        (
            Status::object_not_found("apps", "deployments", "d"),
            404,
            "NotFound",
            "deployments.apps \"d\" not found",
        ),
        (
            Status::conflict("", "secrets", "s", "it changed"),
            409,
            "Conflict",
            "Operation cannot be fulfilled on secrets \"s\": it changed",
        ),
        (Status::service_unavailable("draining"), 503, "ServiceUnavailable", "draining"),
        (
            Status::object_forbidden("g", "rs", "a\"b\n", "why"),
            403,
            "Forbidden",
            r#"rs.g "a\"b\n" is forbidden: why"#,
        ),
        (Status::object_not_found("g", "rs", "a\"b\n"), 404, "NotFound", r#"rs.g "a\"b\n" not found"#),
        (
            Status::conflict("g", "rs", "a\"b\n", "why"),
            409,
            "Conflict",
            r#"Operation cannot be fulfilled on rs.g "a\"b\n": why"#,
        ),
        (
            Status::invalid("g", "K", "a\"b\n", vec![StatusCause::required("a", "")]),
            422,
            "Invalid",
            r#"K.g "a\"b\n" is invalid: a: Required value"#,
        ),
        (
            Status::request_entity_too_large(3),
            413,
            "RequestEntityTooLarge",
            "Request entity too large: limit is 3",
        ),
    ] {
        assert_eq!((status.code(), status.reason.as_str(), status.message.as_str()), (code, reason, message));
    }
}

#[test]
fn the_pretty_form_is_indented_by_two_spaces() {
    assert_eq!(
        Status::not_found().to_json_pretty(),
        "{\n  \"kind\": \"Status\",\n  \"apiVersion\": \"v1\",\n  \"metadata\": {},\n  \"status\": \"Failure\",\n  \
         \"message\": \"the server could not find the requested resource\",\n  \"reason\": \"NotFound\",\n  \
         \"details\": {},\n  \"code\": 404\n}"
    );
}

#[test]
fn a_code_outside_http_becomes_500() {
    for code in [0, -1, 99, 600, i32::MAX] {
        assert_eq!(Status { code, ..Status::unauthorized() }.code(), 500);
    }
}

#[test]
fn protobuf_has_the_bytes_of_the_go_encoder() {
    let list_meta = b"\x0a\x06\x0a\x00\x12\x00\x1a\x00";
    let mut message = list_meta.to_vec();
    message.extend(b"\x12\x07Failure\x1a\x0cUnauthorized\x22\x0cUnauthorized\x30\x91\x03");
    let mut want = b"k8s\0\x0a\x0c\x0a\x02v1\x12\x06Status\x12".to_vec();
    want.push(u8::try_from(message.len()).unwrap());
    want.extend(&message);
    want.extend(b"\x1a\x00\x22\x00");
    assert_eq!(Status::unauthorized().to_protobuf(), want);
}

#[test]
fn protobuf_details_carry_every_member() {
    let details = StatusDetails {
        name: "n".into(),
        group: "g".into(),
        kind: "k".into(),
        uid: "u".into(),
        causes: vec![StatusCause { reason: "r".into(), message: "m".into(), field: "f".into() }],
        retry_after_seconds: -1,
    };
    let body = Status::forbidden("x".repeat(200), details).to_protobuf();
    let tail = b"\x0a\x01n\x12\x01g\x1a\x01k\x22\x09\x0a\x01r\x12\x01m\x1a\x01f\x28\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x32\x01u\x30\x93\x03\x1a\x00\x22\x00";
    assert!(body.ends_with(tail), "{body:x?}");
    // A length above 127 takes two bytes.
    assert!(body.windows(3).any(|w| w == b"\x1a\xc8\x01"));
}
