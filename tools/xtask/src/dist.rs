//! `cargo xtask dist`: writes the files of a release, except the image, into one folder.
//!
//! | file | module |
//! |---|---|
//! | `pinniped-vVERSION-PLATFORM.tar.gz` or `.zip`: the command line, with completions and man pages | [`archive`] |
//! | `pinniped_VERSION_ARCHITECTURE.deb` | [`debian`] |
//! | `pinniped.yaml` for krew, `pinniped.rb` for Homebrew | [`template`] |
//! | `pinniped-chart-VERSION.tgz`, `install-*.yaml` | [`kubernetes`] |
//! | `*.cdx.json`, `provenance.intoto.json` | [`crate::supply_chain`] |
//! | `SHA256SUMS` | this one |
//!
//! The same programs and the same revision give the same bytes: times in archives are those of the
//! revision ([`crate::revision`]), owners are root, and entries are sorted.

mod archive;
mod debian;
mod kubernetes;
mod platform;
mod template;
mod texts;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

use crate::cargo;
use crate::revision::{self, Revision, VERSION};
use crate::supply_chain::{self, provenance, sbom};
use platform::{PLATFORMS, Platform};

/// The package of the command line.
const PACKAGE: &str = "pinniped-cli";
const CHECKSUMS: &str = "SHA256SUMS";

/// Flags of `dist`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Use the program of the dev profile, which builds faster, to test this command.
    #[arg(long, conflicts_with = "binaries")]
    dev: bool,
    /// Use the program in a folder for a target, instead of building it for this machine; may be
    /// repeated. One of the targets must be for this machine.
    #[arg(long, value_name = "TARGET=DIR", value_parser = Binaries::parse)]
    binaries: Vec<Binaries>,
    /// Fail if a platform is missing, instead of leaving out the files that name all platforms.
    #[arg(long)]
    complete: bool,
    /// Add a file to the folder and to the checksums, such as a document about the image; may be
    /// repeated.
    #[arg(long, value_name = "FILE")]
    add: Vec<PathBuf>,
    /// The folder for the files, which must be empty [default: dist, in cargo's target folder,
    /// which is emptied].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Do not access the network, and report missing programs.
    #[arg(long)]
    offline: bool,
}

impl Args {
    /// Returns the arguments for the provenance.
    fn recorded(&self) -> provenance::Command {
        let mut arguments: Vec<String> = self.binaries.iter().map(Binaries::argument).collect();
        arguments.extend(self.dev.then(|| "--dev".to_owned()));
        arguments.extend(self.complete.then(|| "--complete".to_owned()));
        provenance::Command { name: "cargo xtask dist", arguments }
    }
}

/// A program that is built.
#[derive(Clone, Debug)]
struct Binaries {
    target: String,
    platform: &'static Platform,
    file: PathBuf,
}

impl Binaries {
    /// Returns the flag with this value.
    fn argument(&self) -> String {
        let folder = self.file.parent().unwrap_or(Path::new(""));
        format!("--binaries={}={}", self.target, folder.display())
    }

    fn parse(text: &str) -> Result<Self, String> {
        let (target, folder) = text.split_once('=').ok_or("expected TARGET=DIR")?;
        Self::of(target, Path::new(folder))
    }

    fn of(target: &str, folder: &Path) -> Result<Self, String> {
        let platform = Platform::of_target(target).ok_or_else(|| {
            let targets: Vec<&str> =
                PLATFORMS.iter().flat_map(|platform| platform.targets).copied().collect();
            format!("no release has files for {target}; targets are {}", targets.join(", "))
        })?;
        Ok(Self { target: target.to_owned(), platform, file: folder.join(platform.program) })
    }
}

/// The folder with the files so far.
struct Dist {
    folder: PathBuf,
    /// SHA-256 of each file by its name.
    sums: BTreeMap<String, String>,
}

impl Dist {
    fn write(&mut self, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
        let path = self.folder.join(name);
        std::fs::write(&path, bytes).with_context(|| format!("could not write {}", path.display()))?;
        self.sums.insert(name.to_owned(), sha256(bytes));
        Ok(())
    }

    /// Adds a file that another program wrote into the folder.
    fn written(&mut self, name: &str) -> anyhow::Result<()> {
        self.sums.insert(name.to_owned(), sha256(&read(&self.folder.join(name))?));
        Ok(())
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let revision = revision::current()?;
    let programs = if args.binaries.is_empty() { vec![build(args)?] } else { args.binaries.clone() };
    let folder = match &args.out {
        Some(folder) => folder.clone(),
        None => emptied(cargo::target_dir()?.join("dist"))?,
    };
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("could not create the folder {}", folder.display()))?;
    let mut entries =
        std::fs::read_dir(&folder).with_context(|| format!("could not list {}", folder.display()))?;
    anyhow::ensure!(entries.next().is_none(), "{} is not empty", folder.display());
    let own = programs.iter().find(|program| program.platform.is_this_machine());
    let own = own.context("no program is for this machine: completions and man pages come from it")?;
    let texts = texts::of(&own.file)?;

