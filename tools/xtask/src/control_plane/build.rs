//! Builds programs with the Go toolchain, and shows the progress.

use std::io::{BufRead as _, BufReader, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::Tool;
use super::cache::elapsed;
use super::module::{FLAGS, Module};

/// Builds the programs into `dir`.
pub(super) fn build(
    module: &Module,
    what: &str,
    tools: &[Tool],
    dir: &Path,
    offline: bool,
) -> anyhow::Result<()> {
    check_toolchain(module)?;
    let names: Vec<&str> = tools.iter().map(|tool| tool.name).collect();
    if offline {
        check_modules(module, tools, &names)?;
    }
    eprintln!(
        "building the {what} of {} {} once ({}): several minutes, about ten on two cores",
        module.title,
        module.version,
        names.join(", ")
    );
    let mut command = go(&module.dir);
    command.arg("build").args(FLAGS).args(["-v", "-ldflags", &module.ldflags, "-o"]).arg(dir);
    if !module.tags.is_empty() {
        command.args(["-tags", module.tags]);
    }
    command.args(tools.iter().map(|tool| tool.package));
    if offline {
        command.env("GOPROXY", "off");
    }
    follow(command, module)?;
    // Go names a program after the last element of its package path.
    if names.contains(&"etcd") {
        std::fs::rename(dir.join("server"), dir.join("etcd")).context("the build created no etcd")?;
    }
    for name in names {
        anyhow::ensure!(dir.join(name).is_file(), "the build created no {name}");
    }
    Ok(())
}

/// Returns `go` in the module's folder. CGO is off, so the programs also run without a C library.
pub(super) fn go(module: &Path) -> Command {
    let mut command = Command::new("go");
    command.current_dir(module).env("CGO_ENABLED", "0").env("GOWORK", "off").env("GOFLAGS", "");
    command.env_remove("GOOS").env_remove("GOARCH");
    command
}

/// Returns the folder with the source of a Go module that `module` requires, in Go's own cache.
pub(super) fn source_dir(module: &Module, path: &str, offline: bool) -> anyhow::Result<PathBuf> {
    let find = || -> anyhow::Result<Option<PathBuf>> {
        let mut list = go(&module.dir);
        list.env("GOPROXY", "off").args(["list", "-m", "-f", "{{.Dir}}", path]);
        let output = list.output().with_context(|| format!("the Go toolchain is needed to find {path}"))?;
        let dir = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        Ok((dir.is_absolute() && dir.is_dir()).then_some(dir))
    };
    let mut found = find()?;
    if found.is_none() && !offline {
        go(&module.dir)
            .args(["mod", "download", path])
            .status()
            .context("could not run `go mod download`")?;
        found = find()?;
    }
    found.with_context(|| {
        format!("the Go module {path} is not on this machine; run the same command once with network")
    })
}

fn check_toolchain(module: &Module) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(module.dir.join("go.mod")).context("could not read go.mod")?;
    let wanted = text.lines().find_map(|line| line.strip_prefix("go ")).unwrap_or("1.26").trim().to_owned();
    let remedy = format!("install Go {wanted} or newer (https://go.dev/dl/){}", module.other_way);
    // Uses the installed toolchain, not one that it would download.
    let output = go(&module.dir).env("GOTOOLCHAIN", "local").args(["env", "GOVERSION"]).output();
    let output =
        output.with_context(|| format!("the Go toolchain is needed to build {}: {remedy}", module.title))?;
    let version = String::from_utf8_lossy(&output.stdout).trim().trim_start_matches("go").to_owned();
    anyhow::ensure!(
        output.status.success() && at_least(&version, &wanted),
        "the Go toolchain is {}, too old for this {}: {remedy}",
        if version.is_empty() { "of an unknown version" } else { &version },
        module.title
    );
    Ok(())
}

/// Compares versions such as `1.26.8` and `1.26.0` number by number.
fn at_least(version: &str, wanted: &str) -> bool {
    let numbers = |text: &str| -> Vec<u32> {
        text.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse().ok()).collect()
    };
    numbers(version) >= numbers(wanted)
}

