//! Texts of the products that pages quote.
//!
//! In tables of [`PAGES`], the columns `Message`, `Condition` and `Reasons` have texts of the code
//! as code spans, in which `...` stands for a variable part. Each text must occur in the code.
//!
//! The message of each log line of a server program is a constant: data is in fields, so that a
//! message can be searched, counted and documented.
//!
//! The other direction: the page about log lines must have every warning and every error of the
//! server programs, every line of all log levels, and each message and key of an audit event. The
//! page about conditions must have the types and the reasons of all conditions and strategies.

use std::path::{Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use super::{read, sources};

/// The pages that quote texts.
const PAGES: [&str; 3] = ["docs/howto/troubleshooting.md", CONDITIONS, LOGS];

/// The headings of columns whose code spans are texts of the code.
const COLUMNS: [&str; 3] = ["Message", "Condition", "Reasons"];

/// The part of a text that varies.
const VARIABLE: &str = "...";

/// The mark of an escaped quotation mark, which does not end a string.
const ESCAPED: char = '\u{1}';

/// The page about log lines.
const LOGS: &str = "docs/reference/logs.md";

/// The macros whose messages that page must have.
const MACROS: [&str; 2] = ["warn!(", "error!("];

/// The macro of lines that are written at every log level, and the beginnings of their arguments.
const ALWAYS_MACRO: &str = "info!(";
const ALWAYS: [&str; 2] = ["target: ALWAYS,", "target: value::ALWAYS,"];

/// The macros of log lines.
const LOG_MACROS: [&str; 5] = ["trace!(", "debug!(", "info!(", "warn!(", "error!("];

/// The page about conditions.
const CONDITIONS: &str = "docs/reference/conditions.md";

/// Code that only files have which define conditions, or reasons of strategies.
const CONDITION_MARKS: [&str; 3] = ["DesiredCondition", "StrategyReason {", "const TYPE_READY"];

/// Names in these files that are neither types nor reasons of a condition or a strategy.
const NOT_OF_CONDITIONS: [&str; 14] = [
    "CREATE",
    "Cluster",
    "ConfigMap",
    "CredentialIssuer",
    "Error",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionWebhook",
    "MutatingWebhookConfiguration",
    "Secret",
    "TokenCredentialRequestAPI",
    "Validate",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionWebhook",
    "ValidatingWebhookConfiguration",
];

/// The folder whose files write audit events.
const AUDITED: &str = "crates/concierge/server/src/";

/// The beginnings of the calls that add a key to an audit event.
const AUDIT_KEYS: [&str; 5] =
    [".text(\"", ".field(\"", ".personal_text(\"", ".personal_list(\"", ".personal_map(\""];

/// The beginnings of the messages of audit events.
const AUDIT_MESSAGE: &str = "\"TokenCredentialRequest ";

/// Checks the pages, and the completeness of the page about log lines.
pub(super) fn check(root: &Path, files: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    let mut sources = Vec::new();
    for file in files.iter().filter(|file| is_product(file)) {
        sources.push((file, literal(sources::without_tests(&read(root, file)?))));
    }
    let texts: Vec<String> = sources.iter().map(|(_, source)| source.replace(ESCAPED, "")).collect();
    let mut problems = Vec::new();
    for page in files.iter().filter(|file| PAGES.iter().any(|page| file.as_path() == Path::new(page))) {
        for (line, text) in quoted(&read(root, page)?) {
            for part in parts(&text) {
                if !texts.iter().any(|text| text.contains(part)) {
                    problems.push(format!("{}:{line}: no text of the code has {part:?}", page.display()));
                }
            }
        }
    }
    let logs = read(root, Path::new(LOGS))?;
    for (file, source) in sources.iter().filter(|(file, _)| !file.starts_with("crates/cli")) {
        for message in logged(source) {
            let message = message.replace(ESCAPED, "");
            if !parts(&without_placeholders(&message)).all(|part| logs.contains(part)) {
                problems.push(format!("{}: {LOGS} does not have the message {message:?}", file.display()));
            }
        }
    }
    for (file, source) in &sources {
        for message in interpolated(source) {
            let message = message.replace(ESCAPED, "");
            problems.push(format!(
                "{}: the message {message:?} is not constant: put the data into fields",
                file.display()
            ));
        }
    }
    for (file, source) in sources.iter().filter(|(file, _)| file.starts_with(AUDITED)) {
        for text in audited(source).filter(|text| !logs.contains(&format!("`{text}`"))) {
            problems.push(format!("{}: {LOGS} does not have {text:?} of an audit event", file.display()));
        }
    }
    let conditions = read(root, Path::new(CONDITIONS))?;
    for (file, source) in &sources {
        for name in names_of_conditions(source).filter(|name| !conditions.contains(&format!("`{name}`"))) {
            problems.push(format!("{}: {CONDITIONS} does not have {name:?}", file.display()));
        }
    }
    Ok(problems)
}

/// Returns the messages and the keys of the audit events in the code of a file.
fn audited(code: &str) -> impl Iterator<Item = &str> {
    // A file without messages writes no events.
    let code = if code.contains(AUDIT_MESSAGE) { code } else { "" };
    let after =
        move |start: &'static str| code.match_indices(start).map(move |(at, _)| &code[at + start.len()..]);
    let keys = AUDIT_KEYS.into_iter().flat_map(after).filter_map(|rest| Some(rest.split_once('"')?.0));
    let messages = code.match_indices(AUDIT_MESSAGE).map(|(at, _)| &code[at + 1..]);
    keys.chain(messages.filter_map(|rest| Some(rest.split_once('"')?.0)))
}

/// Returns the types and reasons of conditions in code that [`literal`] returned: the strings that
/// consist of letters and begin with an upper-case letter, in files that define conditions.
fn names_of_conditions(code: &str) -> impl Iterator<Item = &str> {
    let defines = CONDITION_MARKS.iter().any(|mark| code.contains(mark));
    let strings = code.split('"').skip(1).step_by(2).filter(move |_| defines);
    strings.filter(|text| {
        text.starts_with(|first: char| first.is_ascii_uppercase())
            && text.chars().all(|c| c.is_ascii_alphabetic())
            && !NOT_OF_CONDITIONS.contains(text)
    })
}

/// Reports whether a file is code of a product, and not a file of tests.
fn is_product(file: &Path) -> bool {
    // The explanations of `pinniped explain` quote texts, too.
    let quotes = file.starts_with("crates/cli/src/explanations");
    let is_code = file.extension().is_some_and(|end| end == "rs") && !sources::is_test(file);
    file.starts_with("crates") && is_code && !quotes
}

/// Returns code without comments, in which string literals have their value: without continued
/// lines, and with quotation marks that have the mark [`ESCAPED`] if they are escaped.
fn literal(code: &str) -> String {
    let mut result = String::with_capacity(code.len());
    let mut is_continued = false;
    for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
        let line = if is_continued { line.trim_start() } else { line };
        let kept = line.strip_suffix('\\');
        result.push_str(kept.unwrap_or(line));
        is_continued = kept.is_some();
        if !is_continued {
            result.push('\n');
        }
    }
    result.replace("\\\"", &format!("{ESCAPED}\""))
}

