use http::HeaderValue;
use tokio::io::AsyncWriteExt as _;

use super::*;

fn response(code: u16, headers: &[(http::HeaderName, &'static str)], body: &'static str) -> FullResponse {
    FullResponse {
        status: StatusCode::from_u16(code).unwrap(),
        headers: headers
            .iter()
            .map(|(name, value)| (name.clone(), HeaderValue::from_static(value)))
            .collect(),
        body: Bytes::from_static(body.as_bytes()),
    }
}

#[test]
fn failures_have_the_error_texts_of_client_go() {
    let json = || (CONTENT_TYPE, "application/json");
    let text = || (CONTENT_TYPE, "text/plain");
    for (response, message, transient) in [
        (response(401, &[], ""), "the server has asked for the client to provide credentials", false),
        (response(404, &[], ""), "the server could not find the requested resource", false),
        (
            response(302, &[], ""),
            "the server responded with the status code 302 but did not return more information",
            false,
        ),
        (response(503, &[], ""), "the server is currently unable to handle the request", false),
        (
            response(503, &[(RETRY_AFTER, "1")], ""),
            "the server is currently unable to handle the request",
            true,
        ),
        (
            response(429, &[], ""),
            "the server has received too many requests and has asked us to try again later",
            true,
        ),
        (
            response(504, &[], ""),
            "the server was unable to return a response in the time allotted, but may still be processing the request",
            true,
        ),
        (
            response(500, &[text()], " boom\n"),
            "an error on the server (\"boom\") has prevented the request from succeeding",
            true,
        ),
        (
            response(502, &[json()], "{}"),
            "an error on the server (\"unknown\") has prevented the request from succeeding",
            false,
        ),
        (response(403, &[text()], "no, you"), "no, you", false),
        (
            response(200, &[json()], ""),
            "0-length response with status code: 200 and content type: application/json",
            false,
        ),
        (
            response(
                500,
                &[json()],
                r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"mine","code":500}"#,
            ),
            "mine",
            true,
        ),
        (
            response(
                403,
                &[json()],
                r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","reason":"Forbidden"}"#,
            ),
            "no",
            false,
        ),
    ] {
        let shown = format!("{response:?}");
        let error = response.into_success(None).unwrap_err();
        assert_eq!((error.message.as_str(), error.transient), (message, transient), "{shown}");
    }
}

#[test]
fn the_resource_is_appended_to_the_error_text() {
    let error =
        response(404, &[], "").into_success(Some("post tokenreviews.authentication.k8s.io")).unwrap_err();
    assert_eq!(
        error.message,
        "the server could not find the requested resource (post tokenreviews.authentication.k8s.io)"
    );
}

#[test]
fn any_success_status_returns_the_body() {
    for code in [200, 201, 202] {
        assert_eq!(response(code, &[], "{}").into_success(None).unwrap(), "{}");
    }
}

#[test]
fn the_review_is_serialized_like_in_go() {
    assert_eq!(
        token_review_body("authentication.k8s.io/v1beta1", &Token::new("a<b>\"&")),
        r#"{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1beta1","metadata":{},"spec":{"token":"a\u003cb\u003e\"\u0026"},"status":{"user":{}}}"#
    );
}

#[test]
fn a_review_response_may_omit_every_member() {
    let result = |json: &str| {
        let response: TokenReviewResponse<10> = serde_json::from_str(json).unwrap();
        response.status.unwrap_or_default().into_result()
    };
    assert_eq!(result("{}"), TokenReviewResult::Unauthenticated(String::new()));
    assert_eq!(result(r#"{"status":null}"#), TokenReviewResult::Unauthenticated(String::new()));
    assert_eq!(result(r#"{"status":{"error":"no"}}"#), TokenReviewResult::Unauthenticated("no".to_owned()));
    assert_eq!(
        result(r#"{"status":{"authenticated":true,"user":null}}"#),
        TokenReviewResult::Authenticated(User::default())
    );
    assert_eq!(
        result(
            r#"{"kind":"x","unknown":1,"status":{"authenticated":true,"error":"ignored","user":{"username":"a","uid":"u",
                "groups":["g"],"extra":{"k":["v"],"n":null}}}}"#
        ),
        TokenReviewResult::Authenticated(User {
            name: "a".to_owned(),
            uid: "u".to_owned(),
            groups: vec!["g".to_owned()],
            extra: BTreeMap::from([("k".to_owned(), vec!["v".to_owned()]), ("n".to_owned(), Vec::new())]),
        })
    );
}

#[tokio::test(start_paused = true)]
async fn transient_failures_are_tried_five_times_with_increasing_delays() {
    let start = tokio::time::Instant::now();
    let mut times = Vec::new();
    let error = CallError {
        message: "again".to_owned(),
        transient: true,
        is_lost: false,
        code: None,
        retry_after: None,
    };
    let result: Result<(), _> = Backoff { jitter: 0.0, ..Backoff::REVIEWS }
        .run(|| {
            times.push(start.elapsed().as_millis());
            std::future::ready(Err(error.clone()))
        })
        .await;
    assert_eq!(result, Err(error));
    // Timers have a resolution of a millisecond.
    let expected = [0, 500, 1250, 2375, 4062];
    assert!(
        times.len() == 5 && times.iter().zip(expected).all(|(time, due)| time.abs_diff(due) <= 4),
        "{times:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_permanent_failure_and_a_success_stop_the_retries() {
    let mut calls = 0;
    let result: Result<(), _> = Backoff::REVIEWS
        .run(|| {
            calls += 1;
            let error = if calls == 2 {
                CallError::last("done")
            } else {
                CallError {
                    is_lost: false,
                    code: None,
                    message: "again".to_owned(),
                    transient: true,
                    retry_after: Some(Duration::from_secs(3)),
                }
            };
            std::future::ready(Err(error))
        })
        .await;
    assert_eq!((result, calls), (Err(CallError::last("done")), 2));
    let result = Backoff::REVIEWS.run(|| std::future::ready(Ok(7))).await;
    assert_eq!(result, Ok(7));
}

/// An error with a cause, like those of clients and pools.
#[derive(Debug, thiserror::Error)]
#[error("request failed")]
struct Wrapped(#[source] Box<dyn Error + Send + Sync>);

/// How an HTTP/2 server terminates a request.
#[derive(Clone, Copy, Debug)]
enum End {
    GoAway(Reason),
    Reset(Reason),
    /// Closes the connection without a frame.
    Close,
}

impl End {
    /// Returns the frames that terminate the request (RFC 9113, section 6).
    fn frames(self) -> Vec<u8> {
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        let mut frames = settings.to_vec();
        match self {
            Self::GoAway(reason) => {
                // Last stream ID 0: the server processed no stream.
                frames.extend([0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
                frames.extend(u32::from(reason).to_be_bytes());
            }
            Self::Reset(reason) => {
                frames.extend([0, 0, 4, 3, 0, 0, 0, 0, 1]);
                frames.extend(u32::from(reason).to_be_bytes());
            }
            Self::Close => {}
        }
        frames
    }
}

/// Returns the error of a client whose request is terminated like this.
async fn http2_error(end: End) -> h2::Error {
    let (ours, mut theirs) = tokio::io::duplex(1 << 16);
    let (mut requests, connection) = h2::client::handshake(ours).await.unwrap();
    let _driver = tokio::task::JoinSet::from_iter([async { drop(connection.await) }]);
    let request = http::Request::post("https://api/").body(()).unwrap();
    let (response, _) = requests.send_request(request, true).unwrap();
    // Lets the request open its stream before the server terminates it.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    theirs.write_all(&end.frames()).await.unwrap();
    let _open = (!matches!(end, End::Close)).then_some(theirs);
    response.await.unwrap_err()
}

#[tokio::test]
async fn http2_requests_that_a_server_ends_for_its_own_sake_are_lost() {
    use End::{Close, GoAway, Reset};
    for (end, lost) in [
        (GoAway(Reason::NO_ERROR), true),
        (GoAway(Reason::INTERNAL_ERROR), true),
        (GoAway(Reason::PROTOCOL_ERROR), false),
        (GoAway(Reason::ENHANCE_YOUR_CALM), false),
        (GoAway(Reason::COMPRESSION_ERROR), false),
        (Reset(Reason::REFUSED_STREAM), true),
        (Reset(Reason::CANCEL), true),
        (Reset(Reason::INTERNAL_ERROR), true),
        (Reset(Reason::PROTOCOL_ERROR), false),
        (Reset(Reason::ENHANCE_YOUR_CALM), false),
        (Close, true),
    ] {
        let error = http2_error(end).await;
        assert_eq!(is_lost_connection(&error), lost, "{end:?}: {error:?}");
        let inside = Wrapped(Box::new(io::Error::other(Wrapped(Box::new(error)))));
        assert_eq!(is_lost_connection(&inside), lost, "{end:?}: {inside:?}");
    }
}

#[test]
fn broken_connections_are_lost_and_failed_dials_are_refused() {
    use io::ErrorKind::{
        AddrInUse, BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, HostUnreachable,
        InvalidData, NotConnected, PermissionDenied, TimedOut, UnexpectedEof,
    };
    for (kind, lost, refused) in [
        (ConnectionReset, true, false),
        (ConnectionAborted, true, false),
        (BrokenPipe, true, false),
        (NotConnected, true, false),
        (TimedOut, true, false),
        // The server closes TLS without `close_notify`, as after a kill.
        (UnexpectedEof, true, false),
        (ConnectionRefused, false, true),
        (HostUnreachable, false, false),
        (AddrInUse, false, false),
        (InvalidData, false, false),
        (PermissionDenied, false, false),
    ] {
        let plain = io::Error::from(kind);
        assert_eq!((is_lost_connection(&plain), is_refused_connection(&plain)), (lost, refused), "{kind}");
        let tls = io::Error::new(kind, rustls::Error::General("why".to_owned()));
        let service = kube::Error::Service(Box::new(Wrapped(Box::new(tls))));
        assert_eq!(
            (is_lost_connection(&service), is_refused_connection(&service)),
            (lost, refused),
            "{kind}"
        );
    }
    let certificate = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
    assert!(!is_lost_connection(&io::Error::new(InvalidData, certificate)));
    assert!(!is_lost_connection(&Wrapped("something else".into())));
}

#[tokio::test(start_paused = true)]
async fn lost_connections_are_retried_when_the_server_may_restart() {
    for (backoff, back_after, succeeds) in [
        (Backoff::CLUSTER, 0, true),
        (Backoff::CLUSTER, 10, true),
        (Backoff::CLUSTER, 20, false),
        (Backoff::REVIEWS, 3, true),
        (Backoff::REVIEWS, 10, false),
    ] {
        let back = Instant::now() + Duration::from_secs(back_after);
        let began = Instant::now();
        let result = backoff.run(|| async {
            if Instant::now() >= back {
                return Ok(());
            }
            let error = io::Error::from(io::ErrorKind::ConnectionReset);
            Err(CallError::transport(&error, "reset".to_owned()))
        });
        assert_eq!(result.await.is_ok(), succeeds, "{backoff:?}: back after {back_after} s");
        assert!(began.elapsed() <= Duration::from_secs(16), "{:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn denials_are_retried_only_while_the_server_starts() {
    for (lost_first, succeeds) in [(true, true), (false, false)] {
        let calls = std::cell::Cell::new(0);
        let result = Backoff::CLUSTER.run(|| async {
            calls.set(calls.get() + 1);
            match calls.get() {
                1 if lost_first => {
                    let error = io::Error::from(io::ErrorKind::ConnectionReset);
                    Err(CallError::transport(&error, "reset".to_owned()))
                }
                1..=3 => Err(response(403, &[], "").into_success(None).unwrap_err()),
                _ => Ok(()),
            }
        });
        assert_eq!(result.await.is_ok(), succeeds);
    }
}
