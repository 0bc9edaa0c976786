use http::{Method, Uri};
use pinniped_kube_request::attributes::ResourceAttributes;
use pinniped_kube_request::request_info::RequestInfo;
use serde_json::{Value, json};

use super::*;

fn attributes(method: &Method, uri: &str) -> Attributes {
    RequestInfo::parse(method, &uri.parse::<Uri>().unwrap()).unwrap().into()
}

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn line(event: &Event) -> String {
    let mut out = Vec::new();
    event.write(Format::Line, &mut out);
    assert!(out.len() <= event.max_len(), "{} > {}", out.len(), event.max_len());
    String::from_utf8(out).unwrap()
}

/// Returns an event of a request for `/` with this identifier, without a user and a result.
pub(crate) fn event(audit_id: &str) -> Event {
    let attributes = Attributes::NonResource { verb: "get".to_owned(), path: "/".to_owned() };
    let received = time("2026-01-02T03:04:05Z");
    event_of(Request {
        audit_id,
        uri: "/",
        attributes: &attributes,
        source_ips: Vec::new(),
        user_agent: "",
        received,
    })
}

fn event_of(request: Request<'_>) -> Event {
    Event {
        level: Level::Metadata,
        stage: Stage::ResponseComplete,
        time: request.received,
        request: Arc::new(RequestText::new(request)),
        user: None,
        impersonated_user: None,
        response: None,
        request_object: None,
        response_object: None,
        annotations: Vec::new(),
    }
}

#[test]
fn an_event_has_the_members_of_the_api_server_in_its_order() {
    let uri = "/apis/apps/v1/namespaces/ns/deployments/d/scale";
    let attributes = attributes(&Method::GET, uri);
    let request = Request {
        audit_id: "id-1",
        uri: &format!("{uri}?a=\"b\""),
        attributes: &attributes,
        source_ips: vec!["192.0.2.1".parse().unwrap(), "2001:db8::7".parse().unwrap()],
        user_agent: "kubectl/v1.36.0",
        received: time("2026-01-02T03:04:05.678901234Z"),
    };
    let user = KnownUser::from(User {
        name: "pinny".to_owned(),
        uid: "u1".to_owned(),
        groups: vec!["a".to_owned(), "system:authenticated".to_owned()],
        extra: [("authentication.kubernetes.io/credential-id".to_owned(), vec!["X509SHA256=ab".to_owned()])]
            .into(),
    });
    let other = KnownUser::from(User { name: "other".to_owned(), ..User::default() });
    let event = Event {
        user: Some(UserInfo::of(&user)),
        impersonated_user: Some(UserInfo::of(&other)),
        response: Some(ResponseStatus::failure(403, "Forbidden", "no")),
        time: time("2026-11-27T00:00:00Z"),
        annotations: vec![
            ("authorization.k8s.io/decision", "forbid".into()),
            ("authorization.k8s.io/reason", "a\nb".into()),
        ],
        ..event_of(request)
    };
    let members = concat!(
        r#""level":"Metadata","auditID":"id-1","stage":"ResponseComplete","#,
        r#""requestURI":"/apis/apps/v1/namespaces/ns/deployments/d/scale?a=\"b\"","verb":"get","#,
        r#""user":{"username":"pinny","uid":"u1","groups":["a","system:authenticated"],"#,
        r#""extra":{"authentication.kubernetes.io/credential-id":["X509SHA256=ab"]}},"#,
        r#""impersonatedUser":{"username":"other"},"sourceIPs":["192.0.2.1","2001:db8::7"],"#,
        r#""userAgent":"kubectl/v1.36.0","objectRef":{"resource":"deployments","namespace":"ns","name":"d","#,
        r#""apiGroup":"apps","apiVersion":"v1","subresource":"scale"},"#,
        r#""responseStatus":{"metadata":{},"status":"Failure","message":"no","reason":"Forbidden","code":403},"#,
        r#""requestReceivedTimestamp":"2026-01-02T03:04:05.678901Z","stageTimestamp":"2026-11-27T00:00:00.000000Z","#,
        r#""annotations":{"authorization.k8s.io/decision":"forbid","authorization.k8s.io/reason":"a\nb"}}"#,
    );
    let type_meta = r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","#;
    assert_eq!(line(&event), format!("{type_meta}{members}\n"));
    let mut item = Vec::new();
    event.write(Format::Item, &mut item);
    assert_eq!(String::from_utf8(item).unwrap(), format!("{{{members},"));
}

