//! The description of an image, and its build.

use std::path::{Path, PathBuf};

use crate::archive::{self, Config, Packed};
use crate::c_library::CLibrary;
use crate::error::Error;
use crate::layer::Layer;
use crate::libraries::{Libraries, Library};
use crate::{elf, strip};

/// The path of the certificate authorities on Debian and Alpine, which rustls and Go read first.
const ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";
/// The path of the same bundle on Fedora and its derivatives.
const FEDORA_ROOTS: &str = "/etc/pki/tls/certs/ca-bundle.crt";
/// The user that runs the programs, as in upstream's image.
const NONROOT: u32 = 65532;
/// The names of the two users.
const PASSWD: &str = "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nnonroot:x:65532:\n";
/// Without this file glibc uses its own list of sources, some of which need libraries that the
/// image does not contain.
const NSSWITCH: &str = "passwd: files\ngroup: files\nhosts: files dns\n";

/// The description of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Its name with registry and tag, such as `ghcr.io/pinniped-rs/pinniped-server:latest`.
    pub reference: String,
    /// Program and first arguments of a container without its own command.
    pub entrypoint: Vec<String>,
    /// `USER[:GROUP]` as numbers, because Kubernetes' `runAsNonRoot` does not resolve names.
    pub user: String,
    /// TCP ports that its programs listen on; documentation only.
    pub ports: Vec<u16>,
    /// The certificate authorities of the image.
    pub roots: Roots,
    /// The programs and other files. Libraries are added automatically.
    pub files: Vec<File>,
    /// The symbolic links, such as those that give one program several names.
    pub links: Vec<Link>,
}

/// The certificate authorities of an image, always at `/etc/ssl/certs/ca-certificates.crt`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Roots {
    /// The bundle of this machine.
    #[default]
    Host,
    /// A PEM file.
    File(PathBuf),
    /// None.
    Absent,
}

/// One file of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// The path on this machine.
    pub host: PathBuf,
    /// Its absolute path in the image.
    pub inside: String,
    /// Its permissions, such as `0o755`.
    pub mode: u32,
}

/// One symbolic link of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its absolute path in the image.
    pub inside: String,
    /// The target, relative to the folder of the link.
    pub target: String,
}

/// The result of a build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// The archive.
    pub path: PathBuf,
    /// The image's name in the archive.
    pub reference: String,
    /// `sha256:..` of the image's manifest, as shown by registries and nodes.
    pub digest: String,
    /// The archive's size in bytes.
    pub size: u64,
    /// `sha256:..` of each layer: first the libraries and system files, then the image's own files.
    pub layers: Vec<String>,
    /// The shared libraries in the image, including the loader.
    pub libraries: Vec<Library>,
    /// The bundle of certificate authorities, and their number.
    pub roots: Option<(PathBuf, usize)>,
    /// Programs with symbols, because this machine has no `strip`.
    pub unstripped: Vec<PathBuf>,
}

impl Image {
    /// Creates an image without files, whose programs run as user 65532.
    pub fn new(reference: impl Into<String>) -> Self {
        Self {
            reference: reference.into(),
            entrypoint: Vec::new(),
            user: format!("{NONROOT}:{NONROOT}"),
            ports: Vec::new(),
            roots: Roots::Host,
            files: Vec::new(),
            links: Vec::new(),
        }
    }
}

impl File {
    /// Creates an executable file.
    pub fn program(host: impl Into<PathBuf>, inside: impl Into<String>) -> Self {
        Self { host: host.into(), inside: inside.into(), mode: 0o755 }
    }
}

/// The result of a build for several processors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuiltIndex {
    /// The archive.
    pub path: PathBuf,
    /// The name of the images in the archive.
    pub reference: String,
    /// `sha256:..` of the index, as shown by registries and nodes.
    pub digest: String,
    /// The archive's size in bytes.
    pub size: u64,
    /// The images, in the order of their descriptions.
    pub images: Vec<Part>,
}

/// One image of an index, or an image before it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its processor in the notation of images, such as `arm64`.
    pub processor: &'static str,
    /// `sha256:..` of the image's manifest.
    pub digest: String,
    /// The size of all layers without compression, in bytes: about the space on a node.
    pub unpacked: u64,
    /// The size of all blobs as a registry stores them, in bytes.
    pub stored: u64,
    /// `sha256:..` of each layer without compression: first the libraries and system files, then
    /// the image's own files.
    pub layers: Vec<String>,
    /// The shared libraries in the image, including the loader.
    pub libraries: Vec<Library>,
    /// The C library in the first of its static programs.
    pub c_library: Option<CLibrary>,
    /// The bundle of certificate authorities, and their number.
    pub roots: Option<(PathBuf, usize)>,
    /// Programs with symbols, because this machine has no `strip`.
    pub unstripped: Vec<PathBuf>,
}

/// Builds an image and writes its archive to `out` atomically. Its layers are not compressed.
///
/// # Errors
/// Returns an error when a file or library is missing or cannot be read, or when the archive cannot
/// be written.
pub fn build(image: &Image, out: &Path) -> Result<Built, Error> {
    let (part, packed) = pack(image, false)?;
    let written = archive::write_image(&image.reference, packed, out)?;
    Ok(Built {
        path: out.to_owned(),
        reference: image.reference.clone(),
        digest: written.digest,
        size: written.size,
        layers: part.layers,
        libraries: part.libraries,
        roots: part.roots,
        unstripped: part.unstripped,
    })
}

