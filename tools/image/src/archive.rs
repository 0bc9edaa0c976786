//! The archive: an OCI image layout in a tar, with Docker's `manifest.json` that refers to the same
//! blobs.

use std::io::Write as _;
use std::path::Path;

use data_encoding::HEXLOWER;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::error::Error;
use crate::layer::append;

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
/// The creation time of every image.
const CREATED: &str = "1970-01-01T00:00:00Z";
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The configuration of the image's containers.
#[derive(Debug)]
pub(crate) struct Config<'a> {
    pub(crate) reference: &'a str,
    pub(crate) processor: &'a str,
    pub(crate) entrypoint: &'a [String],
    pub(crate) user: &'a str,
    pub(crate) ports: &'a [u16],
}

/// The result of writing an archive.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) digest: String,
    pub(crate) size: u64,
    pub(crate) layers: Vec<String>,
}

/// Writes the archive of an image with these layers.
///
/// # Errors
/// Returns an error when the image's name is invalid, or when the file cannot be written.
pub(crate) fn write(config: &Config<'_>, layers: &[Vec<u8>], out: &Path) -> Result<Written, Error> {
    let tag = tag(config.reference)?;
    let mut blobs: Vec<(String, &[u8])> =
        layers.iter().map(|layer| (digest(layer), layer.as_slice())).collect();
    let digests: Vec<String> = blobs.iter().map(|(digest, _)| digest.clone()).collect();

    let configuration = configuration(config, &digests).to_string().into_bytes();
    let described: Vec<Value> =
        blobs.iter().map(|(digest, bytes)| descriptor(LAYER, digest, bytes)).collect();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": descriptor(CONFIG, &digest(&configuration), &configuration),
        "layers": described,
    });
    let manifest = manifest.to_string().into_bytes();
    blobs.push((digest(&configuration), &configuration));
    blobs.push((digest(&manifest), &manifest));

    let mut entry = descriptor(MANIFEST, &digest(&manifest), &manifest);
    entry["platform"] = json!({"architecture": config.processor, "os": "linux"});
    // containerd reads the first annotation, with the complete name; the OCI specification defines
    // the second one, with the tag.
    entry["annotations"] =
        json!({"io.containerd.image.name": config.reference, "org.opencontainers.image.ref.name": tag});
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]});
    let docker = json!([{
        "Config": blob_path(&digest(&configuration)),
        "RepoTags": [config.reference],
        "Layers": digests.iter().map(|digest| blob_path(digest)).collect::<Vec<_>>(),
    }]);

    let mut tar = tar::Builder::new(Vec::new());
    for folder in ["blobs/", "blobs/sha256/"] {
        append(&mut tar, folder, 0o755, tar::EntryType::Directory, &[]);
    }
    blobs.sort();
    // Two layers without entries are the same blob.
    blobs.dedup();
    for (digest, bytes) in &blobs {
        append(&mut tar, &blob_path(digest), 0o644, tar::EntryType::Regular, bytes);
    }
    let layout = json!({"imageLayoutVersion": "1.0.0"});
    for (name, value) in [("index.json", index), ("manifest.json", docker), ("oci-layout", layout)] {
        append(&mut tar, name, 0o644, tar::EntryType::Regular, value.to_string().as_bytes());
    }
    let archive = tar.into_inner().expect("memory takes all that is written");
    save(&archive, out).map_err(|source| Error::Write { path: out.to_owned(), source })?;
    Ok(Written { digest: digest(&manifest), size: archive.len() as u64, layers: digests })
}

fn configuration(config: &Config<'_>, layers: &[String]) -> Value {
    let ports: serde_json::Map<String, Value> =
        config.ports.iter().map(|port| (format!("{port}/tcp"), json!({}))).collect();
    let history: Vec<Value> =
        layers.iter().map(|_| json!({"created": CREATED, "created_by": "pinniped-image"})).collect();
    json!({
        "created": CREATED,
        "architecture": config.processor,
        "os": "linux",
        "config": {
            "User": config.user,
            "ExposedPorts": ports,
            "Env": [PATH],
            "Entrypoint": config.entrypoint,
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": layers},
        "history": history,
    })
}

fn descriptor(media_type: &str, digest: &str, bytes: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": digest, "size": bytes.len()})
}

/// Returns the digest `sha256:..` of some bytes.
fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", HEXLOWER.encode(&Sha256::digest(bytes)))
}

fn blob_path(digest: &str) -> String {
    format!("blobs/{}", digest.replace(':', "/"))
}

/// Returns the tag of a reference. It is required, because containerd and Docker would otherwise
/// disagree about the image's name.
fn tag(reference: &str) -> Result<&str, Error> {
    let refused = || Error::Reference { reference: reference.to_owned() };
    let (name, tag) = reference.rsplit_once(':').ok_or_else(refused)?;
    // A colon before the last slash belongs to a port.
    let proper = name.contains('/')
        && !tag.is_empty()
        && tag.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    if proper { Ok(tag) } else { Err(refused()) }
}

/// Writes a file atomically.
fn save(bytes: &[u8], out: &Path) -> std::io::Result<()> {
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".image-").tempfile_in(folder)?;
    file.write_all(bytes)?;
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    file.as_file().set_permissions(permissions)?;
    file.persist(out)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_match_known_sha256_values() {
        let wanted = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest(b"abc"), wanted);
        assert_eq!(blob_path("sha256:ba78"), "blobs/sha256/ba78");
    }

    #[test]
    fn a_reference_has_a_name_with_a_registry_and_a_tag() {
        for (reference, wanted) in [
            ("ghcr.io/pinniped-rs/pinniped-server:latest", Some("latest")),
            ("localhost:5000/a:v1.2_3-x", Some("v1.2_3-x")),
            ("localhost:5000/a", None),
            ("ghcr.io/a", None),
            ("a:latest", None),
            ("ghcr.io/a:", None),
            ("ghcr.io/a@sha256:ba78:é", None),
            ("", None),
        ] {
            assert_eq!(tag(reference).ok(), wanted, "{reference}");
        }
    }
}