#[test]
fn absent_values_have_no_members() {
    let event = Event { stage: Stage::RequestReceived, ..event("i") };
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
fn a_resource_without_a_name_has_an_object_reference_without_it() {
    let attributes = attributes(&Method::GET, "/api/v1/pods");
    let Event { request, .. } = event("i");
    let text = RequestText::new(Request {
        audit_id: "i",
        uri: "/api/v1/pods",
        attributes: &attributes,
        source_ips: Vec::new(),
        user_agent: "",
        received: request.received,
    });
    let event = Event { request: Arc::new(text), ..event("i") };
    let event: Value = serde_json::from_str(&line(&event)).unwrap();
    assert_eq!(event["objectRef"], json!({"resource": "pods", "apiVersion": "v1"}));
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
    let request = Request {
        audit_id: &long,
        uri: &long,
        attributes: &attributes,
        source_ips: Vec::new(),
        user_agent: &"a".repeat(2000),
        received,
    };
    let event = Event {
        stage: Stage::Panic,
        user: Some(UserInfo::of(&user)),
        impersonated_user: Some(UserInfo::of(&user)),
        response: Some(ResponseStatus::failure(500, "", long.clone())),
        annotations: vec![("a", long.clone().into())],
        ..event_of(request)
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
fn the_length_of_an_event_is_bounded_by_its_maximum() {
    let addresses: Vec<IpAddr> = vec!["1111:2222:3333:4444:5555:6666:7777:8888".parse().unwrap(); 3];
    // Control characters need the most bytes; some texts are truncated.
    for length in [1, 10, MAX_TEXT_BYTES - 1, MAX_TEXT_BYTES, MAX_TEXT_BYTES + 1, 2 * MAX_TEXT_BYTES] {
        let text = "\u{1}".repeat(length);
        let attributes = Attributes::Resource(ResourceAttributes {
            verb: text.clone(),
            group: text.clone(),
            version: text.clone(),
            resource: text.clone(),
            subresource: text.clone(),
            name: text.clone(),
            namespace: text.clone(),
            ..ResourceAttributes::default()
        });
        let request = Request {
            audit_id: &text,
            uri: &text,
            attributes: &attributes,
            source_ips: addresses.clone(),
            user_agent: &text,
            received: time("2026-01-02T03:04:05Z"),
        };
        let user = UserInfo::of(&KnownUser::from(User { name: text.clone(), ..User::default() }));
        let event = Event {
            level: Level::RequestResponse,
            user: Some(user.clone()),
            impersonated_user: Some(user),
            response: Some(ResponseStatus::failure(u16::MAX, text.clone(), text.clone())),
            request_object: Some(Bytes::from_static(b"{}")),
            response_object: Some(Bytes::from_static(b"{}")),
            annotations: vec![("a", text.clone().into()); 3],
            ..event_of(request)
        };
        let unused = event.max_len() - line(&event).len();
        // A truncated text ends with a mark, which needs no escapes.
        let marks = if length > MAX_TEXT_BYTES { 15 * 5 * " [truncated 8192 bytes]".len() } else { 0 };
        let marks = if length > MAX_USER_AGENT_BYTES { marks + 5 * USER_AGENT_MARK.len() } else { marks };
        assert!(unused < 200 + marks, "{length}: {unused}, {marks}");
    }
}

#[test]
fn a_long_error_does_not_make_an_event_longer_than_its_limit() {
    let long = "\"".repeat(4 << 20);
    let response = Some(ResponseStatus::failure(400, "BadRequest", long.clone()));
    let event = Event { response, annotations: vec![("a", long.into())], ..event("i") };
    assert!(event.max_len() < 2 * MAX_ESCAPE_BYTES * (MAX_TEXT_BYTES + 100));
    assert!(line(&event).contains(" bytes]"));
}

#[test]
fn objects_follow_the_status() {
    let event = Event {
        level: Level::RequestResponse,
        response: Some(ResponseStatus::of_code(201)),
        request_object: Some(Bytes::from_static(b"{\"a\":1}")),
        response_object: Some(Bytes::from_static(b"[]")),
        ..event("i")
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
        let (UserInfo(first), UserInfo(second)) = (UserInfo::of(&user), UserInfo::of(&user));
        assert_eq!((&first, Arc::ptr_eq(&first, &second)), (&second, is_kept));
        let info: Value = serde_json::from_slice(&first).unwrap();
        assert_eq!(info["username"].as_str().unwrap_or_default().len(), length);
    }
}
