//! The version of this build. All programs report this one: the command line, the user agents of
//! all requests, and the pages `/version` and `/statusz` of API servers.
//!
//! A release sets `PINNIPED_GIT_VERSION` and the other variables when it compiles. Other builds
//! have the version of the Cargo workspace.
//!
//! ```
//! let agent = pinniped_version::user_agent("example");
//! assert!(agent.starts_with("example/v"));
//! ```

#![forbid(unsafe_code)]

const WORKSPACE_VERSION: &str = concat!("v", env!("CARGO_PKG_VERSION"));

/// The version, with a leading `v`.
pub const VERSION: &str = match option_env!("PINNIPED_GIT_VERSION") {
    Some(version) => version,
    None => WORKSPACE_VERSION,
};

/// The source revision, if the build knows it.
pub const COMMIT: Option<&str> = option_env!("PINNIPED_GIT_COMMIT");

/// `clean`, or `dirty` if the sources differ from the revision or if the build does not know it.
pub const TREE_STATE: &str = match option_env!("PINNIPED_GIT_TREE_STATE") {
    Some(state) => state,
    None => "dirty",
};

/// The time of the build, RFC 3339.
pub const BUILD_DATE: &str = match option_env!("PINNIPED_BUILD_DATE") {
    Some(date) => date,
    None => "1970-01-01T00:00:00Z",
};

/// Returns the major and the minor number of [`VERSION`].
pub fn numbers() -> (&'static str, &'static str) {
    parts(VERSION)
}

/// Returns the major and the minor number of a version; `None` for a text that is no version.
pub fn numbers_of(version: &str) -> Option<(&str, &str)> {
    let numbers = parts(version);
    let is_number = |text: &str| text.parse::<u32>().is_ok();
    (is_number(numbers.0) && is_number(numbers.1)).then_some(numbers)
}

fn parts(version: &str) -> (&str, &str) {
    let mut numbers = version.trim_start_matches('v').split(['.', '-', '+']);
    (numbers.next().unwrap_or("0"), numbers.next().unwrap_or("0"))
}

/// Returns the user agent of a server program for requests to an API server. Tests of upstream
/// recognize probes for anonymous access by the word `kubernetes`.
pub fn user_agent(program: &str) -> String {
    format!("{program}/{VERSION} kubernetes/v1.36")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_has_two_numbers() {
        for (version, expected) in [
            ("v1.2.3", ("1", "2")),
            ("v0.1.0-rc.1", ("0", "1")),
            ("v1.2+build", ("1", "2")),
            ("v3", ("3", "0")),
        ] {
            assert_eq!(parts(version), expected, "{version}");
            assert_eq!(numbers_of(version), Some(expected), "{version}");
        }
        for text in ["latest", "", "v", "1.x", "sha-12"] {
            assert_eq!(numbers_of(text), None, "{text}");
        }
        assert!(numbers().0.parse::<u32>().is_ok(), "{VERSION}");
    }

    #[test]
    fn the_version_has_one_leading_letter() {
        assert!(VERSION.starts_with('v') && !VERSION.starts_with("vv"), "{VERSION}");
    }
}
