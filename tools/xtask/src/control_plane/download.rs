//! The published programs of a control plane, for machines without Go (`--download`).
//!
//! Kubernetes publishes the programs of a release in one archive for each processor, and lists the
//! checksums of the archives in the changelog. The checksums of [`KUBERNETES`] are in
//! `CHANGELOG-1.36.md` of the Go module that `tools/third-party/control-plane` requires, which
//! contains those of the releases before it. The checksums of [`ETCD`] are those in
//! `roles/kubespray_defaults/vars/main/checksums.yml` of kubespray. Neither archive has been
//! downloaded with this module yet: its tests use a server on the same machine.
//!
//! `curl` downloads an archive. Only the bytes with the pinned checksum are unpacked. An
//! interrupted download starts again; it leaves nothing in the cache.

use std::io::{IsTerminal as _, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use data_encoding::HEXLOWER;
use flate2::read::GzDecoder;
use sha2::{Digest, Sha256, Sha512};

use super::{TOOLS, cache, unfit};

const MIB: u64 = 1024 * 1024;
/// The largest program that is unpacked. The programs of Kubernetes 1.36 have some 90 MB.
const MAX_PROGRAM: u64 = 400 * MIB;
/// The number of downloads of one archive, if the connection fails.
const ATTEMPTS: u32 = 3;
/// The pause before another attempt.
const PAUSE: Duration = Duration::from_secs(3);
/// `curl` gives up if a connection is not established in this number of seconds, or if it transfers
/// less than a kilobyte per second for the second number.
const CURL_SECONDS: [&str; 2] = ["30", "60"];
/// The exit codes of curl after which another attempt can succeed: names that do not resolve,
/// connections that fail or end early, and timeouts.
const TRANSIENT: [i32; 10] = [5, 6, 7, 16, 18, 28, 35, 52, 56, 92];

/// The processors for which programs are published: Rust's name, and the publishers'.
const PROCESSORS: [(&str, &str); 2] = [("x86_64", "amd64"), ("aarch64", "arm64")];

/// An archive of programs. `ARCH` stands for the processor.
struct Archive {
    title: &'static str,
    /// The URL of the folder.
    folder: &'static str,
    file: &'static str,
    /// The checksums for the processors, in hexadecimal: SHA-256 or SHA-512 by their length.
    sums: [(&'static str, &'static str); 2],
    /// The largest archive that is downloaded.
    max: u64,
    /// The names of the programs, and their paths in the archive.
    programs: &'static [(&'static str, &'static str)],
}

const KUBERNETES: Archive = Archive {
    title: "Kubernetes v1.36.2",
    folder: "https://dl.k8s.io/v1.36.2/",
    file: "kubernetes-server-linux-ARCH.tar.gz",
    sums: [
        (
            "amd64",
            "0c617cb74f6a8ddc142afd453b3ece4b39268d78febdbe9df91faf3a01031d36\
             4e9347bf8dfdc336e9ed0fe64ad82ce0209ef9fc0340e7d2f784d37bfa7e0d18",
        ),
        (
            "arm64",
            "7226d91204980892f593307f06acefd5579337ec5758c8615a0e46541a990083\
             c6be9809b01fb9e06da7e9b6d7208a673fd5129b7145436c3fe6e726d1fa469d",
        ),
    ],
    max: 700 * MIB,
    programs: &[
        ("kube-apiserver", "kubernetes/server/bin/kube-apiserver"),
        ("kube-controller-manager", "kubernetes/server/bin/kube-controller-manager"),
        ("kubectl", "kubernetes/server/bin/kubectl"),
    ],
};

const ETCD: Archive = Archive {
    title: "etcd v3.5.27",
    folder: "https://github.com/etcd-io/etcd/releases/download/v3.5.27/",
    file: "etcd-v3.5.27-linux-ARCH.tar.gz",
    sums: [
        ("amd64", "0aad9a9e4e0817a021e933f9806a2b2960a62f949ad5a3d6436d8886945cb1bc"),
        ("arm64", "1277309f540c5a0329c428f95455c9f76d24f768c8d28fd2753e891c379053fa"),
    ],
    max: 100 * MIB,
    programs: &[("etcd", "etcd-v3.5.27-linux-ARCH/etcd")],
};

/// A server of archives.
#[derive(Clone, Copy)]
struct Server<'s> {
    /// The URL of the folder, or `None` for the publisher's.
    folder: Option<&'s str>,
    /// The protocols that curl may use, also after redirects.
    protocols: &'s str,
    pause: Duration,
}

/// The publishers.
const PUBLISHERS: Server<'_> = Server { folder: None, protocols: "=https", pause: PAUSE };

