//! Reads an archive back, and compiles programs for images.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use pinniped_image::{Built, File, Image, build};
use serde_json::Value;

/// The regular files and folders of a tar.
pub(crate) struct Tar(pub(crate) Vec<Entry>);

pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) mode: u32,
    pub(crate) mtime: u64,
    pub(crate) owner: (u64, u64, String, String),
    pub(crate) bytes: Vec<u8>,
}

impl Tar {
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let mut archive = tar::Archive::new(bytes);
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let header = entry.header().clone();
            let text = |name: Result<Option<&str>, _>| name.unwrap().unwrap_or_default().to_owned();
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
            Entry {
                name: String::from_utf8(entry.path_bytes().into_owned()).unwrap(),
                mode: header.mode().unwrap(),
                mtime: header.mtime().unwrap(),
                owner: (
                    header.uid().unwrap(),
                    header.gid().unwrap(),
                    text(header.username().map_err(|_| ())),
                    text(header.groupname().map_err(|_| ())),
                ),
                bytes,
            }
        });
        Self(entries.collect())
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.0.iter().map(|entry| entry.name.as_str()).collect()
    }

    pub(crate) fn file(&self, name: &str) -> &Entry {
        let found = self.0.iter().find(|entry| entry.name == name);
        found.unwrap_or_else(|| panic!("there is no {name} in {:?}", self.names()))
    }

    pub(crate) fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&self.file(name).bytes).unwrap()
    }

    /// Returns the blob of a descriptor or a digest.
    pub(crate) fn blob(&self, digest: &Value) -> &[u8] {
        &self.file(&format!("blobs/{}", digest.as_str().unwrap().replace(':', "/"))).bytes
    }
}

/// An archive, read as the OCI specification requires.
pub(crate) struct Read {
    pub(crate) archive: Tar,
    pub(crate) manifest: Value,
    pub(crate) config: Value,
    pub(crate) layers: Vec<Tar>,
}

pub(crate) fn read(path: &Path) -> Read {
    let archive = Tar::read(&std::fs::read(path).unwrap());
    let index = archive.json("index.json");
    let manifest: Value = serde_json::from_slice(archive.blob(&index["manifests"][0]["digest"])).unwrap();
    let config = serde_json::from_slice(archive.blob(&manifest["config"]["digest"])).unwrap();
    let layers = manifest["layers"].as_array().unwrap();
    let layers = layers.iter().map(|layer| Tar::read(archive.blob(&layer["digest"]))).collect();
    Read { archive, manifest, config, layers }
}

impl Read {
    /// Returns all files of the image by absolute path, as seen by a container.
    pub(crate) fn files(&self) -> BTreeMap<String, (u32, &[u8])> {
        let entries = self.layers.iter().flat_map(|layer| &layer.0);
        let file = |entry: &'_ Entry| (format!("/{}", entry.name), entry.mode);
        entries.map(|entry| (file(entry).0, (file(entry).1, entry.bytes.as_slice()))).collect()
    }
}

/// Compiles a C program with these flags; Rust programs are linked by the C compiler, too.
pub(crate) fn compile(folder: &Path, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let file = folder.join(format!("{name}.c"));
    let program = folder.join(name);
    std::fs::write(&file, source).unwrap();
    let output = Command::new("cc").arg("-o").arg(&program).arg(&file).args(flags).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Returns an image of one program.
pub(crate) fn image_of(program: &Path) -> Image {
    Image {
        entrypoint: vec!["/bin/program".to_owned()],
        files: vec![File::program(program, "/bin/program")],
        ..Image::new("test.example/program:v1")
    }
}

pub(crate) fn build_in(folder: &Path, image: &Image) -> Built {
    build(image, &folder.join("image.tar")).unwrap()
}
