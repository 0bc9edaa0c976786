//! An image as one asks for it, and its making.

use std::path::{Path, PathBuf};

use crate::archive::{self, Config};
use crate::error::Error;
use crate::layer::Layer;
use crate::libraries::{Libraries, Library};
use crate::{elf, strip};

/// Debian's and Alpine's place for the certificate authorities, which rustls and Go look at first.
const ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";
/// The same bundle where Fedora and its kin have it.
const FEDORA_ROOTS: &str = "/etc/pki/tls/certs/ca-bundle.crt";
/// The account that programs run as: the one of upstream's image.
const NONROOT: u32 = 65532;
/// Names for the two accounts that there are.
const PASSWD: &str = "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nnonroot:x:65532:\n";
/// Without this file glibc asks its own list of sources first, some of which need libraries that are not here.
const NSSWITCH: &str = "passwd: files\ngroup: files\nhosts: files dns\n";

/// What an image is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Its name with registry and tag, such as `ghcr.io/pinniped-rs/pinniped-server:latest`.
    pub reference: String,
    /// Program and first arguments, when a container names no command of its own.
    pub entrypoint: Vec<String>,
    /// `USER[:GROUP]`, in numbers, because Kubernetes' `runAsNonRoot` does not look up names.
    pub user: String,
    /// TCP ports that its programs listen on; documentation only.
    pub ports: Vec<u16>,
    /// Which certificate authorities its programs find.
    pub roots: Roots,
    /// Its programs and other files. Libraries are added by themselves.
    pub files: Vec<File>,
    /// Its symbolic links, such as those by which one program has many names.
    pub links: Vec<Link>,
}

/// Which certificate authorities an image carries, always as `/etc/ssl/certs/ca-certificates.crt`.
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
    /// Where it is taken from.
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
    /// Where it leads, from the folder it lies in.
    pub target: String,
}

/// An image that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// The archive.
    pub path: PathBuf,
    /// The name that the archive gives the image.
    pub reference: String,
    /// `sha256:..` of the image's manifest: what registries and nodes show.
    pub digest: String,
    /// The archive's size in bytes.
    pub size: u64,
    /// `sha256:..` of each layer: first libraries and surroundings, then the image's own files.
    pub layers: Vec<String>,
    /// The shared libraries that it carries, the loader among them.
    pub libraries: Vec<Library>,
    /// The bundle of certificate authorities that it carries, and how many there are in it.
    pub roots: Option<(PathBuf, usize)>,
    /// Programs with debug symbols that stayed, because there is no `strip` on this machine.
    pub unstripped: Vec<PathBuf>,
}

impl Image {
    /// An image without files, whose programs run as user 65532.
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
    /// An executable file.
    pub fn program(host: impl Into<PathBuf>, inside: impl Into<String>) -> Self {
        Self { host: host.into(), inside: inside.into(), mode: 0o755 }
    }
}

/// Makes an image and writes its archive to `out`, whole or not at all.
///
/// # Errors
/// When a file or library is missing or cannot be read, or the archive cannot be written.
pub fn build(image: &Image, out: &Path) -> Result<Built, Error> {
    let mut programs = Layer::new();
    let mut libraries = Libraries::default();
    let mut processor = None;
    let mut unstripped = Vec::new();
    for file in &image.files {
        let mut bytes = read(&file.host)?;
        if let Some(elf) = elf::read(&bytes).map_err(|source| elf_error(&file.host, source))? {
            processor = Some(one_processor(processor, &elf, &file.host)?);
            libraries.add_program(&file.host, &elf)?;
            if elf.has_debug_symbols {
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

    let config = Config {
        reference: &image.reference,
        processor: processor.unwrap_or(elf::HOST_PROCESSOR),
        entrypoint: &image.entrypoint,
        user: &image.user,
        ports: &image.ports,
    };
    let written = archive::write(&config, &[base.into_tar(), programs.into_tar()], out)?;
    Ok(Built {
        path: out.to_owned(),
        reference: image.reference.clone(),
        digest: written.digest,
        size: written.size,
        layers: written.layers,
        libraries,
        roots,
        unstripped,
    })
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
