//! The required properties of an ELF file: its processor, its loader, and its libraries.

use object::elf;
use object::read::elf::{FileHeader, ProgramHeader as _};
use object::read::{self, FileKind};

/// The processor of this machine in the notation of images, for images without a program.
pub(crate) const HOST_PROCESSOR: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };

/// The properties of an ELF file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Elf {
    /// `e_machine` of the header.
    pub(crate) machine: u16,
    /// The program's loader (`PT_INTERP`); static programs and libraries have none.
    pub(crate) interpreter: Option<String>,
    /// The names of the libraries it needs (`DT_NEEDED`).
    pub(crate) needed: Vec<String>,
    /// Whether `strip --strip-all` would remove symbols.
    pub(crate) has_symbols: bool,
}

/// Returns the name of a processor in images.
pub(crate) fn processor(machine: u16) -> Option<&'static str> {
    match machine {
        elf::EM_X86_64 => Some("amd64"),
        elf::EM_AARCH64 => Some("arm64"),
        elf::EM_386 => Some("386"),
        elf::EM_ARM => Some("arm"),
        elf::EM_RISCV => Some("riscv64"),
        elf::EM_S390 => Some("s390x"),
        elf::EM_PPC64 => Some("ppc64le"),
        _ => None,
    }
}

/// Parses a file; returns `None` when it is not an ELF file.
///
/// # Errors
/// Returns an error when it has an ELF header and is invalid.
pub(crate) fn read(data: &[u8]) -> read::Result<Option<Elf>> {
    match FileKind::parse(data) {
        Ok(FileKind::Elf64) => read_as::<elf::FileHeader64<object::Endianness>>(data).map(Some),
        Ok(FileKind::Elf32) => read_as::<elf::FileHeader32<object::Endianness>>(data).map(Some),
        _ => Ok(None),
    }
}

fn read_as<H: FileHeader<Endian = object::Endianness>>(data: &[u8]) -> read::Result<Elf> {
    let header = H::parse(data)?;
    let endian = header.endian()?;
    let mut found = Elf { machine: header.e_machine(endian), ..Elf::default() };
    let sections = header.sections(endian, data)?;
    for section in sections.iter() {
        let name = sections.section_name(endian, section)?;
        found.has_symbols |= name == b".symtab" || name.starts_with(b".debug_");
    }
    for segment in header.program_headers(endian, data)? {
        if let Some(path) = segment.interpreter(endian, data)? {
            found.interpreter = Some(String::from_utf8_lossy(path).into_owned());
        }
    }
    let dynamic = sections.dynamic_table(endian, data)?;
    for entry in dynamic.iter() {
        if entry.tag == elf::DT_NEEDED {
            found.needed.push(String::from_utf8_lossy(dynamic.string(entry)?).into_owned());
        }
    }
    Ok(found)
}

/// Whether a library defines a symbol.
///
/// # Errors
/// Returns an error when it is not a valid library.
pub(crate) fn defines(data: &[u8], wanted: &str) -> read::Result<bool> {
    match FileKind::parse(data)? {
        FileKind::Elf64 => defines_as::<elf::FileHeader64<object::Endianness>>(data, wanted),
        FileKind::Elf32 => defines_as::<elf::FileHeader32<object::Endianness>>(data, wanted),
        _ => Ok(false),
    }
}

fn defines_as<H: FileHeader<Endian = object::Endianness>>(data: &[u8], wanted: &str) -> read::Result<bool> {
    use object::read::elf::Sym as _;
    let header = H::parse(data)?;
    let endian = header.endian()?;
    let symbols = header.sections(endian, data)?.symbols(endian, data, elf::SHT_DYNSYM)?;
    for symbol in symbols.iter() {
        if !symbol.is_undefined(endian) && symbol.name(endian, symbols.strings())? == wanted.as_bytes() {
            return Ok(true);
        }
    }
    Ok(false)
}
