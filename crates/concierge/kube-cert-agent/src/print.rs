//! Prints certificate and key as one line of JSON.
//!
//! Both files are read before any output, so a failure never leaves a partial document. Every
//! buffer with key material is overwritten after use, and no buffered writer makes a copy.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pinniped_go_compat::io as go_io;
use zeroize::Zeroizing;

/// Maximum size of a file in bytes. Larger than any certificate or key; a path to another file must
/// not exhaust the pod's memory.
const MAX_FILE: usize = 256 << 10;

/// Number of bytes to encode at a time; a multiple of three, so that the encoded pieces can be
/// joined.
const CHUNK: usize = 3 << 10;

/// Reasons why the document was not printed, or not completely.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("could not read {variable}: {problem}")]
    Read { variable: &'static str, problem: String },
    #[error("could not write output: {0}")]
    Write(#[from] io::Error),
}

/// Returns standard output without the buffer of Rust's standard library.
pub(crate) fn stdout() -> Result<File, Error> {
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?))
}

/// Writes the JSON document with the files that the two environment variables name.
pub(crate) fn print(variable: impl Fn(&str) -> OsString, out: &mut impl Write) -> Result<(), Error> {
    let certificate = read("CERT_PATH", &variable)?;
    let key = read("KEY_PATH", &variable)?;
    out.write_all(b"{\"tls.crt\":\"")?;
    encode(&certificate, out)?;
    out.write_all(b"\",\"tls.key\":\"")?;
    encode(&key, out)?;
    out.write_all(b"\"}\n")?;
    Ok(out.flush()?)
}

fn read(variable: &'static str, value: impl Fn(&str) -> OsString) -> Result<Zeroizing<Vec<u8>>, Error> {
    let path = value(variable);
    let failed = |operation: &str, problem: &str| Error::Read {
        variable,
        problem: format!("{operation} {}: {problem}", path.display()),
    };
    let mut file = File::open(&path).map_err(|error| failed("open", &go_io::text(&error)))?;
    // Allocated at its final size, because a vector that grows leaves key material in freed memory.
    let mut content = Zeroizing::new(vec![0; MAX_FILE + 1]);
    let mut length = 0;
    loop {
        match file.read(&mut content[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed("read", &go_io::text(&error))),
        }
        if length > MAX_FILE {
            return Err(failed("read", "file is too large"));
        }
    }
    content.truncate(length);
    Ok(content)
}

fn encode(content: &[u8], out: &mut impl Write) -> io::Result<()> {
    let mut text = Zeroizing::new([0_u8; CHUNK / 3 * 4]);
    for piece in content.chunks(CHUNK) {
        let length = STANDARD.encode_slice(piece, text.as_mut_slice()).map_err(io::Error::other)?;
        out.write_all(&text[..length])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use pinniped_concierge_domain::strategy::kube_cert_agent::key_layout::{
        CERTIFICATE_VARIABLE, KEY_VARIABLE,
    };

    use super::*;

    fn printed(certificate: &[u8], key: &[u8]) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        let (certificate_path, key_path) = (folder.path().join("crt"), folder.path().join("key"));
        std::fs::write(&certificate_path, certificate).unwrap();
        std::fs::write(&key_path, key).unwrap();
        let mut out = Vec::new();
        let variable = |name: &str| match name {
            CERTIFICATE_VARIABLE => certificate_path.clone().into(),
            KEY_VARIABLE => key_path.clone().into(),
            other => panic!("the Concierge does not set {other}"),
        };
        match print(variable, &mut out) {
            Ok(()) => Ok(String::from_utf8(out).unwrap()),
            Err(error) => {
                assert!(out.is_empty(), "half a document: {out:?}");
                Err(error.to_string().replace(&folder.path().display().to_string(), "DIR"))
            }
        }
    }

    #[test]
    fn the_document_is_a_single_line_of_json() {
        assert_eq!(
            printed(b"certificate", b"key").unwrap(),
            "{\"tls.crt\":\"Y2VydGlmaWNhdGU=\",\"tls.key\":\"a2V5\"}\n"
        );
        assert_eq!(printed(b"", b"").unwrap(), "{\"tls.crt\":\"\",\"tls.key\":\"\"}\n");
    }

    #[test]
    fn the_chunks_of_a_long_file_are_joined() {
        for length in [CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 2, MAX_FILE] {
            let content: Vec<u8> = (0..length).map(|n| u8::try_from(n % 251).unwrap()).collect();
            let text = STANDARD.encode(&content);
            assert_eq!(
                printed(&content, &content).unwrap(),
                format!("{{\"tls.crt\":\"{text}\",\"tls.key\":\"{text}\"}}\n")
            );
        }
    }

    #[test]
    fn a_file_above_the_size_limit_is_refused() {
        let large = vec![b'x'; MAX_FILE + 1];
        assert_eq!(
            printed(b"c", &large).unwrap_err(),
            "could not read KEY_PATH: read DIR/key: file is too large"
        );
        let endless = |_: &str| "/dev/zero".into();
        let error = print(endless, &mut Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), "could not read CERT_PATH: read /dev/zero: file is too large");
    }
}
