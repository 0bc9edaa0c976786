//! `cargo xtask test`: checks the machine, provides the control plane, builds the programs, runs
//! all tests, and prints a summary. `--fast` runs the tests that need no control plane.

mod executables;
mod run;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::Context as _;

use crate::control_plane::{
    self, KubernetesRelease, contour, crane, debian, envoy, helm, keycloak, oidc_provider, otel_collector,
    prometheus, prometheus_ui, registry,
};
use crate::{cargo, disk, dist, node, site, suite};
use run::Job;

/// The package whose tests use a real node.
const NODE_PACKAGE: &str = "pinniped-node-tests";
/// Packages whose tests use a real cert-manager and a real Contour. They have the longest tests.
const THIRD_PARTY_PACKAGES: [&str; 2] = [NODE_PACKAGE, E2E_PACKAGE];
/// Packages whose tests use real identity providers.
const PROVIDER_PACKAGES: [&str; 2] = ["pinniped-e2e", "pinniped-test-support"];
/// Packages whose tests use a real Prometheus, or check rules with its tool.
const PROMETHEUS_PACKAGES: [&str; 2] = ["pinniped-e2e", "pinniped-manifests"];
/// Packages whose tests use a real collector of traces.
const TRACES_PACKAGES: [&str; 2] = ["pinniped-concierge", "pinniped-gateway-dataplane"];
/// Packages whose tests use a real Helm.
const HELM_PACKAGES: [&str; 4] = [E2E_PACKAGE, NODE_PACKAGE, "pinniped-manifests", RELEASE_PACKAGE];
/// The package whose tests make a release and push to a real registry.
const RELEASE_PACKAGE: &str = "pinniped-release-tests";
/// The package whose tests use a real informer.
const E2E_PACKAGE: &str = "pinniped-e2e";

/// Packages whose integration tests need a control plane, a node or programs that Go builds.
/// `--fast` leaves them out.
const CONTROL_PLANE_PACKAGES: [&str; 8] = [
    "pinniped-concierge",
    "pinniped-concierge-controllers",
    "pinniped-e2e",
    "pinniped-gateway-controller",
    "pinniped-node-tests",
    "pinniped-release-tests",
    "pinniped-server",
    "pinniped-test-support",
];

/// Flags of `cargo test` whose value is the next argument.
const VALUE_FLAGS: [&str; 9] =
    ["-p", "--package", "--exclude", "--test", "--bin", "--example", "--features", "--profile", "--target"];

/// Environment variable with the folder of cert-manager's programs, for tests and demo.
pub(crate) const CERT_MANAGER_ENV: &str = "PINNIPED_CERT_MANAGER";
/// Environment variable with the folder of the programs of images, for tests.
const IMAGE_PROGRAMS_ENV: &str = "PINNIPED_IMAGE_BIN_DIR";
/// Environment variable with the reason why this machine has no browser.
const MISSING_BROWSER_ENV: &str = "PINNIPED_NO_BROWSER";
/// Environment variable with the folder of `yq`, for tests and demo.
pub(crate) const YQ_ENV: &str = "PINNIPED_YQ";

