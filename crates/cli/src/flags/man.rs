//! The manual pages of the program, one for each visible command, in the format of man(7). They
//! have the content of the help.

use pinniped_version::{BUILD_DATE, VERSION};
use roff::{Inline, Roff, bold, italic, roman};

use super::help::groups::Group;
use super::help::wrap::{Block, blocks};
use super::help::{forms, usage_of, visible_flags};
use super::parse::command_path;
use super::tree::{CommandSpec, FlagSpec, ROOT};
use crate::environment::Environment;

/// The section of the manual: commands of users.
const SECTION: &str = "1";

/// A manual page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The name of its file.
    pub file: String,
    /// Its content.
    pub text: String,
}

/// Returns the pages of all visible commands.
pub fn pages() -> Vec<Page> {
    let mut pages = Vec::new();
    collect(&mut vec![&ROOT], &mut pages);
    pages
}

fn collect(path: &mut Vec<&'static CommandSpec>, pages: &mut Vec<Page>) {
    let Some(here) = path.last().copied() else { return };
    pages.push(Page { file: format!("{}.{SECTION}", name(path)), text: page(path, here) });
    for child in visible(here) {
        path.push(child);
        collect(path, pages);
        path.pop();
    }
}

fn visible(command: &'static CommandSpec) -> impl Iterator<Item = &'static CommandSpec> {
    command.children.iter().filter(|child| !child.hidden)
}

/// Returns the name of a page: `pinniped-get-kubeconfig`.
fn name(path: &[&'static CommandSpec]) -> String {
    command_path(path).replace(' ', "-")
}

fn page(path: &[&'static CommandSpec], here: &'static CommandSpec) -> String {
    let mut roff = Roff::new();
    let date = BUILD_DATE.split('T').next().unwrap_or_default();
    let source = format!("{} {VERSION}", ROOT.name);
    roff.control("TH", [name(path).to_uppercase().as_str(), SECTION, date, &source, "User Commands"]);
    // Names that are broken at the end of a line are not found, and cannot be copied.
    roff.control("nh", []).control("ad", ["l"]);
    roff.control("SH", ["NAME"]).text([roman(format!("{} - {}", name(path), here.short))]);
    synopsis(path, here, &mut roff);
    roff.control("SH", ["DESCRIPTION"]);
    description(if here.long.is_empty() { here.short } else { here.long }, &mut roff);
    if visible(here).next().is_some() {
        roff.control("SH", ["COMMANDS"]);
        for child in visible(here) {
            roff.control("TP", []).text([bold(child.name)]).text([roman(child.short)]);
        }
    }
    for group in Group::ALL {
        let flags = visible_flags(here, group);
        if !flags.is_empty() {
            // Upper case as in all manuals, which makes "OPTIONS" of the first group.
            let title = if group == Group::Command { "OPTIONS".into() } else { group.title().to_uppercase() };
            roff.control("SH", [title.as_str()]);
            for flag in flags {
                option(flag, here, &mut roff);
            }
        }
    }
    if !here.examples.is_empty() {
        roff.control("SH", ["EXAMPLES"]);
        for (at, (purpose, line)) in here.examples.iter().enumerate() {
            if at > 0 {
                roff.control("PP", []);
            }
            roff.text([roman(format!("{purpose}:"))]);
            command(line, &mut roff);
        }
    }
    see_also(path, here, &mut roff);
    // Processors print typographic variants of these characters, which no shell understands.
    breakable(&roff.render().replace('~', r"\(ti").replace('^', r"\(ha").replace('`', r"\(ga"))
}

/// Lets lists without spaces break after a comma, because words are not hyphenated.
fn breakable(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(',') {
        out.push_str(before);
        out.push_str(if after.starts_with(char::is_whitespace) { "," } else { r",\:" });
        rest = after;
    }
    out.push_str(rest);
    out
}

fn synopsis(path: &[&'static CommandSpec], here: &CommandSpec, roff: &mut Roff) {
    roff.control("SH", ["SYNOPSIS"]);
    for (at, form) in forms(here).into_iter().enumerate() {
        if at > 0 {
            roff.control("br", []);
        }
        roff.text([bold(command_path(path)), roman(" "), italic(form)]);
    }
}

fn description(text: &str, roff: &mut Roff) {
    let mut blocks = blocks(text).into_iter().peekable();
    while let Some(block) = blocks.next() {
        match block {
            Block::Prose(prose) => roff.text([roman(prose)]),
            // A term begins with space of its own.
            Block::Empty if matches!(blocks.peek(), Some(Block::Term { .. })) => continue,
            Block::Empty => roff.control("PP", []),
            Block::Command(line) => {
                command(&line, roff);
                continue;
            }
            Block::Term { term, explanation, .. } => {
                let words: Vec<&str> = explanation.split_whitespace().collect();
                roff.control("TP", []).text([bold(term)]).text([roman(words.join(" "))])
            }
        };
    }
}

/// Writes a line for a shell, which is neither filled nor broken.
fn command(line: &str, roff: &mut Roff) {
    roff.control("RS", ["4"]).control("nf", []).text([bold(line)]).control("fi", []).control("RE", []);
}

fn option(flag: &FlagSpec, here: &CommandSpec, roff: &mut Roff) {
    let mut form: Vec<Inline> = Vec::new();
    if let Some(short) = flag.short {
        form.extend([bold(format!("-{short}")), roman(", ")]);
    }
    form.push(bold(format!("--{}", flag.name)));
    let type_name = flag.kind.type_name();
    if !type_name.is_empty() {
        form.extend([roman(" "), italic(type_name)]);
    }
    let usage = usage_of(flag, here, &Environment::for_documents());
    roff.control("TP", []).text(form).text([roman(usage)]);
}

fn see_also(path: &[&'static CommandSpec], here: &'static CommandSpec, roff: &mut Roff) {
    let above = path.len().checked_sub(1).filter(|length| *length > 0).map(|length| name(&path[..length]));
    let below = visible(here).map(|child| name(&[path, &[child]].concat()));
    let mut pages: Vec<String> = above.into_iter().chain(below).collect();
    pages.push("kubectl".into());
    let mut line = Vec::new();
    for (at, page) in pages.iter().enumerate() {
        line.extend([bold(page), roman(if at + 1 < pages.len() { "(1), " } else { "(1)" })]);
    }
    roff.control("SH", ["SEE ALSO"]).text(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_command_has_a_page_with_its_flags() {
        let pages = pages();
        let of = |file: &str| &pages.iter().find(|page| page.file == file).unwrap().text;
        let kubeconfig = of("pinniped-get-kubeconfig.1");
        assert!(kubeconfig.contains("\n.SH OIDC FLAGS\n") || kubeconfig.contains("\n.SH \"OIDC FLAGS\"\n"));
        assert!(kubeconfig.contains(r"\fB\-\-oidc\-issuer\fR \fIstring\fR"), "{kubeconfig}");
        assert!(!kubeconfig.contains("concierge\\-namespace"), "{kubeconfig}");
        assert!(of("pinniped.1").contains(r"\fBpinniped\-get\fR(1), "), "{}", of("pinniped.1"));
        assert!(of("pinniped-explain.1").contains("\\fBpinniped explain\\fR \\fI[topic] [flags]\\fR"));
        assert!(!pages.iter().any(|page| page.file.contains("generate") || page.file.contains("__")));
        assert!(of("pinniped-login-oidc.1").contains(r"offline_access,\:openid,\:"));
        assert!(of("pinniped-completion-fish.1").contains(r"\(ti/.config/fish"));
    }
}
