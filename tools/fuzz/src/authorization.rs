//! Tokens in the `Authorization` header and in WebSocket subprotocols, through the whole
//! authenticator. Input: header lines. The API server of this target accepts every token that
//! starts with `good`.

use std::sync::LazyLock;

use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use kube::client::Body;
use pinniped_delegated_auth::bearer::{
    Bearer, WEBSOCKET_TOKEN_PREFIX, WebSocketToken, WebSocketTokenError, bearer_token, is_websocket_request,
    websocket_token,
};
use pinniped_delegated_auth::cluster_auth_config::{ClusterAuthConfig, ClusterAuthConfigWatch};
use pinniped_delegated_auth::request::{
    AuthenticationResult, Method, Peer, RequestAuthenticator, RequestAuthenticatorParams,
};
use pinniped_delegated_auth::reviews::TokenReviewer;

use crate::input;

static AUTHENTICATOR: LazyLock<RequestAuthenticator> = LazyLock::new(|| {
    RequestAuthenticator::new(RequestAuthenticatorParams {
        cluster: ClusterAuthConfigWatch::fixed(ClusterAuthConfig::default()),
        extra_client_ca: None,
        reviewer: reviewer(),
    })
});

/// An API server that accepts tokens that start with `good`.
pub(crate) fn reviewer() -> TokenReviewer {
    let service = tower::service_fn(|request: Request<Body>| async move {
        let body = request.into_body().collect().await.expect("the body is all there").to_bytes();
        let review: serde_json::Value = serde_json::from_slice(&body).expect("a review is JSON");
        let token = review["spec"]["token"].as_str().expect("a review has a token");
        assert!(!token.is_empty(), "an empty token is none");
        let response = if token.starts_with("good") {
            r#"{"status":{"authenticated":true,"user":{"username":"tim"}}}"#
        } else {
            r#"{"status":{"error":"no"}}"#
        };
        Ok::<_, std::io::Error>(Response::new(Body::from(response.as_bytes().to_vec())))
    });
    TokenReviewer::new(kube::Client::new(service, "default"))
}

/// Checks one input; see the module.
pub fn check(data: &[u8]) {
    let given = input::headers(data);
    let bearer = bearer_token(&given);
    header(&given, &bearer);
    let websocket = websocket_token(&given);
    subprotocol(&given, &websocket);

    let header_token = match &bearer {
        Bearer::Token(token) => Some(token.expose().starts_with("good")),
        Bearer::Absent | Bearer::ExtraSpace => None,
    };
    let websocket_good = match &websocket {
        Ok(Some(found)) => found.token.expose().starts_with("good"),
        Ok(None) | Err(_) => false,
    };
    let mut headers = given.clone();
    // Inside the runtime, because the first use of the client starts a task.
    let nobody = Peer::new(&[]);
    let result = input::block_on(async {
        AUTHENTICATOR.authenticate(&mut headers, nobody, Timestamp::UNIX_EPOCH).await
    });
    match result {
        AuthenticationResult::User { user, method } => {
            assert_eq!(user.name, "tim");
            assert_eq!(user.groups, ["system:authenticated"]);
            match method {
                Method::BearerToken => assert_eq!(header_token, Some(true)),
                Method::WebSocketToken => {
                    assert!(header_token != Some(true) && websocket_good);
                }
                Method::FrontProxy | Method::ClientCertificate => panic!("there is no certificate"),
            }
            assert_clean(&given, &headers);
        }
        AuthenticationResult::Anonymous => {
            assert!(header_token.is_none() && matches!(websocket, Ok(None)));
            assert_clean(&given, &headers);
        }
        AuthenticationResult::Overloaded => panic!("the reviews in memory have no limit"),
        AuthenticationResult::Rejected { reason } => {
            assert!(header_token != Some(true) && !websocket_good);
            assert!(header_token.is_some() || !matches!(websocket, Ok(None)));
            assert!(reason.lines().count() == 1 && !reason.contains("good"), "{reason:?}");
        }
    }
}

fn header(headers: &HeaderMap, bearer: &Bearer) {
    let first = headers.get(AUTHORIZATION).map(input::text).unwrap_or_default();
    let words: Vec<&str> = first.trim().split(' ').collect();
    let is_bearer = words[0].eq_ignore_ascii_case("bearer");
    match bearer {
        Bearer::Token(token) => {
            assert!(is_bearer && !token.expose().is_empty());
            assert_eq!(words[1], token.expose());
            assert_eq!(format!("{bearer:?}"), "Token(Token([redacted]))");
        }
        Bearer::ExtraSpace => assert!(is_bearer && words.len() > 2 && words[1].is_empty()),
        Bearer::Absent => assert!(!is_bearer || words.len() == 1),
    }
}

fn subprotocol(headers: &HeaderMap, found: &Result<Option<WebSocketToken>, WebSocketTokenError>) {
    let carried = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter(|value| has_token(value)).count();
    if !is_websocket_request(headers) || carried == 0 {
        assert!(matches!(found, Ok(None)));
    }
    match found {
        Ok(Some(found)) => {
            assert!(!found.token.expose().is_empty());
            let mut others = found.remaining.split(',');
            assert!(others.all(|protocol| !protocol.starts_with(WEBSOCKET_TOKEN_PREFIX)));
            assert!(
                !format!("{:?}", found.token).contains(found.token.expose())
                    || found.token.expose().len() < 12
            );
        }
        Ok(None) => {}
        Err(_) => assert!(carried > 0),
    }
}

fn has_token(value: &HeaderValue) -> bool {
    input::text(value).split(',').any(|protocol| protocol.trim().starts_with(WEBSOCKET_TOKEN_PREFIX))
}

/// Checks that no credential remains, and that nothing else was removed.
pub(crate) fn assert_clean(given: &HeaderMap, left: &HeaderMap) {
    let protocols = left.get_all(SEC_WEBSOCKET_PROTOCOL);
    assert!(protocols.iter().all(|value| !has_token(value)), "a token is still there");
    let is_credential =
        |name: &HeaderName| name == AUTHORIZATION || name.as_str().starts_with("x-remote-extra-");
    let is_identity =
        |name: &HeaderName| ["x-remote-user", "x-remote-uid", "x-remote-group"].contains(&name.as_str());
    for name in given.keys() {
        if is_credential(name) || is_identity(name) {
            assert!(!left.contains_key(name), "{name} is left");
        } else if name != SEC_WEBSOCKET_PROTOCOL {
            assert!(given.get_all(name).iter().eq(left.get_all(name)), "{name} was changed");
        }
    }
    assert!(left.keys().all(|name| given.contains_key(name)));
}
