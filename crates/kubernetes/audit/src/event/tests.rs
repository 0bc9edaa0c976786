use http::{Method, Uri};
use pinniped_kube_request::request_info::RequestInfo;
use serde_json::{Value, json};

use super::*;

fn attributes(method: &Method, uri: &str) -> Attributes {
    RequestInfo::parse(method, &uri.parse::<Uri>().unwrap()).unwrap().into()
}

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn line(event: &Event<'_>) -> String {
    let mut out = Vec::new();
    event.write_line(&mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn an_event_has_the_members_of_the_api_server_in_its_order() {
    let attributes = attributes(&Method::GET, "/apis/apps/v1/namespaces/ns/deployments/d/scale");
    let request = RequestText::new(&Request {
        uri: "/apis/apps/v1/namespaces/ns/deployments/d/scale?a=\"b\"",
        attributes: &attributes,
        source_ips: &["192.0.2.1".parse().unwrap(), "2001:db8::7".parse().unwrap()],
        user_agent: "kubectl/v1.36.0",
        received: time("2026-01-02T03:04:05.678901234Z"),
    });
    let user = KnownUser::from(User {
        name: "pinny".to_owned(),
        uid: "u1".to_owned(),
        groups: vec!["a".to_owned(), "system:authenticated".to_owned()],
        extra: [("authentication.kubernetes.io/credential-id".to_owned(), vec!["X509SHA256=ab".to_owned()])]
            .into(),
    });
    let other = KnownUser::from(User { name: "other".to_owned(), ..User::default() });
    let event = Event {
        level: Level::Metadata,
        audit_id: "id-1",
        stage: Stage::ResponseComplete,
        request: &request,
        user: Some(&user),
        impersonated_user: Some(&other),
        response: Some(ResponseStatus::failure(403, "Forbidden", "no")),
        request_object: None,
        response_object: None,
        time: time("2026-11-27T00:00:00Z"),
        annotations: &[("authorization.k8s.io/decision", "forbid"), ("authorization.k8s.io/reason", "a\nb")],
    };
    assert_eq!(
        line(&event),
        concat!(
            r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"id-1","#,
            r#""stage":"ResponseComplete","requestURI":"/apis/apps/v1/namespaces/ns/deployments/d/scale?a=\"b\"","#,
            r#""verb":"get","user":{"username":"pinny","uid":"u1","groups":["a","system:authenticated"],"#,
            r#""extra":{"authentication.kubernetes.io/credential-id":["X509SHA256=ab"]}},"#,
            r#""impersonatedUser":{"username":"other"},"sourceIPs":["192.0.2.1","2001:db8::7"],"#,
            r#""userAgent":"kubectl/v1.36.0","objectRef":{"resource":"deployments","namespace":"ns","name":"d","#,
            r#""apiGroup":"apps","apiVersion":"v1","subresource":"scale"},"#,
            r#""responseStatus":{"metadata":{},"status":"Failure","message":"no","reason":"Forbidden","code":403},"#,
            r#""requestReceivedTimestamp":"2026-01-02T03:04:05.678901Z","stageTimestamp":"2026-11-27T00:00:00.000000Z","#,
            r#""annotations":{"authorization.k8s.io/decision":"forbid","authorization.k8s.io/reason":"a\nb"}}"#,
            "\n"
        )
    );
}

#[test]
fn absent_values_have_no_members() {
    let attributes = Attributes::NonResource { verb: "get".to_owned(), path: "/".to_owned() };
    let received = time("2026-01-02T03:04:05Z");
    let request = RequestText::new(&Request {
        uri: "/",
        attributes: &attributes,
        source_ips: &[],
        user_agent: "",
        received,
    });
    let event = Event {
        level: Level::Metadata,
        audit_id: "i",
        stage: Stage::RequestReceived,
        request: &request,
        user: None,
        impersonated_user: None,
        response: None,
        request_object: None,
        response_object: None,
        time: received,
        annotations: &[],
    };
    let event: Value = serde_json::from_str(&line(&event)).unwrap();
    assert_eq!(
        event,
        json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata", "auditID": "i",
            "stage": "RequestReceived", "requestURI": "/", "verb": "get", "user": {},
            "requestReceivedTimestamp": "2026-01-02T03:04:05.000000Z",
            "stageTimestamp": "2026-01-02T03:04:05.000000Z",
        })
    );
}

