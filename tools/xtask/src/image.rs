//! `cargo xtask image`: builds the product's container image without a container daemon.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use pinniped_image::{Built, Roots};

use crate::cargo;

/// The archive's name in the folder of `--out`.
const ARCHIVE: &str = "pinniped-server.tar";
/// Flags of `image`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Use the programs of the dev profile, which build faster and run slower.
    #[arg(long)]
    debug: bool,
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

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let profile = if args.debug { Profile::Dev } else { Profile::Release };
    let mut build = cargo::cargo(args.offline);
    build.args(["build", "--quiet", "--bins"]);
    for package in cargo::IMAGE_PACKAGES {
        build.args(["--package", package]);
    }
    if profile == Profile::Release {
        build.arg("--release");
    }
    eprintln!("building the programs of the image ...");
    cargo::succeed(&mut build, "building the programs of the image")?;
    let built = archive(profile, args.out.as_deref(), args.ca_roots.as_deref())?;
    print(&built);
    Ok(ExitCode::SUCCESS)
}

/// The profile of the programs of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// The dev profile.
    Dev,
    /// The release profile.
    Release,
}

/// Builds the image from programs that cargo has built.
pub(crate) fn archive(profile: Profile, out: Option<&Path>, roots: Option<&Path>) -> anyhow::Result<Built> {
    let target = cargo::target_dir()?;
    let bins = target.join(if profile == Profile::Release { "release" } else { "debug" });
    let out = out.map_or_else(|| target.join("image"), Path::to_owned);
    std::fs::create_dir_all(&out)
        .with_context(|| format!("could not create the folder {}", out.display()))?;
    let mut image = pinniped_image::product_image(&bins);
    if let Some(roots) = roots {
        image.roots = Roots::File(roots.to_owned());
    }
    pinniped_image::build(&image, &out.join(ARCHIVE)).context("could not create the image")
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
    match &built.roots {
        Some((path, count)) => println!("roots      {count} certificate authorities of {}", path.display()),
        None => println!("roots      none"),
    }
    println!();
    if built.libraries.is_empty() {
        println!("It carries no shared libraries: its programs are static.");
    } else {
        let width = built.libraries.iter().map(|library| library.inside.len()).max().unwrap_or(0);
        println!("{:width$}  FROM", "SHARED LIBRARY");
        for library in &built.libraries {
            println!("{:width$}  {}", library.inside, library.origin);
        }
    }
    for program in &built.unstripped {
        eprintln!(
            "note: {} has its debug symbols in the image, because strip is not in PATH (package binutils)",
            program.display()
        );
    }
}
