//! Parses arguments into a command and its flags, in the order of cobra: find the command by the
//! arguments that are not flags, parse its flags, check for `--help`, check the remaining
//! arguments, check required flags.

use std::collections::BTreeMap;

use pinniped_error::chain;
use pinniped_go_compat::duration::GoDuration;
use pinniped_go_compat::json::quote;

use super::tree::{Action, COLOR_FLAG, CommandSpec, FlagSpec, HELP_FLAG, VERSION_FLAG};
use super::value::{Kind, Value, ValueError};
use crate::printer::style::ColorChoice;
use crate::similar::similar;

/// A parsed command.
#[derive(Debug)]
pub struct Parsed {
    /// The action.
    pub action: Action,
    /// The arguments that are not flags.
    pub words: Vec<String>,
    /// Lines for stderr before the command runs (deprecated flags).
    pub warnings: Vec<String>,
    values: BTreeMap<&'static str, Value>,
}

/// The result of parsing.
#[derive(Debug)]
pub enum ParseResult {
    /// Run this command.
    Run(Box<Parsed>),
    /// Print the help of the last command of this path and succeed.
    Help(Vec<&'static CommandSpec>),
    /// Print `Error: <message>` and the hint, if there is one, and fail.
    Wrong {
        /// The message.
        message: String,
        /// A second line.
        hint: Option<String>,
        /// The text after `try: `, for people.
        remedy: Option<String>,
    },
}

/// The maximum number of flags that an error suggests.
const MAX_SUGGESTIONS: usize = 3;

/// Flags that the command does not accept, with the texts of pflag.
#[derive(Debug, thiserror::Error)]
enum FlagError {
    #[error("invalid argument {} for {} flag", quote(.text), quote(.flag))]
    Value {
        text: String,
        flag: String,
        #[source]
        source: ValueError,
    },
    #[error("bad flag syntax: {0}")]
    Syntax(String),
    #[error("unknown flag: --{0}")]
    Unknown(String),
    #[error("flag needs an argument: --{0}")]
    NoValue(String),
    #[error("unknown shorthand flag: '{letter}' in -{letters}")]
    UnknownLetter { letter: char, letters: String },
    #[error("flag needs an argument: '{letter}' in -{letters}")]
    NoValueOfLetter { letter: char, letters: String },
}

impl FlagError {
    /// Returns the flags of the command that the user may have meant.
    fn remedy(&self, command: &CommandSpec) -> Option<String> {
        let Self::Unknown(name) = self else { return None };
        let all = command.flags.iter().chain([&HELP_FLAG, &COLOR_FLAG]);
        let names = similar(name, all.filter(|flag| !flag.hidden).map(|flag| flag.name));
        let flags: Vec<String> = names.iter().take(MAX_SUGGESTIONS).map(|name| format!("--{name}")).collect();
        (!flags.is_empty()).then(|| flags.join(" or "))
    }
}

impl ParseResult {
    fn wrong(message: impl Into<String>) -> Self {
        Self::Wrong { message: message.into(), hint: None, remedy: None }
    }
}

impl Parsed {
    /// Returns the text of a string flag, or `None` if it was not given.
    pub fn given(&self, name: &str) -> Option<&str> {
        match self.values.get(name) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// Returns the text of a string flag, or `default` if it was not given.
    pub fn string_or(&self, name: &str, default: &str) -> String {
        self.given(name).unwrap_or(default).to_owned()
    }

    /// Returns the text of a string flag; empty if it was not given.
    pub fn string(&self, name: &str) -> String {
        self.string_or(name, "")
    }

    /// Returns the value of a bool flag; false if it was not given.
    pub fn bool(&self, name: &str) -> bool {
        matches!(self.values.get(name), Some(Value::Bool(true)))
    }

    /// Returns the value of a duration flag, if it was given.
    pub fn duration(&self, name: &str) -> Option<GoDuration> {
        match self.values.get(name) {
            Some(Value::Duration(duration)) => Some(*duration),
            _ => None,
        }
    }

    /// Returns the use of colors.
    pub fn color(&self) -> ColorChoice {
        match self.values.get(COLOR_FLAG.name) {
            Some(Value::Color(choice)) => *choice,
            _ => ColorChoice::default(),
        }
    }

    /// Returns the value of a flag of another kind, if it was given.
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.values.get(name)
    }
}

/// Returns the use of colors that arguments request, for the help and for errors of a command line
/// that cannot be parsed. The last valid value applies.
pub fn color_of(args: &[String]) -> ColorChoice {
    let mut choice = ColorChoice::default();
    let mut args = args.iter().take_while(|arg| *arg != "--");
    while let Some(arg) = args.next() {
        let Some(name) = arg.strip_prefix("--") else { continue };
        let text = match name.split_once('=') {
            Some((name, text)) if name == COLOR_FLAG.name => Some(text),
            None if name == COLOR_FLAG.name => args.next().map(String::as_str),
            _ => None,
        };
        if let Some(text) = text
            && let Ok(Value::Color(found)) = Value::read(Kind::Color, text, None)
        {
            choice = found;
        }
    }
    choice
}

/// Returns the path of a command as users type it: `pinniped get kubeconfig`.
pub fn command_path(path: &[&'static CommandSpec]) -> String {
    path.iter().map(|command| command.name).collect::<Vec<_>>().join(" ")
}

/// Follows the words in `args` down the tree; returns the path and the remaining arguments.
///
/// # Errors
///
/// Returns [`ParseResult::Wrong`] if no command has the name of the first word.
pub fn find(
    root: &'static CommandSpec,
    args: &[String],
) -> Result<(Vec<&'static CommandSpec>, Vec<String>), ParseResult> {
    let mut path = vec![root];
    let mut rest = args.to_vec();
    let mut here = root;
    loop {
        let words = words_of(&rest, here);
        let Some((at, word)) = words.first() else { break };
        let Some(child) = here.child(word) else { break };
        rest.remove(*at);
        path.push(child);
        here = child;
    }
    if here.action.is_none()
        && let Some((_, word)) = words_of(&rest, here).first()
    {
        let name = command_path(&path);
        let mut message = format!("unknown command {} for {}", quote(word), quote(&name));
        let visible = here.children.iter().filter(|child| !child.hidden);
        let similar = similar(word, visible.map(|child| child.name));
        if !similar.is_empty() {
            message.push_str("\n\nDid you mean this?\n");
            for name in similar {
                message.push_str(&format!("\t{name}\n"));
            }
        }
        let hint = Some(format!("Run '{name} --help' for usage."));
        return Err(ParseResult::Wrong { message, hint, remedy: None });
    }
    Ok((path, rest))
}

/// Parses `args` (without the program name) with the table under `root`.
pub fn parse(root: &'static CommandSpec, args: &[String]) -> ParseResult {
    let (path, rest) = match find(root, args) {
        Ok(found) => found,
        Err(result) => return result,
    };
    let command = path[path.len() - 1];
    let flags = match read_flags(command, &rest) {
        Ok(flags) => flags,
        Err(error) => {
            let message = chain(&error).to_string();
            return ParseResult::Wrong { message, hint: None, remedy: error.remedy(command) };
        }
    };
    if matches!(flags.values.get(HELP_FLAG.name), Some(Value::Bool(true))) {
        return ParseResult::Help(path);
    }
    let action = match command.action {
        Some(action) => action,
        None if matches!(flags.values.get(VERSION_FLAG), Some(Value::Bool(true))) => Action::Version,
        None => return ParseResult::Help(path),
    };
    if !command.takes_words
        && let Some(word) = flags.words.first()
    {
        return ParseResult::wrong(format!(
            "unknown command {} for {}",
            quote(word),
            quote(&command_path(&path))
        ));
    }
    let missing: Vec<String> = command
        .flags
        .iter()
        .filter(|flag| flag.required && !flags.values.contains_key(flag.name))
        .map(|flag| quote(flag.name))
        .collect();
    if !missing.is_empty() {
        return ParseResult::Wrong {
            message: format!("required flag(s) {} not set", missing.join(", ")),
            hint: None,
            remedy: Some(format!("{} --help, which has examples", command_path(&path))),
        };
    }
    ParseResult::Run(Box::new(Parsed {
        action,
        words: flags.words,
        warnings: flags.warnings,
        values: flags.values,
    }))
}

struct Flags {
    words: Vec<String>,
    warnings: Vec<String>,
    values: BTreeMap<&'static str, Value>,
}

impl Flags {
    fn set(&mut self, flag: &'static FlagSpec, text: &str) -> Result<(), FlagError> {
        let value = Value::read(flag.kind, text, self.values.get(flag.name)).map_err(|source| {
            let name = match flag.short {
                Some(short) => format!("-{short}, --{}", flag.name),
                None => format!("--{}", flag.name),
            };
            FlagError::Value { text: text.to_owned(), flag: name, source }
        })?;
        self.values.insert(flag.name, value);
        if let Some(advice) = flag.deprecated {
            self.warnings.push(format!("Flag --{} has been deprecated, {advice}", flag.name));
        }
        Ok(())
    }
}

fn read_flags(command: &'static CommandSpec, args: &[String]) -> Result<Flags, FlagError> {
    let mut flags = Flags { words: Vec::new(), warnings: Vec::new(), values: BTreeMap::new() };
    if command.flags_are_words {
        flags.words = args.to_vec();
        return Ok(flags);
    }
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--" {
            flags.words.extend(args.cloned());
            break;
        }
        if let Some(body) = arg.strip_prefix("--") {
            if body.starts_with(['-', '=']) {
                return Err(FlagError::Syntax(arg.clone()));
            }
            let (name, inline) = match body.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (body, None),
            };
            let flag = command.flag(name).ok_or_else(|| FlagError::Unknown(name.to_owned()))?;
            match inline {
                Some(value) => flags.set(flag, value)?,
                None if flag.kind == Kind::Bool => flags.set(flag, "true")?,
                None => {
                    let value = args.next().ok_or_else(|| FlagError::NoValue(name.to_owned()))?;
                    flags.set(flag, value)?;
                }
            }
        } else if arg.len() > 1 && arg.starts_with('-') {
            read_short(command, &arg[1..], &mut args, &mut flags)?;
        } else {
            flags.words.push(arg.clone());
        }
    }
    Ok(flags)
}