#[test]
fn long_texts_are_truncated_and_an_event_is_one_line_of_bounded_length() {
    let long = "\u{1}\n".repeat(1 << 20);
    let many = vec![long.clone(); 10];
    let user = KnownUser::from(User {
        name: long.clone(),
        uid: long.clone(),
        groups: vec!["g".to_owned(); 100_000],
        extra: [(long.clone(), many)].into(),
    });
    let attributes = Attributes::NonResource { verb: long.clone(), path: long.clone() };
    let received = time("2026-01-02T03:04:05Z");
    let request = RequestText::new(&Request {
        uri: &long,
        attributes: &attributes,
        source_ips: &[],
        user_agent: &"a".repeat(2000),
        received,
    });
    let event = Event {
        level: Level::Metadata,
        audit_id: &long,
        stage: Stage::Panic,
        request: &request,
        user: Some(&user),
        impersonated_user: Some(&user),
        response: Some(ResponseStatus::failure(500, "", &long)),
        request_object: None,
        response_object: None,
        time: received,
        annotations: &[("a", &long)],
    };
    let line = line(&event);
    assert_eq!(line.matches('\n').count(), 1);
    // A control character takes six bytes in JSON.
    assert!(line.len() < 6 * (9 * MAX_TEXT_BYTES + 4 * MAX_LIST_BYTES), "{}", line.len());
    let event: Value = serde_json::from_str(&line).unwrap();
    for text in
        [&event["requestURI"], &event["auditID"], &event["user"]["username"], &event["annotations"]["a"]]
    {
        assert!(text.as_str().unwrap().ends_with(" bytes]"));
    }
    assert_eq!(event["userAgent"].as_str().unwrap(), format!("{}...TRUNCATED", "a".repeat(1024)));
}

#[test]
fn objects_follow_the_status() {
    let attributes = Attributes::NonResource { verb: "get".to_owned(), path: "/".to_owned() };
    let received = time("2026-01-02T03:04:05Z");
    let request = RequestText::new(&Request {
        uri: "/",
        attributes: &attributes,
        source_ips: &[],
        user_agent: "",
        received,
    });
    let event = Event {
        level: Level::RequestResponse,
        audit_id: "i",
        stage: Stage::ResponseComplete,
        request: &request,
        user: None,
        impersonated_user: None,
        response: Some(ResponseStatus::of_code(201)),
        request_object: Some(b"{\"a\":1}"),
        response_object: Some(b"[]"),
        time: received,
        annotations: &[],
    };
    let part = "\"responseStatus\":{\"metadata\":{},\"code\":201},\"requestObject\":{\"a\":1},\
                \"responseObject\":[],\"requestReceivedTimestamp\":";
    assert!(line(&event).contains(part), "{}", line(&event));
}

#[test]
fn texts_have_the_same_escapes_as_in_serde_json() {
    let characters = (0..=0x100).filter_map(char::from_u32).map(String::from);
    let texts = |one: String| {
        let lengths = (0..20).map(move |length| (".".repeat(length), one.clone(), ".".repeat(19 - length)));
        lengths
            .flat_map(|(a, one, b)| [format!("{a}{one}{b}"), format!("{a}{one}"), format!("{one}{one}{b}")])
    };
    for text in characters.flat_map(texts) {
        let mut out = Vec::new();
        quoted(&mut out, &text);
        assert_eq!(String::from_utf8(out).unwrap(), serde_json::to_string(&text).unwrap());
    }
}

#[test]
fn times_have_microseconds_of_their_own_second() {
    // Each is written on the same thread, which keeps the text of the last second.
    for (of, wanted) in [
        ("2026-01-02T03:04:05.678901999Z", "2026-01-02T03:04:05.678901Z"),
        ("2026-01-02T03:04:05.000001Z", "2026-01-02T03:04:05.000001Z"),
        ("2026-01-02T03:04:06Z", "2026-01-02T03:04:06.000000Z"),
        ("2026-01-02T03:04:05.999999Z", "2026-01-02T03:04:05.999999Z"),
        ("1969-12-31T23:59:59.25Z", "1969-12-31T23:59:59.250000Z"),
        ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000000Z"),
    ] {
        let mut json = Vec::new();
        timestamp(&mut json, time(of));
        assert_eq!(String::from_utf8(json).unwrap(), format!("\"{wanted}\""));
    }
}

#[test]
fn only_the_text_of_a_small_user_is_kept() {
    let named = |length: usize| KnownUser::from(User { name: "a".repeat(length), ..User::default() });
    for (length, is_kept) in [(0, true), (1024, true), (1025, false)] {
        let user = named(length);
        let (mut first, mut second) = (Vec::new(), Vec::new());
        write_user(&mut first, &user);
        write_user(&mut second, &user);
        assert_eq!(first, second);
        let info: Value = serde_json::from_slice(&first).unwrap();
        assert_eq!(info["username"].as_str().unwrap_or_default().len(), length);
        let kept = user.user_info(|_| unreachable!("it was computed"));
        assert_eq!(kept, is_kept.then_some(&*first));
    }
}
