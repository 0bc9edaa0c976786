//! Externally provided certificates: the Secrets that the spec may name, and the bundle that is
//! advertised.

use pinniped_delegation::grants::SecretReference;
use pinniped_go_compat::base64;

use super::impersonator::Settings;

/// Go's error text for data without a PEM block.
pub const NOT_A_CERTIFICATE: &str = "data is not a certificate";

/// Returns whether `secret_name` is a Secret that the Concierge itself writes and deletes.
pub fn is_managed(secret_name: &str, settings: &Settings) -> bool {
    let secret = SecretReference::parse(secret_name, &settings.namespace);
    let managed = [&settings.tls_secret, &settings.ca_secret, &settings.signer_secret];
    secret.namespace == settings.namespace && managed.contains(&&secret.name)
}

/// Returns the bundle that clients verify with: that of the spec, otherwise that of the Secret.
/// Empty if there is none or it is not readable; another function reports the reason.
pub fn advertised_bundle(certificate_authority_data: &str, ca_crt: &[u8]) -> Vec<u8> {
    if certificate_authority_data.is_empty() {
        return ca_crt.to_vec();
    }
    base64::decode(certificate_authority_data.as_bytes()).unwrap_or_default()
}

/// Returns whether there is at least one PEM block of any type: a `BEGIN` line, base64, and the
/// `END` line of the same type. Text around the block is skipped.
pub fn has_pem_block(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.lines().map(str::trim_end);
    while let Some(line) = lines.next() {
        let Some(label) = line.strip_prefix("-----BEGIN ").and_then(|rest| rest.strip_suffix("-----")) else {
            continue;
        };
        let end = format!("-----END {label}-----");
        let mut body = String::new();
        // Reads ahead, because a block may begin within another one that has no end.
        for line in lines.clone() {
            if line == end {
                if base64::decode(body.as_bytes()).is_ok() {
                    return true;
                }
                break;
            }
            if line.starts_with("-----BEGIN ") {
                break;
            }
            // Headers, as in old encrypted keys, end at an empty line.
            if !line.contains(':') {
                body.push_str(line);
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pem_block_is_found_among_other_text() {
        let block = "-----BEGIN X-----\naGkh\n-----END X-----\n";
        for (text, wanted) in [
            (block.to_owned(), true),
            (format!("words\n{block}more"), true),
            (block.replace('\n', "\r\n"), true),
            (block.replace("END X", "END Y"), false),
            (block.replace("aGkh", "a!"), false),
            (format!("-----BEGIN Z-----\n!\n{block}"), true),
            ("words".to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(has_pem_block(text.as_bytes()), wanted, "{text:?}");
        }
    }
}