/// Returns the texts of the code that the tables of a page quote, with their lines.
fn quoted(page: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let (mut quotes, mut column, mut in_head, mut heading) = (Vec::new(), 0, false, String::new());
    for (event, range) in Parser::new_ext(page, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::Start(Tag::TableHead) => (quotes, column, in_head) = (Vec::new(), 0, true),
            Event::End(TagEnd::TableHead) => in_head = false,
            Event::Start(Tag::TableRow) => column = 0,
            Event::End(TagEnd::TableCell) => {
                if in_head {
                    quotes.push(COLUMNS.contains(&heading.as_str()));
                    heading.clear();
                }
                column += 1;
            }
            Event::Text(text) if in_head => heading.push_str(&text),
            Event::Code(text) if in_head => heading.push_str(&text),
            Event::Code(text) if quotes.get(column) == Some(&true) => {
                found.push((page[..range.start].matches('\n').count() + 1, text.into_string()));
            }
            Event::End(TagEnd::Table) => quotes.clear(),
            _ => {}
        }
    }
    found
}

/// Returns the constant parts of a text.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(VARIABLE).map(str::trim).filter(|part| !part.is_empty())
}

/// Returns the messages of warnings, of errors and of lines of every log level in code that
/// [`literal`] returned: the last string of each macro.
fn logged(code: &str) -> Vec<&str> {
    let starts_of = |name: &'static str| code.match_indices(name).map(move |(at, _)| at + name.len());
    let is_always = |start: &usize| {
        let arguments = code[*start..].trim_start();
        ALWAYS.iter().any(|target| arguments.starts_with(target))
    };
    let starts = MACROS.into_iter().flat_map(starts_of);
    let starts = starts.chain(starts_of(ALWAYS_MACRO).filter(is_always));
    starts.filter_map(|start| last_string(&code[start..])).collect()
}

