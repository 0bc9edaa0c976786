//! The completion scripts in real shells: a user types a part of a command line and presses Tab.
//! And the manual pages in a real formatter.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use pinniped_cli::flags::tree::{CommandSpec, ROOT};
use pinniped_test_support::tools;

use crate::support::{Home, pseudo_terminal};

/// The time in which a shell has to respond.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the path of a program, or skips the rest of a test.
fn installed(program: &str, what: &str) -> Option<PathBuf> {
    let found = tools::in_path(program);
    if found.is_none() {
        tools::skip(what, &format!("{program} is not installed"));
    }
    found
}

/// A home directory with the program in `PATH` and the completion script of a shell.
fn home(shell: &str) -> (Home, PathBuf) {
    let mut home = Home::new();
    let bin = home.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_pinniped"), bin.join("pinniped")).unwrap();
    home.set("PATH", &format!("{}:/usr/bin:/bin", bin.display())).set("TERM", "xterm");
    let script = home.run(&["completion", shell]);
    assert_eq!((script.code, script.stderr.as_str()), (0, ""), "{script:?}");
    let path = home.write("script", &script.stdout);
    let config = home.write(
        "config",
        "contexts: [{name: blue-east, context: {cluster: c}}, {name: blue-west, context: {cluster: c}}]
users:
- name: a
  user: {exec: {command: pinniped, args: [login, static, --concierge-authenticator-name=company, --token=t]}}
- name: b
  user: {exec: {command: pinniped, args: [login, static, --concierge-authenticator-name=webhook, --token=t]}}
",
    );
    home.set("KUBECONFIG", config.to_str().unwrap());
    (home, path)
}

/// A shell on a terminal.
struct Shell {
    child: std::process::Child,
    terminal: File,
    output: mpsc::Receiver<Vec<u8>>,
    text: String,
}