/// Returns the folder of the user's cache with the published programs, which are downloaded once.
///
/// # Errors
/// Returns an error with the reason when they are neither cached nor available.
pub(super) fn find_or_download(version: &str, offline: bool) -> anyhow::Result<PathBuf> {
    let processor = PROCESSORS.iter().find(|(rust, _)| *rust == std::env::consts::ARCH);
    let processor = processor.filter(|_| cfg!(target_os = "linux")).map(|(_, name)| *name);
    let processor = processor.context(
        "--download has programs for Linux on amd64 and arm64; without it, the programs are built with Go",
    )?;
    let archives = [&ETCD, &KUBERNETES];
    let parts = archives.iter().flat_map(|archive| [archive.file, archive.sum(processor)]);
    let key = format!("downloaded-{:016x}", cache::hash(parts.map(str::as_bytes)));
    cache::fetched("control-plane", &key, |work| {
        let titles = archives.map(|archive| archive.title).join(" and ");
        anyhow::ensure!(
            !offline,
            "offline, and {titles} are not in the cache yet; run the same command once with network"
        );
        eprintln!("downloading {titles} once (several hundred MB) ...");
        let programs = work.join("programs");
        std::fs::create_dir(&programs).context("could not create a folder for the programs")?;
        for archive in archives {
            archive.programs(processor, PUBLISHERS, work, &programs)?;
        }
        // Fails for programs that this machine cannot run.
        let unfit: Vec<String> = TOOLS.iter().filter_map(|tool| unfit(&programs, tool, version)).collect();
        anyhow::ensure!(unfit.is_empty(), "the downloaded programs are not usable: {}", unfit.join(", "));
        Ok(programs)
    })
}

impl Archive {
    fn sum(&self, processor: &str) -> &'static str {
        self.sums.iter().find(|(name, _)| *name == processor).map_or("", |(_, sum)| sum)
    }

    /// Downloads the archive into `work`, and writes its programs into `out`.
    fn programs(&self, processor: &str, server: Server<'_>, work: &Path, out: &Path) -> anyhow::Result<()> {
        let name = self.file.replace("ARCH", processor);
        let url = format!("{}{name}", server.folder.unwrap_or(self.folder));
        let file = work.join(&name);
        let mut attempt = 1;
        let found = loop {
            match self.download(&url, server.protocols, &file) {
                Ok(found) => break found,
                Err(Failure::Transient(error)) if attempt < ATTEMPTS => {
                    attempt += 1;
                    eprintln!("note: {error:#}; attempt {attempt} of {ATTEMPTS} ...");
                    std::thread::park_timeout(server.pause);
                }
                Err(Failure::Transient(error)) => {
                    return Err(error.context(format!("gave up after {ATTEMPTS} attempts")));
                }
                Err(Failure::Final(error)) => return Err(error),
            }
        };
        let wanted = self.sum(processor);
        anyhow::ensure!(
            found == wanted,
            "{url} has the checksum {found} instead of {wanted}; nothing of it was used"
        );
        self.unpack(processor, &file, out)?;
        std::fs::remove_file(&file).with_context(|| format!("could not remove {}", file.display()))
    }

    /// Downloads a file, and returns its checksum.
    fn download(&self, url: &str, protocols: &str, file: &Path) -> Result<String, Failure> {
        let headers = file.with_extension("headers");
        let max = self.max.to_string();
        let [connect, slow] = CURL_SECONDS;
        let mut curl = Command::new("curl");
        // Without -q, a configuration file of the user could change the options.
        curl.args(["-q", "--fail", "--silent", "--show-error", "--location", "--max-redirs", "5"]);
        curl.args(["--proto", protocols, "--proto-redir", protocols, "--tlsv1.2"]);
        curl.args(["--connect-timeout", connect, "--speed-limit", "1000", "--speed-time", slow]);
        curl.args(["--max-filesize", &max]).arg("--dump-header").arg(&headers).arg("--").arg(url);
        curl.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut curl = curl.spawn().context("`curl` is needed for --download (package curl)")?;
        let received = curl.stdout.take().context("curl has no standard output").and_then(|mut output| {
            let mut sink = std::fs::File::create(file)
                .with_context(|| format!("could not create {}", file.display()))?;
            let mut hasher = Hasher::for_sum(self.sums[0].1);
            let mut progress = Progress::new(url, &headers);
            let mut buffer = vec![0; 256 * 1024];
            loop {
                let count = output.read(&mut buffer).context("could not read the output of curl")?;
                if count == 0 {
                    progress.finish();
                    return Ok(hasher.finish());
                }
                progress.add(count);
                anyhow::ensure!(
                    progress.received <= self.max,
                    "{url} has more than {} MB",
                    self.max / 1_000_000
                );
                hasher.update(&buffer[..count]);
                sink.write_all(&buffer[..count])
                    .with_context(|| format!("could not write {}", file.display()))?;
            }
        });
        if received.is_err() {
            let _ = curl.kill();
        }
        let output = curl.wait_with_output().context("could not wait for curl")?;
        let sum = received?;
        if output.status.success() {
            return Ok(sum);
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        let error = anyhow::anyhow!("could not download {url}: {}", errors.trim());
        let transient = output.status.code().is_some_and(|code| TRANSIENT.contains(&code));
        Err(if transient { Failure::Transient(error) } else { Failure::Final(error) })
    }

    /// Writes the programs of an archive into a folder.
    fn unpack(&self, processor: &str, file: &Path, out: &Path) -> anyhow::Result<()> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let archive = std::fs::File::open(file);
        let archive = archive.with_context(|| format!("could not open {}", file.display()))?;
        let mut archive = tar::Archive::new(GzDecoder::new(archive));
        let unreadable = || format!("{} is not a readable archive", file.display());
        let mut missing: Vec<(&str, String)> =
            self.programs.iter().map(|(name, path)| (*name, path.replace("ARCH", processor))).collect();
        for entry in archive.entries().with_context(unreadable)? {
            let mut entry = entry.with_context(unreadable)?;
            let path = entry.path().with_context(unreadable)?.display().to_string();
            let Some(index) = missing.iter().position(|(_, wanted)| *wanted == path) else { continue };
            let (name, _) = missing.swap_remove(index);
            anyhow::ensure!(
                entry.header().entry_type().is_file() && entry.size() <= MAX_PROGRAM,
                "{path} in {} is not a file of at most {} MB",
                file.display(),
                MAX_PROGRAM / 1_000_000
            );
            let mut options = std::fs::File::options();
            let program = options.write(true).create_new(true).mode(0o755).open(out.join(name));
            let mut program = program.with_context(|| format!("could not create {name}"))?;
            let size = std::io::copy(&mut entry, &mut program).with_context(unreadable)?;
            eprintln!("  {name:<24} {:>4} MB", size / 1_000_000);
            if missing.is_empty() {
                return Ok(());
            }
        }
        let missing: Vec<&str> = missing.iter().map(|(_, path)| path.as_str()).collect();
        anyhow::bail!("{} does not contain {}", file.display(), missing.join(", "))
    }
}

