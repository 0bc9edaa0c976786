//! Raw clients for tests: TLS that verifies nothing or everything, and HTTP/1.1 upgrades with the
//! bytes after the 101.
//!
//! They expose details that a client library hides: extra headers, unusual paths, accepted or
//! refused upgrades, the certificate that was presented.

use std::sync::Arc;

use anyhow::Context as _;
use rustls::DigitallySignedStruct;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::certs::Pair;

/// Opens a TLS connection without verification of the server certificate, with server name `name`,
/// offering `alpn`, and presenting `client` on request.
///
/// # Errors
/// Returns an error when the handshake fails or certificate and key of `client` do not match.
pub async fn connect_unverified(
    tcp: TcpStream,
    name: &str,
    alpn: &[&[u8]],
    client: Option<&Pair>,
) -> anyhow::Result<TlsStream<TcpStream>> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .context("no protocol versions")?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAll(provider)));
    let mut config = match client {
        Some(pair) => builder.with_client_auth_cert(
            CertificateDer::pem_slice_iter(pair.certificate_pem.as_bytes()).collect::<Result<_, _>>()?,
            PrivateKeyDer::from_pem_slice(pair.private_key_pem.as_bytes())?,
        )?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    let name = ServerName::try_from(name.to_owned()).context("not a server name")?;
    TlsConnector::from(Arc::new(config)).connect(name, tcp).await.context("TLS handshake failed")
}

/// Returns the configuration of a client that verifies the server certificate with `roots` (PEM),
/// offers `alpn` and presents `client`, if there is one. It resumes no session: every handshake is
/// complete and includes the certificate.
///
/// # Errors
/// Returns an error when there is no root, or when certificate and key of `client` do not match.
pub fn verifying(
    roots: &str,
    alpn: &[&[u8]],
    client: Option<&Pair>,
) -> anyhow::Result<Arc<rustls::ClientConfig>> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut store = rustls::RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(roots.as_bytes()) {
        store.add(root?).context("not a root certificate")?;
    }
    anyhow::ensure!(!store.is_empty(), "there is no root certificate");
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("no protocol versions")?
        .with_root_certificates(store);
    let mut config = match client {
        Some(pair) => builder.with_client_auth_cert(
            CertificateDer::pem_slice_iter(pair.certificate_pem.as_bytes()).collect::<Result<_, _>>()?,
            PrivateKeyDer::from_pem_slice(pair.private_key_pem.as_bytes())?,
        )?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

#[derive(Debug)]
struct AcceptAll(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for AcceptAll {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// The head of an HTTP/1.1 response as received, and the connection it came from.
#[derive(Debug)]
pub struct RawResponse<S> {
    /// Status code.
    pub status: u16,
    /// Status line and headers, without the empty line.
    pub head: String,
    /// Bytes received after the head.
    pub rest: Vec<u8>,
    /// The connection; after a 101 it is the tunnel.
    pub stream: S,
}

impl<S: tokio::io::AsyncRead + Unpin> RawResponse<S> {
    /// Reads the body of a response with a `Content-Length`.
    ///
    /// # Errors
    /// Returns an error when there is no such header, when the connection closes before the end of
    /// the body, or when the body is not UTF-8.
    pub async fn body(mut self) -> anyhow::Result<String> {
        let length = self.head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
        });
        let length = length.with_context(|| format!("a response of unknown length: {}", self.head))?;
        while self.rest.len() < length {
            anyhow::ensure!(self.stream.read_buf(&mut self.rest).await? > 0, "the body breaks off");
        }
        Ok(String::from_utf8(self.rest)?)
    }
}

/// Writes `request` (a whole HTTP/1.1 request, byte for byte) and reads the head of the response.
///
/// # Errors
/// Returns an error when the connection closes before the head is complete, or when the head is
/// larger than 64 KiB.
pub async fn raw_request<S>(mut stream: S, request: &[u8]) -> anyhow::Result<RawResponse<S>>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    stream.write_all(request).await.context("could not write the request")?;
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at;
        }
        anyhow::ensure!(bytes.len() < 65536, "the head of the response is over 64 KiB");
        let read = stream.read_buf(&mut bytes).await.context("could not read the response")?;
        anyhow::ensure!(read > 0, "the connection closed within the head of the response");
    };
    let rest = bytes.split_off(end + 4);
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).context("no status code")?;
    Ok(RawResponse { status, head, rest, stream })
}
