//! The image index of `cargo xtask image`, pushed to a real registry and pulled by containerd.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use pinniped_test_support::control_plane::free_port;
use pinniped_test_support::guardian::{Ending, Guardian, Process};
use pinniped_test_support::tools;
use serde_json::Value;

use crate::support::{ARCHITECTURE, REGISTRY, path, program, succeed, text, tools_are_built, xtask};

const TIME_LIMIT: Duration = Duration::from_secs(60);
const PROGRAMS: [&str; 2] = ["pinniped-concierge-kube-cert-agent", "pinniped-server"];
const NAME: &str = "pinniped-rs/pinniped-server";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// `e_machine` of an ELF header, and its values.
const MACHINE: std::ops::Range<usize> = 18..20;
const X86_64: [u8; 2] = [62, 0];
const AARCH64: [u8; 2] = [183, 0];

/// A server that ends with the test.
struct Server {
    process: Process,
    _guardian: Guardian,
}

impl Server {
    fn start(command: &Command, log: &Path) -> Self {
        let guardian = Guardian::start(None).unwrap();
        let process = guardian.spawn(command, Ending::Kill, log).unwrap();
        Self { process, _guardian: guardian }
    }

    /// Waits until the server is ready.
    fn wait(&mut self, log: &Path, ready: impl Fn() -> bool) {
        let start = Instant::now();
        while !ready() {
            let ended = self.process.ended().is_some();
            let late = start.elapsed() > TIME_LIMIT;
            assert!(!ended && !late, "{}", std::fs::read_to_string(log).unwrap_or_default());
            std::thread::park_timeout(Duration::from_millis(50));
        }
    }
}

/// Starts a registry in a folder, on a free port of the loopback interface.
fn registry(program: &Path, folder: &Path) -> (Server, SocketAddr) {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()));
    let config = folder.join("registry.yaml");
    let text = format!(
        "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: '{address}'}}\n",
        path(&folder.join("registry"))
    );
    std::fs::write(&config, text).unwrap();
    let log = folder.join("registry.log");
    let mut server = Server::start(Command::new(program).arg("serve").arg(&config), &log);
    server.wait(&log, || {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--fail", "--max-time", "5"]).arg(format!("http://{address}/v2/"));
        curl.output().unwrap().status.success()
    });
    (server, address)
}

/// Compiles a static program for each name, with the header of a processor. Building an image reads
/// the header and runs nothing.
fn programs(folder: &Path, machine: [u8; 2]) -> PathBuf {
    let bins = folder.join(format!("bins-{}", machine[0]));
    std::fs::create_dir_all(&bins).unwrap();
    let source = folder.join("program.c");
    for name in PROGRAMS {
        std::fs::write(&source, format!("int main(void) {{ return {}; }}\n", name.len())).unwrap();
        let program = bins.join(name);
        succeed(Command::new("cc").args(["-static", "-s", "-o"]).arg(&program).arg(&source));
        let mut bytes = std::fs::read(&program).unwrap();
        bytes[MACHINE].copy_from_slice(&machine);
        std::fs::write(&program, bytes).unwrap();
    }
    bins
}

/// Whether this machine has a static C library. Records a skip otherwise.
fn links_statically(test: &str) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("program.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let mut cc = Command::new("cc");
    let linked = cc.args(["-static", "-o"]).arg(folder.path().join("program")).arg(&source).output();
    let links = linked.is_ok_and(|output| output.status.success());
    if !links {
        tools::skip(test, "cc does not link static programs");
    }
    links
}

/// Gets a manifest or a blob from the registry, whose digest must be the one of its bytes.
fn pull(address: SocketAddr, what: &str, media_type: &str) -> (String, Vec<u8>) {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--fail", "--header"]).arg(format!("Accept: {media_type}"));
    let output = curl.arg(format!("http://{address}/v2/{NAME}/{what}")).output().unwrap();
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    (sha256(&output.stdout), output.stdout)
}

fn sha256(bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("blob");
    std::fs::write(&file, bytes).unwrap();
    let printed = succeed(Command::new("sha256sum").arg(&file));
    format!("sha256:{}", printed.split_whitespace().next().unwrap())
}

