//! What can go wrong while an image is made.

use std::path::PathBuf;

/// Why an image was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that has to go into the image cannot be read.
    #[error("could not read {path}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The archive cannot be written.
    #[error("could not write {path}", path = path.display())]
    Write {
        /// The archive.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A program starts like an ELF file, but is none that can be read.
    #[error("could not read {path} as an ELF file", path = path.display())]
    Elf {
        /// The file.
        path: PathBuf,
        /// Why.
        source: object::read::Error,
    },
    /// The programs are for a processor that image names are not known for.
    #[error("{path} is a program for a processor that is not known (ELF machine {machine})", path = path.display())]
    Processor {
        /// The program.
        path: PathBuf,
        /// The number in its header.
        machine: u16,
    },
    /// Programs for different processors in one image.
    #[error("{path} is a program for {found}, but the image is for {wanted}", path = path.display())]
    MixedProcessors {
        /// The program.
        path: PathBuf,
        /// Its processor.
        found: &'static str,
        /// That of the programs before it.
        wanted: &'static str,
    },
    /// The loader did not say which libraries a program takes.
    #[error(
        "{loader} could not list the shared libraries of {program}: {message}; build on a machine that can run the \
         program, or link it statically",
        loader = loader.display(), program = program.display()
    )]
    Loader {
        /// The loader that the program names.
        loader: PathBuf,
        /// The program.
        program: PathBuf,
        /// What went wrong, or what the loader printed.
        message: String,
    },
    /// A library that a program needs is not on this machine.
    #[error("{user} needs the shared library {name}, which is not on this machine", user = user.display())]
    LibraryMissing {
        /// The library.
        name: String,
        /// Program or library that needs it.
        user: PathBuf,
    },
    /// The same library is found at two places by two programs.
    #[error(
        "two programs take the shared library {name} from different places, {one} and {other}; an image can carry \
         only one", one = one.display(), other = other.display()
    )]
    LibraryTwice {
        /// The library.
        name: String,
        /// Where the first found it.
        one: PathBuf,
        /// Where the other did.
        other: PathBuf,
    },
    /// The bundle of certificate authorities is not on this machine.
    #[error(
        "{path} is missing: install the package ca-certificates, or name another bundle of certificate authorities",
        path = path.display()
    )]
    RootsMissing {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The bundle of certificate authorities holds none.
    #[error("{path} has no PEM certificate", path = path.display())]
    RootsEmpty {
        /// The bundle.
        path: PathBuf,
    },
    /// A path inside of the image that cannot be.
    #[error(
        "the path {path:?} inside of the image must be absolute, without . and .., and not be taken twice"
    )]
    Path {
        /// The path.
        path: String,
    },
    /// The image's name has no tag or is none.
    #[error("the image reference {reference:?} must be of the form registry/name:tag")]
    Reference {
        /// The reference.
        reference: String,
    },
    /// `strip` failed.
    #[error("strip could not take the debug symbols from {path}: {message}", path = path.display())]
    Strip {
        /// The program.
        path: PathBuf,
        /// What it printed.
        message: String,
    },
}