impl Shell {
    /// Starts an interactive shell and waits until it has run `setup`.
    fn start(home: &Home, words: &[&str], setup: &str) -> Self {
        let (master, program) = pseudo_terminal();
        let mut command = home.any_program(&[&["/usr/bin/setsid", "--ctty"][..], words].concat());
        command.stdin(program.try_clone().unwrap()).stdout(program.try_clone().unwrap()).stderr(program);
        let child = command.spawn().unwrap();
        drop(command);
        let (send, output) = mpsc::channel();
        let mut reader = master.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut part) {
                if send.send(part[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        let mut shell = Self { child, terminal: master, output, text: String::new() };
        // The quotes keep the echo of the line from being the signal.
        shell.write(&format!("{setup}\necho REA''DY\n"));
        shell.wait_for(&["READY"]);
        shell.text.clear();
        shell
    }

    fn write(&mut self, text: &str) {
        self.terminal.write_all(text.as_bytes()).unwrap();
    }

    /// Waits until the shell has printed all of these texts.
    #[track_caller]
    fn wait_for(&mut self, texts: &[&str]) {
        let deadline = Instant::now() + PATIENCE;
        while !texts.iter().all(|text| self.text.contains(text)) {
            let left = deadline.saturating_duration_since(Instant::now());
            let part = self.output.recv_timeout(left);
            let part = part.unwrap_or_else(|_| panic!("{texts:?} not in {:?}", self.text));
            self.text.push_str(&String::from_utf8_lossy(&part));
        }
    }

    /// Types a line, presses Tab twice, and waits for the candidates.
    #[track_caller]
    fn offers(mut self, line: &str, candidates: &[&str]) {
        self.write(&format!("{line}\t\t"));
        self.wait_for(candidates);
        for hidden in ["generate-m", "concierge-namespace"] {
            assert!(!self.text.contains(hidden), "{}", self.text);
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // If it has exited already, there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Command lines, and the candidates for their last word.
const LINES: [(&str, &[&str]); 7] = [
    ("pinniped login ", &["oidc", "static", "token"]),
    ("pinniped whoami --output ", &["json", "yaml", "wide", "text"]),
    ("pinniped get kubeconfig --concierge-m", &["ode"]),
    ("pinniped whoami --kubeconfig-context blue-", &["blue-east", "blue-west"]),
    ("pinniped whoami --kubeconfig-context=blue-", &["blue-east", "blue-west"]),
    ("pinniped get kubeconfig --concierge-authenticator-name ", &["company", "webhook"]),
    ("pinniped whoami --kubeconfig con", &["fig"]),
];

#[test]
fn bash_completes_commands_flags_and_values() {
    let (home, script) = home("bash");
    let setup = format!("source {}", script.display());
    for (line, candidates) in LINES {
        Shell::start(&home, &["/bin/bash", "--norc", "--noprofile", "-i"], &setup).offers(line, candidates);
    }
}

#[test]
fn zsh_completes_commands_flags_and_values() {
    let Some(zsh) = installed("zsh", "completion in zsh") else { return };
    let (home, script) = home("zsh");
    let setup =
        format!("stty rows 50 cols 200; autoload -Uz compinit; compinit -u -D; source {}", script.display());
    for (line, candidates) in LINES {
        Shell::start(&home, &[zsh.to_str().unwrap(), "-f", "-i"], &setup).offers(line, candidates);
    }
}

#[test]
fn fish_completes_commands_flags_and_values() {
    let Some(fish) = installed("fish", "completion in fish") else { return };
    let (home, script) = home("fish");
    for (line, candidates) in LINES {
        // fish prints its candidates without a terminal.
        let list = format!("source {}; complete --do-complete '{line}'", script.display());
        let mut command = Command::new(&fish);
        command.args(["--no-config", "--command", &list]).env_clear().env("HOME", home.path());
        command.current_dir(home.path()).env("KUBECONFIG", home.path().join("config"));
        command.env("PATH", format!("{}:/usr/bin:/bin", home.path().join("bin").display()));
        let output = command.stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(candidates.iter().all(|candidate| text.contains(candidate)), "{line}: {text}");
    }
}

fn check_page(groff: &Path, folder: &Path, path: &mut Vec<&'static CommandSpec>, names: &mut Vec<String>) {
    let command = *path.last().unwrap();
    let name = path.iter().map(|command| command.name).collect::<Vec<_>>().join("-");
    let mut format = Command::new(groff);
    format.args(["-man", "-ww", "-Tutf8", "-P-cbou"]).arg(folder.join(format!("{name}.1")));
    let output = format.output().unwrap();
    assert_eq!((output.status.code(), &*String::from_utf8_lossy(&output.stderr)), (Some(0), ""), "{name}");
    let text = String::from_utf8(output.stdout).unwrap();
    let visible = |children: &'static [CommandSpec]| children.iter().filter(|child| !child.hidden);
    for flag in command.flags.iter().filter(|flag| !flag.hidden) {
        assert!(text.contains(&format!("--{}", flag.name)), "--{} in {text}", flag.name);
    }
    for (_, example) in command.examples {
        assert!(text.contains(example), "{example} in {text}");
    }
    for child in visible(command.children) {
        assert!(text.contains(&format!("{name}-{}(1)", child.name)), "{} in {text}", child.name);
    }
    names.push(format!("{name}.1"));
    for child in visible(command.children) {
        path.push(child);
        check_page(groff, folder, path, names);
        path.pop();
    }
}

#[test]
fn manual_pages_are_formatted_without_warnings_and_have_all_flags() {
    let Some(groff) = installed("groff", "the formatting of manual pages") else { return };
    let home = Home::new();
    let folder = home.path().join("share/man/man1");
    let run = home.run(&["generate-man", folder.to_str().unwrap()]);
    assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (0, "", ""), "{run:?}");
    let mut names = Vec::new();
    check_page(&groff, &folder, &mut vec![&ROOT], &mut names);
    let entries = std::fs::read_dir(&folder).unwrap();
    let mut written: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    written.sort();
    assert_eq!(names, written);
}

#[test]
fn manual_pages_need_one_directory() {
    let home = Home::new();
    home.run(&["generate-man"]).fails_with("accepts 1 arg(s), received 0");
    home.run(&["generate-man", "a", "b"]).fails_with("accepts 1 arg(s), received 2");
    let file = home.write("file", "");
    let run = home.run(&["generate-man", file.to_str().unwrap()]);
    assert_eq!(run.last_error(), Some(format!("could not write {}: file exists", file.display()).as_str()));
}