/// Returns the messages with placeholders in code that [`literal`] returned: the strings that are
/// arguments of a macro themselves, not parts of one.
fn interpolated(code: &str) -> Vec<&str> {
    let starts = LOG_MACROS.iter().flat_map(|name| {
        let starts = code.match_indices(name).map(|(at, _)| at);
        // Not the end of another name, such as `my_info!(`.
        let is_whole = |at: &usize| !code[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        starts.filter(is_whole).map(|at| at + name.len())
    });
    let arguments = starts.flat_map(|start| strings(&code[start..]));
    let messages = arguments.filter(|(depth, _)| *depth == 1).map(|(_, text)| text);
    messages.filter(|text| text.replace("{{", "").contains('{')).collect()
}

/// Returns the last string before the parenthesis that ends the arguments of a macro.
fn last_string(arguments: &str) -> Option<&str> {
    strings(arguments).pop().map(|(_, text)| text)
}

/// Returns the strings before the parenthesis that ends the arguments of a macro, with the number
/// of parentheses around each.
fn strings(arguments: &str) -> Vec<(usize, &str)> {
    let (mut depth, mut opened, mut found, mut before) = (1, None, Vec::new(), ' ');
    for (at, c) in arguments.char_indices() {
        match (c, opened) {
            ('"', Some(start)) if before != ESCAPED => {
                found.extend(arguments.get(start..at).map(|text| (depth, text)));
                opened = None;
            }
            ('"', None) => opened = Some(at + 1),
            ('(', None) => depth += 1,
            (')', None) => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
        before = c;
    }
    found
}

/// Returns a format string with [`VARIABLE`] in place of its placeholders.
fn without_placeholders(message: &str) -> String {
    let mut result = String::new();
    let mut rest = message;
    while let Some((constant, after)) = rest.split_once('{') {
        result.push_str(constant);
        result.push_str(VARIABLE);
        rest = after.split_once('}').map_or("", |(_, rest)| rest);
    }
    result + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_in_the_named_columns_of_a_table_are_quoted() {
        let page = "`a`\n\n| Message | Meaning |\n|---|---|\n| `b ...`, `c` | `d` |\n\n\
                    | Meaning | Reasons |\n|---|---|\n| `e` | `F` |\n";
        assert_eq!(quoted(page), [(5, "b ...".to_owned()), (5, "c".to_owned()), (9, "F".to_owned())]);
    }

    #[test]
    fn the_message_is_the_last_string_of_the_macro() {
        let code = r#"
            tracing::warn!(kind = x.map_or("", |x| &x.name), %error, "it failed (again)");
            error!("{error:#}");
            // warn!("not this one");
            warn!("the \"*\" \
                   counts", self.x());
            info!("not this one");
            tracing::info!(
                target: ALWAYS,
                object = format!("Kind/{name}"),
                "it changed"
            );
        "#;
        let code = literal(code);
        let messages: Vec<_> = logged(&code).into_iter().map(|text| text.replace(ESCAPED, "")).collect();
        assert_eq!(messages, ["it failed (again)", "the \"*\" counts", "{error:#}", "it changed"]);
    }

    #[test]
    fn a_message_with_a_placeholder_is_found_and_a_constant_one_is_not() {
        let code = r#"
            info!(text = format!("a {x}"), "constant with {{braces}} and \"{{quotes}}\"");
            trace!(%a, "constant (too)");
            tracing::debug!("port {port}");
            tracing::error!("{}", error);
            warn!(
                %error,
                "strategy {} \
                 stays", self.name
            );
            // info!("comment {x}");
            println!("{x}");
            my_info!("{x}");
        "#;
        let code = literal(code);
        assert_eq!(interpolated(&code), ["port {port}", "strategy {} stays", "{}"]);
    }

    #[test]
    fn placeholders_are_variable() {
        assert_eq!(without_placeholders("strategy {}, so {x:?} stays"), "strategy ..., so ... stays");
        let constant: Vec<_> = parts("a ... b ...").collect();
        assert_eq!(constant, ["a", "b"]);
    }

    #[test]
    fn names_of_conditions_are_words_of_the_files_that_define_them() {
        let code = r#"const A: &str = "BadThing"; failure("Ready", "not a name", "Secret"); "lower""#;
        assert_eq!(names_of_conditions(code).count(), 0);
        let code = format!("use DesiredCondition;\n{code}");
        assert_eq!(names_of_conditions(&code).collect::<Vec<_>>(), ["BadThing", "Ready"]);
    }

    #[test]
    fn audit_events_have_a_message_and_keys() {
        let code =
            r#"event("TokenCredentialRequest Failed", id, now).text("reason", x).personal_list("groups", g)"#;
        let found: Vec<_> = audited(code).collect();
        assert_eq!(found, ["reason", "groups", "TokenCredentialRequest Failed"]);
    }

    #[test]
    fn a_text_that_the_code_does_not_have_and_a_message_that_the_page_does_not_have_are_problems() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
            PathBuf::from(name)
        };
        let code = "fn f() { warn!(%error, \"the disk is full\"); error!(\"lost {} files\", n); }";
        let page = "| Message |\n|---|\n| `the disk is full` |\n| `disk ... full` |\n| `disk is empty` |\n";
        let other = write("docs/other.md", page);
        let issuer = "use DesiredCondition; const A: &str = \"Tired\"; const B: &str = \"Awake\";";
        let audit = "event(\"TokenCredentialRequest Lost\").text(\"finder\", x)";
        let files = [
            write("crates/a/src/lib.rs", code),
            write("crates/b/src/lib.rs", issuer),
            write("crates/concierge/server/src/a.rs", audit),
            write(LOGS, page),
            write(CONDITIONS, "`Awake`\n"),
            other,
        ];
        assert_eq!(
            check(root.path(), &files).unwrap(),
            [
                "docs/reference/logs.md:5: no text of the code has \"disk is empty\"",
                "crates/a/src/lib.rs: docs/reference/logs.md does not have the message \"lost {} files\"",
                "crates/a/src/lib.rs: the message \"lost {} files\" is not constant: put the data into fields",
                "crates/concierge/server/src/a.rs: docs/reference/logs.md does not have \"finder\" of an audit event",
                "crates/concierge/server/src/a.rs: docs/reference/logs.md does not have \"TokenCredentialRequest Lost\" of an audit event",
                "crates/b/src/lib.rs: docs/reference/conditions.md does not have \"Tired\"",
            ]
        );
    }
}
