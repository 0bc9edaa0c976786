//! Help texts in the layout of cobra: description, usage lines, examples, commands or flags in
//! aligned columns. Unlike cobra's, the texts are wrapped, and flags are in groups.

pub(super) mod groups;
pub(crate) mod wrap;

use std::borrow::Cow;
use std::fmt::Write as _;

use pinniped_go_compat::json::quote;

use self::groups::Group;
use self::wrap::WIDTH;
use super::parse::command_path;
use super::tree::{Action, COLOR_FLAG, CommandSpec, Default, FlagSpec, HELP_FLAG, ROOT};
use super::value::Kind;
use crate::environment::Environment;

/// The minimum width of the command column.
const SMALLEST_COLUMN: usize = 11;
/// The maximum width of the column of flags; the description of a longer one starts in its own
/// line.
const WIDEST_FLAG: usize = 34;

/// Returns the help of the last command of `path`.
pub fn help(path: &[&'static CommandSpec], environment: &Environment) -> String {
    let Some(command) = path.last() else { return String::new() };
    let description = if command.long.is_empty() { command.short } else { command.long };
    let mut out = String::new();
    if !description.is_empty() {
        out.push_str(&wrap::description(&with_name_of_program(description, path[0])));
        out.push_str("\n\n");
    }
    out.push_str(&usage(path, environment));
    out
}

/// Returns a text in which the commands of this program have the name by which users call it.
pub fn with_name_of_program<'a>(text: &'a str, root: &CommandSpec) -> Cow<'a, str> {
    if root.name == ROOT.name {
        return text.into();
    }
    let prefix = format!("{} ", ROOT.name);
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(&prefix) {
        out.push_str(before);
        let end = after.find(|letter: char| !letter.is_ascii_lowercase()).unwrap_or(after.len());
        let ours = root.child(&after[..end]).is_some()
            && !out.ends_with(|letter: char| letter.is_alphanumeric() || letter == '-');
        out.push_str(if ours { root.name } else { ROOT.name });
        out.push(' ');
        rest = after;
    }
    out.push_str(rest);
    out.into()
}

/// Returns the forms of a command line after the name of the command.
pub(super) fn forms(command: &CommandSpec) -> Vec<&'static str> {
    let own = command.action.map(|action| match action {
        Action::Help => "[command] [flags]",
        Action::Explain => "[topic] [flags]",
        _ => "[flags]",
    });
    own.into_iter().chain((!command.children.is_empty()).then_some("[command]")).collect()
}

