//! Bearer tokens in requests: the `Authorization` header and the WebSocket subprotocol.
//!
//! Both follow the Kubernetes API server
//! (`k8s.io/apiserver/pkg/authentication/request/{bearertoken,websocket}`) byte for byte in the
//! definition of a token, because clients can observe the difference.

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::HeaderMap;
use http::header::{AUTHORIZATION, CONNECTION, HeaderValue, SEC_WEBSOCKET_PROTOCOL, UPGRADE};

use pinniped_secret::token::Token;

/// The prefix of the subprotocol that contains a token; the rest is unpadded base64url.
pub const WEBSOCKET_TOKEN_PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

/// Unpadded base64url as decoded by Go's `base64.RawURLEncoding`, which ignores trailing bits.
const RAW_URL: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::RequireNone)
        .with_decode_allow_trailing_bits(true),
);

/// The text of the `Warning: 299` response header for [`Bearer::ExtraSpace`].
pub const EXTRA_SPACE_WARNING: &str =
    "the provided Authorization header contains extra space before the bearer token, and is ignored";

/// The content of the `Authorization` header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bearer {
    /// No header, another scheme, or nothing after the scheme.
    Absent,
    /// `Bearer` followed by more than one space: not a token; the response carries
    /// [`EXTRA_SPACE_WARNING`].
    ExtraSpace,
    /// A token.
    Token(Token),
}

impl Bearer {
    /// Returns the token, if there is one.
    pub fn into_token(self) -> Option<Token> {
        match self {
            Self::Token(token) => Some(token),
            Self::Absent | Self::ExtraSpace => None,
        }
    }
}

/// Reads the first `Authorization` header as a bearer token.
pub fn bearer_token(headers: &HeaderMap) -> Bearer {
    let Some(value) = headers.get(AUTHORIZATION) else { return Bearer::Absent };
    let text = String::from_utf8_lossy(value.as_bytes());
    let mut parts = text.trim().splitn(3, ' ');
    let (Some(scheme), Some(token)) = (parts.next(), parts.next()) else { return Bearer::Absent };
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Bearer::Absent;
    }
    if token.is_empty() {
        // The trimmed text cannot end with a space, so an empty second part means that a third part
        // follows.
        return Bearer::ExtraSpace;
    }
    Bearer::Token(Token::new(token))
}

/// Returns whether a request is for a WebSocket, by the rules of the API server: the first
/// `Upgrade` is `websocket`, and any `Connection` value contains the text `upgrade`, even inside of
/// another token.
pub fn is_websocket_request(headers: &HeaderMap) -> bool {
    let Some(upgrade) = headers.get(UPGRADE) else { return false };
    if !upgrade.as_bytes().eq_ignore_ascii_case(b"websocket") {
        return false;
    }
    let contains_upgrade =
        |value: &HeaderValue| value.as_bytes().windows(7).any(|w| w.eq_ignore_ascii_case(b"upgrade"));
    headers.get_all(CONNECTION).iter().any(contains_upgrade)
}

/// The reasons why the token in a WebSocket subprotocol list is not usable, with the texts of the
/// API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WebSocketTokenError {
    /// Two entries contain a token.
    #[error("multiple base64.bearer.authorization tokens specified")]
    Multiple,
    /// The entry is not unpadded base64url.
    #[error("invalid base64.bearer.authorization token encoding")]
    Encoding,
    /// The decoded bytes are not UTF-8.
    #[error("invalid base64.bearer.authorization token")]
    NotText,
    /// The list offers no other protocol that the server could select.
    #[error("missing additional subprotocol")]
    NoOtherProtocol,
}

/// A token from the subprotocol list, and the rest of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebSocketToken {
    /// The token.
    pub token: Token,
    /// The other protocols, joined with `,`: the header value after a successful authentication.
    pub remaining: String,
}