    let mut dist = Dist { folder, sums: BTreeMap::new() };
    let mut archives = BTreeMap::new();
    for program in &programs {
        let (name, sum) = of_program(&mut dist, program, &texts, &revision, args.offline)?;
        let twice = archives.insert(program.platform.name, sum).is_some();
        anyhow::ensure!(!twice, "{name} would contain the programs of two targets");
    }
    for file in template::FILES {
        match template::fill(file.template, VERSION, &archives)? {
            Ok(text) => dist.write(file.name, text.as_bytes())?,
            Err(missing) if args.complete => {
                anyhow::bail!("{} needs archives for {}", file.name, missing.join(", "))
            }
            Err(missing) => {
                eprintln!("note: no {}, because it needs archives for {}", file.name, missing.join(", "));
            }
        }
    }
    kubernetes::add(&mut dist, &revision, args.offline)?;
    let subjects: Vec<provenance::Subject> = dist.sums.clone().into_iter().collect();
    let statement = provenance::statement(&args.recorded(), &subjects, &revision);
    dist.write("provenance.intoto.json", &supply_chain::text(&statement))?;
    for file in &args.add {
        let name = file.file_name().and_then(|name| name.to_str());
        let name = name.with_context(|| format!("{} has no name", file.display()))?;
        anyhow::ensure!(!dist.sums.contains_key(name), "there are two files {name}");
        dist.write(name, &read(file)?)?;
    }
    let sums: String = dist.sums.iter().map(|(name, sum)| format!("{sum}  {name}\n")).collect();
    dist.write(CHECKSUMS, sums.as_bytes())?;
    println!("{}", dist.folder.display());
    for name in dist.sums.keys() {
        let path = dist.folder.join(name);
        let size = path.metadata().with_context(|| format!("could not read {}", path.display()))?.len();
        println!("{:>9.1} kB  {name}", size as f64 / 1e3);
    }
    Ok(ExitCode::SUCCESS)
}

/// Fetches the crates that the command line needs on all systems: licences in bills of materials
/// come from their manifests.
pub(crate) fn fetch_crates(offline: bool) -> anyhow::Result<()> {
    let mut fetch = cargo::cargo(offline);
    fetch.args(["fetch", "--locked", "--quiet"]);
    for target in PLATFORMS.iter().flat_map(|platform| platform.targets) {
        fetch.args(["--target", target]);
    }
    cargo::output(&mut fetch).map(drop).context("could not fetch the crates of all systems")
}

/// Builds the program for this machine, with a static C library where that is possible.
fn build(args: &Args) -> anyhow::Result<Binaries> {
    let target_dir = cargo::target_dir()?;
    let mut build = cargo::cargo(args.offline);
    build.args(["build", "--locked", "--package", PACKAGE]);
    let (target, folder) = match cargo::static_target() {
        _ if args.dev => (cargo::HOST_TARGET, target_dir.join("debug")),
        Some(target) => (target, target_dir.join(target).join("release")),
        None => (cargo::HOST_TARGET, target_dir.join("release")),
    };
    if !args.dev {
        build.arg("--release");
        if target != cargo::HOST_TARGET {
            build.args(["--target", target]);
        }
    }
    eprintln!("building the command line for {target} ...");
    cargo::succeed(&mut build, "building the command line")?;
    Binaries::of(target, &folder).map_err(anyhow::Error::msg)
}

/// Writes the files of one platform. Returns the name of its archive, and its checksum.
fn of_program(
    dist: &mut Dist,
    program: &Binaries,
    texts: &texts::Texts,
    revision: &Revision,
    offline: bool,
) -> anyhow::Result<(String, String)> {
    let platform = program.platform;
    let read = pinniped_image::program(&program.file)?;
    anyhow::ensure!(
        !read.dynamic || !program.target.ends_with("-musl"),
        "{} has shared libraries, so it is not for {}",
        program.file.display(),
        program.target
    );
    let stem = format!("pinniped-v{VERSION}-{}", platform.name);
    let name = format!("{stem}{}", platform.extension());
    let mut files = texts.files_of_archive();
    files.push(archive::File::program(platform.program, read.bytes.clone()));
    let bytes = if platform.zip {
        archive::zip(&stem, files)?
    } else {
        archive::tar_gz(&stem, files, revision.epoch)?
    };
    dist.write(&name, &bytes)?;
    if let Some(architecture) = platform.debian {
        let package = debian::Package { architecture, program: &program.file, read: &read, texts };
        let name = package.build(&dist.folder, revision)?;
        dist.written(&name)?;
    }
    let subject = sbom::Subject {
        name: "pinniped",
        kind: "application",
        packages: &[PACKAGE],
        target: &program.target,
        libraries: &[],
        c_library: read.c_library.as_ref(),
    };
    let document = sbom::document(&subject, offline)?;
    dist.write(&format!("{stem}.cdx.json"), &supply_chain::text(&document))?;
    let sum = dist.sums[&name].clone();
    Ok((name, sum))
}

/// Removes the content of the default folder.
fn emptied(folder: PathBuf) -> anyhow::Result<PathBuf> {
    match std::fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("could not empty {}", folder.display()))
        }
        _ => Ok(folder),
    }
}

/// Returns the SHA-256 of some bytes in hexadecimal.
fn sha256(bytes: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::digest(bytes))
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("could not read {}", path.display()))
}