/// Returns the part of the help that starts with `Usage:`.
pub fn usage(path: &[&'static CommandSpec], environment: &Environment) -> String {
    let Some(command) = path.last() else { return String::new() };
    let full_name = command_path(path);
    let mut out = String::from("Usage:");
    for form in forms(command) {
        let _ = write!(out, "\n  {full_name} {form}");
    }
    out.push('\n');
    if !command.examples.is_empty() {
        out.push_str("\nExamples:\n");
        let texts: Vec<String> = command
            .examples
            .iter()
            .map(|(purpose, line)| {
                let mut text = String::new();
                for part in wrap::words(purpose, WIDTH - 4) {
                    let _ = writeln!(text, "  # {part}");
                }
                text + &format!("  {}\n", with_name_of_program(line, path[0]))
            })
            .collect();
        out.push_str(&texts.join("\n"));
    }
    if !command.children.is_empty() {
        // Hidden commands count, as in cobra.
        let longest = command.children.iter().map(|child| child.name.len()).max().unwrap_or(0);
        let column = longest.max(SMALLEST_COLUMN);
        out.push_str("\nAvailable Commands:\n");
        for child in command.children.iter().filter(|child| !child.hidden) {
            let mut lines = wrap::words(child.short, WIDTH - column - 3).into_iter();
            let _ = writeln!(out, "  {:column$} {}", child.name, lines.next().unwrap_or_default());
            for line in lines {
                let _ = writeln!(out, "  {:column$} {line}", "");
            }
        }
    }
    for group in Group::ALL {
        let lines = flag_lines(command, group, environment);
        if !lines.is_empty() {
            let _ = write!(out, "\n{}:\n{lines}", group.title());
        }
    }
    if !command.children.is_empty() {
        let _ = write!(out, "\nUse \"{full_name} [command] --help\" for more information about a command.\n");
    }
    out
}

fn flag_lines(command: &'static CommandSpec, group: Group, environment: &Environment) -> String {
    let rows: Vec<(String, String)> = visible_flags(command, group)
        .into_iter()
        .map(|flag| {
            let mut left = match flag.short {
                Some(short) => format!("  -{short}, --{}", flag.name),
                None => format!("      --{}", flag.name),
            };
            let type_name = flag.kind.type_name();
            if !type_name.is_empty() {
                let _ = write!(left, " {type_name}");
            }
            (left, usage_of(flag, command, environment))
        })
        .collect();
    let width = rows.iter().map(|(left, _)| left.len()).max().unwrap_or(0).min(WIDEST_FLAG);
    let mut out = String::new();
    for (left, right) in rows {
        let mut lines = wrap::words(&right, WIDTH - width - 3).into_iter();
        if left.len() > width {
            let _ = writeln!(out, "{left}");
        } else {
            let _ = writeln!(out, "{left:width$}   {}", lines.next().unwrap_or_default());
        }
        for line in lines {
            let _ = writeln!(out, "{:width$}   {line}", "");
        }
    }
    out
}

/// Returns the visible flags of a command that belong to a group, including those of every command.
pub(super) fn visible_flags(command: &CommandSpec, group: Group) -> Vec<&FlagSpec> {
    let mut flags: Vec<&FlagSpec> = command.flags.iter().filter(|flag| !flag.hidden).collect();
    flags.extend([&HELP_FLAG, &COLOR_FLAG]);
    flags.retain(|flag| Group::of(flag.name) == group);
    flags.sort_by_key(|flag| flag.name);
    flags
}

/// Returns the description of a flag with its default.
pub(super) fn usage_of(flag: &FlagSpec, command: &CommandSpec, environment: &Environment) -> String {
    let note = default_note(flag, environment);
    match flag.usage {
        _ if flag.name == HELP_FLAG.name => format!("help for {}{note}", command.name),
        usage => format!("{usage}{note}"),
    }
}

/// Returns ` (default …)` if there is a default to print.
fn default_note(flag: &FlagSpec, environment: &Environment) -> String {
    let text = match flag.default {
        Default::Zero => return String::new(),
        Default::Text(text) => text.to_owned(),
        Default::Kubeconfig => environment.kubeconfig.clone().unwrap_or_default(),
        Default::CredentialCache => environment.config_file("credentials.yaml").unwrap_or_default(),
        Default::SessionCache => environment.config_file("sessions.yaml").unwrap_or_default(),
    };
    match flag.kind {
        _ if text.is_empty() => String::new(),
        Kind::String => format!(" (default {})", quote(&text)),
        Kind::Strings => format!(" (default [{text}])"),
        _ => format!(" (default {text})"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree::root_of;
    use super::*;

    #[test]
    fn the_help_of_the_program_lists_its_commands() {
        let text = help(&[&ROOT], &Environment::default());
        assert!(
            text.contains("\nUsage:\n  pinniped [command]\n\nExamples:\n  # Create a kubeconfig"),
            "{text}"
        );
        assert!(
            text.contains("  whoami                 Print information about the current user\n"),
            "{text}"
        );
        assert!(text.contains("\nFlags:\n  -h, --help      help for pinniped\n      --version   Print the version and exit\n\nGlobal Flags:\n"), "{text}");
        assert!(
            text.ends_with("\nUse \"pinniped [command] --help\" for more information about a command.\n"),
            "{text}"
        );
        assert!(!text.contains("__complete"), "{text}");
    }

    #[test]
    fn the_help_of_the_plugin_names_it_as_users_call_it() {
        let environment = Environment { kubectl_plugin: true, ..Environment::default() };
        let root = root_of(&environment);
        let text = help(&[root], &environment);
        assert!(text.contains("\nUsage:\n  kubectl pinniped [command]\n"), "{text}");
        let text = help(&[root, root.child("kubectl").unwrap()], &environment);
        assert!(text.contains("\n    kubectl pinniped kubectl -- get pods --all-namespaces\n"), "{text}");
        assert!(text.contains("\n  kubectl pinniped kubectl [flags]\n"), "{text}");
        for (line, expected) in [
            ("source <(pinniped completion bash)", "source <(kubectl pinniped completion bash)"),
            ("/bin/kubectl-pinniped version, pinniped is", "/bin/kubectl-pinniped version, pinniped is"),
        ] {
            assert_eq!(with_name_of_program(line, root), expected);
            assert_eq!(with_name_of_program(line, &ROOT), line);
        }
    }

    #[test]
    fn the_help_of_a_command_lists_its_flags_with_their_defaults() {
        let whoami = ROOT.child("whoami").unwrap();
        let environment =
            Environment { kubeconfig: Some("/some/kubeconfig".into()), ..Environment::default() };
        let text = help(&[&ROOT, whoami], &environment);
        for part in [
            "Print information about the current user\n\nUsage:\n  pinniped whoami [flags]\n\nExamples:\n  # ",
            "\nFlags:\n  -h, --help               help for whoami\n  -o, --output string      ",
            "\nKubeconfig Flags:\n      --kubeconfig string           Path of the kubeconfig to use (default\n",
            "\nConcierge Flags:\n      --api-group-suffix string   Suffix of the Concierge's API groups (default\n",
            "\nGlobal Flags:\n      --color when   ",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    fn check(path: &mut Vec<&'static CommandSpec>) {
        let command = *path.last().unwrap();
        let text = help(path, &Environment::default());
        for line in text.lines().filter(|line| line.chars().count() > WIDTH) {
            // An example is one line, so that it can be copied.
            assert!(command.examples.iter().any(|(_, example)| line.trim() == *example), "{line}");
        }
        assert!(!command.examples.is_empty(), "{} has no example", command.name);
        for (_, example) in command.examples {
            let own = example.split(" | ").next().unwrap().split(" > ").next().unwrap();
            let own = own.trim_start_matches("source <(").trim_end_matches(')');
            let args: Vec<String> = own.split_whitespace().skip(1).map(str::to_owned).collect();
            let parsed = crate::flags::parse(&ROOT, &args);
            let works = matches!(parsed, crate::flags::parse::ParseResult::Run(_));
            assert!(own.starts_with("pinniped ") && works, "{example}: {parsed:?}");
        }
        for child in command.children.iter().filter(|child| !child.hidden) {
            path.push(child);
            check(path);
            path.pop();
        }
    }

    #[test]
    fn every_help_is_wrapped_and_every_command_has_examples_that_parse() {
        check(&mut vec![&ROOT]);
    }
}
