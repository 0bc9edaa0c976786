//! The software bill of materials of programs, in the format CycloneDX 1.6.
//!
//! The components are those that `cargo tree` lists for the programs and their target: with the
//! features of the build, and without build dependencies and procedural macros, of which the
//! programs contain nothing. Only crates of the registry have a package URL. The standard library
//! and, in static programs, the C library come with the toolchain; the components of these two
//! libraries are not listed. The tool cargo-cyclonedx is not used
//! because it writes one document beside each manifest of the source tree, and has no place for the
//! shared libraries of an image; the library `cyclonedx-bom` would add second versions of crates.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use pinniped_image::{CLibrary, Library, Origin};
use serde_json::{Value, json};

use crate::cargo;
use crate::revision::{REPOSITORY, VERSION};

/// The subject of a document.
pub(crate) struct Subject<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// `application` or `container`.
    pub(crate) kind: &'a str,
    /// The packages of its programs.
    pub(crate) packages: &'a [&'a str],
    /// The target for which they are compiled.
    pub(crate) target: &'a str,
    /// Shared libraries of the system that it contains.
    pub(crate) libraries: &'a [Library],
    /// The C library in its programs, if they are static.
    pub(crate) c_library: Option<&'a CLibrary>,
}

/// Returns the document about a subject.
pub(crate) fn document(subject: &Subject<'_>, offline: bool) -> anyhow::Result<Value> {
    let mut tree = cargo::cargo(offline);
    tree.args(["tree", "--locked", "--edges", "normal,no-proc-macro"]);
    tree.args(["--prefix", "depth", "--format", "{p}|{l}|{r}"]);
    tree.args(["--target", subject.target]);
    for package in subject.packages {
        tree.args(["--package", package]);
    }
    let read = |name: &str| {
        let path = cargo::root().join(name);
        std::fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))
    };
    let (lock, toolchain) = (read("Cargo.lock")?, read("rust-toolchain.toml")?);
    let toolchain = channel(&toolchain).context("rust-toolchain.toml has no channel")?;
    let crates = Crates::of(&cargo::output(&mut tree)?)?.used_by(subject.packages);
    Ok(of_crates(subject, &crates, &checksums(&lock), toolchain))
}

/// Returns the version of the compiler.
fn channel(toolchain: &str) -> Option<&str> {
    toolchain.lines().find_map(|line| line.strip_prefix("channel = \"")?.strip_suffix('"'))
}

/// Returns the libraries that the toolchain and the C compiler add to programs.
fn of_toolchain(c_library: Option<&CLibrary>, version: &str) -> Vec<Value> {
    let mut libraries = vec![json!({
        "type": "library",
        "bom-ref": "rust-std",
        "name": "std",
        "version": version,
        "description": "The standard library of Rust, as it comes with the toolchain",
        "licenses": [{"expression": "MIT OR Apache-2.0"}],
    })];
    match c_library {
        None => {}
        Some(CLibrary::Musl) => libraries.push(json!({
            "type": "library",
            "bom-ref": "musl",
            "name": "musl",
            "description": format!("The C library, as it comes with the toolchain of Rust {version}"),
            "licenses": [{"expression": "MIT"}],
        })),
        Some(CLibrary::Glibc { version }) => libraries.extend([
            json!({
                "type": "library",
                "bom-ref": "glibc",
                "name": "glibc",
                "version": version,
                "description": "The C library, as it comes with the system that built the programs",
                "licenses": [{"expression": "LGPL-2.1-or-later"}],
            }),
            json!({
                "type": "library",
                "bom-ref": "libgcc",
                "name": "libgcc",
                "description": "The runtime library of GCC, as it comes with that system",
                "licenses": [{"expression": "GPL-3.0-or-later WITH GCC-exception-3.1"}],
            }),
        ]),
    }
    libraries
}