/// Reads a token from `Sec-WebSocket-Protocol` of a WebSocket request.
///
/// # Errors
///
/// [`WebSocketTokenError`] when an entry with the token prefix exists but is not usable.
pub fn websocket_token(headers: &HeaderMap) -> Result<Option<WebSocketToken>, WebSocketTokenError> {
    if !is_websocket_request(headers) {
        return Ok(None);
    }
    let mut token = None;
    let mut remaining = Vec::new();
    let values: Vec<_> = headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .map(|value| String::from_utf8_lossy(value.as_bytes()))
        .collect();
    for protocol in values.iter().flat_map(|value| value.split(',')).map(str::trim) {
        let Some(encoded) = protocol.strip_prefix(WEBSOCKET_TOKEN_PREFIX) else {
            remaining.push(protocol);
            continue;
        };
        if token.is_some() {
            return Err(WebSocketTokenError::Multiple);
        }
        let bytes = RAW_URL.decode(encoded).map_err(|_| WebSocketTokenError::Encoding)?;
        token = Some(String::from_utf8(bytes).map_err(|_| WebSocketTokenError::NotText)?);
    }
    match token {
        Some(_) if remaining.is_empty() => Err(WebSocketTokenError::NoOtherProtocol),
        Some(token) if !token.is_empty() => {
            Ok(Some(WebSocketToken { token: Token::new(token), remaining: remaining.join(",") }))
        }
        Some(_) | None => Ok(None),
    }
}

/// Replaces the subprotocol list with the remaining protocols.
pub(crate) fn replace_protocols(headers: &mut HeaderMap, remaining: &str) {
    // The text comes from header values, so the only change is the lossy replacement of invalid
    // bytes, which is valid in a header, too.
    match HeaderValue::from_bytes(remaining.as_bytes()) {
        Ok(value) if !value.is_empty() => {
            headers.insert(SEC_WEBSOCKET_PROTOCOL, value);
        }
        _ => {
            headers.remove(SEC_WEBSOCKET_PROTOCOL);
        }
    }
}