#[test]
fn an_index_is_the_same_in_the_registry_and_containerd_pulls_it() {
    const TEST: &str = "the image index in a real registry";
    if !tools_are_built(TEST) || !links_statically(TEST) {
        return;
    }
    let program = PathBuf::from(std::env::var_os(REGISTRY).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("image");
    let (_server, address) = registry(&program, folder.path());
    let reference = format!("{address}/{NAME}:1.2.3");
    let binaries = [("amd64", X86_64), ("arm64", AARCH64)].map(|(processor, machine)| {
        format!("--binaries={processor}={}", path(&programs(folder.path(), machine)))
    });
    let args = ["image", "--check-size", "--out", path(&out), "--push", &reference];
    let output = xtask(&[&args[..], &binaries.each_ref().map(String::as_str)[..]].concat());
    let printed = text(&output, "xtask image");
    let line = |name: &str| {
        let line = printed.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().to_owned()
    };
    let digest = line("digest ");
    assert_eq!(line("pushed "), format!("{address}/{NAME}@{digest}"));

    let (pulled, index) = pull(address, "manifests/1.2.3", INDEX);
    assert_eq!(pulled, digest);
    let index: Value = serde_json::from_slice(&index).unwrap();
    let mut processors = Vec::new();
    for entry in index["manifests"].as_array().unwrap() {
        let wanted = entry["digest"].as_str().unwrap();
        processors.push(entry["platform"]["architecture"].as_str().unwrap().to_owned());
        assert_eq!(wanted, line(processors.last().unwrap()));
        let (pulled, manifest) = pull(address, &format!("manifests/{wanted}"), MANIFEST);
        assert_eq!(pulled, wanted);
        let manifest: Value = serde_json::from_slice(&manifest).unwrap();
        for blob in manifest["layers"].as_array().unwrap().iter().chain([&manifest["config"]]) {
            let wanted = blob["digest"].as_str().unwrap();
            assert_eq!(pull(address, &format!("blobs/{wanted}"), "*/*").0, wanted);
        }
    }
    assert_eq!(processors, ["amd64", "arm64"]);

    let document =
        |name: &str| -> Value { serde_json::from_slice(&std::fs::read(out.join(name)).unwrap()).unwrap() };
    let provenance = document("pinniped-server.provenance.intoto.json");
    assert_eq!(provenance["subject"][0]["digest"]["sha256"], digest.trim_start_matches("sha256:"));
    for processor in processors {
        let materials = document(&format!("pinniped-server-{processor}.cdx.json"));
        let components = materials["components"].as_array().unwrap();
        for name in ["pinniped-concierge", "pinniped-gateway", "pinniped-local-user-authenticator"] {
            assert!(components.iter().any(|component| component["name"] == name), "{processor}: {name}");
        }
    }
    containerd_pulls(folder.path(), &reference, &digest);
}

/// Pulls both images into a containerd of its own.
fn containerd_pulls(folder: &Path, reference: &str, digest: &str) {
    let test = "the image index in containerd";
    let Some(containerd) = program("containerd", test) else { return };
    if std::fs::metadata("/proc/self").is_ok_and(|it| std::os::unix::fs::MetadataExt::uid(&it) != 0) {
        return tools::permitted_skip(test, "containerd needs root");
    }
    let socket = folder.join("containerd.sock");
    let config = folder.join("containerd.toml");
    let text = format!(
        "version = 2\nroot = '{}'\nstate = '{}'\ndisabled_plugins = ['io.containerd.grpc.v1.cri', \
         'io.containerd.internal.v1.opt']\n[grpc]\naddress = '{}'\n",
        path(&folder.join("root")),
        path(&folder.join("state")),
        path(&socket)
    );
    std::fs::write(&config, text).unwrap();
    let log = folder.join("containerd.log");
    let mut command = Command::new(containerd);
    command.arg("--config").arg(&config);
    let mut server = Server::start(&command, &log);
    let ctr = |args: &[&str]| {
        let mut command = Command::new("ctr");
        command.args(["--address", path(&socket), "--namespace", "test"]).args(args);
        command
    };
    server.wait(&log, || ctr(&["version"]).output().is_ok_and(|output| output.status.success()));
    for processor in ["linux/amd64", "linux/arm64"] {
        let pull = ["images", "pull", "--plain-http", "--snapshotter", "native", "--platform", processor];
        succeed(&mut ctr(&[&pull[..], &[reference]].concat()));
    }
    let listed = succeed(&mut ctr(&["images", "list"]));
    let line = listed.lines().find(|line| line.starts_with(reference)).unwrap();
    assert!(line.contains(digest) && line.contains("linux/amd64,linux/arm64"), "{listed}");
}

#[test]
fn an_image_with_the_programs_of_a_release_is_small_enough() {
    let Some(programs) = std::env::var_os(tools::IMAGE_BIN_DIR_ENV) else {
        let why =
            "the programs of the dev profile are larger: `--image-programs DIR` names those of a release";
        return tools::permitted_skip("the size of the image", why);
    };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("image");
    let binaries = format!("--binaries={ARCHITECTURE}={}", path(Path::new(&programs)));
    text(&xtask(&["image", "--check-size", "--out", path(&out), &binaries]), "xtask image --check-size");
}

#[test]
fn programs_for_another_processor_than_named_are_refused() {
    if !links_statically("images of programs for another processor") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("image");
    let binaries = format!("--binaries=arm64={}", path(&programs(folder.path(), X86_64)));
    let output = xtask(&["image", "--out", path(&out), &binaries]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("are for amd64, not for arm64"), "{errors}");
}