/// Flags of `test`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run only tests whose path contains this text, such as `certificates`.
    suite: Option<String>,
    /// Run only the tests that need no control plane, no node and no Go; takes minutes at most.
    #[arg(long, conflicts_with_all = ["suite", "rest"])]
    fast: bool,
    /// Fail if this machine cannot run a test, or runs it in a limited environment.
    #[arg(long)]
    require_all: bool,
    /// Do not access the network, and report missing programs.
    #[arg(long)]
    offline: bool,
    /// Minor release of Kubernetes for control planes and nodes.
    #[arg(long, value_enum, default_value_t)]
    kube: KubernetesRelease,
    /// Use the programs in this folder, for example those of a release build, for the images of the
    /// tests on a node, and for the test of the size of the image. Other tests use the programs of
    /// the dev profile.
    #[arg(long, value_name = "DIR", conflicts_with = "fast")]
    image_programs: Option<PathBuf>,
    /// Number of concurrent test executables. The default is two more than there are processors,
    /// because most tests wait.
    #[arg(long)]
    jobs: Option<usize>,
    /// Passed to `cargo test`, for example `-p pinniped-e2e NAME -- --exact`. Without a package:
    /// all of them.
    #[arg(last = true)]
    rest: Vec<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    let packages = args.packages()?;
    let missing = missing_prerequisites(args.fast);
    disk::note_when_short();
    for line in &missing {
        eprintln!("note: {line}");
    }
    anyhow::ensure!(
        !args.require_all || missing.is_empty(),
        "with --require-all nothing may be missing: {}",
        missing.join("; ")
    );
    let target = cargo::target_dir()?;
    let skips = target.join("test-skips.txt");
    std::fs::write(&skips, "").with_context(|| format!("could not write {}", skips.display()))?;
    let mut environment: Vec<(&str, PathBuf)> =
        vec![("PINNIPED_BIN_DIR", target.join("debug")), ("PINNIPED_SKIPS", skips.clone())];
    if args.fast {
        // A test that needs a control plane nevertheless fails, also on a machine that has one.
        environment.push(("PINNIPED_CONTROL_PLANE", "/none-in-fast-tests".into()));
    } else {
        environment.extend(programs(args, &packages, &target)?);
    }
    if args.require_all {
        environment.push(("PINNIPED_REQUIRE_ALL", "1".into()));
    }
    if let Some(dir) = &args.image_programs {
        let dir = dir.canonicalize().with_context(|| format!("{} does not exist", dir.display()))?;
        environment.push((IMAGE_PROGRAMS_ENV, dir));
    }
    // Test executables report the duration of tests only with this variable.
    environment.push(("RUSTC_BOOTSTRAP", "1".into()));
    let mut jobs = Vec::new();
    for part in args.parts()? {
        let arguments = Arguments::of(part, &args.rest);
        let built = executables::build(args.offline, &arguments.cargo)?;
        jobs.extend(built.into_iter().map(|executable| Job { executable, args: arguments.test.clone() }));
    }
    // The longest jobs first, so that none of them runs alone at the end.
    jobs.sort_by_key(|job| {
        THIRD_PARTY_PACKAGES.iter().position(|name| job.executable.package == *name).unwrap_or(9)
    });
    let finished = run::run(jobs, &environment, args.at_once(), &target.join("test-output"))?;
    let failed: Vec<&str> =
        finished.iter().filter(|job| !job.status.success()).map(|job| job.name.as_str()).collect();
    run::report(&finished);
    let mut passed = failed.is_empty();
    if packages.is_empty() && !args.fast {
        let mut examples = cargo::cargo(args.offline);
        passed &= cargo::status(examples.args(["test", "--doc", "--workspace"]))?.success();
    }
    for name in &failed {
        eprintln!("error: tests failed in {name}");
    }
    let left = if args.fast { Vec::new() } else { node::left_by_tests() };
    for line in &left {
        eprintln!("error: left by a test's node: {line}");
    }
    let passed = passed && left.is_empty();
    summary(&skips, passed, start);
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Builds or finds the programs that the tests of these packages use, and returns the environment
/// variables that name them.
fn programs(args: &Args, packages: &[String], target: &Path) -> anyhow::Result<Vec<(&'static str, PathBuf)>> {
    let tools = control_plane::find_or_build_release(args.kube, args.offline)?;
    let mut build = cargo::cargo(args.offline);
    build.args(["build", "--workspace", "--bins"]);
    cargo::succeed(&mut build, "building the programs")?;

    let wants =
        |some: &[&str]| packages.is_empty() || some.iter().any(|one| packages.iter().any(|p| p == one));
    let node_tools = if wants(&[NODE_PACKAGE]) { node_tools(args, target)? } else { None };
    let debian_tools = if node_tools.is_some() || wants(&[E2E_PACKAGE]) { debian_tools(args)? } else { None };
    let mut environment =
        vec![("PINNIPED_CONTROL_PLANE", tools), ("PINNIPED_KUBERNETES_RELEASE", args.kube.name().into())];
    environment.extend(node_tools.map(|dir| ("PINNIPED_NODE_TOOLS", dir)));
    environment.extend(debian_tools.map(|dir| (debian::ENV, dir)));
    if wants(&[E2E_PACKAGE]) {
        environment.push(("PINNIPED_INFORMER", control_plane::informer::find_or_build(args.offline)?));
        environment.extend(prometheus_ui(args)?.map(|dir| (prometheus_ui::ENV, dir)));
    }
    if wants(&PROMETHEUS_PACKAGES) {
        environment.push((prometheus::ENV, prometheus::find_or_build(args.offline)?));
    }
    if wants(&TRACES_PACKAGES) {
        environment.push((otel_collector::ENV, otel_collector::find_or_build(args.offline)?));
    }
    if wants(&HELM_PACKAGES) {
        environment.push((helm::ENV, helm::find_or_build(args.offline)?));
    }
    if wants(&[RELEASE_PACKAGE]) {
        // The command under test finds it in the cache.
        crane::find_or_build(args.offline)?;
        environment.push((registry::ENV, registry::find_or_build(args.offline)?));
        args.available("files for other systems", dist::fetch_crates(args.offline))?;
        let documentation = args.available("the documentation site", site::install(args.offline))?;
        environment.extend(documentation.map(|dir| (site::ENV, dir)));
    }
    if wants(&PROVIDER_PACKAGES) {
        environment.extend(keycloak(args)?.map(|dir| (keycloak::ENV, dir)));
        environment.extend(oidc_provider(args)?.map(|dir| (oidc_provider::ENV, dir)));
    }
    if wants(&THIRD_PARTY_PACKAGES) {
        environment.push((CERT_MANAGER_ENV, control_plane::cert_manager::find_or_build(args.offline)?));
        environment.push((YQ_ENV, control_plane::yq::find_or_build(args.offline)?));
        if let Some(dir) = envoy(args)? {
            environment.push((envoy::ENV, dir));
            environment.push((contour::ENV, contour::find_or_build(args.offline)?));
        }
    }
    Ok(environment)
}

