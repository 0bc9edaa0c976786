//! The archive as a whole: reproducible bytes, and a format that the tools accept.

use pinniped_image::build;
use serde_json::json;

use crate::support::{Tar, build_in, compile, image_of, read};

#[test]
fn two_runs_give_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), "program", "int main(void) { return 0; }", &["-g"]);
    let first = build(&image_of(&program), &folder.path().join("first.tar")).unwrap();
    // Another modification time, other permissions, another path: these properties of the file are
    // not part of the image.
    let moved = folder.path().join("elsewhere");
    std::fs::copy(&program, &moved).unwrap();
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&moved, permissions).unwrap();
    let second = build(&image_of(&moved), &folder.path().join("second.tar")).unwrap();
    assert_eq!(first.digest, second.digest);
    assert_eq!(std::fs::read(&first.path).unwrap(), std::fs::read(&second.path).unwrap());
}

#[test]
fn another_program_changes_the_digest_but_not_the_layer_of_libraries() {
    let folder = tempfile::tempdir().unwrap();
    let one = compile(folder.path(), "one", "int main(void) { return 1; }", &[]);
    let two = compile(folder.path(), "two", "int main(void) { return 2; }", &[]);
    let one = build_in(folder.path(), &image_of(&one));
    let two = build_in(folder.path(), &image_of(&two));
    assert_ne!(one.digest, two.digest);
    assert_eq!(one.layers[0], two.layers[0]);
    assert_ne!(one.layers[1], two.layers[1]);
}

#[test]
fn the_archive_is_an_oci_layout_and_dockers_manifest_names_the_same_blobs() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), "program", "int main(void) { return 0; }", &["-static"]);
    let mut image = image_of(&program);
    image.ports = vec![8443, 10250];
    let built = build_in(folder.path(), &image);
    let found = read(&built.path);

    assert_eq!(built.size, std::fs::metadata(&built.path).unwrap().len());
    assert_eq!(found.archive.json("oci-layout"), json!({"imageLayoutVersion": "1.0.0"}));
    let index = found.archive.json("index.json");
    let entry = &index["manifests"][0];
    assert_eq!(entry["digest"], built.digest.as_str());
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    assert_eq!(entry["platform"], json!({"architecture": architecture, "os": "linux"}));
    let annotations = json!({
        "io.containerd.image.name": "test.example/program:v1",
        "org.opencontainers.image.ref.name": "v1",
    });
    assert_eq!(entry["annotations"], annotations);

    assert_eq!(found.config["architecture"], architecture);
    let wanted = json!({
        "User": "65532:65532",
        "ExposedPorts": {"8443/tcp": {}, "10250/tcp": {}},
        "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
        "Entrypoint": ["/bin/program"],
        "WorkingDir": "/",
    });
    assert_eq!(found.config["config"], wanted);
    assert_eq!(found.config["rootfs"], json!({"type": "layers", "diff_ids": built.layers}));

    let docker = found.archive.json("manifest.json");
    assert_eq!(docker[0]["RepoTags"], json!(["test.example/program:v1"]));
    let path = |digest: &serde_json::Value| format!("blobs/{}", digest.as_str().unwrap().replace(':', "/"));
    assert_eq!(docker[0]["Config"], path(&found.manifest["config"]["digest"]));
    let layers = found.manifest["layers"].as_array().unwrap();
    assert_eq!(docker[0]["Layers"], json!([path(&layers[0]["digest"]), path(&layers[1]["digest"])]));
}

#[test]
fn every_blob_matches_its_name_and_its_descriptor() {
    use sha2::Digest as _;
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), "program", "int main(void) { return 0; }", &[]);
    let found = read(&build_in(folder.path(), &image_of(&program)).path);
    let blobs: Vec<_> = found.archive.0.iter().filter(|e| e.name.starts_with("blobs/sha256/")).collect();
    let digest =
        |bytes: &[u8]| sha2::Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect::<String>();
    let mut checked = 0;
    for blob in &blobs {
        if !blob.name.ends_with('/') {
            assert_eq!(blob.name, format!("blobs/sha256/{}", digest(&blob.bytes)));
            checked += 1;
        }
    }
    assert_eq!(checked, 4, "two layers, configuration, manifest");
    let layers = found.manifest["layers"].as_array().unwrap();
    for descriptor in layers.iter().chain([&found.manifest["config"]]) {
        assert_eq!(descriptor["size"], found.archive.blob(&descriptor["digest"]).len());
    }
}

#[test]
fn the_archive_contains_no_time_and_no_owner() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), "program", "int main(void) { return 0; }", &[]);
    let built = build_in(folder.path(), &image_of(&program));
    let found = read(&built.path);
    let tars: Vec<&Tar> = found.layers.iter().chain([&found.archive]).collect();
    for entry in tars.iter().flat_map(|tar| &tar.0) {
        assert_eq!(entry.mtime, 0, "{}", entry.name);
        assert_eq!(entry.owner, (0, 0, String::new(), String::new()), "{}", entry.name);
    }
    assert_eq!(found.config["created"], "1970-01-01T00:00:00Z");
    for tar in tars {
        let mut sorted = tar.names();
        sorted.sort_unstable();
        assert_eq!(tar.names(), sorted);
    }
}
