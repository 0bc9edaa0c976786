//! The files of `cargo xtask dist`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use pinniped_test_support::tools;
use serde_json::Value;

use crate::support::{
    ARCHITECTURE, VERSION, can_package, path, program, succeed, text, tools_are_built, xtask,
};

/// The target and the platform of this machine's programs.
const TARGET: &str =
    if cfg!(target_arch = "aarch64") { "aarch64-unknown-linux-gnu" } else { "x86_64-unknown-linux-gnu" };
const PLATFORM: &str = if cfg!(target_arch = "aarch64") { "linux-arm64" } else { "linux-amd64" };

/// Writes the files of a release with the programs in a folder.
fn dist(binaries: &Path, out: &Path) {
    let binaries = format!("{TARGET}={}", path(binaries));
    let output = xtask(&["dist", "--binaries", &binaries, "--out", path(out)]);
    let printed = text(&output, "xtask dist");
    for name in files(out).keys() {
        assert!(printed.contains(&format!(" kB  {name}\n")), "{name}: {printed}");
    }
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(path).unwrap())
    });
    entries.collect()
}

/// Returns the name, the mode and the time of each entry of an archive, after unpacking it.
fn unpack(archive: &[u8], into: &Path) -> Vec<(String, u32, u64)> {
    tar::Archive::new(flate2::read::GzDecoder::new(archive)).unpack(into).unwrap();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(archive));
    let entries = archive.entries().unwrap().map(|entry| {
        let entry = entry.unwrap();
        let header = entry.header();
        let name = entry.path().unwrap().display().to_string();
        (name, header.mode().unwrap(), header.mtime().unwrap())
    });
    entries.collect()
}

#[test]
fn the_files_of_a_release_are_complete_and_their_checksums_match() {
    const TEST: &str = "the files of a release";
    if !tools_are_built(TEST) || !can_package(TEST) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("dist");
    dist(&tools::bin_dir().unwrap(), &out);
    let files = files(&out);
    for name in [
        format!("pinniped-v{VERSION}-{PLATFORM}.tar.gz"),
        format!("pinniped-v{VERSION}-{PLATFORM}.cdx.json"),
        format!("pinniped_{VERSION}_{ARCHITECTURE}.deb"),
        format!("pinniped-chart-{VERSION}.tgz"),
        "install-pinniped-concierge-crds.yaml".to_owned(),
        "install-pinniped-concierge-resources.yaml".to_owned(),
        "provenance.intoto.json".to_owned(),
    ] {
        assert!(files.contains_key(&name), "{name}: {:?}", files.keys());
    }
    // Both name the archives of all platforms, and there is only one.
    assert!(!files.contains_key("pinniped.yaml") && !files.contains_key("pinniped.rb"));

    let checked = succeed(Command::new("sha256sum").args(["--check", "SHA256SUMS"]).current_dir(&out));
    assert_eq!(checked.lines().count(), files.len() - 1, "{checked}");
    let provenance: Value = serde_json::from_slice(&files["provenance.intoto.json"]).unwrap();
    // All files except itself and the checksums.
    assert_eq!(provenance["subject"].as_array().unwrap().len(), files.len() - 2);
    let commit = provenance.pointer("/predicate/buildDefinition/resolvedDependencies/0/digest/gitCommit");
    let head = succeed(Command::new("git").args(["rev-parse", "HEAD"]).current_dir(tools::repository()));
    assert_eq!(commit.unwrap(), head.trim());

    the_archive_has_the_program_and_completions(folder.path(), &files);
    the_package_can_be_installed(folder.path(), &out);
    the_bill_of_materials_has_the_dependencies(&files);
    the_chart_has_the_version(folder.path(), &files);
}

fn the_archive_has_the_program_and_completions(folder: &Path, files: &BTreeMap<String, Vec<u8>>) {
    let root = folder.join("archive");
    let entries = unpack(&files[&format!("pinniped-v{VERSION}-{PLATFORM}.tar.gz")], &root);
    let folder = format!("pinniped-v{VERSION}-{PLATFORM}/");
    let names: Vec<&str> =
        entries.iter().map(|(name, ..)| name.strip_prefix(folder.as_str()).unwrap()).collect();
    for name in [
        "LICENSE",
        "completions/_pinniped",
        "completions/pinniped.bash",
        "completions/pinniped.fish",
        "completions/pinniped.ps1",
        "man/man1/pinniped.1",
        "pinniped",
    ] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    for (name, mode, time) in &entries {
        assert_eq!(*time, 1_700_000_000, "{name}");
        assert_eq!(*mode, if name.ends_with("/pinniped") { 0o755 } else { 0o644 }, "{name}");
    }
    let root = root.join(folder);
    let version = succeed(Command::new(root.join("pinniped")).arg("version"));
    assert!(version.contains(VERSION), "{version}");
    completions_load(&root.join("completions"));
}

