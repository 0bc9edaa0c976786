//! Help texts in the layout of cobra: description, usage lines, commands or flags in aligned
//! columns.

use std::fmt::Write as _;

use pinniped_go_compat::json::quote;

use super::parse::command_path;
use super::tree::{CommandSpec, Default, FlagSpec, HELP_FLAG};
use super::value::Kind;
use crate::environment::Environment;

/// The minimum width of the command column.
const SMALLEST_COLUMN: usize = 11;

/// Returns the help of the last command of `path`.
pub fn help(path: &[&'static CommandSpec], environment: &Environment) -> String {
    let Some(command) = path.last() else { return String::new() };
    let description = if command.long.is_empty() { command.short } else { command.long };
    let mut out = String::new();
    if !description.is_empty() {
        out.push_str(description);
        out.push_str("\n\n");
    }
    out.push_str(&usage(path, environment));
    out
}

/// Returns the part of the help that starts with `Usage:`.
pub fn usage(path: &[&'static CommandSpec], environment: &Environment) -> String {
    let Some(command) = path.last() else { return String::new() };
    let full_name = command_path(path);
    let mut out = String::from("Usage:");
    if command.action.is_some() {
        let arguments = if command.name == "help" { " [command]" } else { "" };
        let _ = write!(out, "\n  {full_name}{arguments} [flags]");
    }
    if !command.children.is_empty() {
        let _ = write!(out, "\n  {full_name} [command]");
    }
    out.push('\n');
    if !command.children.is_empty() {
        // Hidden commands count, as in cobra.
        let longest = command.children.iter().map(|child| child.name.len()).max().unwrap_or(0);
        let column = longest.max(SMALLEST_COLUMN);
        out.push_str("\nAvailable Commands:\n");
        for child in command.children.iter().filter(|child| !child.hidden) {
            let _ = writeln!(out, "  {:column$} {}", child.name, child.short);
        }
    }
    let _ = write!(out, "\nFlags:\n{}", flag_lines(command, environment));
    if !command.children.is_empty() {
        let _ = write!(out, "\nUse \"{full_name} [command] --help\" for more information about a command.\n");
    }
    out
}

fn flag_lines(command: &'static CommandSpec, environment: &Environment) -> String {
    let help_usage = format!("help for {}", command.name);
    let mut flags: Vec<&FlagSpec> = command.flags.iter().filter(|flag| !flag.hidden).collect();
    flags.push(&HELP_FLAG);
    flags.sort_by_key(|flag| flag.name);
    let rows: Vec<(String, String)> = flags
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
            let usage = if flag.name == HELP_FLAG.name { help_usage.as_str() } else { flag.usage };
            (left, format!("{usage}{}", default_note(flag, environment)))
        })
        .collect();
    let width = rows.iter().map(|(left, _)| left.len()).max().unwrap_or(0);
    let mut out = String::new();
    for (left, right) in rows {
        let _ = writeln!(out, "{left:width$}   {right}");
    }
    out
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
    use super::super::tree::ROOT;
    use super::*;

    #[test]
    fn the_help_of_the_program_lists_its_commands() {
        let text = help(&[&ROOT], &Environment::default());
        assert!(text.contains("\nUsage:\n  pinniped [command]\n\nAvailable Commands:\n"), "{text}");
        assert!(
            text.contains("  whoami                 Print information about the current user\n"),
            "{text}"
        );
        assert!(text.contains("\nFlags:\n  -h, --help      help for pinniped\n      --version   Print the version and exit\n"), "{text}");
        assert!(
            text.ends_with("\nUse \"pinniped [command] --help\" for more information about a command.\n"),
            "{text}"
        );
        assert!(!text.contains("__complete"), "{text}");
    }

    #[test]
    fn the_help_of_a_command_lists_its_flags_with_their_defaults() {
        let whoami = ROOT.child("whoami").unwrap();
        let environment =
            Environment { kubeconfig: Some("/some/kubeconfig".into()), ..Environment::default() };
        assert_eq!(
            help(&[&ROOT, whoami], &environment),
            "Print information about the current user\n\n\
             Usage:\n  pinniped whoami [flags]\n\n\
             Flags:\n      \
             --api-group-suffix string     Suffix of the Concierge's API groups (default \"pinniped.dev\")\n  \
             -h, --help                        help for whoami\n      \
             --kubeconfig string           Path of the kubeconfig to use (default \"/some/kubeconfig\")\n      \
             --kubeconfig-context string   Context of the kubeconfig to use (default: the current one)\n  \
             -o, --output string               Output format: 'text', 'wide' (also UID, extras and the end of the credential, as on a terminal), 'json' or 'yaml' (default \"text\")\n      \
             --timeout duration            Time limit for the request; 0 for none\n"
        );
    }
}
