//! Parses the output of the agent: `{"tls.crt": base64, "tls.key": base64}`.
//!
//! No error contains any part of the output, because any part may belong to the key.

use std::borrow::Cow;

use serde::Deserialize;
use zeroize::Zeroizing;

use super::AgentPod;
use crate::strategy::external::decode_base64;

/// Certificate and key of the cluster's CA as PEM, not validated.
pub struct SigningKey {
    /// The certificate as PEM.
    pub certificate_pem: Vec<u8>,
    /// The key as PEM, overwritten when dropped.
    pub key_pem: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SigningKey([redacted])")
    }
}

/// Borrows from the output, so that no further copy of the key exists.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Output<'a> {
    #[serde(rename = "tls.crt", borrow)]
    certificate: Option<Cow<'a, str>>,
    #[serde(rename = "tls.key", borrow)]
    key: Option<Cow<'a, str>>,
}

/// Parses the output of `agent`.
///
/// # Errors
///
/// Returns a text for the status.
pub fn parse(output: &[u8], agent: &AgentPod) -> Result<SigningKey, String> {
    let output: Output<'_> = serde_json::from_slice(output).map_err(|error| {
        format!("failed to decode signing cert/key JSON from {agent}: {}", without_content(&error))
    })?;
    let decode = |what: &str, text: Option<Cow<'_, str>>| {
        let text = text.unwrap_or_default();
        decode_base64(&text).map(Zeroizing::new).map_err(|at| {
            format!(
                "failed to decode signing {what} base64 from {agent}: illegal base64 data at input byte {at}"
            )
        })
    };
    let certificate = decode("cert", output.certificate)?;
    let key_pem = decode("key", output.key)?;
    Ok(SigningKey { certificate_pem: certificate.to_vec(), key_pem })
}

/// Describes the error without serde's text, which repeats the input.
fn without_content(error: &serde_json::Error) -> String {
    match error.classify() {
        serde_json::error::Category::Eof => "unexpected end of JSON input".to_owned(),
        serde_json::error::Category::Data => {
            format!("json: unexpected type of a value at line {} column {}", error.line(), error.column())
        }
        _ => format!("invalid character at line {} column {}", error.line(), error.column()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent() -> AgentPod {
        AgentPod { namespace: "ns".to_owned(), name: "a-1".to_owned(), uid: "u".to_owned() }
    }

    #[test]
    fn certificate_and_key_are_decoded() {
        let output = br#"{"tls.crt":"Y2VydA==","tls.key":"a2V5","other":1}"#;
        let key = parse(output, &agent()).unwrap();
        assert_eq!((key.certificate_pem.as_slice(), key.key_pem.as_slice()), (&b"cert"[..], &b"key"[..]));
        assert_eq!(format!("{key:?}"), "SigningKey([redacted])");
        // Missing members are parsed as empty; the code that loads the pair reports the error.
        let key = parse(br#"{"tls.crt":null}"#, &agent()).unwrap();
        assert!(key.certificate_pem.is_empty() && key.key_pem.is_empty());
    }

    #[test]
    fn an_error_names_the_position_and_never_the_content() {
        let json = "failed to decode signing cert/key JSON from agent pod ns/a-1: ";
        let cases: [(&str, String); 8] = [
            ("", format!("{json}unexpected end of JSON input")),
            (r#"{"tls.crt":"c2VjcmV0"#, format!("{json}unexpected end of JSON input")),
            ("c2VjcmV0", format!("{json}invalid character at line 1 column 1")),
            (r#"{"tls.crt":""} c2VjcmV0"#, format!("{json}invalid character at line 1 column 16")),
            (r#""c2VjcmV0""#, format!("{json}json: unexpected type of a value at line 1 column 10")),
            (r#"{"tls.key":[7]}"#, format!("{json}json: unexpected type of a value at line 1 column 11")),
            (
                r#"{"tls.crt":"c2VjcmV0!","tls.key":"c2VjcmV0!"}"#,
                "failed to decode signing cert base64 from agent pod ns/a-1: illegal base64 data at input byte 8".to_owned(),
            ),
            (
                r#"{"tls.crt":"","tls.key":"c2VjcmV0!"}"#,
                "failed to decode signing key base64 from agent pod ns/a-1: illegal base64 data at input byte 8".to_owned(),
            ),
        ];
        for (output, wanted) in cases {
            let error = parse(output.as_bytes(), &agent()).unwrap_err();
            assert_eq!(error, wanted, "{output}");
            assert!(!error.contains("c2VjcmV0"));
        }
    }
}
