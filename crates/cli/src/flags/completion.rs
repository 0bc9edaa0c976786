//! Shell completion: the scripts, and the candidates that they request with `__complete`, as the
//! scripts of cobra-based releases of `pinniped` do.

use super::parse::find;
use super::tree::{Action, COLOR_FLAG, CommandSpec, FlagSpec, HELP_FLAG, ROOT, Values};
use super::value::Kind;
use crate::commands::explain;
use crate::environment::Environment;
use crate::kubeconfig;
use crate::login::session::login_command;

/// A shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shell {
    /// GNU bash, also version 3.2 of macOS.
    Bash,
    /// fish.
    Fish,
    /// PowerShell.
    PowerShell,
    /// zsh.
    Zsh,
}

/// Returns the completion script for `shell`.
pub fn script(shell: Shell, descriptions: bool) -> String {
    let command = if descriptions { "__complete" } else { "__completeNoDesc" };
    match shell {
        // bash shows no descriptions.
        Shell::Bash => include_str!("completion/bash.sh").to_owned(),
        Shell::Fish => include_str!("completion/fish.fish").replace("COMMAND", command),
        Shell::PowerShell => include_str!("completion/powershell.ps1").replace("COMMAND", command),
        Shell::Zsh => include_str!("completion/zsh.zsh").replace("COMMAND", command),
    }
}

/// Returns the arguments of a command that has a fixed number of them.
fn words_of(spec: &CommandSpec) -> Vec<&'static str> {
    if spec.action == Some(Action::Explain) { explain::topics() } else { Vec::new() }
}

/// Returns the values of a flag that has a fixed number of them.
fn fixed_values(flag: &FlagSpec) -> Vec<&'static str> {
    match flag.values {
        Values::Listed(values) => values.to_vec(),
        Values::OfKind | Values::Files | Values::Contexts | Values::Authenticators => flag.kind.values(),
    }
}

/// Returns the values of a flag, including those that depend on the user's files; `before` are the
/// arguments before it.
fn values(flag: &FlagSpec, before: &[String], environment: &Environment) -> Vec<String> {
    let config = || kubeconfig::load(given_kubeconfig(before), environment).unwrap_or_default();
    match flag.values {
        Values::Contexts => config().contexts.into_iter().map(|named| named.name).collect(),
        Values::Authenticators => {
            let config = config();
            let plugins = config.auth_infos.iter().filter_map(|user| user.auth_info.as_ref()?.exec.as_ref());
            let logins = plugins.filter_map(|plugin| login_command(plugin.args.as_deref()?));
            let mut names: Vec<String> =
                logins.map(|login| login.string("concierge-authenticator-name")).collect();
            names.retain(|name| !name.is_empty());
            names.sort_unstable();
            names.dedup();
            names
        }
        Values::OfKind | Values::Files | Values::Listed(_) => {
            fixed_values(flag).into_iter().map(str::to_owned).collect()
        }
    }
}

/// Returns the value of `--kubeconfig`, if it is among the arguments.
fn given_kubeconfig(args: &[String]) -> Option<&str> {
    let mut found = None;
    for (at, arg) in args.iter().enumerate() {
        match arg.strip_prefix("--kubeconfig") {
            Some("") => found = args.get(at + 1).map(String::as_str),
            Some(rest) => found = rest.strip_prefix('=').or(found),
            None => {}
        }
    }
    found
}

/// The completions of a word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidates {
    /// The candidates, with or without a description after a tab.
    pub lines: Vec<String>,
    /// Whether the shell completes paths of files instead.
    pub files: bool,
}

impl Candidates {
    /// Returns the last line for scripts, in cobra's form, and its name on stderr.
    pub fn directive(&self) -> (&'static str, &'static str) {
        match self.files {
            true => (":0", "Completion ended with directive: ShellCompDirectiveDefault"),
            false => (":4", "Completion ended with directive: ShellCompDirectiveNoFileComp"),
        }
    }
}

/// Returns candidates for the last of `words` (the arguments after the program name).
pub fn candidates(words: &[String], descriptions: bool, environment: &Environment) -> Candidates {
    let lines = |lines| Candidates { lines, files: false };
    let none = || lines(Vec::new());
    let Some((incomplete, before)) = words.split_last() else { return none() };
    let Ok((path, _)) = find(&ROOT, before) else { return none() };
    let Some(command) = path.last() else { return none() };
    // The value of a flag, in the same word or in the next one.
    let (flag, given, prefix) = match incomplete.strip_prefix("--").and_then(|word| word.split_once('=')) {
        Some((name, given)) => (Some(name), given, format!("--{name}=")),
        None => (before.last().and_then(|word| word.strip_prefix("--")), incomplete.as_str(), String::new()),
    };
    let letter = before.last().and_then(|word| word.strip_prefix('-')?.parse().ok());
    let flag = flag.and_then(|name| command.flag(name));
    let flag = flag.or_else(|| command.flag_by_letter(letter.filter(|_| prefix.is_empty())?));
    if let Some(flag) = flag.filter(|flag| flag.kind != Kind::Bool) {
        // A kubeconfig can contain any text, and a line of the output is a candidate or a
        // directive.
        let is_line = |value: &str| !value.starts_with(':') && !value.contains(char::is_control);
        let values = values(flag, before, environment);
        let values = values.into_iter().filter(|value| value.starts_with(given) && is_line(value));
        let files = flag.kind == Kind::CaBundle || flag.values == Values::Files;
        return Candidates { lines: values.map(|value| format!("{prefix}{value}")).collect(), files };
    }
    let line = |text: String, note: &str| {
        if descriptions && !note.is_empty() { format!("{text}\t{note}") } else { text }
    };
    if incomplete.starts_with('-') {
        return lines(flags(command, incomplete, line));
    }
    let children = command.children.iter().filter(|child| !child.hidden);
    let children = children.map(|child| (child.name, child.short));
    let words = words_of(command).into_iter().map(|word| (word, ""));
    let matching = children.chain(words).filter(|(word, _)| word.starts_with(incomplete.as_str()));
    lines(matching.map(|(word, note)| line(word.to_owned(), note)).collect())
}

