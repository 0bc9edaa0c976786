//! Redirects of a provider, which the client of `http-client` follows.

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header};
use pinniped_error::chain;
use pinniped_http_client::https::{FullResponse, HttpsClient, Redirects};

use crate::provider::{Provider, Reply, Seen};

async fn get(client: &HttpsClient, provider: &Provider, path: &str) -> Result<FullResponse, String> {
    client.get(&provider.parsed_url(path)).await.map_err(|error| chain(&error).to_string())
}

/// `/1` redirects to `/0`, `/2` to `/1`, and so on.
fn countdown(request: &Seen) -> Reply {
    match request.path.trim_start_matches('/').parse::<usize>() {
        Ok(0) | Err(_) => Reply::text(200, "arrived"),
        Ok(left) => Reply::redirect(format!("/{}", left - 1)),
    }
}

#[tokio::test]
async fn at_most_ten_redirects_are_followed() {
    let provider = Provider::start(countdown).await;
    let client = provider.client();
    assert_eq!(get(&client, &provider, "/10").await.unwrap().body, "arrived");
    assert_eq!(
        get(&client, &provider, "/11").await.unwrap_err(),
        format!("Get \"{}\": stopped after 10 redirects", provider.url("/1"))
    );
}

#[tokio::test]
async fn redirects_are_followed_only_on_request_and_for_get() {
    let provider = Provider::start(countdown).await;
    let returns = provider.client_with(Redirects::Return, None);
    assert_eq!(get(&returns, &provider, "/1").await.unwrap().status, StatusCode::FOUND);
    let sent = provider.client().send(&Method::POST, &provider.parsed_url("/1"), &[], Bytes::new()).await;
    assert_eq!(sent.unwrap().status, StatusCode::FOUND);
    assert_eq!(provider.count(), 2);
}

#[tokio::test]
async fn redirects_to_anything_but_https_are_refused() {
    let provider = Provider::constant(Reply::text(404, "")).await;
    for (location, expected) in [
        ("http://127.0.0.1:1/keys", "Get \"http://127.0.0.1:1/keys\": unsupported protocol scheme \"http\""),
        ("file:///etc/passwd", "Get \"file:///etc/passwd\": unsupported protocol scheme \"file\""),
    ] {
        provider.now_returns(Reply::redirect(location));
        assert_eq!(get(&provider.client(), &provider, "/keys").await.unwrap_err(), expected);
    }
    provider.now_returns(Reply::redirect("https://[bad"));
    let error = get(&provider.client(), &provider, "/keys").await.unwrap_err();
    assert!(error.ends_with("failed to parse Location header"), "{error}");
    // A redirect without a destination is an ordinary response.
    provider.now_returns(Reply::text(302, ""));
    assert_eq!(get(&provider.client(), &provider, "/keys").await.unwrap().status, StatusCode::FOUND);
}

#[tokio::test]
async fn credentials_are_sent_to_the_first_server_only() {
    let provider = Provider::start(countdown).await;
    let token = [(header::AUTHORIZATION, HeaderValue::from_static("Bearer secret"))];
    let client = provider.client();
    client.send(&Method::GET, &provider.parsed_url("/1"), &token, Bytes::new()).await.unwrap();
    assert!(provider.seen().iter().all(|request| request.headers.contains_key("authorization")));

    // The same server by another name.
    let other = provider.url("/end").replace("localhost", "127.0.0.1");
    provider.now_returns(Reply::redirect(other));
    let count = provider.count();
    let sent = client.send(&Method::GET, &provider.parsed_url("/start"), &token, Bytes::new()).await;
    sent.unwrap_err();
    let requests = provider.seen();
    assert!(requests[count].headers.contains_key("authorization"));
    assert!(requests[count + 1..].iter().all(|request| !request.headers.contains_key("authorization")));
    assert!(requests.len() > count + 1);
}