/// Removes every entry with a token from the subprotocol list. Another credential has authenticated
/// the client, and a credential that was not verified is not forwarded.
pub(crate) fn remove_websocket_tokens(headers: &mut HeaderMap) {
    // The condition must match `websocket_token`: every entry that it could read as a token is
    // removed.
    let is_token = |protocol: &str| protocol.trim().starts_with(WEBSOCKET_TOKEN_PREFIX);
    let holds = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).split(',').any(is_token);
    if !headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().any(holds) {
        return;
    }
    let values: Vec<_> = headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
        .collect();
    let protocols = values.iter().flat_map(|value| value.split(',')).map(str::trim);
    let remaining: Vec<_> = protocols.filter(|protocol| !is_token(protocol)).collect();
    replace_protocols(headers, &remaining.join(","));
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::try_from(*name).unwrap(), HeaderValue::try_from(*value).unwrap());
        }
        headers
    }

    fn token(text: &str) -> Bearer {
        Bearer::Token(Token::new(text))
    }

    #[test]
    fn the_first_authorization_header_decides() {
        for (pairs, expected) in [
            (&[("authorization", "Bearer thingy")][..], token("thingy")),
            (&[("authorization", "Bearer      1")], Bearer::ExtraSpace),
            (&[("authorization", "Bearer panda man")], token("panda")),
            (&[("authorization", "   Bearer cool   beans  ")], token("cool")),
            (&[("authorization", "Bearer this thing"), ("authorization", "Bearer other")], token("this")),
            (&[("authorization", "Basic x"), ("authorization", "Bearer other")], Bearer::Absent),
            (&[("authorization", "bEaReR x")], token("x")),
            (&[("authorization", "Bearer")], Bearer::Absent),
            (&[("authorization", "Bearer ")], Bearer::Absent),
            (&[("authorization", "Bearer\tx")], Bearer::Absent),
            (&[("authorization", "")], Bearer::Absent),
            (&[("x-authorization", "Bearer x")], Bearer::Absent),
            (&[], Bearer::Absent),
        ] {
            assert_eq!(bearer_token(&headers(pairs)), expected, "{pairs:?}");
        }
    }

    #[test]
    fn websocket_tokens_follow_the_api_server() {
        let protocol = |text: &str| format!("{WEBSOCKET_TOKEN_PREFIX}{text}");
        let found = |token: &str, remaining: &str| {
            Ok(Some(WebSocketToken { token: Token::new(token), remaining: remaining.to_owned() }))
        };
        let alice = protocol("YWxpY2U");
        for (protocols, expected) in [
            (vec!["v4.channel.k8s.io".to_owned()], Ok(None)),
            (vec![format!("{alice}, v4.channel.k8s.io")], found("alice", "v4.channel.k8s.io")),
            (vec!["a".to_owned(), alice.clone(), "b,c".to_owned()], found("alice", "a,b,c")),
            (vec![alice.clone()], Err(WebSocketTokenError::NoOtherProtocol)),
            (vec![format!("a,{alice},{alice}")], Err(WebSocketTokenError::Multiple)),
            (vec![format!("a,{}", protocol("YWxpY2U="))], Err(WebSocketTokenError::Encoding)),
            (vec![format!("a,{}", protocol("_w"))], Err(WebSocketTokenError::NotText)),
            // The last letter has too many bits for "e"; Go accepts it.
            (vec![format!("a,{}", protocol("ZR"))], found("e", "a")),
            (vec![format!("a,{}", protocol(""))], Ok(None)),
        ] {
            let mut pairs = vec![("upgrade", "WebSocket"), ("connection", "keep-alive, Upgrade")];
            pairs.extend(protocols.iter().map(|protocol| ("sec-websocket-protocol", protocol.as_str())));
            assert_eq!(websocket_token(&headers(&pairs)), expected, "{protocols:?}");
        }
    }

    #[test]
    fn a_subprotocol_token_is_read_only_from_websocket_upgrades() {
        let protocols = format!("{WEBSOCKET_TOKEN_PREFIX}YWxpY2U,a");
        let websocket = ("upgrade", "websocket");
        for (extra, counts) in [
            (&[][..], false),
            (&[("upgrade", "SPDY/3.1"), ("connection", "upgrade")], false),
            (&[websocket], false),
            (&[websocket, ("connection", "keep-alive")], false),
            (&[("upgrade", "websocket, h2c"), ("connection", "upgrade")], false),
            (&[("upgrade", "h2c"), websocket, ("connection", "upgrade")], false),
            (&[websocket, ("connection", "upgrade")], true),
            (&[websocket, ("connection", "keep-alive, Upgrade")], true),
            (&[websocket, ("connection", "keep-alive"), ("connection", "UPGRADE")], true),
            // The API server searches for the substring, so this code must too: the API server
            // would use the token.
            (&[websocket, ("connection", "x-upgrade-y")], true),
        ] {
            let mut pairs = vec![("sec-websocket-protocol", protocols.as_str())];
            pairs.extend(extra);
            let found = websocket_token(&headers(&pairs)).unwrap();
            assert_eq!(found.is_some(), counts, "{extra:?}");
        }
    }

    #[test]
    fn unused_tokens_are_removed_from_the_subprotocols() {
        let token = format!("{WEBSOCKET_TOKEN_PREFIX}YWxpY2U");
        for (protocols, remaining) in [
            (vec![], vec![]),
            (vec!["a, b".to_owned(), "c".to_owned()], vec!["a, b", "c"]),
            (vec![format!("a, {token}, b"), token.clone(), "c".to_owned()], vec!["a,b,c"]),
            (vec![token.clone()], vec![]),
            (vec![format!("{WEBSOCKET_TOKEN_PREFIX}!"), "c".to_owned()], vec!["c"]),
            // Go trims this space as well before it compares.
            (vec![format!("\u{a0}{token},c")], vec!["c"]),
            (vec![format!("x{token}, c")], vec![&*format!("x{token}, c")]),
        ] {
            let pairs: Vec<_> =
                protocols.iter().map(|protocol| ("sec-websocket-protocol", protocol.as_str())).collect();
            let mut given = headers(&pairs);
            remove_websocket_tokens(&mut given);
            let got: Vec<_> =
                given.get_all(SEC_WEBSOCKET_PROTOCOL).iter().map(|v| v.to_str().unwrap()).collect();
            assert_eq!(got, remaining, "{protocols:?}");
        }
    }
}