/// Returns the flags that begin with `incomplete`.
fn flags(command: &CommandSpec, incomplete: &str, line: impl Fn(String, &str) -> String) -> Vec<String> {
    let help_note = format!("help for {}", command.name);
    let mut lines = Vec::new();
    let visible = command.flags.iter().filter(|flag| !flag.hidden);
    for flag in visible.chain([&COLOR_FLAG, &HELP_FLAG]) {
        let note = if flag.name == HELP_FLAG.name { help_note.as_str() } else { flag.usage };
        for form in [Some(format!("--{}", flag.name)), flag.short.map(|short| format!("-{short}"))] {
            let form = form.filter(|form| form.starts_with(incomplete));
            lines.extend(form.map(|form| line(form, note)));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn the_script_of_every_shell_asks_the_program() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::PowerShell] {
            let (text, short) = (script(shell, true), script(shell, false));
            assert!(!text.contains("COMMAND") && text.contains(ROOT.name), "{shell:?}");
            assert!(text.contains("__complete") && short.contains("__completeNoDesc"), "{shell:?}");
            // Nothing of the table is in the script.
            assert!(!text.contains("kubeconfig"), "{shell:?}");
        }
    }

    #[test]
    fn candidates_are_commands_flags_or_values() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        std::fs::write(
            &path,
            "contexts: [{name: blue, context: {cluster: c}}, {name: green, context: {cluster: c}}]
users:
- name: a
  user: {exec: {command: pinniped, args: [login, static, --concierge-authenticator-name=web, --token=t]}}
- name: b
  user: {exec: {command: pinniped, args: [login, oidc, --concierge-authenticator-name=corp, --issuer=i]}}
- name: c
  user: {exec: {command: other, args: [--concierge-authenticator-name=no]}}
- name: d
  user: {token: t}
",
        )
        .unwrap();
        let other = dir.path().join("other");
        std::fs::write(&other, "contexts: [{name: red, context: {cluster: c}}]").unwrap();
        let other = other.to_str().unwrap();
        let other_flag = format!("--kubeconfig={other}");
        let path = path.to_str().unwrap().to_owned();
        let environment = Environment::new(Vec::new(), [("KUBECONFIG".to_owned(), path)].into());
        for (line, expected) in [
            (&["login", ""][..], &["oidc", "static", "token"][..]),
            (&["whoami", "--k"], &["--kubeconfig", "--kubeconfig-context"]),
            (&["nonsense", ""], &[]),
            (&["get", "kubeconfig", "--concierge-mode", "I"], &["ImpersonationProxy"]),
            (&["whoami", "--output", ""], &["text", "wide", "json", "yaml"]),
            (&["whoami", "--output=y"], &["--output=yaml"]),
            (&["whoami", "--kubeconfig-context", ""], &["blue", "green"]),
            (&["whoami", "--kubeconfig-context=g"], &["--kubeconfig-context=green"]),
            (&["whoami", "--kubeconfig", other, "--kubeconfig-context", ""], &["red"]),
            (&["whoami", &other_flag, "--kubeconfig-context=r"], &["--kubeconfig-context=red"]),
            (&["whoami", "-o", "j"], &["json"]),
            (&["get", "kubeconfig", "--concierge-authenticator-type", ""], &["webhook", "jwt"]),
            (&["get", "kubeconfig", "--concierge-authenticator-name", ""], &["corp", "web"]),
            (
                &["login", "oidc", "--concierge-authenticator-name=c"],
                &["--concierge-authenticator-name=corp"],
            ),
            (&["whoami", "--c"], &["--color"]),
            (&["whoami", "--color", "n"], &["never"]),
            (&["explain", "JWKSF"], &["JWKSFetchValid"]),
            (
                &["status", "-"],
                &[
                    "--check",
                    "--kubeconfig",
                    "--kubeconfig-context",
                    "--output",
                    "-o",
                    "--timeout",
                    "--color",
                    "--help",
                    "-h",
                ],
            ),
        ] {
            let found = candidates(&words(line), false, &environment);
            assert_eq!((found.lines, found.files), (words(expected), false), "{line:?}");
        }
        assert_eq!(
            candidates(&words(&["get", "ku"]), true, &environment).lines,
            ["kubeconfig\tGenerate a Pinniped-based kubeconfig for a cluster"]
        );
        for line in [
            &["whoami", "--kubeconfig", ""][..],
            &["get", "kubeconfig", "--concierge-ca-bundle=x"],
            &["get", "kubeconfig", "-o", ""],
        ] {
            let found = candidates(&words(line), true, &environment);
            assert_eq!(found, Candidates { lines: Vec::new(), files: true }, "{line:?}");
        }
    }
}