/// Each shell loads its script and then knows completions for the program.
fn completions_load(folder: &Path) {
    let table = [
        ("bash", format!(". {}/pinniped.bash && complete -p pinniped", path(folder))),
        (
            "zsh",
            format!(
                "fpath=({} $fpath); autoload -Uz compinit; compinit -D -u; echo ${{_comps[pinniped]}}",
                path(folder)
            ),
        ),
        ("fish", format!("source {}/pinniped.fish; and complete --command pinniped", path(folder))),
    ];
    for (shell, script) in table {
        let Some(program) = program(shell, &format!("completions of a release in {shell}")) else { continue };
        let loaded = succeed(Command::new(program).args(["-c", &script]));
        assert!(loaded.contains("pinniped"), "{shell}: {loaded:?}");
    }
}

/// Installs the package with dpkg into a folder, and runs the program there.
fn the_package_can_be_installed(folder: &Path, out: &Path) {
    let Some(dpkg) = program("dpkg", "the Debian package of a release") else { return };
    let package = out.join(format!("pinniped_{VERSION}_{ARCHITECTURE}.deb"));
    let root = folder.join("root");
    for name in ["info", "updates", "triggers"] {
        std::fs::create_dir_all(root.join("var/lib/dpkg").join(name)).unwrap();
    }
    std::fs::write(root.join("var/lib/dpkg/status"), "").unwrap();
    let field = |name: &str| succeed(Command::new("dpkg-deb").arg("--field").arg(&package).arg(name));
    // The program of the dev profile is linked with the C library of this machine.
    assert!(field("Depends").contains("libc6 (>= 2."), "{}", field("Depends"));
    // This folder has no other packages, so the dependency is ignored.
    let mut install = Command::new(dpkg);
    install.arg(format!("--root={}", path(&root))).arg(format!("--log={}", path(&folder.join("log"))));
    install.args(["--force-not-root", "--force-depends", "--force-bad-path"]);
    succeed(install.arg("--install").arg(&package));
    let version = succeed(Command::new(root.join("usr/bin/pinniped")).arg("version"));
    assert!(version.contains(VERSION), "{version}");
    let listed = succeed(Command::new("dpkg-deb").arg("--contents").arg(&package));
    for wanted in [
        "-rwxr-xr-x root/root",
        "./usr/bin/pinniped\n",
        "./usr/share/bash-completion/completions/pinniped\n",
        "./usr/share/doc/pinniped/copyright\n",
        "./usr/share/fish/vendor_completions.d/pinniped.fish\n",
        "./usr/share/man/man1/pinniped.1.gz\n",
        "./usr/share/zsh/vendor-completions/_pinniped\n",
    ] {
        assert!(listed.contains(wanted), "{wanted}: {listed}");
    }
    let others = listed.lines().filter(|line| !line.starts_with('d') && !line.starts_with("-rw"));
    assert_eq!(others.count(), 0, "{listed}");
    let folders = listed.lines().filter(|line| line.starts_with('d'));
    assert!(folders.clone().all(|line| line.starts_with("drwxr-xr-x root/root")), "{listed}");
}

fn the_bill_of_materials_has_the_dependencies(files: &BTreeMap<String, Vec<u8>>) {
    let name = format!("pinniped-v{VERSION}-{PLATFORM}.cdx.json");
    let document: Value = serde_json::from_slice(&files[&name]).unwrap();
    assert_eq!((&document["bomFormat"], &document["specVersion"]), (&"CycloneDX".into(), &"1.6".into()));
    let components = document["components"].as_array().unwrap();
    let rustls = components.iter().find(|component| component["name"] == "rustls").unwrap();
    assert_eq!(rustls["licenses"][0]["expression"], "Apache-2.0 OR ISC OR MIT");
    assert_eq!(rustls["hashes"][0]["alg"], "SHA-256");
    // A crate of the Concierge that the command line does not use.
    assert!(!components.iter().any(|component| component["name"] == "pinniped-concierge"));
    // Every reference names a component or the subject, as the format requires.
    let known: Vec<&Value> = components.iter().map(|component| &component["bom-ref"]).collect();
    for dependency in document["dependencies"].as_array().unwrap() {
        let of_subject = dependency["ref"] == "pinniped";
        assert!(of_subject || known.contains(&&dependency["ref"]), "{dependency}");
        let used = dependency["dependsOn"].as_array().unwrap();
        assert!(used.iter().all(|reference| known.contains(&reference)), "{dependency}");
    }
}

fn the_chart_has_the_version(folder: &Path, files: &BTreeMap<String, Vec<u8>>) {
    let root = folder.join("chart");
    let entries = unpack(&files[&format!("pinniped-chart-{VERSION}.tgz")], &root);
    let chart = std::fs::read_to_string(root.join("pinniped/Chart.yaml")).unwrap();
    assert!(chart.contains(&format!("\nversion: {VERSION}\n")), "{chart}");
    assert!(chart.contains(&format!("\nappVersion: {VERSION}\n")), "{chart}");
    for (name, _, time) in entries {
        assert_eq!(time, 1_700_000_000, "{name}");
    }
}

/// A program that prints the texts of the real one, and is small enough to be packed twice.
fn small_program(folder: &Path) -> PathBuf {
    let bins = folder.join("bins");
    std::fs::create_dir_all(&bins).unwrap();
    let real = tools::binary("pinniped").unwrap();
    let program = bins.join("pinniped");
    std::fs::write(&program, format!("#!/bin/sh\nexec {} \"$@\"\n", path(&real))).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    bins
}

