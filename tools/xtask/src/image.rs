//! `cargo xtask image`: builds the product's container image without a container daemon.
//!
//! For this machine, it builds the programs, statically linked with glibc if `libc.a` is installed.
//! With `--binaries`, it makes one index of images from programs that are built for
//! several processors, as a release needs it. Beside the archive it writes the software bill of
//! materials of each image, and the provenance.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context as _;
use pinniped_image::{Built, BuiltIndex, CLibrary, Image, Library, Part, Roots};

use crate::control_plane::crane;
use crate::supply_chain::{self, provenance, sbom};
use crate::{cargo, revision};

/// The archive's name in the folder of `--out`.
const ARCHIVE: &str = "pinniped-server.tar";
/// The name of the image in the documents beside the archive.
const NAME: &str = "pinniped-server";
/// The largest image of a release on a node, in bytes without compression.
const MAX_UNPACKED: u64 = 30 * MIB;
/// The largest image of a release in a registry, in bytes.
const MAX_STORED: u64 = 15 * MIB;
const MIB: u64 = 1024 * 1024;

/// Flags of `image`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Use the programs of the dev profile, which build faster and run slower.
    #[arg(long, conflicts_with = "binaries")]
    debug: bool,
    /// Build nothing, and use the programs in a folder for a processor: amd64=DIR or arm64=DIR. The
    /// flag may be repeated; the archive has one index of all images, with compressed layers.
    /// Programs for other processors than this machine's must be static.
    #[arg(long, value_name = "PROCESSOR=DIR", value_parser = Binaries::parse)]
    binaries: Vec<Binaries>,
    /// Fail if an image is larger than a release may be: 30 MiB unpacked, and 15 MiB in a registry.
    #[arg(long, requires = "binaries")]
    check_size: bool,
    /// Push the index to a registry, with the credentials of Docker's configuration file.
    #[arg(long, value_name = "REFERENCE", requires = "binaries")]
    push: Option<String>,
    /// The folder for the archive [default: image, in cargo's target folder].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The certificate authorities that the image trusts, in PEM [default: those of this machine].
    #[arg(long, value_name = "FILE")]
    ca_roots: Option<PathBuf>,
    /// Do not access the network, and report missing programs.
    #[arg(long)]
    offline: bool,
}

impl Args {
    /// Returns the arguments for the provenance.
    fn recorded(&self) -> provenance::Command {
        let binaries = self.binaries.iter();
        let binaries = binaries.map(|one| format!("--binaries={}={}", one.processor, one.folder.display()));
        let roots = self.ca_roots.iter().map(|file| format!("--ca-roots={}", file.display()));
        provenance::Command { name: "cargo xtask image", arguments: binaries.chain(roots).collect() }
    }
}

/// A folder with programs for a processor.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Binaries {
    processor: String,
    folder: PathBuf,
}

impl Binaries {
    fn parse(text: &str) -> Result<Self, String> {
        let (processor, folder) = text.split_once('=').ok_or("expected PROCESSOR=DIR")?;
        if architecture(processor).is_none() {
            return Err(format!("no image is built for {processor:?}; processors are amd64 and arm64"));
        }
        Ok(Self { processor: processor.to_owned(), folder: folder.into() })
    }
}

/// The name of a processor in targets.
fn architecture(processor: &str) -> Option<&'static str> {
    match processor {
        "amd64" => Some("x86_64"),
        "arm64" => Some("aarch64"),
        _ => None,
    }
}

/// Returns the target of an image's programs. The loader that they name shows the C library, unless
/// they contain it, as those of a release do.
fn target(image: &Part) -> Option<String> {
    let is_musl = |library: &Library| library.name.starts_with("ld-musl-");
    let is_musl = image.c_library == Some(CLibrary::Musl) || image.libraries.iter().any(is_musl);
    let c_library = if is_musl { "musl" } else { "gnu" };
    Some(format!("{}-unknown-linux-{c_library}", architecture(image.processor)?))
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if !args.binaries.is_empty() {
        return index(args);
    }
    let mut build = cargo::cargo(args.offline);
    build.args(["build", "--quiet", "--bins"]);
    for package in cargo::IMAGE_PACKAGES {
        build.args(["--package", package]);
    }
    let bins =
        if args.debug { cargo::target_dir()?.join("debug") } else { cargo::release_of_image(&mut build)? };
    eprintln!("building the programs of the image ...");
    cargo::succeed(&mut build, "building the programs of the image")?;
    let built = from_programs(&bins, args.out.as_deref(), args.ca_roots.as_deref())?;
    print(&built);
    Ok(ExitCode::SUCCESS)
}