fn of_crates(
    subject: &Subject<'_>,
    crates: &Crates,
    checksums: &BTreeMap<(&str, &str), &str>,
    toolchain: &str,
) -> Value {
    let mut components: Vec<Value> = crates
        .components
        .iter()
        .map(|(purl, component)| {
            let mut value = json!({
                "type": "library",
                "bom-ref": purl,
                "name": component.name,
                "version": component.version,
            });
            if !component.license.is_empty() {
                // The separator of old manifests.
                let expression = component.license.replace('/', " OR ");
                value["licenses"] = json!([{"expression": expression}]);
            }
            if !component.repository.is_empty() {
                value["externalReferences"] = json!([{"type": "vcs", "url": component.repository}]);
            }
            let key = (component.name.as_str(), component.version.as_str());
            // Other crates are in the source tree, so a package URL would be that of another crate.
            if let Some(checksum) = checksums.get(&key) {
                value["purl"] = json!(purl);
                value["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
            }
            value
        })
        .collect();
    let mut of_subject: BTreeSet<&str> = crates.roots.iter().map(String::as_str).collect();
    for library in subject.libraries {
        of_subject.insert(&library.inside);
        let mut value = json!({"type": "library", "bom-ref": library.inside, "name": library.name});
        if let Origin::Package { name, version } = &library.origin {
            value["name"] = json!(name);
            value["version"] = json!(version);
        }
        value["evidence"] = json!({"occurrences": [{"location": library.inside}]});
        components.push(value);
    }
    let libraries = of_toolchain(subject.c_library, toolchain);
    of_subject.extend(libraries.iter().filter_map(|library| library["bom-ref"].as_str()));
    components.extend(libraries.iter().cloned());
    let mut dependencies: Vec<Value> =
        crates.edges.iter().map(|(purl, used)| json!({"ref": purl, "dependsOn": used})).collect();
    dependencies.push(json!({"ref": subject.name, "dependsOn": of_subject}));
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": subject.kind,
                "bom-ref": subject.name,
                "name": subject.name,
                "version": VERSION,
                "licenses": [{"expression": env!("CARGO_PKG_LICENSE")}],
                "externalReferences": [{"type": "vcs", "url": REPOSITORY}],
            },
            "properties": [{"name": "cargo:target", "value": subject.target}],
        },
        "components": components,
        "dependencies": dependencies,
    })
}

/// The crates of a tree, by package URL.
#[derive(Debug, Default, PartialEq, Eq)]
struct Crates {
    roots: BTreeSet<String>,
    components: BTreeMap<String, Component>,
    edges: BTreeMap<String, BTreeSet<String>>,
}

#[derive(Debug, PartialEq, Eq)]
struct Component {
    name: String,
    version: String,
    license: String,
    repository: String,
}

impl Crates {
    /// Parses lines of `cargo tree`, such as `1serde v1.0.0 (proc-macro)|MIT|https://..`. A crate
    /// that the tree lists again has no lines for its dependencies.
    fn of(tree: &str) -> anyhow::Result<Self> {
        let mut crates = Self::default();
        let mut path: Vec<String> = Vec::new();
        for line in tree.lines().filter(|line| !line.is_empty()) {
            let wrong = || format!("an unknown line of cargo tree: {line:?}");
            let start = line.find(|c: char| !c.is_ascii_digit()).with_context(wrong)?;
            let depth: usize = line[..start].parse().with_context(wrong)?;
            let mut fields = line[start..].trim_end_matches(" (*)").split('|');
            let mut words = fields.next().with_context(wrong)?.split_whitespace();
            let (name, version) = words.next().zip(words.next()).with_context(wrong)?;
            let component = Component {
                name: name.to_owned(),
                version: version.trim_start_matches('v').to_owned(),
                license: fields.next().with_context(wrong)?.to_owned(),
                repository: fields.next().with_context(wrong)?.to_owned(),
            };
            let purl = format!("pkg:cargo/{}@{}", component.name, component.version);
            path.truncate(depth);
            match path.last() {
                None => drop(crates.roots.insert(purl.clone())),
                Some(user) => {
                    crates.edges.entry(user.clone()).or_default().insert(purl.clone());
                }
            }
            crates.edges.entry(purl.clone()).or_default();
            crates.components.insert(purl.clone(), component);
            path.push(purl);
        }
        anyhow::ensure!(!crates.roots.is_empty(), "cargo tree printed nothing");
        Ok(crates)
    }

    /// Keeps the crates that these packages use. With unified features of a workspace, cargo lists
    /// all its packages.
    fn used_by(mut self, packages: &[&str]) -> Self {
        self.roots.retain(|purl| packages.contains(&self.components[purl].name.as_str()));
        let mut open: Vec<&String> = self.roots.iter().collect();
        let mut used = BTreeSet::new();
        while let Some(purl) = open.pop() {
            if used.insert(purl.clone()) {
                open.extend(&self.edges[purl]);
            }
        }
        self.components.retain(|purl, _| used.contains(purl));
        self.edges.retain(|purl, _| used.contains(purl));
        self
    }
}

