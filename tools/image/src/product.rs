//! The product's own image.

use std::path::Path;

use crate::error::Error;
use crate::image::{Built, File, Image, build};

/// The image's name in the manifests in `deploy/`: the chart's `appVersion` is the version of the
/// workspace.
pub const REFERENCE: &str = concat!("ghcr.io/pinniped-rs/pinniped-server:", env!("CARGO_PKG_VERSION"));
/// The Concierge.
pub const CONCIERGE: &str = "pinniped-concierge";
/// The program of the pods that fetch the cluster's signing key.
pub const CERT_AGENT: &str = "pinniped-concierge-kube-cert-agent";
/// The ingress gateway.
pub const GATEWAY: &str = "pinniped-gateway";
/// The demo authenticator.
pub const AUTHENTICATOR: &str = "local-user-authenticator";
/// The folder of the programs in upstream's image. Manifests name programs without a folder, so it
/// is in the image's PATH.
const FOLDER: &str = "/usr/local/bin";
/// The ports that upstream's image exposes: authenticator, impersonation proxy, aggregated API; and
/// the gateway's ports: health, HTTP and, again 8443, TLS.
const PORTS: [u16; 5] = [8443, 8444, 10250, 8000, 8080];

/// Builds the image of the product from the programs in `bin_dir`, and writes its archive to `out`.
///
/// Upstream's image has one program that selects its function by its name, with its own name as the
/// entrypoint. The product has separate programs; the entrypoint is the Concierge. All manifests,
/// including upstream's, name their program.
///
/// # Errors
/// Returns an error when a program is missing or the image cannot be built.
pub fn product(bin_dir: &Path, out: &Path) -> Result<Built, Error> {
    build(&product_image(bin_dir), out)
}

/// Returns the description of the product's image with the programs in `bin_dir`, for changes
/// before [`build`].
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