/// Reports which modules would have to be downloaded, for offline builds.
fn check_modules(module: &Module, tools: &[Tool], names: &[&str]) -> anyhow::Result<()> {
    let mut command = go(&module.dir);
    command.env("GOPROXY", "off").args(["list", "-mod=readonly", "-e", "-deps"]);
    if !module.tags.is_empty() {
        command.args(["-tags", module.tags]);
    }
    command.args(["-f", "{{with .Error}}{{.}}{{end}}"]).args(tools.iter().map(|tool| tool.package));
    let output = command.output().context("could not run `go list`")?;
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let mut missing: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("GOPROXY=off") || line.contains("no required module"))
        .collect();
    missing.sort_unstable();
    missing.dedup();
    if output.status.success() && missing.is_empty() {
        return Ok(());
    }
    let shown: Vec<&str> = missing.iter().copied().take(5).collect();
    anyhow::bail!(
        "offline, and these programs are not built yet: {}; their Go modules are not on this machine either \
         ({} messages, for example: {}); run the same command once with network",
        names.join(", "),
        missing.len(),
        shown.join("; ")
    )
}

/// Runs the build and shows its progress: a changing line on a terminal, otherwise a line every ten
/// seconds.
fn follow(mut command: Command, module: &Module) -> anyhow::Result<()> {
    let start = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("could not start `go build`")?;
    let stderr = child.stderr.take().context("`go build` has no standard error")?;
    let (sender, lines) = channel();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    let terminal = std::io::stderr().is_terminal();
    let every = if terminal { Duration::from_millis(500) } else { Duration::from_secs(10) };
    let mut progress = Progress::default();
    let mut shown = Instant::now();
    loop {
        match lines.recv_timeout(every) {
            Ok(line) => progress.take(&line),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if shown.elapsed() >= every {
            shown = Instant::now();
            let text = format!("  {}  {}", elapsed(start.elapsed()), progress.text());
            if terminal {
                eprint!("\r\x1b[K{}", text.chars().take(100).collect::<String>());
                let _ = std::io::stderr().flush();
            } else {
                eprintln!("{text}");
            }
        }
    }
    if terminal {
        eprint!("\r\x1b[K");
    }
    let _ = reader.join();
    let status = child.wait().context("could not wait for `go build`")?;
    anyhow::ensure!(
        status.success(),
        "`go build` failed ({status}) after {}:\n{}\nwithout network, run it where there is one{}",
        elapsed(start.elapsed()),
        progress.other.join("\n"),
        module.other_way
    );
    Ok(())
}

/// The output of `go build -v` so far.
#[derive(Default)]
struct Progress {
    fetched: usize,
    compiled: usize,
    last: String,
    /// Other lines, which are errors. The last thirty.
    other: Vec<String>,
}

impl Progress {
    fn take(&mut self, line: &str) {
        if let Some(module) = line.strip_prefix("go: downloading ") {
            self.fetched += 1;
            self.last = format!("fetching {module}");
        } else if !line.contains(' ') && !line.is_empty() && !line.contains(':') {
            self.compiled += 1;
            self.last = format!("compiling {line}");
        } else {
            if self.other.len() == 30 {
                self.other.remove(0);
            }
            self.other.push(line.to_owned());
        }
    }

    fn text(&self) -> String {
        if self.last.is_empty() {
            return "inspecting Go's cache".to_owned();
        }
        format!("{} modules fetched, {} packages compiled, {}", self.fetched, self.compiled, self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toolchain_versions_are_compared_by_number() {
        for (version, wanted, fits) in [
            ("1.26.8", "1.26.0", true),
            ("1.26", "1.26.0", false),
            ("1.27rc1", "1.26.0", true),
            ("1.19.8", "1.26.0", false),
            ("2.0", "1.26.0", true),
            ("", "1.26.0", false),
        ] {
            assert_eq!(at_least(version, wanted), fits, "{version} against {wanted}");
        }
    }

    #[test]
    fn progress_distinguishes_downloads_packages_and_errors() {
        let mut progress = Progress::default();
        for line in ["go: downloading k8s.io/api v0.36.3", "k8s.io/api/core/v1", "build failed: x"] {
            progress.take(line);
        }
        assert_eq!(progress.text(), "1 modules fetched, 1 packages compiled, compiling k8s.io/api/core/v1");
        assert_eq!(progress.other, ["build failed: x"]);
    }
}
