//! Caches on disks that are full or read-only, and of processes that are killed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::browser::{Desktop, visit};
use super::flows::token;
use super::issuer::{Issuer, Settings};
use crate::support::Run;

const FOLDER: &str = ".config/pinniped";

/// A small file system in memory in the place of the cache directory.
struct Disk(PathBuf);

impl Disk {
    /// Mounts it in the mount namespace in which `tools/test-runner.sh` runs the tests. Returns
    /// `None` on a machine without namespaces; if all tests are required, the script has failed
    /// there.
    fn mount(desktop: &Desktop) -> Option<Self> {
        if std::env::var_os("PINNIPED_WORLD").is_none() {
            // The harness would capture the output of eprintln.
            let _ = writeln!(std::io::stderr(), "SKIPPED caches on a disk of their own: no mount namespace");
            return None;
        }
        let path = desktop.file(FOLDER);
        std::fs::create_dir_all(&path).unwrap();
        mount(&["-t", "tmpfs", "-o", "size=64k,mode=0700", "none", path.to_str().unwrap()]);
        Some(Self(path))
    }

    fn remount(&self, option: &str) {
        mount(&["-o", &format!("remount,{option}"), self.0.to_str().unwrap()]);
    }

    fn fill(&self) {
        let mut file = File::create(self.0.join("other")).unwrap();
        while file.write_all(&[0; 1024]).is_ok() {}
    }

    fn free(&self) {
        std::fs::remove_file(self.0.join("other")).unwrap();
    }

