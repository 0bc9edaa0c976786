//! The build information in the form of Kubernetes programs, and the user agent. The values are
//! from [`pinniped_version`].

use std::fmt::Write as _;

use http::HeaderValue;
use pinniped_version::{BUILD_DATE, COMMIT, TREE_STATE, VERSION};
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

/// Returns the information of this build.
pub fn info() -> Info {
    let (major, minor) = pinniped_version::numbers();
    Info {
        major: major.to_owned(),
        minor: minor.to_owned(),
        git_version: VERSION.to_owned(),
        git_commit: COMMIT.unwrap_or_default().to_owned(),
        git_tree_state: TREE_STATE.to_owned(),
        build_date: BUILD_DATE.to_owned(),
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
pub fn user_agent() -> HeaderValue {
    // The version of a build is printable text.
    HeaderValue::try_from(user_agent_text()).unwrap_or(HeaderValue::from_static("pinniped"))
}

fn user_agent_text() -> String {
    let mut agent = format!("pinniped/{VERSION} ({}) kubernetes/", platform());
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
    fn the_user_agent_has_the_form_of_kubernetes_programs() {
        let agent = user_agent();
        let agent = agent.to_str().unwrap();
        let rest = agent.strip_prefix(&format!("pinniped/{VERSION} (")).unwrap();
        assert!(rest.contains(") kubernetes/"), "{agent}");
        assert_eq!(info().git_version, VERSION);
    }
}