/// Builds the index of images from programs that are built, and pushes it.
fn index(args: &Args) -> anyhow::Result<ExitCode> {
    let out = folder(args.out.as_deref())?;
    let images: Vec<Image> =
        args.binaries.iter().map(|one| described(&one.folder, args.ca_roots.as_deref())).collect();
    let built = pinniped_image::build_index(&images, &out.join(ARCHIVE));
    let built = built.context("could not create the images")?;
    for (image, wanted) in built.images.iter().zip(&args.binaries) {
        if image.processor != wanted.processor {
            let _ = std::fs::remove_file(&built.path);
            let folder = wanted.folder.display();
            anyhow::bail!(
                "the programs in {folder} are for {}, not for {}",
                image.processor,
                wanted.processor
            );
        }
    }
    documents(&built, &out, args)?;
    print_index(&built);
    let too_large: Vec<String> = built.images.iter().filter_map(too_large).collect();
    anyhow::ensure!(!args.check_size || too_large.is_empty(), "{}", too_large.join("; "));
    if let Some(reference) = &args.push {
        push(&built, reference, args.offline)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the reason why an image is too large for a release.
fn too_large(image: &Part) -> Option<String> {
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    (image.unpacked > MAX_UNPACKED || image.stored > MAX_STORED).then(|| {
        format!(
            "the image for {} has {:.1} MiB unpacked and {:.1} MiB in a registry; a release may have {:.0} and {:.0}",
            image.processor,
            mib(image.unpacked),
            mib(image.stored),
            mib(MAX_UNPACKED),
            mib(MAX_STORED),
        )
    })
}

/// Writes the bill of materials of each image, and the provenance of the index.
fn documents(built: &BuiltIndex, out: &Path, args: &Args) -> anyhow::Result<()> {
    let write = |name: String, document: &serde_json::Value| {
        let path = out.join(name);
        std::fs::write(&path, supply_chain::text(document))
            .with_context(|| format!("could not write {}", path.display()))
    };
    for image in &built.images {
        let subject = sbom::Subject {
            name: NAME,
            kind: "container",
            packages: &cargo::IMAGE_PACKAGES,
            target: &target(image).context("the processor is unknown")?,
            libraries: &image.libraries,
            c_library: image.c_library.as_ref(),
        };
        write(format!("{NAME}-{}.cdx.json", image.processor), &sbom::document(&subject, args.offline)?)?;
    }
    let sum = built.digest.trim_start_matches("sha256:").to_owned();
    let statement = provenance::statement(&args.recorded(), &[(NAME.to_owned(), sum)], &revision::current()?);
    write(format!("{NAME}.provenance.intoto.json"), &statement)
}

/// Pushes an index. `crane` reads OCI layouts as folders.
fn push(built: &BuiltIndex, reference: &str, offline: bool) -> anyhow::Result<()> {
    let layout = tempfile::tempdir().context("could not create a folder for the image")?;
    let file = std::fs::File::open(&built.path);
    let file = file.with_context(|| format!("could not open {}", built.path.display()))?;
    tar::Archive::new(file).unpack(layout.path()).context("could not unpack the archive")?;
    let mut crane = Command::new(crane::find_or_build(offline)?);
    let pushed = cargo::output(crane.arg("push").arg(layout.path()).arg(reference));
    let pushed = pushed.with_context(|| format!("could not push {reference}"))?;
    let pushed = pushed.trim();
    anyhow::ensure!(pushed.ends_with(&built.digest), "the registry has {pushed} instead of {}", built.digest);
    println!("pushed     {pushed}");
    Ok(())
}

/// Builds the image from the programs of the dev profile, which cargo has built for this machine.
pub(crate) fn of_dev_profile() -> anyhow::Result<Built> {
    from_programs(&cargo::target_dir()?.join("debug"), None, None)
}

fn from_programs(bins: &Path, out: Option<&Path>, roots: Option<&Path>) -> anyhow::Result<Built> {
    let image = described(bins, roots);
    pinniped_image::build(&image, &folder(out)?.join(ARCHIVE)).context("could not create the image")
}

fn described(bins: &Path, roots: Option<&Path>) -> Image {
    let mut image = pinniped_image::product_image(bins);
    if let Some(roots) = roots {
        image.roots = Roots::File(roots.to_owned());
    }
    image
}

/// Creates the folder for the archive.
fn folder(out: Option<&Path>) -> anyhow::Result<PathBuf> {
    let out = match out {
        Some(out) => out.to_owned(),
        None => cargo::target_dir()?.join("image"),
    };
    std::fs::create_dir_all(&out)
        .with_context(|| format!("could not create the folder {}", out.display()))?;
    Ok(out)
}

/// Prints the result, with the libraries as a table.
fn print(built: &Built) {
    println!("archive    {}", built.path.display());
    println!("reference  {}", built.reference);
    println!("digest     {}", built.digest);
    println!("size       {:.1} MB", built.size as f64 / 1e6);
    for (what, digest) in ["libraries", "programs"].into_iter().zip(&built.layers) {
        println!("layer      {digest} ({what})");
    }
    print_roots(built.roots.as_ref());
    println!();
    print_libraries(&built.libraries);
    note_symbols(&built.unstripped);
}

fn print_index(built: &BuiltIndex) {
    println!("archive    {}", built.path.display());
    println!("reference  {}", built.reference);
    println!("digest     {}", built.digest);
    for image in &built.images {
        let mb = |bytes: u64| bytes as f64 / 1e6;
        println!("\n{:<10} {}", image.processor, image.digest);
        println!("size       {:.1} MB, {:.1} MB in a registry", mb(image.unpacked), mb(image.stored));
        print_roots(image.roots.as_ref());
        print_libraries(&image.libraries);
        note_symbols(&image.unstripped);
    }
}

fn print_roots(roots: Option<&(PathBuf, usize)>) {
    match roots {
        Some((path, count)) => println!("roots      {count} certificate authorities of {}", path.display()),
        None => println!("roots      none"),
    }
}

fn print_libraries(libraries: &[Library]) {
    if libraries.is_empty() {
        println!("It carries no shared libraries: its programs are static.");
        return;
    }
    let width = libraries.iter().map(|library| library.inside.len()).max().unwrap_or(0);
    println!("{:width$}  FROM", "SHARED LIBRARY");
    for library in libraries {
        println!("{:width$}  {}", library.inside, library.origin);
    }
}

fn note_symbols(programs: &[PathBuf]) {
    for program in programs {
        eprintln!(
            "note: {} has its symbols in the image, because strip is not in PATH (package binutils)",
            program.display()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(unpacked: u64, stored: u64) -> Part {
        Part {
            processor: "arm64",
            digest: String::new(),
            unpacked,
            stored,
            layers: Vec::new(),
            libraries: Vec::new(),
            c_library: None,
            roots: None,
            unstripped: Vec::new(),
        }
    }

    #[test]
    fn an_image_above_a_limit_is_reported_with_its_sizes() {
        assert_eq!(too_large(&part(30 * MIB, 15 * MIB)), None);
        assert_eq!(
            too_large(&part(30 * MIB + 1, MIB)).unwrap(),
            "the image for arm64 has 30.0 MiB unpacked and 1.0 MiB in a registry; a release may have 30 and 15"
        );
        assert!(too_large(&part(MIB, 15 * MIB + 1)).is_some());
    }

    #[test]
    fn the_loader_or_the_c_library_shows_the_target() {
        let library = |name: &str| Library {
            name: name.to_owned(),
            path: PathBuf::new(),
            inside: String::new(),
            origin: pinniped_image::Origin::Path(PathBuf::new()),
        };
        let of = |c_library: Option<CLibrary>, names: &[&str]| {
            let libraries = names.iter().map(|name| library(name)).collect();
            target(&Part { libraries, c_library, ..part(0, 0) }).unwrap()
        };
        let glibc = CLibrary::Glibc { version: "2.36".to_owned() };
        assert_eq!(of(Some(CLibrary::Musl), &[]), "aarch64-unknown-linux-musl");
        assert_eq!(of(Some(glibc), &[]), "aarch64-unknown-linux-gnu");
        assert_eq!(of(None, &["libgcc_s.so.1", "ld-musl-aarch64.so.1"]), "aarch64-unknown-linux-musl");
        assert_eq!(of(None, &["libc.so.6", "ld-linux-aarch64.so.1"]), "aarch64-unknown-linux-gnu");
    }

    #[test]
    fn programs_are_given_for_known_processors() {
        let found = Binaries::parse("arm64=a=b").unwrap();
        assert_eq!((found.processor.as_str(), found.folder.as_path()), ("arm64", Path::new("a=b")));
        assert!(Binaries::parse("riscv64=a").is_err());
        assert!(Binaries::parse("amd64").is_err());
    }
}
