//! The product's own image.

use std::path::Path;

use crate::error::Error;
use crate::image::{Built, File, Image, Link, build};

/// The image's name in the manifests in `deploy/`: the chart's `appVersion` is the version of the
/// workspace.
pub const REFERENCE: &str = concat!("ghcr.io/pinniped-rs/pinniped-server:", env!("CARGO_PKG_VERSION"));
/// The file of the Concierge, the gateway and the demo authenticator, which runs the program of the
/// name with which it is started.
const SERVER: &str = "pinniped-server";
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
/// As in upstream's image, links give one file the names of several programs. The entrypoint is the
/// Concierge, while upstream's is the file, which refuses its own name. All manifests, including
/// upstream's, name their program.
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
    let inside = |name: &str| format!("{FOLDER}/{name}");
    let program = |name: &str| File::program(bin_dir.join(name), inside(name));
    let link = |name: &str| Link { inside: inside(name), target: SERVER.to_owned() };
    Image {
        entrypoint: vec![inside(CONCIERGE)],
        ports: PORTS.into(),
        files: [SERVER, CERT_AGENT].map(program).into(),
        links: [AUTHENTICATOR, CONCIERGE, GATEWAY].map(link).into(),
        ..Image::new(REFERENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_has_its_name_in_the_folder_of_upstreams_image() {
        let image = product_image(Path::new("/bins"));
        let files: Vec<&str> = image.files.iter().map(|file| file.inside.as_str()).collect();
        let links: Vec<&str> = image.links.iter().map(|link| link.inside.as_str()).collect();
        for name in [AUTHENTICATOR, CONCIERGE, CERT_AGENT, GATEWAY] {
            let wanted = format!("/usr/local/bin/{name}");
            assert!(files.contains(&&*wanted) || links.contains(&&*wanted), "{name}: {image:?}");
        }
        for link in &image.links {
            assert!(files.contains(&&*format!("/usr/local/bin/{}", link.target)), "{link:?}");
        }
        assert!(links.contains(&&*image.entrypoint[0]), "{image:?}");
    }
}
