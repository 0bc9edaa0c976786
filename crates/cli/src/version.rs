//! The version and build information. Release builds set it through environment variables of the
//! compiler.

use std::fmt::Write as _;

use serde::Serialize;

/// The build information, with the order and names of Kubernetes programs.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Info {
    /// The major version.
    pub major: String,
    /// The minor version.
    pub minor: String,
    /// The version.
    pub git_version: String,
    /// The source revision.
    pub git_commit: String,
    /// `clean` or `dirty`.
    pub git_tree_state: String,
    /// The build time, RFC 3339.
    pub build_date: String,
    /// The toolchain; the key has the name that readers of this output expect.
    pub go_version: String,
    /// The compiler.
    pub compiler: String,
    /// The operating system and architecture, with Go's names.
    pub platform: String,
}

const VERSION: Option<&str> = option_env!("PINNIPED_GIT_VERSION");
const COMMIT: Option<&str> = option_env!("PINNIPED_GIT_COMMIT");
const TREE_STATE: Option<&str> = option_env!("PINNIPED_GIT_TREE_STATE");
const BUILD_DATE: Option<&str> = option_env!("PINNIPED_BUILD_DATE");

/// Returns the information of this build.
pub fn info() -> Info {
    describe(VERSION, COMMIT, TREE_STATE, BUILD_DATE)
}

fn describe(version: Option<&str>, commit: Option<&str>, tree: Option<&str>, date: Option<&str>) -> Info {
    let tree = tree.unwrap_or("dirty");
    let git_version = match (version, commit) {
        (Some(version), _) => version.to_owned(),
        (None, Some(commit)) => format!("v0.0.0-{}-{tree}", commit.get(..8).unwrap_or(commit)),
        (None, None) => "v0.0.0".to_owned(),
    };
    let mut numbers = git_version.trim_start_matches('v').split(['.', '-']);
    Info {
        major: numbers.next().unwrap_or("0").to_owned(),
        minor: numbers.next().unwrap_or("0").to_owned(),
        git_version: git_version.clone(),
        git_commit: commit.unwrap_or_default().to_owned(),
        git_tree_state: tree.to_owned(),
        build_date: date.unwrap_or("1970-01-01T00:00:00Z").to_owned(),
        go_version: concat!("rust", env!("CARGO_PKG_RUST_VERSION")).to_owned(),
        compiler: "rustc".to_owned(),
        platform: platform(),
    }
}

/// Returns the platform, such as `linux/amd64`.
fn platform() -> String {
    let os = match std::env::consts::OS {
        "macos" => "darwin",
        os => os,
    };
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        arch => arch,
    };
    format!("{os}/{arch}")
}

/// Returns the user agent for requests.
pub fn user_agent() -> String {
    let info = info();
    let mut agent = format!("pinniped/{} ({}) kubernetes/", info.git_version, info.platform);
    let _ = match COMMIT {
        Some(commit) => write!(agent, "{}", commit.get(..7).unwrap_or(commit)),
        None => write!(agent, "$Format"),
    };
    agent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_contains_the_available_information() {
        for (version, commit, tree, expected) in [
            (None, None, None, "v0.0.0"),
            (None, Some("0123456789abcdef"), Some("clean"), "v0.0.0-01234567-clean"),
            (Some("v1.2.3"), Some("0123456789abcdef"), Some("clean"), "v1.2.3"),
        ] {
            assert_eq!(describe(version, commit, tree, None).git_version, expected);
        }
        let info = describe(None, None, None, None);
        assert_eq!(
            (info.major.as_str(), info.minor.as_str(), info.git_tree_state.as_str()),
            ("0", "0", "dirty")
        );
        assert_eq!(describe(Some("v1.2.3"), None, None, None).minor, "2");
    }
}
