//! The platforms of the command line.

/// A platform of the command line.
#[derive(Debug)]
pub(super) struct Platform {
    /// Its name in files, as in Go and in krew: `linux-amd64`.
    pub(super) name: &'static str,
    /// The targets of Rust whose programs run on it, the preferred one first.
    pub(super) targets: &'static [&'static str],
    /// The name of the program.
    pub(super) program: &'static str,
    /// Whether its users expect a zip.
    pub(super) zip: bool,
    /// The architecture of its Debian package.
    pub(super) debian: Option<&'static str>,
}

/// All platforms.
pub(super) static PLATFORMS: [Platform; 5] = [
    unix("linux-amd64", &["x86_64-unknown-linux-musl", "x86_64-unknown-linux-gnu"], Some("amd64")),
    unix("linux-arm64", &["aarch64-unknown-linux-musl", "aarch64-unknown-linux-gnu"], Some("arm64")),
    unix("darwin-amd64", &["x86_64-apple-darwin"], None),
    unix("darwin-arm64", &["aarch64-apple-darwin"], None),
    Platform {
        name: "windows-amd64",
        targets: &["x86_64-pc-windows-msvc"],
        program: "pinniped.exe",
        zip: true,
        debian: None,
    },
];

const fn unix(
    name: &'static str,
    targets: &'static [&'static str],
    debian: Option<&'static str>,
) -> Platform {
    Platform { name, targets, program: "pinniped", zip: false, debian }
}

impl Platform {
    pub(super) fn of_target(target: &str) -> Option<&'static Self> {
        PLATFORMS.iter().find(|platform| platform.targets.contains(&target))
    }

    pub(super) fn is_this_machine(&self) -> bool {
        self.targets.contains(&crate::cargo::HOST_TARGET)
    }

    /// The ending of its archive's name.
    pub(super) fn extension(&self) -> &'static str {
        if self.zip { ".zip" } else { ".tar.gz" }
    }
}
