//! Shell completion: scripts, which clap_complete generates from the table, and candidates for the
//! scripts of earlier, cobra-based releases of `pinniped`, which call `__complete`.

use clap_complete::Shell;

use super::parse::find;
use super::tree::{CommandSpec, HELP_FLAG, ROOT};
use super::value::Kind;

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
    for flag in spec.flags.iter().filter(|flag| !flag.hidden) {
        let mut arg = clap::Arg::new(flag.name).long(flag.name);
        arg = if flag.kind == Kind::Bool {
            arg.action(clap::ArgAction::SetTrue)
        } else {
            arg.action(clap::ArgAction::Append).value_name(flag.kind.type_name())
        };
        if flag.kind == Kind::CaBundle
            || ["kubeconfig", "credential-cache", "session-cache"].contains(&flag.name)
        {
            arg = arg.value_hint(clap::ValueHint::FilePath);
        }
        if let Some(short) = flag.short {
            arg = arg.short(short);
        }
        if descriptions {
            arg = arg.help(flag.usage);
        }
        command = command.arg(arg);
    }
    for child in spec.children.iter().filter(|child| !child.hidden) {
        command = command.subcommand(describe(child, descriptions));
    }
    command
}

/// Returns candidates for the last of `words` (the arguments after the program name), one per line.
pub fn candidates(words: &[String], descriptions: bool) -> Vec<String> {
    let Some((incomplete, before)) = words.split_last() else { return Vec::new() };
    let Ok((path, _)) = find(&ROOT, before) else { return Vec::new() };
    let Some(command) = path.last() else { return Vec::new() };
    let line = |text: String, note: &str| {
        if descriptions && !note.is_empty() { format!("{text}\t{note}") } else { text }
    };
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
    fn candidates_are_commands_or_flags() {
        assert_eq!(
            candidates(&words(&["get", "ku"]), true),
            ["kubeconfig\tGenerate a Pinniped-based kubeconfig for a cluster"]
        );
        assert_eq!(candidates(&words(&["login", ""]), false), ["oidc", "static", "token"]);
        assert_eq!(candidates(&words(&["whoami", "--k"]), false), ["--kubeconfig", "--kubeconfig-context"]);
        assert_eq!(candidates(&words(&["nonsense", ""]), true), Vec::<String>::new());
    }
}