/// The arguments of cargo's build, and those of the executables.
#[derive(Debug, Default, PartialEq, Eq)]
struct Arguments {
    cargo: Vec<String>,
    test: Vec<String>,
}

impl Arguments {
    /// Splits the arguments of a part and of the user as `cargo test` does: an argument that is
    /// neither a flag nor a value of one is a filter, and the arguments after `--` go to the
    /// executables.
    fn of(part: Vec<String>, user: &[String]) -> Self {
        let end = user.iter().position(|arg| arg == "--");
        let (for_cargo, for_tests) = user.split_at(end.unwrap_or(user.len()));
        let mut arguments = Self::default();
        let mut words = part.into_iter().chain(for_cargo.iter().cloned());
        while let Some(word) = words.next() {
            if VALUE_FLAGS.contains(&word.as_str()) {
                arguments.cargo.push(word);
                arguments.cargo.extend(words.next());
            } else if word.starts_with('-') {
                arguments.cargo.push(word);
            } else {
                arguments.test.push(word);
            }
        }
        arguments.test.extend(for_tests.iter().skip(1).cloned());
        arguments.test.extend(["-Z", "unstable-options", "--report-time"].map(str::to_owned));
        arguments
    }
}

impl Args {
    /// Returns the number of concurrent executables.
    fn at_once(&self) -> usize {
        self.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from) + 2)
    }

    /// Returns the requested packages, by name or by suite; an empty list means all.
    fn packages(&self) -> anyhow::Result<Vec<String>> {
        let mut named = Vec::new();
        let mut rest = self.rest.iter();
        while let Some(arg) = rest.next() {
            if arg == "-p" || arg == "--package" {
                named.extend(rest.next().cloned());
            } else if let Some(name) = arg.strip_prefix("--package=").or_else(|| arg.strip_prefix("-p")) {
                named.push(name.to_owned());
            }
        }
        match &self.suite {
            Some(name) if named.is_empty() => {
                Ok(suite::parts(&cargo::root(), name)?.into_iter().flat_map(|part| part.packages).collect())
            }
            _ => Ok(named),
        }
    }

    /// Returns the runs of `cargo test`, each with its arguments besides [`Self::rest`].
    fn parts(&self) -> anyhow::Result<Vec<Vec<String>>> {
        if self.fast {
            let list = |flag: &'static str| CONTROL_PLANE_PACKAGES.iter().flat_map(move |name| [flag, *name]);
            let others = ["--workspace", "--lib", "--bins", "--tests"].into_iter().chain(list("--exclude"));
            let units = ["--lib", "--bins"].into_iter().chain(list("--package"));
            let owned = |words: Vec<&str>| words.into_iter().map(str::to_owned).collect();
            return Ok(vec![owned(others.collect()), owned(units.collect())]);
        }
        let Some(name) = &self.suite else {
            let all = if self.packages()?.is_empty() { vec!["--workspace".to_owned()] } else { Vec::new() };
            return Ok(vec![all]);
        };
        let tests = || "--tests".to_owned();
        if self.names_packages() {
            return Ok(vec![vec![tests(), suite::filter(name)]]);
        }
        let part = |part: suite::Part| {
            let packages = part.packages.into_iter().flat_map(|package| ["--package".to_owned(), package]);
            let filters = part.filter.split_whitespace().map(str::to_owned);
            [tests()].into_iter().chain(filters).chain(packages).collect()
        };
        Ok(suite::parts(&cargo::root(), name)?.into_iter().map(part).collect())
    }

    /// Returns third-party programs, if they are available. Otherwise the tests that need them are
    /// skipped, which is an error where everything is required.
    fn available<T>(&self, what: &str, found: anyhow::Result<T>) -> anyhow::Result<Option<T>> {
        match found {
            Ok(found) => Ok(Some(found)),
            Err(error) if self.require_all => Err(error.context("with --require-all nothing may be missing")),
            Err(error) => {
                eprintln!("note: tests with {what} are skipped: {error:#}");
                Ok(None)
            }
        }
    }

    /// Whether the arguments select packages and are passed to cargo unchanged.
    fn names_packages(&self) -> bool {
        self.rest.iter().any(|arg| arg.starts_with("-p") || arg.starts_with("--package"))
    }
}

