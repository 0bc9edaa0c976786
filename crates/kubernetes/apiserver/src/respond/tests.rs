use http_body_util::BodyExt as _;

use super::*;

const UNAUTHORIZED: &str = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}"#;

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    pairs
        .iter()
        .map(|(name, value)| {
            (
                http::HeaderName::from_static(name),
                HeaderValue::from_bytes(value.as_bytes()).expect("a header value"),
            )
        })
        .collect()
}

async fn respond(pairs: &[(&'static str, &str)], query: Option<&str>) -> (String, String) {
    let response = status(&Status::unauthorized(), &Negotiated::from_headers(&headers(pairs), query));
    assert_eq!(response.status(), 401);
    let content_type = response.headers()[CONTENT_TYPE].to_str().expect("text").to_owned();
    let bytes = response.into_body().collect().await.expect("a full body").to_bytes();
    (content_type, String::from_utf8_lossy(&bytes).into_owned())
}

#[tokio::test]
async fn the_accept_header_selects_the_encoding_of_a_status() {
    let json = format!("{UNAUTHORIZED}\n");
    for accept in [
        "application/json",
        "*/*",
        "application/*",
        "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
        "text/html, application/json",
        "application/json;stream=watch",
        "application/yaml;stream=watch, application/json",
        "application/yaml; q=x, application/json;q=0.1",
        "application/yaml;sv=1, */*",
        "\u{fc}/x, application/json",
    ] {
        assert_eq!(
            respond(&[("accept", accept)], None).await,
            ("application/json".into(), json.clone()),
            "{accept}"
        );
    }
    assert_eq!(respond(&[], None).await.1, json);

    let (content_type, yaml) = respond(&[("accept", "application/yaml")], None).await;
    assert_eq!(content_type, "application/yaml");
    assert!(yaml.starts_with("apiVersion: v1\ncode: 401\nkind: Status\n"), "{yaml}");

    let (content_type, proto) =
        respond(&[("accept", "application/vnd.kubernetes.protobuf,application/json")], None).await;
    assert_eq!(content_type, "application/vnd.kubernetes.protobuf");
    assert!(proto.starts_with("k8s\0"), "{proto:?}");
}

#[tokio::test]
async fn browsers_and_unacceptable_requests_get_indented_json_without_a_newline() {
    type Case<'a> = (&'a [(&'static str, &'a str)], Option<&'a str>);
    let cases: [Case<'_>; 11] = [
        (&[], Some("pretty=1")),
        (&[], Some("a=b&pretty=true")),
        (&[("user-agent", "curl/8.5.0")], None),
        (&[("user-agent", "Mozilla/5.0 (X11)"), ("accept", "text/html,*/*;q=0.8")], None),
        (&[("accept", "text/html")], None),
        (&[("accept", "nonsense")], None),
        (&[("accept", "application/json;sv=1")], None),
        (&[("accept", "application/json;pretty=1")], None),
        (&[], Some("p%72etty=%31&pretty=0")),
        (&[("user-agent", "curl/8.5.0")], Some("pretty=&pretty=0")),
        (&[("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")], None),
    ];
    for (pairs, query) in cases {
        let (content_type, text) = respond(pairs, query).await;
        assert_eq!(content_type, "application/json");
        assert!(text.starts_with("{\n  \"kind\": \"Status\",\n"), "{pairs:?} {query:?}: {text}");
        assert!(text.ends_with("\n}"), "{pairs:?} {query:?}: {text}");
    }
    assert_eq!(
        respond(&[("user-agent", "curl/8.5.0")], Some("pretty=false")).await.1,
        format!("{UNAUTHORIZED}\n")
    );
}

#[test]
fn too_many_requests_has_a_retry_after_header() {
    let response = status(&Status::too_many_requests("busy", 1), &Negotiated::JSON);
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()[RETRY_AFTER], "1");
}
