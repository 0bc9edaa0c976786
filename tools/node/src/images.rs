//! Images of the node's own pods, created from the node's own programs.

use std::hash::{Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use pinniped_image::{File, Image, Roots};

/// The image of a container that does nothing, which is part of a node. All names are those of
/// kubeadm.
pub const PAUSE: &str = "registry.k8s.io/pause:3.10.2";
pub(crate) const CONTROLLER_MANAGER: &str = "registry.k8s.io/kube-controller-manager:v1.36.3";
pub(crate) const COREDNS: &str = "registry.k8s.io/coredns/coredns:v1.14.2";

/// Name, program, entry point, user.
const IMAGES: [(&str, &str, &str, &str); 3] = [
    (PAUSE, "pause", "/pause", "65535:65535"),
    (CONTROLLER_MANAGER, "kube-controller-manager", "/usr/local/bin/kube-controller-manager", "0:0"),
    // Root, because upstream's image gives the file a capability for port 53, which our archives
    // cannot store; the pod drops all other capabilities.
    (COREDNS, "coredns", "/coredns", "0:0"),
];

/// Returns the archives of all images, in the folder `images` next to the programs. The first node
/// that needs them creates them.
pub(crate) fn archives(tools: &Path) -> anyhow::Result<Vec<PathBuf>> {
    IMAGES.into_iter().map(|image| archive(tools, image)).collect()
}

fn archive(
    tools: &Path,
    (reference, program, inside, user): (&str, &str, &str, &str),
) -> anyhow::Result<PathBuf> {
    let image = Image {
        entrypoint: vec![inside.to_owned()],
        user: user.to_owned(),
        roots: Roots::Absent,
        files: vec![File::program(tools.join(program), inside)],
        ..Image::new(reference)
    };
    // The folder identifies the programs; the archive's name contains the other inputs of the
    // image.
    let mut hasher = std::hash::DefaultHasher::new();
    (reference, inside, user).hash(&mut hasher);
    let archive = tools.join("images").join(format!("{program}-{:016x}.tar", hasher.finish()));
    if !archive.is_file() {
        let dir = archive.parent().unwrap_or(tools);
        std::fs::create_dir_all(dir).with_context(|| format!("could not create {}", dir.display()))?;
        pinniped_image::build(&image, &archive)
            .with_context(|| format!("could not create the image {reference}"))?;
    }
    Ok(archive)
}
