//! The reference page of this program in Markdown, with front matter for site generators.

use std::fmt::Write as _;

use super::help;
use super::parse::command_path;
use super::tree::{CommandSpec, ROOT};
use crate::environment::Environment;

const HEAD: &str = "---
title: Command-Line Options Reference
description: Reference for the `pinniped` command-line tool
---
";

/// Returns the page with every visible command and its flags.
pub fn reference() -> String {
    let mut out = String::from(HEAD);
    command(&mut vec![&ROOT], &Environment::for_documents(), &mut out);
    out
}

fn command(path: &mut Vec<&'static CommandSpec>, environment: &Environment, out: &mut String) {
    let Some(here) = path.last().copied() else { return };
    let description = if here.long.is_empty() { here.short } else { here.long };
    let _ = write!(
        out,
        "\n## {}\n\n{description}\n\n```text\n{}```\n",
        command_path(path),
        help::usage(path, environment)
    );
    for child in here.children.iter().filter(|child| !child.hidden) {
        path.push(child);
        command(path, environment, out);
        path.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_command_has_a_section_and_hidden_ones_have_none() {
        let text = reference();
        assert!(text.starts_with("---\ntitle: "), "{text}");
        let sections: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(
            sections,
            [
                "pinniped",
                "pinniped completion",
                "pinniped completion bash",
                "pinniped completion fish",
                "pinniped completion powershell",
                "pinniped completion zsh",
                "pinniped doctor",
                "pinniped explain",
                "pinniped get",
                "pinniped get kubeconfig",
                "pinniped help",
                "pinniped kubectl",
                "pinniped login",
                "pinniped login oidc",
                "pinniped login static",
                "pinniped login token",
                "pinniped logout",
                "pinniped proxy",
                "pinniped status",
                "pinniped version",
                "pinniped whoami",
            ]
        );
        assert!(text.contains("\"$HOME/.config/pinniped/credentials.yaml\")"), "{text}");
        for hidden in ["generate-markdown-help", "generate-man", "concierge-namespace", "skip-listen"] {
            assert!(!text.contains(hidden), "{hidden}");
        }
    }
}
