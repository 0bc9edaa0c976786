//! Shell completion: scripts, which clap_complete generates from the table, and candidates for the
//! scripts of earlier, cobra-based releases of `pinniped`, which call `__complete`.

use clap_complete::Shell;

use super::parse::find;
use super::tree::{Action, COLOR_FLAG, CommandSpec, FlagSpec, HELP_FLAG, ROOT, Values};
use super::value::Kind;
use crate::commands::explain;
use crate::environment::Environment;
use crate::kubeconfig;

/// Returns the completion script for `shell`.
pub fn script(shell: Shell, descriptions: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let mut command = describe(&ROOT, descriptions);
    clap_complete::generate(shell, &mut command, ROOT.name, &mut out);
    out
}

fn describe(spec: &'static CommandSpec, descriptions: bool) -> clap::Command {
    let mut command = clap::Command::new(spec.name).disable_help_subcommand(true).disable_version_flag(true);
    if descriptions {
        command = command.about(spec.short);
    }
    for flag in spec.flags.iter().filter(|flag| !flag.hidden).chain([&COLOR_FLAG]) {
        let mut arg = clap::Arg::new(flag.name).long(flag.name);
        arg = if flag.kind == Kind::Bool {
            arg.action(clap::ArgAction::SetTrue)
        } else {
            arg.action(clap::ArgAction::Append).value_name(flag.kind.type_name())
        };
        if flag.kind == Kind::CaBundle || flag.values == Values::Files {
            arg = arg.value_hint(clap::ValueHint::FilePath);
        }
        let values = fixed_values(flag);
        if !values.is_empty() {
            arg = arg.value_parser(clap::builder::PossibleValuesParser::new(values));
        }
        if let Some(short) = flag.short {
            arg = arg.short(short);
        }
        if descriptions {
            arg = arg.help(flag.usage);
        }
        command = command.arg(arg);
    }
    let words = words_of(spec);
    if !words.is_empty() {
        let values = clap::builder::PossibleValuesParser::new(words);
        command = command.arg(clap::Arg::new("word").value_parser(values));
    }
    for child in spec.children.iter().filter(|child| !child.hidden) {
        command = command.subcommand(describe(child, descriptions));
    }
    command
}

/// Returns the arguments of a command that has a fixed number of them.
fn words_of(spec: &CommandSpec) -> Vec<&'static str> {
    if spec.action == Some(Action::Explain) { explain::topics() } else { Vec::new() }
}

/// Returns the values of a flag that has a fixed number of them.
fn fixed_values(flag: &FlagSpec) -> Vec<&'static str> {
    match flag.values {
        Values::Listed(values) => values.to_vec(),
        Values::OfKind | Values::Files | Values::Contexts => flag.kind.values(),
    }
}

/// Returns the values of a flag, including those that depend on the user's files.
fn values(flag: &FlagSpec, environment: &Environment) -> Vec<String> {
    if flag.values != Values::Contexts {
        return fixed_values(flag).into_iter().map(str::to_owned).collect();
    }
    let config = kubeconfig::load(None, environment).unwrap_or_default();
    config.contexts.into_iter().map(|named| named.name).collect()
}

/// Returns candidates for the last of `words` (the arguments after the program name), one per line.
pub fn candidates(words: &[String], descriptions: bool, environment: &Environment) -> Vec<String> {
    let Some((incomplete, before)) = words.split_last() else { return Vec::new() };
    let Ok((path, _)) = find(&ROOT, before) else { return Vec::new() };
    let Some(command) = path.last() else { return Vec::new() };
    let line = |text: String, note: &str| {
        if descriptions && !note.is_empty() { format!("{text}\t{note}") } else { text }
    };
    // The value of a flag, in the same word or in the next one.
    let (flag, given, prefix) = match incomplete.strip_prefix("--").and_then(|word| word.split_once('=')) {
        Some((name, given)) => (Some(name), given, format!("--{name}=")),
        None => (before.last().and_then(|word| word.strip_prefix("--")), incomplete.as_str(), String::new()),
    };
    if let Some(flag) = flag.and_then(|name| command.flag(name)).filter(|flag| flag.kind != Kind::Bool) {
        let values = values(flag, environment).into_iter().filter(|value| value.starts_with(given));
        return values.map(|value| format!("{prefix}{value}")).collect();
    }
    let mut lines = Vec::new();
    if incomplete.starts_with('-') {
        let help_note = format!("help for {}", command.name);
        for flag in command.flags.iter().filter(|flag| !flag.hidden).chain([&HELP_FLAG]) {
            let note = if flag.name == HELP_FLAG.name { help_note.as_str() } else { flag.usage };
            for form in [Some(format!("--{}", flag.name)), flag.short.map(|short| format!("-{short}"))] {
                lines.extend(
                    form.filter(|form| form.starts_with(incomplete.as_str())).map(|form| line(form, note)),
                );
            }
        }
    } else {
        for child in command.children.iter().filter(|child| !child.hidden) {
            if child.name.starts_with(incomplete.as_str()) {
                lines.push(line(child.name.to_owned(), child.short));
            }
        }
        let words = words_of(command).into_iter().filter(|word| word.starts_with(incomplete.as_str()));
        lines.extend(words.map(str::to_owned));
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
    fn the_script_of_every_shell_contains_the_flags() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::PowerShell] {
            let text = String::from_utf8(script(shell, true)).unwrap();
            assert!(text.contains("static-token-env"), "{shell}");
            assert!(!text.contains("concierge-namespace"), "{shell}");
        }
    }

    #[test]
    fn descriptions_can_be_left_out() {
        let with = script(Shell::Fish, true);
        let without = script(Shell::Fish, false);
        assert!(without.len() < with.len());
    }

    #[test]
    fn candidates_are_commands_flags_or_values() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        std::fs::write(
            &path,
            "contexts: [{name: blue, context: {cluster: c}}, {name: green, context: {cluster: c}}]",
        )
        .unwrap();
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
            (&["get", "kubeconfig", "--concierge-authenticator-type", ""], &["webhook", "jwt"]),
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
                    "--help",
                    "-h",
                ],
            ),
        ] {
            assert_eq!(candidates(&words(line), false, &environment), expected, "{line:?}");
        }
        assert_eq!(
            candidates(&words(&["get", "ku"]), true, &environment),
            ["kubeconfig\tGenerate a Pinniped-based kubeconfig for a cluster"]
        );
    }
}
