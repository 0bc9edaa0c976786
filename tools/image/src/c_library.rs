//! The C library that a static program contains.

/// The beginning of the version banner of glibc, such as `GNU C Library (Debian GLIBC
/// 2.36-9+deb12u13) stable release version 2.36.`
const GLIBC: &[u8] = b"GNU C Library (";
/// More bytes than the banner has up to its version.
const MAX_LENGTH: usize = 200;

/// A C library in a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CLibrary {
    /// glibc.
    Glibc {
        /// Its version, if possible that of the distribution's package, such as `2.36-9+deb12u13`.
        version: String,
    },
    /// musl, as the toolchain of Rust contains it. It has no version banner, so a static program
    /// without the banner of glibc counts as one with musl.
    Musl,
}

impl CLibrary {
    /// Returns the C library of a static program.
    pub(crate) fn of(program: &[u8]) -> Self {
        let found = memchr::memmem::find(program, GLIBC);
        match found.and_then(|start| version(&program[start + GLIBC.len()..])) {
            Some(version) => Self::Glibc { version },
            None => Self::Musl,
        }
    }
}

/// Returns the version in the banner of glibc, which begins in its parentheses: that of the
/// package if there is one, and otherwise that of the release.
fn version(text: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(&text[..text.len().min(MAX_LENGTH)]).into_owned();
    let (package, release) = text.split_once(')')?;
    let is_version = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit());
    let of_package = package.rsplit(' ').next().filter(is_version);
    let of_release = || release.split_once(" release version ")?.1.lines().next();
    let version = of_package.or_else(of_release)?;
    Some(version.trim_end_matches('.').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_banner_of_glibc_has_its_version() {
        let of =
            |text: &str| CLibrary::of(&[b"\x7fELF\0", text.as_bytes(), b"\nCopyright (C) 2022"].concat());
        let glibc = |version: &str| CLibrary::Glibc { version: version.to_owned() };
        let debian = "GNU C Library (Debian GLIBC 2.36-9+deb12u13) stable release version 2.36.";
        assert_eq!(of(debian), glibc("2.36-9+deb12u13"));
        assert_eq!(of("GNU C Library (GNU libc) stable release version 2.41."), glibc("2.41"));
        for other in ["", "GNU C Library (", "GNU C Library (GNU libc)"] {
            assert_eq!(of(other), CLibrary::Musl, "{other}");
        }
    }
}