#[test]
fn the_same_programs_give_the_same_bytes() {
    const TEST: &str = "reproducible files of a release";
    if !tools_are_built(TEST) || !can_package(TEST) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let bins = small_program(folder.path());
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    dist(&bins, &first);
    // Another modification time is not part of an artifact.
    let file = std::fs::File::options().append(true).open(bins.join("pinniped")).unwrap();
    file.set_modified(std::time::UNIX_EPOCH).unwrap();
    // A program that is open for writing cannot be executed.
    drop(file);
    dist(&bins, &second);
    let (first, second) = (files(&first), files(&second));
    assert_eq!(first.keys().collect::<Vec<_>>(), second.keys().collect::<Vec<_>>());
    for (name, bytes) in first {
        assert!(bytes == second[&name], "{name} differs");
    }
}

#[test]
fn an_added_file_has_a_checksum_and_may_not_replace_another_one() {
    const TEST: &str = "files of a release that are added";
    if !tools_are_built(TEST) || !can_package(TEST) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let binaries = format!("--binaries={TARGET}={}", path(&small_program(folder.path())));
    let out = folder.path().join("dist");
    let document = folder.path().join("image.cdx.json");
    std::fs::write(&document, "{}").unwrap();
    let add = format!("--add={}", path(&document));
    text(&xtask(&["dist", &binaries, &add, "--out", path(&out)]), "xtask dist --add");
    let files = files(&out);
    assert_eq!(files["image.cdx.json"], b"{}");
    let checked = succeed(Command::new("sha256sum").args(["--check", "SHA256SUMS"]).current_dir(&out));
    assert!(checked.contains("image.cdx.json: OK"), "{checked}");
    let provenance: Value = serde_json::from_slice(&files["provenance.intoto.json"]).unwrap();
    let arguments = provenance.pointer("/predicate/buildDefinition/externalParameters/arguments");
    assert_eq!(arguments.unwrap(), &serde_json::json!([binaries]));

    let again = folder.path().join("again");
    let twice = xtask(&["dist", &binaries, &add, &add, "--out", path(&again)]);
    let errors = String::from_utf8_lossy(&twice.stderr);
    assert!(!twice.status.success() && errors.contains("there are two files image.cdx.json"), "{errors}");
}

#[test]
fn a_release_with_all_platforms_has_the_manifests_of_krew_and_homebrew() {
    const TEST: &str = "the manifests of krew and Homebrew";
    if !tools_are_built(TEST) || !can_package(TEST) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let bins = small_program(folder.path());
    std::fs::copy(bins.join("pinniped"), bins.join("pinniped.exe")).unwrap();
    let out = folder.path().join("dist");
    let targets = [
        "x86_64-unknown-linux-gnu",
        "aarch64-unknown-linux-gnu",
        "x86_64-apple-darwin",
        "aarch64-apple-darwin",
        "x86_64-pc-windows-msvc",
    ];
    let binaries = targets.map(|target| format!("--binaries={target}={}", path(&bins)));
    let mut args = vec!["dist", "--complete", "--out", path(&out)];
    args.extend(binaries.iter().map(String::as_str));
    let output = xtask(&args);
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && errors.contains("offline") {
        // Bills of materials have the licences of crates for other systems.
        tools::skip(TEST, "crates for other systems are missing: `cargo xtask test` fetches them");
        return;
    }
    text(&output, "xtask dist --complete");
    let files = files(&out);
    let sums = String::from_utf8(files["SHA256SUMS"].clone()).unwrap();
    let sums: BTreeMap<&str, &str> =
        sums.lines().filter_map(|line| line.split_once("  ")).map(|(sum, name)| (name, sum)).collect();
    let krew = String::from_utf8(files["pinniped.yaml"].clone()).unwrap();
    let formula = String::from_utf8(files["pinniped.rb"].clone()).unwrap();
    for platform in ["linux-amd64", "linux-arm64", "darwin-amd64", "darwin-arm64"] {
        let archive = format!("pinniped-v{VERSION}-{platform}.tar.gz");
        let sum = sums[archive.as_str()];
        assert!(krew.contains(&format!("/v{VERSION}/{archive}\n    sha256: \"{sum}\"\n")), "{krew}");
        assert!(formula.contains(&format!("/v{VERSION}/{archive}\"\n      sha256 \"{sum}\"\n")), "{formula}");
    }
    assert!(krew.contains(sums[format!("pinniped-v{VERSION}-windows-amd64.zip").as_str()]), "{krew}");
    assert!(!krew.contains("{{") && !formula.contains("{{"));

    let incomplete = xtask(&["dist", "--complete", "--out", path(&folder.path().join("one")), &binaries[0]]);
    let errors = String::from_utf8_lossy(&incomplete.stderr);
    assert!(errors.contains("pinniped.yaml needs archives for linux-arm64"), "{errors}");
    assert!(!incomplete.status.success());
}
