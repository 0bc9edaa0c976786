//! Replays the seeds, without a fuzzer and without a sanitizer.

use std::path::PathBuf;

/// The targets and their checks.
const TARGETS: [(&str, fn(&[u8])); 16] = [
    ("authorization", crate::authorization::check),
    ("cel", crate::cel::check),
    ("certificate", crate::certificate::check),
    ("client_hello", crate::client_hello::check),
    ("envelope", crate::envelope::check),
    ("hop_by_hop", crate::hop_by_hop::check),
    ("http1_response", crate::http1_response::check),
    ("impersonate", crate::impersonate::check),
    ("jwks", crate::jwks::check),
    ("jwt", crate::jwt::check),
    ("login_callback", crate::login_callback::check),
    ("request_body", crate::request_body::check),
    ("request_info", crate::request_info::check),
    ("session", crate::session::check),
    ("spdy", crate::spdy::check),
    ("status", crate::status::check),
];

/// Returns the paths in a folder of this package, sorted.
fn list(folder: &str) -> Vec<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(folder);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// Returns the names of the files in a folder, without their extensions.
fn names(folder: &str) -> Vec<String> {
    list(folder).iter().map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn no_seed_violates_an_invariant() {
    for (name, check) in TARGETS {
        let seeds = list(&format!("seeds/{name}"));
        assert!(!seeds.is_empty(), "{name} has no seeds");
        for seed in &seeds {
            // A panic does not name the input.
            println!("{}", seed.display());
            check(&std::fs::read(seed).unwrap());
        }
        println!("{name}: {} seeds", seeds.len());
    }
}

#[test]
fn every_target_and_every_folder_of_seeds_is_replayed() {
    let targets = TARGETS.map(|(name, _)| name);
    assert_eq!(names("fuzz_targets"), targets);
    assert_eq!(names("seeds"), targets);
}