/// Builds images of the same programs for different processors, with compressed layers, and writes
/// them as one index to `out` atomically. The index has the name of the first image.
///
/// # Errors
/// Returns an error as [`build`] does, when there is no image, and when two images are for the same
/// processor.
pub fn build_index(images: &[Image], out: &Path) -> Result<BuiltIndex, Error> {
    let reference = images.first().map(|image| image.reference.clone()).unwrap_or_default();
    let (mut parts, mut all) = (Vec::<Part>::new(), Vec::new());
    for image in images {
        let (part, packed) = pack(image, true)?;
        if parts.iter().any(|before| before.processor == part.processor) {
            return Err(Error::ProcessorTwice { processor: part.processor });
        }
        parts.push(part);
        all.push(packed);
    }
    let written = archive::write_index(&reference, all, out)?;
    Ok(BuiltIndex {
        path: out.to_owned(),
        reference,
        digest: written.digest,
        size: written.size,
        images: parts,
    })
}

/// Collects the files of an image and creates its blobs.
fn pack(image: &Image, compressed: bool) -> Result<(Part, Packed), Error> {
    let mut programs = Layer::new();
    let mut libraries = Libraries::default();
    let mut processor = None;
    let mut c_library = None;
    let mut unstripped = Vec::new();
    for file in &image.files {
        let mut bytes = read(&file.host)?;
        if let Some(elf) = elf::read(&bytes).map_err(|source| elf_error(&file.host, source))? {
            processor = Some(one_processor(processor, &elf, &file.host)?);
            libraries.add_program(&file.host, &elf)?;
            if elf.interpreter.is_none() && c_library.is_none() {
                c_library = Some(CLibrary::of(&bytes));
            }
            if elf.has_symbols {
                match strip::strip(&file.host)? {
                    Some(stripped) => bytes = stripped,
                    None => unstripped.push(file.host.clone()),
                }
            }
        }
        programs.file(&file.inside, file.mode, bytes)?;
    }
    for link in &image.links {
        programs.link(&link.inside, &link.target)?;
    }

    let mut base = Layer::new();
    base.directory("/tmp", 0o1777)?;
    base.file("/etc/passwd", 0o644, PASSWD.into())?;
    base.file("/etc/group", 0o644, GROUP.into())?;
    base.file("/etc/nsswitch.conf", 0o644, NSSWITCH.into())?;
    let roots = match roots(&image.roots)? {
        None => None,
        Some((path, bundle)) => {
            let count = bundle.windows(PEM_BEGIN.len()).filter(|window| *window == PEM_BEGIN).count();
            if count == 0 {
                return Err(Error::RootsEmpty { path });
            }
            base.file(ROOTS, 0o644, bundle)?;
            Some((path, count))
        }
    };
    let libraries = libraries.finish()?;
    for library in &libraries {
        base.file(&library.inside, 0o755, read(&library.path)?)?;
    }

    let processor = processor.unwrap_or(elf::HOST_PROCESSOR);
    let config = Config { processor, entrypoint: &image.entrypoint, user: &image.user, ports: &image.ports };
    let packed = archive::pack(&config, vec![base.into_tar(), programs.into_tar()], compressed);
    let part = Part {
        processor,
        digest: packed.digest(),
        unpacked: packed.unpacked,
        stored: packed.stored,
        layers: packed.diff_ids.clone(),
        libraries,
        c_library,
        roots,
        unstripped,
    };
    Ok((part, packed))
}

/// A program as it is distributed outside of images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The file, without symbols if it is an ELF file and this machine has `strip`.
    pub bytes: Vec<u8>,
    /// Whether it is an ELF file that needs a loader, and thus shared libraries.
    pub dynamic: bool,
    /// The C library in it, if it is an ELF file that needs no loader.
    pub c_library: Option<CLibrary>,
}

/// Reads a program for any system.
///
/// # Errors
/// Returns an error when the file cannot be read, or when `strip` cannot read it, for example
/// because it is for another processor and still has symbols.
pub fn program(path: &Path) -> Result<Program, Error> {
    let bytes = read(path)?;
    let Some(elf) = elf::read(&bytes).map_err(|source| elf_error(path, source))? else {
        return Ok(Program { bytes, dynamic: false, c_library: None });
    };
    let dynamic = elf.interpreter.is_some();
    let c_library = (!dynamic).then(|| CLibrary::of(&bytes));
    let stripped = if elf.has_symbols { strip::strip(path)? } else { None };
    Ok(Program { bytes: stripped.unwrap_or(bytes), dynamic, c_library })
}

const PEM_BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";

fn roots(wanted: &Roots) -> Result<Option<(PathBuf, Vec<u8>)>, Error> {
    let path = match wanted {
        Roots::Absent => return Ok(None),
        Roots::File(path) => path.clone(),
        Roots::Host => {
            let found = [ROOTS, FEDORA_ROOTS].into_iter().map(PathBuf::from).find(|path| path.is_file());
            found.ok_or_else(|| Error::RootsMissing { path: ROOTS.into() })?
        }
    };
    match std::fs::read(&path) {
        Ok(bundle) => Ok(Some((path, bundle))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Error::RootsMissing { path }),
        Err(source) => Err(Error::Read { path, source }),
    }
}

fn one_processor(before: Option<&'static str>, elf: &elf::Elf, path: &Path) -> Result<&'static str, Error> {
    let found = elf::processor(elf.machine)
        .ok_or_else(|| Error::Processor { path: path.to_owned(), machine: elf.machine })?;
    match before {
        Some(wanted) if wanted != found => {
            Err(Error::MixedProcessors { path: path.to_owned(), found, wanted })
        }
        _ => Ok(found),
    }
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}

pub(crate) fn elf_error(path: &Path, source: object::read::Error) -> Error {
    Error::Elf { path: path.to_owned(), source }
}
