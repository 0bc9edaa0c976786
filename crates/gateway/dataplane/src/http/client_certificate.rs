//! The client certificate information for backends: Envoy's `x-forwarded-client-cert`.

use std::fmt::Write as _;

use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;
use http::HeaderValue;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use pinniped_gateway_routing::table::ForwardedCertificate;
use pinniped_pki::CertificateDer;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// The characters that need no percent-encoding.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Returns the header value for a chain that starts with the client's own certificate; `None` if
/// the client presented no certificate.
pub(super) fn header(wanted: ForwardedCertificate, chain: &[CertificateDer<'_>]) -> Option<HeaderValue> {
    let own = chain.first()?;
    let (_, parsed) = X509Certificate::from_der(own).ok()?;
    let mut value = String::from("Hash=");
    HEXLOWER.encode_append(digest(&SHA256, own).as_ref(), &mut value);
    // Writing to a string cannot fail.
    if wanted.certificate {
        let _never = write!(value, ";Cert=\"{}\"", escaped([own]));
    }
    if wanted.chain {
        let _never = write!(value, ";Chain=\"{}\"", escaped(chain));
    }
    if wanted.subject {
        let subject = parsed.subject().to_string().replace('\\', "\\\\").replace('"', "\\\"");
        let _never = write!(value, ";Subject=\"{subject}\"");
    }
    let names = parsed.extensions().iter().filter_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectAlternativeName(names) => Some(&names.general_names),
        _ => None,
    });
    for name in names.flatten() {
        let _never = match name {
            GeneralName::URI(uri) if wanted.uri_names => write!(value, ";URI={}", element(uri)),
            GeneralName::DNSName(name) if wanted.dns_names => write!(value, ";DNS={}", element(name)),
            _ => Ok(()),
        };
    }
    HeaderValue::try_from(value).ok()
}

/// Quotes a name from a certificate so that it cannot be parsed as another element.
fn element(name: &str) -> String {
    if name.contains(['"', '\\', ';', ',', '=']) {
        format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
    } else {
        name.to_owned()
    }
}

fn escaped<'a>(chain: impl IntoIterator<Item = &'a CertificateDer<'a>>) -> String {
    let mut pem = String::new();
    for certificate in chain {
        pem.push_str(&pinniped_pki::pem::encode("CERTIFICATE", certificate));
    }
    utf8_percent_encode(&pem, PLAIN).to_string()
}
