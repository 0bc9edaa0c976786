//! The archives: OCI image layouts in a tar.
//!
//! The archive of one image also has Docker's `manifest.json`, which refers to the same blobs. The
//! archive of an index has one image per processor, and Docker's format cannot express it.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use data_encoding::HEXLOWER;
use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::error::Error;
use crate::layer::append;

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const COMPRESSED_LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
/// The creation time of every image.
const CREATED: &str = "1970-01-01T00:00:00Z";
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The configuration of the image's containers.
#[derive(Debug)]
pub(crate) struct Config<'a> {
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
}

/// The blobs of an archive by their digests. Equal blobs are stored once.
type Blobs = BTreeMap<String, Vec<u8>>;

/// An image whose blobs are complete.
#[derive(Debug)]
pub(crate) struct Packed {
    /// The entry of an index for the image.
    entry: Value,
    configuration: String,
    /// Digests of the layers in the archive.
    layers: Vec<String>,
    /// `sha256:..` of each layer before compression.
    pub(crate) diff_ids: Vec<String>,
    /// The size of all layers before compression.
    pub(crate) unpacked: u64,
    /// The size of all blobs as a registry stores them.
    pub(crate) stored: u64,
    blobs: Blobs,
}

impl Packed {
    /// The digest of the image's manifest.
    pub(crate) fn digest(&self) -> String {
        self.entry["digest"].as_str().unwrap_or_default().to_owned()
    }
}

/// Creates all blobs of an image with these layers.
///
/// The bytes of a compressed layer depend on the compressor, whose version `Cargo.lock` pins.
pub(crate) fn pack(config: &Config<'_>, layers: Vec<Vec<u8>>, compressed: bool) -> Packed {
    let mut blobs = Blobs::new();
    let unpacked = layers.iter().map(|layer| layer.len() as u64).sum();
    let diff_ids: Vec<String> = layers.iter().map(|layer| digest(layer)).collect();
    let media_type = if compressed { COMPRESSED_LAYER } else { LAYER };
    let described: Vec<Value> = layers
        .into_iter()
        .map(|layer| add(&mut blobs, media_type, if compressed { gzip(&layer) } else { layer }))
        .collect();
    let configuration = configuration(config, &diff_ids).to_string().into_bytes();
    let configuration = add(&mut blobs, CONFIG, configuration);
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": configuration,
        "layers": described,
    });
    let mut entry = add(&mut blobs, MANIFEST, manifest.to_string().into_bytes());
    entry["platform"] = json!({"architecture": config.processor, "os": "linux"});
    let text = |descriptor: &Value| descriptor["digest"].as_str().unwrap_or_default().to_owned();
    Packed {
        entry,
        configuration: text(&configuration),
        layers: described.iter().map(text).collect(),
        diff_ids,
        unpacked,
        stored: blobs.values().map(|blob| blob.len() as u64).sum(),
        blobs,
    }
}

/// Writes the archive of one image.
///
/// # Errors
/// Returns an error when the image's name is invalid, or when the file cannot be written.
pub(crate) fn write_image(reference: &str, image: Packed, out: &Path) -> Result<Written, Error> {
    let digest = image.digest();
    let docker = json!([{
        "Config": blob_path(&image.configuration),
        "RepoTags": [reference],
        "Layers": image.layers.iter().map(|digest| blob_path(digest)).collect::<Vec<_>>(),
    }]);
    let size = write(reference, image.entry, &image.blobs, Some(&docker), out)?;
    Ok(Written { digest, size })
}

/// Writes the archive of an index of images, one for each processor.
///
/// # Errors
/// Returns an error when the images' name is invalid, or when the file cannot be written.
pub(crate) fn write_index(reference: &str, images: Vec<Packed>, out: &Path) -> Result<Written, Error> {
    let mut blobs = Blobs::new();
    let mut entries = Vec::new();
    for image in images {
        blobs.extend(image.blobs);
        entries.push(image.entry);
    }
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries});
    let entry = add(&mut blobs, INDEX, index.to_string().into_bytes());
    let digest = entry["digest"].as_str().unwrap_or_default().to_owned();
    let size = write(reference, entry, &blobs, None, out)?;
    Ok(Written { digest, size })
}

/// Writes an archive whose only entry has this name, and returns its size.
fn write(
    reference: &str,
    mut entry: Value,
    blobs: &Blobs,
    docker: Option<&Value>,
    out: &Path,
) -> Result<u64, Error> {
    // containerd reads the first annotation, with the complete name; the OCI specification defines
    // the second one, with the tag.
    entry["annotations"] = json!({
        "io.containerd.image.name": reference,
        "org.opencontainers.image.ref.name": tag(reference)?,
    });
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]});
    let layout = json!({"imageLayoutVersion": "1.0.0"});
    let mut tar = tar::Builder::new(Vec::new());
    for folder in ["blobs/", "blobs/sha256/"] {
        append(&mut tar, folder, 0o755, tar::EntryType::Directory, &[]);
    }
    for (digest, bytes) in blobs {
        append(&mut tar, &blob_path(digest), 0o644, tar::EntryType::Regular, bytes);
    }
    let documents = [("index.json", Some(&index)), ("manifest.json", docker), ("oci-layout", Some(&layout))];
    for (name, value) in documents {
        let Some(value) = value else { continue };
        append(&mut tar, name, 0o644, tar::EntryType::Regular, value.to_string().as_bytes());
    }
    let archive = tar.into_inner().expect("memory takes all that is written");
    save(&archive, out).map_err(|source| Error::Write { path: out.to_owned(), source })?;
    Ok(archive.len() as u64)
}

/// Adds a blob and returns its descriptor.
fn add(blobs: &mut Blobs, media_type: &str, bytes: Vec<u8>) -> Value {
    let digest = digest(&bytes);
    let descriptor = json!({"mediaType": media_type, "digest": digest, "size": bytes.len()});
    blobs.insert(digest, bytes);
    descriptor
}

/// Compresses a layer. The header has no time and no name.
fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzBuilder::new().write(Vec::new(), Compression::best());
    encoder.write_all(bytes).expect("memory takes all that is written");
    encoder.finish().expect("memory takes all that is written")
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
