//! `cargo xtask control-plane` on a machine without Go.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

/// Programs with the versions that the command accepts.
const PROGRAMS: [(&str, &str); 4] = [
    ("etcd", "etcd Version: 3.6.8"),
    ("kube-apiserver", "Kubernetes v1.36.9"),
    ("kube-controller-manager", "Kubernetes v1.36.9"),
    ("kubectl", "Client Version: v1.36.9"),
];

/// Creates a folder with programs that only print their version.
fn assets(dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir(dir)?;
    for (name, version) in PROGRAMS {
        let file = dir.join(name);
        std::fs::write(&file, format!("#!/bin/sh\necho '{version}'\n"))?;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Runs the command without Go: `PATH` is an empty folder, and so are the cache and the target
/// folder.
fn run(folder: &Path, assets: Option<&Path>, flags: &[&str]) -> std::io::Result<Output> {
    for name in ["path", "cache", "target"] {
        std::fs::create_dir_all(folder.join(name))?;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.arg("control-plane").args(flags).env_remove("KUBEBUILDER_ASSETS");
    command.envs(assets.map(|dir| ("KUBEBUILDER_ASSETS", dir)));
    command.env("PATH", folder.join("path")).env("XDG_CACHE_HOME", folder.join("cache"));
    command.env("CARGO_TARGET_DIR", folder.join("target")).output()
}

#[test]
fn without_go_the_programs_of_kubebuilder_assets_are_used() -> std::io::Result<()> {
    let folder = tempfile::tempdir()?;
    let dir = folder.path().join("assets");
    assets(&dir)?;
    for flags in [&[][..], &["--offline"], &["--download"], &["--download", "--offline"]] {
        let output = run(folder.path(), Some(&dir), flags)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{flags:?}: {errors}");
        let printed = format!("{}\n", dir.display());
        assert_eq!(String::from_utf8_lossy(&output.stdout), printed, "{flags:?}: {errors}");
        let pointer = std::fs::read_to_string(folder.path().join("target/control-plane.path"))?;
        assert_eq!(pointer, printed, "{flags:?}");
    }
    Ok(())
}

#[test]
fn without_go_and_without_programs_the_error_names_the_alternatives() -> std::io::Result<()> {
    let folder = tempfile::tempdir()?;
    let dir = folder.path().join("assets");
    assets(&dir)?;
    std::fs::remove_file(dir.join("kubectl"))?;
    let table = [
        (&[][..], "KUBEBUILDER_ASSETS"),
        (&["--download", "--offline"], "are not in the cache yet; run the same command once with network"),
        (&["--download"], "`curl` is needed for --download"),
    ];
    for (flags, wanted) in table {
        let output = run(folder.path(), Some(&dir), flags)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains(wanted), "{flags:?}: {errors}");
        assert!(errors.contains("no kubectl"), "{flags:?}: {errors}");
        assert!(!folder.path().join("target/control-plane.path").exists());
    }
    Ok(())
}