    /// Returns the caches, and fails if there is an incomplete file beside them.
    fn caches(&self) -> BTreeMap<String, String> {
        let names = std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name());
        let names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        assert!(names.iter().all(|name| !name.ends_with(".new")), "{names:?}");
        let caches = names.into_iter().filter(|name| name.ends_with(".yaml"));
        caches.map(|name| (name.clone(), std::fs::read_to_string(self.0.join(name)).unwrap())).collect()
    }

    /// Makes the last use of all entries earlier, so that the next use changes the files.
    fn age(&self) {
        let earlier = Timestamp::now() - SignedDuration::from_mins(1);
        for (name, text) in self.caches() {
            let lines = text.lines().map(|line| match line.split_once("lastUsedTimestamp: ") {
                Some((indent, _)) => format!("{indent}lastUsedTimestamp: \"{earlier:.0}\"\n"),
                None => format!("{line}\n"),
            });
            std::fs::write(self.0.join(name), lines.collect::<String>()).unwrap();
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn mount(args: &[&str]) {
    let output = Command::new("mount").args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
}

/// Returns the line about a cache that cannot be used; there is at most one.
fn warning(run: &Run) -> Option<&str> {
    let mut lines = run.stderr.lines().filter(|line| line.starts_with("The login cannot be remembered: "));
    let first = lines.next();
    assert_eq!(lines.next(), None, "{run:?}");
    first
}

#[test]
fn read_only_caches_degrade_to_a_login_with_a_warning() {
    let issuer = Issuer::start(Settings::default());
    let desktop = Desktop::new();
    let Some(disk) = Disk::mount(&desktop) else { return };
    let args = issuer.args(&[]);
    let first = desktop.log_in(&issuer, &args);
    token(&first);
    assert_eq!(warning(&first), None);
    let stored = disk.caches();
    disk.remount("ro");
    for _ in 0..2 {
        let run = desktop.log_in(&issuer, &args);
        assert_ne!(token(&run), token(&first));
        let text = warning(&run).unwrap_or_else(|| panic!("{run:?}"));
        assert!(text.contains("could not lock ") && text.contains("Read-only file system"), "{text}");
    }
    assert_eq!(disk.caches(), stored);
    // Nothing has to be repaired.
    disk.remount("rw");
    assert_eq!(desktop.home.run(&args).stdout, first.stdout);
    assert_eq!(desktop.opened().len(), 3);
}

#[test]
fn a_full_disk_keeps_what_is_stored_and_degrades_to_a_login_with_a_warning() {
    let issuer = Issuer::start(Settings::default());
    let desktop = Desktop::new();
    let Some(disk) = Disk::mount(&desktop) else { return };
    let (stored, other) = (issuer.args(&[]), issuer.args(&["--scopes=openid,other"]));
    let first = desktop.log_in(&issuer, &stored);
    token(&first);
    disk.age();
    let before = disk.caches();
    disk.fill();
    // The caches are still used; only the time of the use cannot be stored.
    for args in [&stored, &issuer.args(&["--credential-cache="])] {
        let run = desktop.home.run(args);
        assert_eq!((run.stdout.as_str(), run.stderr.as_str()), (first.stdout.as_str(), ""));
    }
    for _ in 0..2 {
        let run = desktop.log_in(&issuer, &other);
        token(&run);
        let text = warning(&run).unwrap_or_else(|| panic!("{run:?}"));
        assert!(text.contains("could not write ") && text.contains("No space left on device"), "{text}");
    }
    assert_eq!(disk.caches(), before);
    disk.free();
    let run = desktop.log_in(&issuer, &other);
    token(&run);
    assert_eq!(warning(&run), None);
    assert_eq!(desktop.home.run(&other).stdout, run.stdout);
    assert_eq!(desktop.home.run(&stored).stdout, first.stdout);
    assert_eq!(desktop.opened().len(), 4);
}

#[test]
fn a_full_disk_without_a_cache_gets_no_incomplete_one() {
    let issuer = Issuer::start(Settings::default());
    let desktop = Desktop::new();
    let Some(disk) = Disk::mount(&desktop) else { return };
    disk.fill();
    let run = desktop.log_in(&issuer, &issuer.args(&[]));
    token(&run);
    assert!(warning(&run).is_some_and(|text| text.contains("No space left on device")), "{run:?}");
    assert!(disk.caches().values().all(String::is_empty), "{:?}", disk.caches());
}

#[test]
fn a_file_in_the_place_of_the_directory_degrades_to_a_login_with_a_warning() {
    let issuer = Issuer::start(Settings::default());
    let desktop = Desktop::new();
    desktop.home.write(".config", "not a directory");
    for _ in 0..2 {
        let run = desktop.log_in(&issuer, &issuer.args(&[]));
        token(&run);
        let text = warning(&run).unwrap_or_else(|| panic!("{run:?}"));
        assert!(text.contains("could not open the directory of "), "{text}");
    }
    assert_eq!(std::fs::read_to_string(desktop.file(".config")).unwrap(), "not a directory");
}

#[test]
fn a_process_that_is_killed_while_it_stores_tokens_leaves_usable_caches() {
    let issuer = Issuer::start(Settings::default());
    let desktop = Desktop::new();
    for number in 0..6 {
        // Another session each time.
        let running = desktop.start(&issuer.args(&[&format!("--scopes=openid,{number}")]));
        let url = desktop.opened_after(number);
        visit(&url, &issuer.authorize(&url));
        // The browser has its page; the process is about to store the tokens.
        running.kill();
        for name in ["sessions.yaml", "credentials.yaml"] {
            let text = std::fs::read_to_string(desktop.file(FOLDER).join(name)).unwrap_or_default();
            if text.is_empty() {
                continue;
            }
            let document: Value = serde_saphyr::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
            let entries = document["sessions"].as_array().or(document["credentials"].as_array());
            let is_complete = |entry: &Value| {
                entry["tokens"]["refresh"]["token"].is_string() || entry["lastUsedTimestamp"].is_string()
            };
            assert!(entries.unwrap().iter().all(is_complete) && text.ends_with('\n'), "{text}");
        }
    }
    // No lock is left, and no file has to be replaced.
    let args = issuer.args(&[]);
    let run = desktop.log_in(&issuer, &args);
    token(&run);
    assert_eq!(warning(&run), None);
    assert!(!run.stderr.contains("Waiting"), "{run:?}");
    assert_eq!(desktop.home.run(&args).stdout, run.stdout);
}
