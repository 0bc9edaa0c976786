//! A TLS listener like that of an API server. The test defines the protocol above TLS.

use std::net::SocketAddr;
use std::time::Duration;

use pinniped_kube_client::UpstreamParams;
use pinniped_pki::tls::{
    CipherRestriction, ClientCertificates, Profile, Roots, client_config, server_config,
};
use pinniped_pki::{CaBundle, CertificateAuthority, CertificateStore, Validity};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client};

/// Listens from the start, and accepts on demand.
pub(crate) struct TlsServer {
    pub(crate) address: SocketAddr,
    /// The CA that its clients trust.
    pub(crate) roots: CaBundle,
    pub(crate) listener: TcpListener,
    pub(crate) acceptor: TlsAcceptor,
}

impl TlsServer {
    /// Binds a server that offers these protocols.
    pub(crate) async fn bind(alpn: &[&[u8]]) -> Self {
        pinniped_pki::install_crypto_provider();
        let validity = Validity::starting(jiff::Timestamp::now(), Duration::from_secs(3600));
        let authority = CertificateAuthority::generate("kubernetes", &validity).unwrap();
        let pair = authority.issue_server(&[], &["127.0.0.1".parse().unwrap()], &validity).unwrap();
        let holder = CertificateStore::serving("api-server");
        holder.set(pair.certificate_pem.as_bytes(), pair.private_key_pem.as_bytes()).unwrap();
        let ciphers = CipherRestriction::default();
        let tls = server_config(Profile::Default, &ciphers, &holder, ClientCertificates::Ignore, alpn);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let roots = CaBundle::from_pem(authority.certificate_pem().as_bytes()).unwrap();
        Self { address, roots, listener, acceptor: tls.into() }
    }

    /// Returns the parameters of a pool that connects to it.
    pub(crate) fn params(&self) -> UpstreamParams {
        UpstreamParams::new(format!("https://{}", self.address).parse().unwrap(), self.roots.clone())
    }

    /// Accepts the next connection, including its handshake.
    pub(crate) async fn accept(&self) -> TlsStream<TcpStream> {
        let (tcp, _) = self.listener.accept().await.unwrap();
        self.acceptor.accept(tcp).await.unwrap()
    }

    /// Connects a client that trusts the server to this address, with this protocol.
    pub(crate) async fn client(&self, address: SocketAddr, alpn: &[u8]) -> client::TlsStream<TcpStream> {
        let roots = Roots::Bundle(self.roots.clone());
        let config = client_config(Profile::Default, roots, &[alpn]).unwrap();
        let tcp = TcpStream::connect(address).await.unwrap();
        TlsConnector::from(config).connect(address.ip().into(), tcp).await.unwrap()
    }
}
