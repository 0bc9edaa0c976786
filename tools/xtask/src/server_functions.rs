//! `cargo xtask server-functions`: writes `build/server-functions.ld`, which groups the functions
//! that take most of the time of requests, and functions at rest that `build/function-groups.ld`
//! misplaces.
//!
//! The names of functions contain hashes, which change with each dependency, and references to an
//! offset in the name, which change with the length of the hashes. A pattern has a wildcard in
//! their places, so that it selects the function in later builds, too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;

use crate::cargo;

/// The file below the root of the repository.
const FILE: &str = "build/server-functions.ld";
/// A function with fewer samples may have run only by chance.
const LEAST_SAMPLES: usize = 10;

const HEADER: &str = "\
/* The functions that take most of the time of requests: first those that an idle server does not
 * run, then those that it runs, too. Close to each other, they fill the caches of the processor
 * less than among functions that rarely run. At the end are functions that an idle server runs,
 * and that build/function-groups.ld would put among those that do not run.
 *
 * Each pattern is a name in the format of RFC 2603, without the parts that change with a build. A
 * pattern that selects nothing any more costs some CPU time only. Functions that no pattern selects
 * are grouped by build/function-groups.ld.
 *
 * Written by `cargo xtask server-functions`, see docs/performance.md.
 */
";

/// Flags of `server-functions`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A file with samples of a profiler under load: one name of a function on each line.
    #[arg(long, value_name = "FILE")]
    samples: PathBuf,
    /// A file with the names of all functions that an idle server runs.
    #[arg(long, value_name = "FILE")]
    idle: PathBuf,
    /// A file with the functions of `--idle` that `build/function-groups.ld` puts among functions
    /// that do not run.
    #[arg(long, value_name = "FILE")]
    misplaced: PathBuf,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let patterns = patterns(&read(&args.samples)?, &read(&args.idle)?, &read(&args.misplaced)?);
    let file = cargo::root().join(FILE);
    std::fs::write(&file, script(&patterns))
        .with_context(|| format!("could not write {}", file.display()))?;
    println!("{FILE}: {} functions", patterns.len());
    Ok(ExitCode::SUCCESS)
}

fn read(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("could not read {}", file.display()))
}

/// Returns the patterns in the order of the file. The functions with the most samples are in the
/// middle, beside those that an idle server runs, too.
fn patterns(samples: &str, idle: &str, misplaced: &str) -> Vec<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for name in names(samples) {
        *counts.entry(pattern(name)).or_default() += 1;
    }
    counts.retain(|_, count| *count >= LEAST_SAMPLES);
    let idle: BTreeSet<String> = names(idle).map(pattern).collect();
    let (both, mut requests): (Vec<_>, Vec<_>) =
        counts.into_iter().partition(|(pattern, _)| idle.contains(pattern));
    requests.sort_by_key(|(_, count)| *count);
    let both: BTreeSet<String> = both.into_iter().map(|(pattern, _)| pattern).collect();
    let idle: BTreeSet<String> = names(misplaced).map(pattern).filter(|one| !both.contains(one)).collect();
    requests.into_iter().map(|(pattern, _)| pattern).chain(both).chain(idle).collect()
}

/// Returns the names that a linker script can select. Profilers print `[unknown]` for others.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"_.$".contains(&byte);
    text.lines().map(str::trim).filter(move |name| !name.is_empty() && name.bytes().all(is_part))
}

/// Returns the pattern of a function: the name, with wildcards for hashes of crates
/// (`Cs<base-62>_`), for references (`B<base-62>_`), and for the version of aws-lc.
fn pattern(name: &str) -> String {
    if let Some(versioned) = name.strip_prefix("aws_lc_") {
        let rest = versioned.trim_start_matches(|c: char| c.is_ascii_digit() || c == '_');
        return format!("aws_lc_*{rest}");
    }
    let mut pattern = String::with_capacity(name.len());
    let mut rest = name;
    let is_mangled = name.starts_with("_R");
    while let Some(next) = rest.chars().next() {
        // Two digits number all bytes of the longest name.
        let variable = [("Cs", usize::MAX), ("B", 2)].into_iter().find_map(|(prefix, most)| {
            let after = rest.strip_prefix(prefix)?;
            let digits = after.bytes().take_while(u8::is_ascii_alphanumeric).count();
            let ends = digits <= most && after[digits..].starts_with('_');
            ends.then_some((prefix, prefix.len() + digits + 1))
        });
        let length = match variable.filter(|_| is_mangled) {
            Some((prefix, length)) => {
                pattern.push_str(prefix);
                pattern.push_str("*_");
                length
            }
            None => {
                pattern.push(next);
                next.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    pattern
}

fn script(patterns: &[String]) -> String {
    let mut script = format!("{HEADER}SECTIONS\n{{\n  .text.server :\n  {{\n");
    for pattern in patterns {
        // Writing to a string does not fail.
        let _written = writeln!(script, "    *(.text.{pattern})");
    }
    script.push_str("  }\n}\nINSERT BEFORE .text;\n");
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_have_wildcards_for_what_changes_with_a_build() {
        for (name, wanted) in [
            (
                "_RNCNvMs0_NtCs5IQgaDvfinI_16pinniped_gateway5proxyNtB7_7Forward4send0B9_",
                "_RNCNvMs0_NtCs*_16pinniped_gateway5proxyNtB*_7Forward4send0B*_",
            ),
            ("_RNvNtCs9dk8b50d3IA_8httparse6parseINtB1j_4BodyE", "_RNvNtCs*_8httparse6parseINtB*_4BodyE"),
            ("aws_lc_0_47_0_EVP_AEAD_CTX_open", "aws_lc_*EVP_AEAD_CTX_open"),
            ("CsB_1", "CsB_1"),
        ] {
            assert_eq!(pattern(name), wanted);
        }
    }

    #[test]
    fn functions_of_requests_are_before_those_that_also_run_without_requests() {
        let samples = ["both\n", "[unknown]\n", "  warm\n", "hot.cold\nhot.cold\n"].concat();
        let crates = "_RCs1_1a\n_RCs2_1a\n".repeat(LEAST_SAMPLES / 2);
        let samples = format!("{}{crates}rare\n", samples.repeat(LEAST_SAMPLES));
        let order = patterns(&samples, "idle\nboth\nmisplaced\n", "misplaced\nboth\n");
        assert_eq!(order, ["_RCs*_1a", "warm", "hot.cold", "both", "misplaced"]);
        let script = script(&order);
        assert!(script.contains("\n    *(.text._RCs*_1a)\n    *(.text.warm)\n"), "{script}");
    }
}