/// Returns the programs of a node, if the machine can run one.
fn node_tools(args: &Args, target: &Path) -> anyhow::Result<Option<PathBuf>> {
    if let Some(why) = node::impossible(&target.join("debug/pinniped-node")) {
        anyhow::ensure!(!args.require_all, "with --require-all nothing may be missing: {why}");
        eprintln!("note: tests with a real node are skipped: {why}");
        return Ok(None);
    }
    control_plane::node_tools::find_or_build(args.kube, args.offline).map(Some)
}

/// Returns Debian's programs, if they are available.
fn debian_tools(args: &Args) -> anyhow::Result<Option<PathBuf>> {
    args.available("Debian's kubectl 1.20 and busybox", debian::find_or_fetch(args.offline))
}

/// Returns Envoy, if it is available.
fn envoy(args: &Args) -> anyhow::Result<Option<PathBuf>> {
    args.available("a real Contour and Envoy", envoy::find_or_fetch(args.offline))
}

/// Returns Keycloak, if it is available and the environment does not exclude it.
fn keycloak(args: &Args) -> anyhow::Result<Option<PathBuf>> {
    if is_set(keycloak::MISSING_ENV) {
        return Ok(None);
    }
    args.available("Keycloak", keycloak::find_or_fetch(args.offline))
}

/// Returns oidc-provider, if it is available and the environment does not exclude it.
fn oidc_provider(args: &Args) -> anyhow::Result<Option<PathBuf>> {
    if is_set(oidc_provider::MISSING_ENV) {
        return Ok(None);
    }
    args.available("oidc-provider", oidc_provider::find_or_fetch(args.offline))
}

/// Returns the pages of Prometheus, if they are available. The environment may exclude a browser,
/// which their tests need, and Node.js 20, which their build needs as oidc-provider does.
fn prometheus_ui(args: &Args) -> anyhow::Result<Option<PathBuf>> {
    if is_set(MISSING_BROWSER_ENV) || is_set(oidc_provider::MISSING_ENV) {
        return Ok(None);
    }
    args.available("the pages of Prometheus", prometheus_ui::find_or_build(args.offline))
}

/// Whether an environment variable has a value.
fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty())
}

