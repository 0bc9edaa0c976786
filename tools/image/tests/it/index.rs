//! The index of images for several processors.

use std::path::{Path, PathBuf};

use pinniped_image::{Error, build_index};
use serde_json::{Value, json};

use crate::support::{Tar, compile, image_of};

/// `e_machine` of an ELF header, and its value for arm64.
const MACHINE: std::ops::Range<usize> = 18..20;
const AARCH64: [u8; 2] = [183, 0];
/// The same for amd64.
const X86_64: [u8; 2] = [62, 0];

/// Copies a static program with the header of the other processor. Building an image reads the
/// header and runs nothing.
fn for_other_processor(program: &Path) -> PathBuf {
    let mut bytes = std::fs::read(program).unwrap();
    let other = if bytes[MACHINE] == AARCH64 { X86_64 } else { AARCH64 };
    bytes[MACHINE].copy_from_slice(&other);
    let copy = program.with_extension("other");
    std::fs::write(&copy, bytes).unwrap();
    copy
}

fn static_program(folder: &Path) -> PathBuf {
    compile(folder, "program", "int main(void) { return 0; }", &["-static", "-s"])
}

fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(bytes), &mut plain).unwrap();
    plain
}

#[test]
fn an_index_has_one_image_for_each_processor_with_compressed_layers() {
    let folder = tempfile::tempdir().unwrap();
    let program = static_program(folder.path());
    let images = [image_of(&program), image_of(&for_other_processor(&program))];
    let out = folder.path().join("index.tar");
    let built = build_index(&images, &out).unwrap();

    let archive = Tar::read(&std::fs::read(&out).unwrap());
    assert_eq!(built.size, std::fs::metadata(&out).unwrap().len());
    assert!(!archive.names().contains(&"manifest.json"), "Docker's format has one processor");
    let entry = &archive.json("index.json")["manifests"][0];
    assert_eq!(entry["digest"], built.digest.as_str());
    assert_eq!(entry["mediaType"], "application/vnd.oci.image.index.v1+json");
    assert_eq!(entry["annotations"]["org.opencontainers.image.ref.name"], "v1");
    let index: Value = serde_json::from_slice(archive.blob(&entry["digest"])).unwrap();
    let mut processors = Vec::new();
    for (described, image) in index["manifests"].as_array().unwrap().iter().zip(&built.images) {
        assert_eq!(described["platform"], json!({"architecture": image.processor, "os": "linux"}));
        assert_eq!(described["digest"], image.digest.as_str());
        processors.push(image.processor);
        let manifest: Value = serde_json::from_slice(archive.blob(&described["digest"])).unwrap();
        let config: Value = serde_json::from_slice(archive.blob(&manifest["config"]["digest"])).unwrap();
        assert_eq!(config["architecture"], image.processor);
        assert_eq!(config["rootfs"]["diff_ids"], json!(image.layers));
        let mut unpacked = 0;
        for (layer, plain_digest) in manifest["layers"].as_array().unwrap().iter().zip(&image.layers) {
            assert_eq!(layer["mediaType"], "application/vnd.oci.image.layer.v1.tar+gzip");
            let compressed = archive.blob(&layer["digest"]);
            assert_eq!(layer["size"], compressed.len());
            let plain = gunzip(compressed);
            unpacked += plain.len() as u64;
            assert_eq!(*plain_digest, format!("sha256:{}", sha256(&plain)));
        }
        assert_eq!(image.unpacked, unpacked);
        assert!(image.stored < image.unpacked, "{} of {unpacked}", image.stored);
    }
    processors.sort_unstable();
    assert_eq!(processors, ["amd64", "arm64"]);
}

#[test]
fn two_runs_give_the_same_index() {
    let folder = tempfile::tempdir().unwrap();
    let program = static_program(folder.path());
    let images = [image_of(&program), image_of(&for_other_processor(&program))];
    let archive = |name: &str| {
        let out = folder.path().join(name);
        build_index(&images, &out).unwrap();
        std::fs::read(out).unwrap()
    };
    assert_eq!(archive("first.tar"), archive("second.tar"));
}

#[test]
fn two_images_for_the_same_processor_and_an_index_without_images_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let program = static_program(folder.path());
    let out = folder.path().join("index.tar");
    let twice = build_index(&[image_of(&program), image_of(&program)], &out);
    assert!(matches!(twice, Err(Error::ProcessorTwice { .. })), "{twice:?}");
    let none = build_index(&[], &out);
    assert!(matches!(none, Err(Error::Reference { .. })), "{none:?}");
    assert!(!out.exists());
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    data_encoding::HEXLOWER.encode(&sha2::Sha256::digest(bytes))
}
