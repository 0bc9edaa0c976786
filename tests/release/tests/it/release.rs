//! `cargo xtask release` in a clone of the repository.

use std::path::Path;
use std::process::Command;

use pinniped_test_support::tools;

use crate::support::{VERSION, path, succeed, text, tools_are_built, xtask};

fn git(folder: &Path, args: &[&str]) -> String {
    let mut command = Command::new("git");
    command.current_dir(folder).args(["-c", "user.name=Test", "-c", "user.email=test@example.com"]);
    succeed(command.args(args))
}

#[test]
fn a_release_sets_the_version_everywhere_and_dates_the_changelog() {
    const NEXT: &str = "9.8.7";
    if !tools_are_built("the commit of a release") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let clone = folder.path().join("clone");
    git(&tools::repository(), &["clone", "--quiet", "--local", ".", path(&clone)]);
    let release =
        |version: &str, more: &[&str]| xtask(&[&["release", version, "--root", path(&clone)], more].concat());
    let printed = text(&release(NEXT, &[]), "xtask release");
    assert!(printed.contains("git tag --sign --message 'Version 9.8.7' v9.8.7\n"), "{printed}");

    let changed = git(&clone, &["diff", "--name-only"]);
    for file in
        ["CHANGELOG.md", "Cargo.lock", "Cargo.toml", "deploy/chart/Chart.yaml", "tools/fuzz/Cargo.lock"]
    {
        assert!(changed.lines().any(|line| line == file), "{file}: {changed}");
    }
    let diff = git(&clone, &["diff", "--unified=0", "deploy"]);
    let images = diff.lines().filter(|line| line.contains("pinniped-server:"));
    assert_eq!(images.clone().filter(|line| line.ends_with(&format!(":{VERSION}"))).count(), 6, "{diff}");
    assert_eq!(images.filter(|line| line.ends_with(&format!(":{NEXT}"))).count(), 6, "{diff}");
    let changelog = std::fs::read_to_string(clone.join("CHANGELOG.md")).unwrap();
    assert!(changelog.contains(&format!("## Unreleased\n\n## {NEXT} - 20")), "{}", &changelog[..400]);
    // Fails if the versions in the lock file are not those of the packages.
    let mut update = Command::new("cargo");
    succeed(update.current_dir(&clone).args(["update", "--workspace", "--locked", "--offline"]));
    // Cargo would need the registry's index of packages that only the fuzz targets have.
    let lock = std::fs::read_to_string(clone.join("tools/fuzz/Cargo.lock")).unwrap();
    let own = lock.split("[[package]]\n").skip(1).filter(|package| !package.contains("\nsource = "));
    let others = own.filter(|package| !package.contains(&format!("\nversion = \"{NEXT}\"\n")));
    let others: Vec<&str> = others.filter_map(|package| package.lines().next()).collect();
    assert_eq!(others, ["name = \"pinniped-fuzz\""], "other packages have another version");
    let notes = text(&release(NEXT, &["--notes"]), "xtask release --notes");
    assert!(notes.starts_with("### ") && changelog.contains(notes.trim()), "{notes}");

    let refused = |version: &str| {
        let output = release(version, &[]);
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused("9.8.8").contains("the working tree has changes"));
    git(&clone, &["commit", "--quiet", "--all", "--message", "release: version 9.8.7"]);
    assert!(refused("9.8.8").contains("the section of unreleased changes is empty"));
    assert_eq!(git(&clone, &["status", "--porcelain"]), "", "a refused release changes nothing");
    git(&clone, &["tag", "v9.8.7"]);
    assert!(refused(NEXT).contains("the tag v9.8.7 exists"));
}
