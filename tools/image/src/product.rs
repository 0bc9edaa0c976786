//! The product's own image.

use std::path::Path;

use crate::error::Error;
use crate::image::{Built, File, Image, build};

/// The name under which the manifests in `deploy/` ask for the image.
pub const REFERENCE: &str = "ghcr.io/pinniped-rs/pinniped-server:latest";
/// The Concierge.
pub const CONCIERGE: &str = "pinniped-concierge";
/// The program of the pods that fetch the cluster's signing key.
pub const CERT_AGENT: &str = "pinniped-concierge-kube-cert-agent";
/// The ingress gateway.
pub const GATEWAY: &str = "pinniped-gateway";
/// The demo authenticator.
pub const AUTHENTICATOR: &str = "local-user-authenticator";
/// Where upstream's image has its programs. Manifests name them without a folder, so it is in the image's PATH.
const FOLDER: &str = "/usr/local/bin";
/// What upstream's image exposes: authenticator, impersonation proxy, aggregated API; and the gateway's ports: health, HTTP
/// and, again 8443, TLS.
const PORTS: [u16; 5] = [8443, 8444, 10250, 8000, 8080];

/// Makes the image of the product from the programs in `bin_dir`, and writes its archive to `out`.
///
/// Upstream's image has one program that acts by the name it is called by, and whose own name is its entrypoint.
/// Ours are programs of their own; the entrypoint is the Concierge. Manifests, upstream's too, name the program
/// they want.
///
/// # Errors
/// When a program is missing or the image cannot be made.
pub fn product(bin_dir: &Path, out: &Path) -> Result<Built, Error> {
    build(&product_image(bin_dir), out)
}

/// What is in the product's image, with the programs in `bin_dir`: to change something before [`build`].
#[must_use]
pub fn product_image(bin_dir: &Path) -> Image {
    let program = |name: &str| File::program(bin_dir.join(name), format!("{FOLDER}/{name}"));
    Image {
        entrypoint: vec![format!("{FOLDER}/{CONCIERGE}")],
        ports: PORTS.into(),
        files: [AUTHENTICATOR, CONCIERGE, CERT_AGENT, GATEWAY].map(program).into(),
        ..Image::new(REFERENCE)
    }
}