/// Returns the prerequisites of the complete test run that this machine lacks.
fn missing_prerequisites(fast: bool) -> Vec<String> {
    let mut missing = Vec::new();
    if fast {
        return missing_programs(&["openssl", "curl"]);
    }
    let mut probe = cargo::in_world(Path::new("sh"));
    probe
        .args(["-c", r#"test "$PINNIPED_WORLD" = namespace || { echo "$PINNIPED_WORLD_MISSING"; exit 1; }"#]);
    match probe.stderr(Stdio::null()).output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => missing.push(format!(
            "no private network namespace, tests with pods are skipped ({})",
            String::from_utf8_lossy(&output.stdout).trim()
        )),
        Err(error) => missing.push(format!("tools/test-runner.sh does not run: {error}")),
    }
    missing.extend(missing_programs(&["chroot", "mount", "setpriv", "perl", "openssl", "bash", "curl"]));
    missing
}

/// Returns a line for each of these programs that is not in `PATH`.
fn missing_programs(programs: &[&str]) -> Vec<String> {
    let is_missing = |program: &&&str| {
        let mut command = Command::new(program);
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_err()
    };
    let line = |program: &&str| {
        let package = match *program {
            "chroot" => "coreutils",
            "setpriv" => "util-linux",
            other => other,
        };
        format!("the program {program} is not in PATH (package {package})")
    };
    programs.iter().filter(is_missing).map(line).collect()
}

fn summary(skips: &Path, passed: bool, start: Instant) {
    let skipped = std::fs::read_to_string(skips).unwrap_or_default();
    let mut lines: Vec<&str> = skipped.lines().collect();
    lines.sort_unstable();
    lines.dedup();
    println!();
    println!("tests {} in {} s", if passed { "passed" } else { "FAILED" }, start.elapsed().as_secs());
    if lines.is_empty() {
        println!("nothing was skipped");
    } else {
        println!("skipped on this machine:");
        for line in lines {
            println!("  {line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_come_from_the_arguments_or_from_the_suite() {
        let args = |suite: Option<&str>, rest: &[&str]| Args {
            suite: suite.map(str::to_owned),
            fast: false,
            require_all: false,
            offline: true,
            kube: KubernetesRelease::default(),
            image_programs: None,
            jobs: None,
            rest: rest.iter().map(|arg| (*arg).to_owned()).collect(),
        };
        let table: [(&[&str], &[&str]); 4] = [
            (&[], &[]),
            (&["-p", "pinniped-e2e", "--package=pinniped-node", "name"], &["pinniped-e2e", "pinniped-node"]),
            (&["-ppinniped-e2e", "--", "--nocapture"], &["pinniped-e2e"]),
            (&["name"], &[]),
        ];
        for (rest, wanted) in table {
            assert_eq!(args(None, rest).packages().unwrap(), wanted, "{rest:?}");
        }
        assert_eq!(args(Some("certificates"), &["-p", "x"]).packages().unwrap(), ["x"]);
        assert!(args(Some("certificates"), &[]).packages().unwrap().len() > 1);
    }

    #[test]
    fn filters_and_arguments_after_dashes_go_to_the_executables() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let of = |part: &str, user: &str| {
            let Arguments { cargo, mut test } = Arguments::of(words(part), &words(user));
            assert_eq!(test.split_off(test.len() - 3), ["-Z", "unstable-options", "--report-time"]);
            (cargo.join(" "), test.join(" "))
        };
        let pair = |cargo: &str, test: &str| (cargo.to_owned(), test.to_owned());
        assert_eq!(of("--workspace", ""), pair("--workspace", ""));
        assert_eq!(of("--tests name --package a", ""), pair("--tests --package a", "name"));
        assert_eq!(of("", "-p a --test it one -- --exact two"), pair("-p a --test it", "one --exact two"));
        assert_eq!(of("", "--package=a -- --nocapture"), pair("--package=a", "--nocapture"));
    }

    #[test]
    fn a_suite_with_several_parts_results_in_several_runs() {
        let args = |suite: Option<&str>, rest: &[&str]| Args {
            suite: suite.map(str::to_owned),
            fast: false,
            require_all: false,
            offline: true,
            kube: KubernetesRelease::default(),
            image_programs: None,
            jobs: None,
            rest: rest.iter().map(|arg| (*arg).to_owned()).collect(),
        };
        assert_eq!(args(None, &[]).parts().unwrap(), [["--workspace"]]);
        assert_eq!(args(None, &["-p", "x"]).parts().unwrap(), [[""; 0]]);
        assert_eq!(args(Some("a-b"), &["-p", "x"]).parts().unwrap(), [["--tests", "a_b"]]);
        assert_eq!(args(Some("certificates"), &[]).parts().unwrap().len(), 1);
        let fast = Args { fast: true, ..args(None, &[]) }.parts().unwrap();
        assert_eq!(fast[0][..5], ["--workspace", "--lib", "--bins", "--tests", "--exclude"]);
        assert_eq!(fast[1][..3], ["--lib", "--bins", "--package"]);
        let runs = args(Some("gateway"), &[]).parts().unwrap();
        assert_eq!(runs[0][..2], ["--tests", "gateway"]);
        assert_eq!(runs[1][..3], ["--tests", "--package", "pinniped-delegation"]);
    }
}