/// Returns the SHA-256 of each registry package by its name and version.
fn checksums(lock: &str) -> BTreeMap<(&str, &str), &str> {
    let packages = lock.split("[[package]]");
    let value = |package: &'_ str, name: &str| -> Option<(usize, usize)> {
        let start = package.find(&format!("\n{name} = \""))? + name.len() + 5;
        Some((start, start + package[start..].find('"')?))
    };
    packages
        .filter_map(|package| {
            let get = |name: &str| value(package, name).map(|(start, end)| &package[start..end]);
            Some(((get("name")?, get("version")?), get("checksum")?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "0a v1.0.0 (/src/a)|Apache-2.0|https://example.com/a\n\
                        1b v2.0.0|MIT/Apache-2.0|\n\
                        2c v3.1.0 (proc-macro)||\n\
                        1c v3.1.0 (proc-macro)|| (*)\n\
                        \n\
                        0d v1.0.0 (/src/d)|Apache-2.0|\n\
                        1b v2.0.0|MIT/Apache-2.0| (*)\n";

    #[test]
    fn the_tree_gives_components_and_edges() {
        let crates = Crates::of(TREE).unwrap();
        let purls = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(" ");
        assert_eq!(purls(&crates.roots), "pkg:cargo/a@1.0.0 pkg:cargo/d@1.0.0");
        assert_eq!(purls(&crates.edges["pkg:cargo/a@1.0.0"]), "pkg:cargo/b@2.0.0 pkg:cargo/c@3.1.0");
        assert_eq!(purls(&crates.edges["pkg:cargo/b@2.0.0"]), "pkg:cargo/c@3.1.0");
        assert_eq!(purls(&crates.edges["pkg:cargo/d@1.0.0"]), "pkg:cargo/b@2.0.0");
        assert_eq!(crates.edges["pkg:cargo/c@3.1.0"].len(), 0);
        assert!(Crates::of("").is_err());
        assert!(Crates::of("no tree").is_err());
    }

    #[test]
    fn only_crates_that_the_packages_use_are_listed() {
        let crates = Crates::of(TREE).unwrap().used_by(&["d"]);
        let names: Vec<&str> = crates.components.values().map(|component| component.name.as_str()).collect();
        assert_eq!(names, ["b", "c", "d"]);
        assert_eq!(crates.edges.len(), 3);
        assert_eq!(crates.roots.len(), 1);
    }

    #[test]
    fn the_document_has_licences_checksums_and_libraries() {
        let library = Library {
            name: "libc.so.6".to_owned(),
            path: "/lib/libc.so.6".into(),
            inside: "/lib/libc.so.6".to_owned(),
            origin: Origin::Package { name: "libc6".to_owned(), version: "2.41".to_owned() },
        };
        let subject = Subject {
            name: "image",
            kind: "container",
            packages: &[],
            target: "x86_64-unknown-linux-gnu",
            libraries: std::slice::from_ref(&library),
            c_library: None,
        };
        let lock = "\n[[package]]\nname = \"b\"\nversion = \"2.0.0\"\nsource = \"r\"\nchecksum = \"00ff\"\n\n\
                    [[package]]\nname = \"a\"\nversion = \"1.0.0\"\n";
        let found = of_crates(&subject, &Crates::of(TREE).unwrap(), &checksums(lock), "1.2.3");
        let component = |name: &str| {
            let all = found["components"].as_array().unwrap();
            all.iter().find(|component| component["name"] == name).unwrap().clone()
        };
        assert_eq!(component("b")["licenses"], json!([{"expression": "MIT OR Apache-2.0"}]));
        assert_eq!(component("b")["hashes"], json!([{"alg": "SHA-256", "content": "00ff"}]));
        assert_eq!(component("b")["purl"], "pkg:cargo/b@2.0.0");
        assert_eq!((component("a").get("hashes"), component("a").get("purl")), (None, None));
        assert_eq!(component("std")["version"], "1.2.3");
        assert_eq!(component("libc6")["version"], "2.41");
        let of_image = found["dependencies"].as_array().unwrap().last().unwrap();
        let wanted = json!(["/lib/libc.so.6", "pkg:cargo/a@1.0.0", "pkg:cargo/d@1.0.0", "rust-std"]);
        assert_eq!(of_image, &json!({"ref": "image", "dependsOn": wanted}));
    }

    #[test]
    fn only_static_programs_contain_a_c_library() {
        let names = |c_library: Option<CLibrary>| -> Vec<Value> {
            let libraries = of_toolchain(c_library.as_ref(), "1.2.3");
            libraries.iter().map(|library| library["name"].clone()).collect()
        };
        assert_eq!(names(None), ["std"]);
        assert_eq!(names(Some(CLibrary::Musl)), ["std", "musl"]);
        assert_eq!(names(Some(CLibrary::Glibc { version: "2.36".to_owned() })), ["std", "glibc", "libgcc"]);
        assert_eq!(channel("[toolchain]\nchannel = \"1.2.3\"\n"), Some("1.2.3"));
    }
}
