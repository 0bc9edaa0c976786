//! The discovery document.

use pinniped_error::chain;
use pinniped_jose::Algorithm;
use pinniped_oidc::{ProviderMetadata, discover};
use serde_json::{Value, json};

use crate::provider::{Provider, Reply};

async fn discovered(provider: &Provider, issuer: &str) -> Result<ProviderMetadata, String> {
    discover(&provider.client(), issuer).await.map_err(|error| chain(&error).to_string())
}

#[tokio::test]
async fn the_document_is_fetched_below_the_issuer() {
    let provider = Provider::constant(Reply::text(404, "not set yet")).await;
    for (path, below) in [("", ""), ("/", ""), ("/some/path", "/some/path"), ("/some/path/", "/some/path")] {
        let issuer = provider.url(path);
        provider.now_returns(Reply::json(&json!({
            "issuer": issuer, "jwks_uri": "j", "authorization_endpoint": "a", "token_endpoint": "t",
            "userinfo_endpoint": null, "scopes_supported": ["openid"], "other": {"x": 1},
        })));
        let metadata = discovered(&provider, &issuer).await.unwrap();
        assert_eq!(
            (metadata.issuer.as_str(), metadata.jwks_uri.as_str(), metadata.authorization_endpoint.as_str()),
            (issuer.as_str(), "j", "a")
        );
        assert_eq!((metadata.token_endpoint.as_str(), metadata.userinfo_endpoint.as_str()), ("t", ""));
        assert_eq!(metadata.scopes_supported, ["openid"]);
        assert_eq!(metadata.extension::<Value>().unwrap()["other"]["x"], 1);
        let request = provider.seen().pop().unwrap();
        assert_eq!(request.path, format!("{below}/.well-known/openid-configuration"));
        assert_eq!(request.headers["user-agent"], "some-agent");
    }
}

#[tokio::test]
async fn a_document_of_another_issuer_is_refused() {
    let provider = Provider::constant(Reply::text(404, "not set yet")).await;
    let issuer = provider.url("");
    for returned in ["https://other.example".to_owned(), provider.url("/"), String::new()] {
        provider.now_returns(Reply::json(&json!({"issuer": returned})));
        assert_eq!(
            discovered(&provider, &issuer).await.unwrap_err(),
            format!(
                "oidc: issuer URL provided to client (\"{issuer}\") did not match the issuer URL returned by \
                 provider (\"{returned}\")"
            )
        );
    }
}

#[tokio::test]
async fn other_responses_have_the_texts_of_go_oidc() {
    const DECODE: &str = "oidc: failed to decode provider discovery object: ";
    let html = Reply { content_type: "text/html; charset=utf-8", ..Reply::text(200, "<html>") };
    for (reply, expected) in [
        (Reply::text(404, "404 page not found\n"), "404 Not Found: 404 page not found\n".to_owned()),
        (Reply::text(204, ""), "204 No Content: ".to_owned()),
        (
            html,
            format!(
                "{DECODE}expected Content-Type = application/json, got \"text/html; charset=utf-8\": invalid \
                 character '<' looking for beginning of value"
            ),
        ),
        (
            Reply { content_type: "application/json; charset=utf-8", ..Reply::text(200, "{") },
            format!(
                "{DECODE}got Content-Type = application/json, but could not unmarshal as JSON: unexpected end \
                 of JSON input"
            ),
        ),
    ] {
        let provider = Provider::constant(reply).await;
        assert_eq!(discovered(&provider, &provider.url("")).await.unwrap_err(), expected);
    }
    for body in [r#"{"issuer": 1}"#, r#"{"issuer": "a", "issuer": "b"}"#, "[]", r#"["a"]"#, "null"] {
        let provider = Provider::constant(Reply::text(200, body)).await;
        let error = discovered(&provider, &provider.url("")).await.unwrap_err();
        assert!(error.starts_with(DECODE), "{error}");
    }
}

#[tokio::test]
async fn a_wrong_content_type_does_not_matter_if_the_document_is_good() {
    let provider = Provider::constant(Reply::text(404, "not set yet")).await;
    let document = json!({"issuer": provider.url("")});
    provider.now_returns(Reply { content_type: "text/html", ..Reply::json(&document) });
    discovered(&provider, &provider.url("")).await.unwrap();
}

#[tokio::test]
async fn failures_of_the_connection_name_the_document() {
    let provider = Provider::constant(Reply::text(404, "")).await;
    let client = provider.client();
    let issuer = provider.url("");
    let address = issuer.replace("https://localhost", "127.0.0.1");
    provider.stop().await;
    let error = discover(&client, &issuer.replace("localhost", "127.0.0.1")).await.unwrap_err();
    assert_eq!(
        chain(&error).to_string(),
        format!(
            "Get \"{}/.well-known/openid-configuration\": dial tcp {address}: connect: connection refused",
            issuer.replace("localhost", "127.0.0.1")
        )
    );
    let error = discover(&client, "http://issuer.example").await.unwrap_err();
    assert_eq!(
        chain(&error).to_string(),
        "Get \"http://issuer.example/.well-known/openid-configuration\": unsupported protocol scheme \"http\""
    );
    let error = discover(&client, "issuer").await.unwrap_err();
    assert!(error.to_string().starts_with("parse \"issuer/.well-known/openid-configuration\""), "{error}");
}

#[tokio::test]
async fn unknown_algorithms_of_the_provider_are_left_out() {
    let provider = Provider::constant(Reply::text(404, "not set yet")).await;
    let issuer = provider.url("");
    for (names, expected) in [
        (json!(["none", "HS256", "ES384", "PS256"]), vec![Algorithm::Es384, Algorithm::Ps256]),
        (json!(["none", "HS256"]), vec![Algorithm::Rs256]),
        (json!([]), vec![Algorithm::Rs256]),
        (Value::Null, vec![Algorithm::Rs256]),
    ] {
        provider.now_returns(Reply::json(
            &json!({"issuer": issuer, "id_token_signing_alg_values_supported": names}),
        ));
        assert_eq!(discovered(&provider, &issuer).await.unwrap().algorithms(), expected, "{names}");
    }
}
