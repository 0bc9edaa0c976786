//! Go's texts for failed connections, derived from Rust's errors.

use std::io;

use jiff::Timestamp;
use rustls::pki_types::{IpAddr, ServerName, UnixTime};
use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};

/// Returns Go's text for a name that could not be resolved.
pub fn lookup(error: &io::Error) -> &'static str {
    if error.to_string().contains("Temporary failure") { "server misbehaving" } else { "no such host" }
}

/// Returns Go's text for a failed TLS handshake with `host`.
pub fn handshake(error: &io::Error, host: &str) -> String {
    match pinniped_error::find::<Error>(error) {
        Some(error) => tls(error, host),
        None => io_text(error),
    }
}

/// Returns Go's text for a failed operation on a connection, which starts with the operation.
fn io_text(error: &io::Error) -> String {
    let operation = match error.kind() {
        io::ErrorKind::ConnectionRefused => "connect: ",
        io::ErrorKind::ConnectionReset => "read: ",
        _ => "",
    };
    format!("{operation}{}", crate::io::text(error))
}

/// Returns Go's text for a TLS error on a connection to `host`.
pub fn tls(error: &Error, host: &str) -> String {
    match error {
        Error::InvalidCertificate(problem) => {
            format!("tls: failed to verify certificate: x509: {}", certificate(problem, host))
        }
        Error::AlertReceived(alert) => format!("remote error: tls: {}", alert_text(*alert)),
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "tls: first record does not look like a TLS handshake".to_owned()
        }
        Error::PeerIncompatible(_) => "remote error: tls: protocol version not supported".to_owned(),
        other => format!("tls: {other}"),
    }
}

fn certificate(problem: &CertificateError, host: &str) -> String {
    const TIME: &str = "certificate has expired or is not yet valid";
    match problem {
        CertificateError::ExpiredContext { time, not_after } => {
            format!("{TIME}: current time {} is after {}", timestamp(*time), timestamp(*not_after))
        }
        CertificateError::NotValidYetContext { time, not_before } => {
            format!("{TIME}: current time {} is before {}", timestamp(*time), timestamp(*not_before))
        }
        CertificateError::Expired | CertificateError::NotValidYet => format!("{TIME}: "),
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "certificate signed by unknown authority".to_owned()
        }
        CertificateError::NotValidForNameContext { expected, presented } => wrong_name(expected, presented),
        CertificateError::NotValidForName => {
            format!("certificate is not valid for any names, but wanted to match {host}")
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "certificate specifies an incompatible key usage".to_owned()
        }
        CertificateError::BadEncoding => "malformed certificate".to_owned(),
        other => other.to_string(),
    }
}

/// Returns Go's text for a certificate with the wrong names. `presented` has webpki's notation of
/// names: `DnsName("a")`, `IpAddress(127.0.0.1)`.
fn wrong_name(expected: &ServerName<'_>, presented: &[String]) -> String {
    let host = expected.to_str();
    let of_kind = |prefix: &str, suffix: &str| -> Vec<&str> {
        presented.iter().filter_map(|name| name.strip_prefix(prefix)?.strip_suffix(suffix)).collect()
    };
    let (kind, names) = match expected {
        ServerName::IpAddress(IpAddr::V4(_) | IpAddr::V6(_)) => ("IP SANs", of_kind("IpAddress(", ")")),
        _ => ("names", of_kind("DnsName(\"", "\")")),
    };
    if names.is_empty() && kind == "IP SANs" {
        return format!("cannot validate certificate for {host} because it doesn't contain any IP SANs");
    }
    match names.len() {
        0 => format!("certificate is not valid for any names, but wanted to match {host}"),
        1..100 => format!("certificate is valid for {}, not {host}", names.join(", ")),
        count => format!("certificate is valid for {count} {kind}, but none matched {host}"),
    }
}

fn timestamp(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).map(|time| time.to_string()).unwrap_or_default()
}

fn alert_text(alert: AlertDescription) -> String {
    let text = match alert {
        AlertDescription::CloseNotify => "close notify",
        AlertDescription::UnexpectedMessage => "unexpected message",
        AlertDescription::BadRecordMac => "bad record MAC",
        AlertDescription::RecordOverflow => "record overflow",
        AlertDescription::HandshakeFailure => "handshake failure",
        AlertDescription::BadCertificate => "bad certificate",
        AlertDescription::UnsupportedCertificate => "unsupported certificate",
        AlertDescription::CertificateRevoked => "revoked certificate",
        AlertDescription::CertificateExpired => "expired certificate",
        AlertDescription::CertificateUnknown => "unknown certificate",
        AlertDescription::IllegalParameter => "illegal parameter",
        AlertDescription::UnknownCA => "unknown certificate authority",
        AlertDescription::AccessDenied => "access denied",
        AlertDescription::DecodeError => "error decoding message",
        AlertDescription::DecryptError => "error decrypting message",
        AlertDescription::ProtocolVersion => "protocol version not supported",
        AlertDescription::InsufficientSecurity => "insufficient security level",
        AlertDescription::InternalError => "internal error",
        AlertDescription::InappropriateFallback => "inappropriate fallback",
        AlertDescription::UserCanceled => "user canceled",
        AlertDescription::NoRenegotiation => "no renegotiation",
        AlertDescription::MissingExtension => "missing extension",
        AlertDescription::UnsupportedExtension => "unsupported extension",
        AlertDescription::UnrecognisedName => "unrecognized name",
        AlertDescription::BadCertificateStatusResponse => "bad certificate status response",
        AlertDescription::UnknownPSKIdentity => "unknown PSK identity",
        AlertDescription::CertificateRequired => "certificate required",
        AlertDescription::NoApplicationProtocol => "no application protocol",
        other => return format!("alert({})", u8::from(other)),
    };
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_error(host: &str, presented: &[&str]) -> String {
        let problem = CertificateError::NotValidForNameContext {
            expected: ServerName::try_from(host.to_owned()).unwrap(),
            presented: presented.iter().map(|name| (*name).to_owned()).collect(),
        };
        certificate(&problem, host)
    }

    #[test]
    fn wrong_names_have_the_text_of_go() {
        let names = ["DnsName(\"a.example\")", "IpAddress(10.0.0.1)", "DnsName(\"b.example\")"];
        for (host, presented, expected) in [
            ("1.2.3.4", &names[..], "certificate is valid for 10.0.0.1, not 1.2.3.4"),
            ("c.example", &names[..], "certificate is valid for a.example, b.example, not c.example"),
            (
                "127.0.0.1",
                &names[..1],
                "cannot validate certificate for 127.0.0.1 because it doesn't contain any IP SANs",
            ),
            (
                "c.example",
                &names[1..2],
                "certificate is not valid for any names, but wanted to match c.example",
            ),
        ] {
            assert_eq!(name_error(host, presented), expected);
        }
    }

    #[test]
    fn times_have_the_rfc_3339_format() {
        let problem = CertificateError::ExpiredContext {
            time: UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_700_000_000)),
            not_after: UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_600_000_000)),
        };
        assert_eq!(
            certificate(&problem, "x"),
            "certificate has expired or is not yet valid: current time 2023-11-14T22:13:20Z is after \
             2020-09-13T12:26:40Z"
        );
    }
}
