use http::HeaderValue;

use super::*;

fn answer(code: u16, headers: &[(http::HeaderName, &'static str)], body: &'static str) -> Answer {
    Answer {
        status: StatusCode::from_u16(code).unwrap(),
        headers: headers
            .iter()
            .map(|(name, value)| (name.clone(), HeaderValue::from_static(value)))
            .collect(),
        body: Bytes::from_static(body.as_bytes()),
    }
}

#[test]
fn failures_are_told_as_client_go_tells_them() {
    let json = || (CONTENT_TYPE, "application/json");
    let text = || (CONTENT_TYPE, "text/plain");
    for (answer, message, transient) in [
        (answer(401, &[], ""), "the server has asked for the client to provide credentials", false),
        (answer(404, &[], ""), "the server could not find the requested resource", false),
        (
            answer(302, &[], ""),
            "the server responded with the status code 302 but did not return more information",
            false,
        ),
        (answer(503, &[], ""), "the server is currently unable to handle the request", false),
        (
            answer(503, &[(RETRY_AFTER, "1")], ""),
            "the server is currently unable to handle the request",
            true,
        ),
        (
            answer(429, &[], ""),
            "the server has received too many requests and has asked us to try again later",
            true,
        ),
        (
            answer(504, &[], ""),
            "the server was unable to return a response in the time allotted, but may still be processing the request",
            true,
        ),
        (
            answer(500, &[text()], " boom\n"),
            "an error on the server (\"boom\") has prevented the request from succeeding",
            true,
        ),
        (
            answer(502, &[json()], "{}"),
            "an error on the server (\"unknown\") has prevented the request from succeeding",
            false,
        ),
        (answer(403, &[text()], "no, you"), "no, you", false),
        (
            answer(200, &[json()], ""),
            "0-length response with status code: 200 and content type: application/json",
            false,
        ),
        (
            answer(
                500,
                &[json()],
                r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"mine","code":500}"#,
            ),
            "mine",
            true,
        ),
        (
            answer(
                403,
                &[json()],
                r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","reason":"Forbidden"}"#,
            ),
            "no",
            false,
        ),
    ] {
        let shown = format!("{answer:?}");
        let error = answer.into_success(None).unwrap_err();
        assert_eq!((error.message.as_str(), error.transient), (message, transient), "{shown}");
    }
}

#[test]
fn a_resource_is_named_behind_the_text() {
    let error =
        answer(404, &[], "").into_success(Some("post tokenreviews.authentication.k8s.io")).unwrap_err();
    assert_eq!(
        error.message,
        "the server could not find the requested resource (post tokenreviews.authentication.k8s.io)"
    );
}

#[test]
fn any_success_gives_its_body() {
    for code in [200, 201, 202] {
        assert_eq!(answer(code, &[], "{}").into_success(None).unwrap(), "{}");
    }
}

#[test]
fn the_review_is_written_as_go_writes_it() {
    assert_eq!(
        token_review_body("authentication.k8s.io/v1beta1", &Token::new("a<b>\"&")),
        r#"{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1beta1","metadata":{},"spec":{"token":"a\u003cb\u003e\"\u0026"},"status":{"user":{}}}"#
    );
}

#[test]
fn verdicts_are_read_whatever_is_missing() {
    let verdict = |json: &str| {
        let answer: TokenReviewAnswer = serde_json::from_str(json).unwrap();
        answer.status.unwrap_or_default().into_verdict()
    };
    assert_eq!(verdict("{}"), TokenVerdict::No(String::new()));
    assert_eq!(verdict(r#"{"status":null}"#), TokenVerdict::No(String::new()));
    assert_eq!(verdict(r#"{"status":{"error":"no"}}"#), TokenVerdict::No("no".to_owned()));
    assert_eq!(
        verdict(r#"{"status":{"authenticated":true,"user":null}}"#),
        TokenVerdict::Yes(User::default())
    );
    assert_eq!(
        verdict(
            r#"{"kind":"x","unknown":1,"status":{"authenticated":true,"error":"ignored","user":{"username":"a","uid":"u",
                "groups":["g"],"extra":{"k":["v"],"n":null}}}}"#
        ),
        TokenVerdict::Yes(User {
            name: "a".to_owned(),
            uid: "u".to_owned(),
            groups: vec!["g".to_owned()],
            extra: BTreeMap::from([("k".to_owned(), vec!["v".to_owned()]), ("n".to_owned(), Vec::new())]),
        })
    );
}

#[tokio::test(start_paused = true)]
async fn transient_failures_are_tried_five_times_with_growing_pauses() {
    let start = tokio::time::Instant::now();
    let mut times = Vec::new();
    let error = CallError { message: "again".to_owned(), transient: true, retry_after: None };
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
async fn a_final_failure_and_a_success_end_the_tries() {
    let mut calls = 0;
    let result: Result<(), _> = Backoff::REVIEWS
        .run(|| {
            calls += 1;
            let error = if calls == 2 {
                CallError::last("done")
            } else {
                CallError {
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