/// The reason why a download failed.
#[derive(Debug)]
enum Failure {
    /// Another attempt can succeed.
    Transient(anyhow::Error),
    Final(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Final(error)
    }
}

/// A checksum of bytes that arrive one after the other.
enum Hasher {
    Sha256(Sha256),
    Sha512(Box<Sha512>),
}

impl Hasher {
    /// Returns the function that makes sums of this length in hexadecimal.
    fn for_sum(sum: &str) -> Self {
        if sum.len() == 128 { Self::Sha512(Box::default()) } else { Self::Sha256(Sha256::default()) }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
        }
    }

    fn finish(self) -> String {
        match self {
            Self::Sha256(hasher) => HEXLOWER.encode(&hasher.finalize()),
            Self::Sha512(hasher) => HEXLOWER.encode(&hasher.finalize()),
        }
    }
}

/// The received part of a file: a changing line on a terminal, otherwise a line every ten seconds.
struct Progress<'p> {
    name: &'p str,
    /// curl writes the headers of all responses here.
    headers: &'p Path,
    received: u64,
    terminal: bool,
    shown: Instant,
}

impl<'p> Progress<'p> {
    fn new(url: &'p str, headers: &'p Path) -> Self {
        let name = url.rsplit('/').next().unwrap_or(url);
        let terminal = std::io::stderr().is_terminal();
        Self { name, headers, received: 0, terminal, shown: Instant::now() }
    }

    fn add(&mut self, count: usize) {
        self.received += count as u64;
        let every = if self.terminal { Duration::from_millis(500) } else { Duration::from_secs(10) };
        if self.shown.elapsed() < every {
            return;
        }
        self.shown = Instant::now();
        if self.terminal {
            eprint!("\r\x1b[K{}", self.text());
            let _ = std::io::stderr().flush();
        } else {
            eprintln!("{}", self.text());
        }
    }

    /// Prints the size of the whole file.
    fn finish(&self) {
        let clear = if self.terminal { "\r\x1b[K" } else { "" };
        eprintln!("{clear}  {:<40} {:>4} MB", self.name, self.received / 1_000_000);
    }

    fn text(&self) -> String {
        let headers = std::fs::read_to_string(self.headers).unwrap_or_default();
        let received = self.received / 1_000_000;
        match length(&headers) {
            Some(whole) => format!("  {:<40} {received:>4} of {} MB", self.name, whole / 1_000_000),
            None => format!("  {:<40} {received:>4} MB", self.name),
        }
    }
}

/// Returns the length of the last response, whose headers follow those of redirects.
fn length(headers: &str) -> Option<u64> {
    let last = headers.rfind("HTTP/").map_or(headers, |start| &headers[start..]);
    let fields = last.lines().filter_map(|line| line.split_once(':'));
    let mut lengths = fields.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    lengths.next().and_then(|(_, value)| value.trim().parse().ok())
}

#[cfg(test)]
mod tests;