/// Parses `-o json`, `-ojson`, `-o=json`, and combined bool letters: `-abc`.
fn read_short<'a>(
    command: &'static CommandSpec,
    letters: &str,
    args: &mut impl Iterator<Item = &'a String>,
    flags: &mut Flags,
) -> Result<(), FlagError> {
    let mut rest = letters;
    while let Some(letter) = rest.chars().next() {
        let after = &rest[letter.len_utf8()..];
        let flag = command
            .flag_by_letter(letter)
            .ok_or_else(|| FlagError::UnknownLetter { letter, letters: rest.to_owned() })?;
        if let Some(value) = after.strip_prefix('=')
            && !value.is_empty()
        {
            return flags.set(flag, value);
        }
        if flag.kind == Kind::Bool {
            flags.set(flag, "true")?;
            rest = after;
            continue;
        }
        if !after.is_empty() {
            return flags.set(flag, after);
        }
        let value =
            args.next().ok_or_else(|| FlagError::NoValueOfLetter { letter, letters: rest.to_owned() })?;
        return flags.set(flag, value);
    }
    Ok(())
}

/// Returns the elements of `args` that are neither flags nor values of flags, with their positions,
/// as far as `command` defines the flags.
fn words_of<'a>(args: &'a [String], command: &'static CommandSpec) -> Vec<(usize, &'a str)> {
    let mut words = Vec::new();
    let mut skip_next = false;
    for (at, arg) in args.iter().enumerate() {
        if std::mem::take(&mut skip_next) {
            continue;
        }
        if arg == "--" {
            break;
        }
        if let Some(name) = arg.strip_prefix("--") {
            skip_next =
                !arg.contains('=') && command.own_flag(name).is_none_or(|flag| flag.kind != Kind::Bool);
        } else if let Some(letters) = arg.strip_prefix('-') {
            let mut letters = letters.chars();
            if let (Some(letter), None) = (letters.next(), letters.next()) {
                skip_next = command
                    .flags
                    .iter()
                    .find(|flag| flag.short == Some(letter))
                    .is_none_or(|flag| flag.kind != Kind::Bool);
            }
        } else if !arg.is_empty() {
            words.push((at, arg.as_str()));
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::super::tree::ROOT;
    use super::*;

    fn args(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn wrong(line: &str) -> String {
        match parse(&ROOT, &args(line)) {
            ParseResult::Wrong { message, .. } => message,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn a_flag_that_is_about_the_same_is_the_remedy() {
        for (line, expected) in [
            ("whoami --ouput=json", Some("--output")),
            ("status --kubeconf", Some("--kubeconfig or --kubeconfig-context")),
            ("whoami --colr=never", Some("--color")),
            ("whoami --hlp", Some("--help")),
            (
                "get kubeconfig --concierge",
                Some(
                    "--concierge-api-group-suffix or --concierge-authenticator-name or --concierge-authenticator-type",
                ),
            ),
            ("whoami --bogus", None),
            ("whoami --output", None),
        ] {
            let ParseResult::Wrong { remedy, .. } = parse(&ROOT, &args(line)) else { panic!("{line}") };
            assert_eq!(remedy.as_deref(), expected, "{line}");
        }
    }

    fn run(line: &str) -> Parsed {
        match parse(&ROOT, &args(line)) {
            ParseResult::Run(parsed) => *parsed,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn errors_have_the_texts_of_cobra() {
        for (line, message) in [
            ("foo", "unknown command \"foo\" for \"pinniped\""),
            ("whoam", "unknown command \"whoam\" for \"pinniped\"\n\nDid you mean this?\n\twhoami\n"),
            ("get kubeconfig extra", "unknown command \"extra\" for \"pinniped get kubeconfig\""),
            ("get kubeconfig --bogus", "unknown flag: --bogus"),
            ("get foo", "unknown command \"foo\" for \"pinniped get\""),
            (
                "get kubeconfi",
                "unknown command \"kubeconfi\" for \"pinniped get\"\n\nDid you mean this?\n\tkubeconfig\n",
            ),
            ("login foo --help", "unknown command \"foo\" for \"pinniped login\""),
            ("completion foo", "unknown command \"foo\" for \"pinniped completion\""),
            ("whoami --version", "unknown flag: --version"),
            (
                "whoami --color=blue",
                "invalid argument \"blue\" for \"--color\" flag: invalid value \"blue\", valid values are auto, always and never",
            ),
            ("get --bogus", "unknown flag: --bogus"),
            ("get kubeconfig ---x", "bad flag syntax: ---x"),
            ("whoami -z", "unknown shorthand flag: 'z' in -z"),
            ("whoami -o", "flag needs an argument: 'o' in -o"),
            ("whoami --output", "flag needs an argument: --output"),
            (
                "get kubeconfig --timeout xyz",
                "invalid argument \"xyz\" for \"--timeout\" flag: time: invalid duration \"xyz\"",
            ),
            (
                "get kubeconfig --oidc-listen-port=99999",
                "invalid argument \"99999\" for \"--oidc-listen-port\" flag: strconv.ParseUint: parsing \"99999\": value out of range",
            ),
            (
                "get kubeconfig --concierge-mode foo",
                "invalid argument \"foo\" for \"--concierge-mode\" flag: invalid mode \"foo\", valid modes are TokenCredentialRequestAPI and ImpersonationProxy (and ServiceAccountToken, where the cluster offers it)",
            ),
            (
                "get kubeconfig --no-concierge=maybe",
                "invalid argument \"maybe\" for \"--no-concierge\" flag: strconv.ParseBool: parsing \"maybe\": invalid syntax",
            ),
            (
                "get kubeconfig --oidc-ca-bundle /does/not/exist",
                "invalid argument \"/does/not/exist\" for \"--oidc-ca-bundle\" flag: could not read CA bundle path: open /does/not/exist: no such file or directory",
            ),
            ("login oidc", "required flag(s) \"issuer\" not set"),
        ] {
            assert_eq!(wrong(line), message, "{line}");
        }
    }

    #[test]
    fn groups_print_their_help() {
        for line in ["", "--help", "-h", "get", "get --help", "whoami --help", "get kubeconfig -h"] {
            assert!(matches!(parse(&ROOT, &args(line)), ParseResult::Help(_)), "{line}");
        }
    }

    #[test]
    fn the_version_flag_and_the_color_flag_are_accepted_before_a_command() {
        assert_eq!(run("--version").action, Action::Version);
        for line in ["--color always whoami", "whoami --color=always", "--color=always whoami"] {
            let parsed = run(line);
            assert_eq!((parsed.action, parsed.color()), (Action::WhoAmI, ColorChoice::Always), "{line}");
        }
        assert_eq!(run("whoami").color(), ColorChoice::Auto);
    }

    #[test]
    fn every_form_of_a_flag_is_parsed() {
        for line in [
            "whoami --output json",
            "whoami --output=json",
            "whoami -o json",
            "whoami -ojson",
            "whoami -o=json",
        ] {
            assert_eq!(run(line).given("output"), Some("json"), "{line}");
        }
        let parsed = run("login static --token=a=b --credential-cache= --enable-concierge=t");
        assert_eq!(parsed.given("token"), Some("a=b"));
        assert_eq!(parsed.given("credential-cache"), Some(""));
        assert!(parsed.bool("enable-concierge"));
        assert_eq!(parsed.given("token-env"), None);
    }

    #[test]
    fn the_first_use_of_a_list_flag_replaces_the_default_and_later_uses_append() {
        let parsed = run("get kubeconfig --oidc-scopes a,b --oidc-scopes c");
        assert_eq!(
            parsed.value("oidc-scopes"),
            Some(&Value::Strings(vec!["a".into(), "b".into(), "c".into()]))
        );
    }

    #[test]
    fn the_deprecated_flag_prints_a_warning_and_works() {
        let parsed = run("get kubeconfig --concierge-namespace x");
        assert_eq!(parsed.warnings, ["Flag --concierge-namespace has been deprecated, not needed anymore"]);
    }
}
