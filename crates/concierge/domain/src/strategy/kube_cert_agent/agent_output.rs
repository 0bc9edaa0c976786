//! Parses the output of the agent: `{"tls.crt": base64, "tls.key": base64}`.
//!
//! No error contains any part of the output, because any part may belong to the key.

use std::borrow::Cow;

use pinniped_go_compat::base64::{self, CorruptInput};
use serde::Deserialize;
use zeroize::Zeroizing;

use super::AgentPod;

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

/// Reasons why the output of an agent is not a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SigningKeyError {
    /// The output is not the expected JSON.
    #[error("failed to decode signing cert/key JSON from {agent}: {cause}")]
    Json {
        /// The pod of the agent.
        agent: AgentPod,
        /// The reason.
        #[source]
        cause: JsonError,
    },
    /// A member is not base64.
    #[error("failed to decode signing {member} base64 from {agent}: {cause}")]
    Base64 {
        /// `cert` or `key`.
        member: &'static str,
        /// The pod of the agent.
        agent: AgentPod,
        /// The reason.
        #[source]
        cause: CorruptInput,
    },
}

/// Describes a JSON error without serde's text, which repeats the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// The text ends too early.
    #[error("unexpected end of JSON input")]
    End,
    /// A value has another type.
    #[error("json: unexpected type of a value at line {line} column {column}")]
    Type {
        /// Line of the value.
        line: usize,
        /// Column of the value.
        column: usize,
    },
    /// The text is not JSON.
    #[error("invalid character at line {line} column {column}")]
    Syntax {
        /// Line of the character.
        line: usize,
        /// Column of the character.
        column: usize,
    },
}

impl From<serde_json::Error> for JsonError {
    fn from(error: serde_json::Error) -> Self {
        let (line, column) = (error.line(), error.column());
        match error.classify() {
            serde_json::error::Category::Eof => Self::End,
            serde_json::error::Category::Data => Self::Type { line, column },
            _ => Self::Syntax { line, column },
        }
    }
}

/// Parses the output of `agent`.
///
/// # Errors
///
/// Returns [`SigningKeyError`], whose text is for the status.
pub fn parse(output: &[u8], agent: &AgentPod) -> Result<SigningKey, SigningKeyError> {
    let output: Output<'_> = serde_json::from_slice(output)
        .map_err(|error| SigningKeyError::Json { agent: agent.clone(), cause: error.into() })?;
    let decode = |member: &'static str, text: Option<Cow<'_, str>>| {
        let decoded = base64::decode(text.unwrap_or_default().as_bytes()).map(Zeroizing::new);
        decoded.map_err(|cause| SigningKeyError::Base64 { member, agent: agent.clone(), cause })
    };
    let certificate = decode("cert", output.certificate)?;
    let key_pem = decode("key", output.key)?;
    Ok(SigningKey { certificate_pem: certificate.to_vec(), key_pem })
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
            let error = parse(output.as_bytes(), &agent()).unwrap_err().to_string();
            assert_eq!(error, wanted, "{output}");
            assert!(!error.contains("c2VjcmV0"));
        }
    }
}
