//! The errors of building an image.

use std::path::PathBuf;

/// The reason why an image was not built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file for the image cannot be read.
    #[error("could not read {path}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The archive cannot be written.
    #[error("could not write {path}", path = path.display())]
    Write {
        /// The archive.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A program starts like an ELF file and cannot be parsed.
    #[error("could not read {path} as an ELF file", path = path.display())]
    Elf {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: object::read::Error,
    },
    /// The programs are for a processor whose name in images is unknown.
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
        /// The processor of the programs before it.
        wanted: &'static str,
    },
    /// Two images of an index for the same processor.
    #[error("two images of the index are for {processor}")]
    ProcessorTwice {
        /// The processor.
        processor: &'static str,
    },
    /// The loader did not list the libraries of a program.
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
        /// The cause, or the output of the loader.
        message: String,
    },
    /// A library that a program needs is not on this machine.
    #[error("{user} needs the shared library {name}, which is not on this machine", user = user.display())]
    LibraryMissing {
        /// The library.
        name: String,
        /// The program or library that needs it.
        user: PathBuf,
    },
    /// Two programs load the same library from different places.
    #[error(
        "two programs take the shared library {name} from different places, {one} and {other}; an image can carry \
         only one", one = one.display(), other = other.display()
    )]
    LibraryTwice {
        /// The library.
        name: String,
        /// The path for the first program.
        one: PathBuf,
        /// The path for the other program.
        other: PathBuf,
    },
    /// The bundle of certificate authorities is not on this machine.
    #[error(
        "{path} is missing: install the package ca-certificates, or name another bundle of certificate authorities",
        path = path.display()
    )]
    RootsMissing {
        /// The expected path.
        path: PathBuf,
    },
    /// The bundle contains no certificate authority.
    #[error("{path} has no PEM certificate", path = path.display())]
    RootsEmpty {
        /// The bundle.
        path: PathBuf,
    },
    /// A path inside the image is invalid.
    #[error(
        "the path {path:?} inside of the image must be absolute, without . and .., and not be taken twice"
    )]
    Path {
        /// The path.
        path: String,
    },
    /// The image's name is invalid or has no tag.
    #[error("the image reference {reference:?} must be of the form registry/name:tag")]
    Reference {
        /// The reference.
        reference: String,
    },
    /// `strip` failed.
    #[error("strip could not take the symbols from {path}: {message}", path = path.display())]
    Strip {
        /// The program.
        path: PathBuf,
        /// Its output.
        message: String,
    },
}
