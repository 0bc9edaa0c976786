//! The translation from Go's syntax of regular expressions.

/// The largest count of a repetition, as in Go.
const MAX_REPEAT: u32 = 1_000;

/// Translates an expression. The error is that of Go, without its prefix.
pub(super) fn translate(pattern: &str) -> Result<String, String> {
    let mut translator =
        Translator { text: pattern.chars().collect(), at: 0, output: String::new(), groups: 0 };
    translator.run(pattern)?;
    Ok(translator.output)
}

struct Translator {
    text: Vec<char>,
    at: usize,
    output: String,
    groups: usize,
}

impl Translator {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.text.get(self.at + ahead).copied()
    }

    fn slice(&self, from: usize, to: usize) -> String {
        self.text[from.min(self.text.len())..to.min(self.text.len())].iter().collect()
    }

    fn starts_with(&self, prefix: &str) -> bool {
        prefix.chars().enumerate().all(|(index, c)| self.peek(index) == Some(c))
    }

    fn run(&mut self, pattern: &str) -> Result<(), String> {
        // The start of the item that a repetition applies to, and of the last repetition.
        let mut item = false;
        let mut repetition: Option<usize> = None;
        while let Some(c) = self.peek(0) {
            let start = self.at;
            match c {
                '*' | '+' | '?' => {
                    self.at += 1;
                    self.repeat(start, item, repetition, &c.to_string())?;
                    repetition = Some(start);
                    continue;
                }
                '{' => {
                    if let Some(text) = self.counted()? {
                        self.repeat(start, item, repetition, &text)?;
                        repetition = Some(start);
                        continue;
                    }
                    self.at += 1;
                    self.output.push_str("\\{");
                }
                '(' => {
                    self.group(pattern)?;
                    item = false;
                    repetition = None;
                    continue;
                }
                ')' => {
                    if self.groups == 0 {
                        return Err(format!("unexpected ): `{pattern}`"));
                    }
                    self.groups -= 1;
                    self.at += 1;
                    self.output.push(')');
                }
                '|' => {
                    self.at += 1;
                    self.output.push('|');
                    item = false;
                    repetition = None;
                    continue;
                }
                '[' => self.class()?,
                '\\' => self.escape()?,
                '}' | ']' | '/' | '&' | '~' | '-' | '#' => {
                    self.at += 1;
                    self.output.push_str(&regex_syntax::escape(&c.to_string()));
                }
                _ => {
                    self.at += 1;
                    self.output.push(c);
                }
            }
            item = true;
            repetition = None;
        }
        if self.groups > 0 {
            return Err(format!("missing closing ): `{pattern}`"));
        }
        Ok(())
    }

    fn repeat(
        &mut self,
        start: usize,
        item: bool,
        repetition: Option<usize>,
        text: &str,
    ) -> Result<(), String> {
        let lazy = self.peek(0) == Some('?');
        if lazy {
            self.at += 1;
        }
        if let Some(first) = repetition {
            let operator = self.slice(first, self.at);
            return Err(format!("invalid nested repetition operator: `{operator}`"));
        }
        if !item {
            return Err(format!("missing argument to repetition operator: `{}`", self.slice(start, self.at)));
        }
        self.output.push_str(text);
        if lazy {
            self.output.push('?');
        }
        Ok(())
    }

    /// Reads a repetition such as `{2,3}`. Returns `None` if the brace is a plain character.
    fn counted(&mut self) -> Result<Option<String>, String> {
        let is_count = |c: &&char| c.is_ascii_digit() || **c == ',';
        let inner: String = self.text[self.at + 1..].iter().take_while(is_count).collect();
        if self.peek(inner.len() + 1) != Some('}') {
            return Ok(None);
        }
        let whole = format!("{{{inner}}}");
        let (low, high) = inner.split_once(',').map_or((&*inner, Some(&*inner)), |(low, high)| {
            (low, if high.is_empty() { None } else { Some(high) })
        });
        let number = |text: &str| {
            let valid = !text.is_empty()
                && text.bytes().all(|byte| byte.is_ascii_digit())
                && (text.len() == 1 || !text.starts_with('0'));
            valid.then(|| text.parse().unwrap_or(u32::MAX))
        };
        let Some(low) = number(low) else { return Ok(None) };
        let high = match high.map(number) {
            Some(None) => return Ok(None),
            Some(high) => high,
            None => None,
        };
        if low > MAX_REPEAT || high.is_some_and(|high| high > MAX_REPEAT || high < low) {
            return Err(format!("invalid repeat count: `{whole}`"));
        }
        self.at += whole.len();
        Ok(Some(whole))
    }

    fn group(&mut self, pattern: &str) -> Result<(), String> {
        self.groups += 1;
        if self.peek(1) != Some('?') {
            self.at += 1;
            self.output.push('(');
            return Ok(());
        }
        for prefix in ["(?P<", "(?<"] {
            if !self.starts_with(prefix) || (prefix == "(?<" && matches!(self.peek(3), Some('=' | '!'))) {
                continue;
            }
            let from = self.at + prefix.len();
            let Some(length) = self.text[from..].iter().position(|c| *c == '>') else {
                return Err(format!("invalid named capture: `{}`", self.slice(self.at, self.text.len())));
            };
            let name = self.slice(from, from + length);
            if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
                let whole = self.slice(self.at, from + length + 1);
                return Err(format!("invalid named capture: `{whole}`"));
            }
            // Names have no use here, and need not be valid in both syntaxes.
            self.output.push('(');
            self.at = from + length + 1;
            return Ok(());
        }
        let start = self.at;
        let mut end = start + 2;
        let mut seen = false;
        let mut negated = false;
        loop {
            let c = self.text.get(end).copied();
            end += 1;
            match c {
                Some('i' | 'm' | 's' | 'U') => seen = true,
                Some('-') if !negated => {
                    negated = true;
                    seen = false;
                }
                Some(':' | ')') if seen || !negated => {
                    self.output.push_str(&self.slice(start, end));
                    self.at = end;
                    if c == Some(')') {
                        self.groups -= 1;
                    }
                    return Ok(());
                }
                None => {
                    return Err(format!("missing closing ): `{pattern}`"));
                }
                _ => {
                    return Err(format!("invalid or unsupported Perl syntax: `{}`", self.slice(start, end)));
                }
            }
        }
    }

    fn escape(&mut self) -> Result<(), String> {
        let start = self.at;
        let Some(c) = self.peek(1) else {
            return Err("trailing backslash at end of expression: ``".into());
        };
        self.at += 2;
        match c {
            'Q' => {
                let rest = self.slice(self.at, self.text.len());
                let literal = rest.split("\\E").next().unwrap_or_default();
                self.output.push_str(&regex_syntax::escape(literal));
                self.at += literal.chars().count();
                if self.starts_with("\\E") {
                    self.at += 2;
                }
            }
            'A' | 'z' => self.output.push_str(&format!("\\{c}")),
            'b' | 'B' => self.output.push_str(&format!("(?-u:\\{c})")),
            'C' => self.output.push_str("(?s:.)"),
            'd' | 's' | 'w' => self.output.push_str(&format!("[{}]", shorthand(c))),
            'D' | 'S' | 'W' => {
                self.output.push_str(&format!("[^{}]", shorthand(c.to_ascii_lowercase())));
            }
            _ => {
                self.at = start;
                let escaped = self.character()?;
                self.output.push_str(&escaped);
            }
        }
        Ok(())
    }

    /// Reads an escape sequence for one character or for a class of Unicode.
    fn character(&mut self) -> Result<String, String> {
        let start = self.at;
        let invalid =
            |this: &Self, end: usize| Err(format!("invalid escape sequence: `{}`", this.slice(start, end)));
        let Some(c) = self.peek(1) else {
            return Err("trailing backslash at end of expression: ``".into());
        };
        self.at += 2;
        let code = match c {
            'p' | 'P' => return self.unicode_class(start),
            '0'..='7' => {
                let more =
                    self.text[self.at..].iter().take(2).take_while(|c| ('0'..='7').contains(*c)).count();
                if c != '0' && more == 0 {
                    return invalid(self, self.at);
                }
                let digits = self.slice(self.at - 1, self.at + more);
                self.at += more;
                u32::from_str_radix(&digits, 8).unwrap_or(0)
            }
            'x' => {
                let (digits, length) = if self.peek(0) == Some('{') {
                    let inner = self.text[self.at + 1..].iter().take_while(|c| c.is_ascii_hexdigit()).count();
                    if self.peek(inner + 1) != Some('}') || inner == 0 {
                        return invalid(self, self.at + inner + 2);
                    }
                    (self.slice(self.at + 1, self.at + 1 + inner), inner + 2)
                } else {
                    (self.slice(self.at, self.at + 2), 2)
                };
                let parsed = u32::from_str_radix(&digits, 16).ok().filter(|code| *code <= 0x10_ffff);
                let Some(code) = parsed.filter(|_| digits.len() >= 2 || length > 2) else {
                    return invalid(self, self.at + length);
                };
                self.at += length;
                code
            }
            'a' => 7,
            'f' => 12,
            'n' => 10,
            'r' => 13,
            't' => 9,
            'v' => 11,
            c if c.is_ascii_punctuation() => return Ok(regex_syntax::escape(&c.to_string())),
            _ => return invalid(self, self.at),
        };
        Ok(format!("\\x{{{code:x}}}"))
    }

    fn unicode_class(&mut self, start: usize) -> Result<String, String> {
        let end = match self.peek(0) {
            Some('{') => match self.text[self.at..].iter().position(|c| *c == '}') {
                Some(length) => self.at + length + 1,
                None => {
                    let rest = self.slice(start, self.text.len());
                    return Err(format!("invalid character class range: `{rest}`"));
                }
            },
            Some(_) => self.at + 1,
            None => return Err(format!("invalid character class range: `{}`", self.slice(start, self.at))),
        };
        let class = self.slice(start, end);
        self.at = end;
        // Most names of classes are those of the crate.
        if !is_valid(&class) {
            return Err(format!("invalid character class range: `{class}`"));
        }
        Ok(class)
    }

    /// Translates a class such as `[^a-z]`.
    fn class(&mut self) -> Result<(), String> {
        let start = self.at;
        self.at += 1;
        self.output.push('[');
        if self.peek(0) == Some('^') {
            self.at += 1;
            self.output.push('^');
        }
        let mut first = true;
        loop {
            let Some(c) = self.peek(0) else {
                return Err(format!("missing closing ]: `{}`", self.slice(start, self.text.len())));
            };
            if c == ']' && !first {
                self.at += 1;
                self.output.push(']');
                return Ok(());
            }
            first = false;
            if self.starts_with("[:")
                && let Some(length) = self.text[self.at + 2..].windows(2).position(|end| end == [':', ']'])
            {
                let name = self.slice(self.at, self.at + length + 4);
                if !is_valid(&format!("[{name}]")) {
                    return Err(format!("invalid character class range: `{name}`"));
                }
                self.output.push_str(&name);
                self.at += name.chars().count();
                continue;
            }
            if c == '\\' && matches!(self.peek(1), Some('d' | 's' | 'w' | 'D' | 'S' | 'W' | 'p' | 'P')) {
                let negated = self.peek(1).is_some_and(|c| c.is_ascii_uppercase());
                let kind = self.peek(1).unwrap_or('d').to_ascii_lowercase();
                if kind == 'p' {
                    let class = self.character()?;
                    self.output.push_str(&class);
                } else {
                    self.at += 2;
                    let set = shorthand(kind);
                    let set = if negated { format!("[^{set}]") } else { set.to_owned() };
                    self.output.push_str(&set);
                }
                continue;
            }
            let from = self.at;
            let low = self.class_character()?;
            if self.peek(0) == Some('-') && self.peek(1).is_some_and(|c| c != ']') {
                self.at += 1;
                let high = self.class_character()?;
                self.output.push_str(&low);
                self.output.push('-');
                self.output.push_str(&high);
                if !is_valid(&format!("[{low}-{high}]")) {
                    let range = self.slice(from, self.at);
                    return Err(format!("invalid character class range: `{range}`"));
                }
            } else {
                self.output.push_str(&low);
            }
        }
    }

    fn class_character(&mut self) -> Result<String, String> {
        match self.peek(0) {
            Some('\\') => self.character(),
            Some(c) => {
                self.at += 1;
                // Every character of ASCII has a form that has no meaning in the crate's classes.
                Ok(if c.is_ascii() { format!("\\x{{{:x}}}", u32::from(c)) } else { c.to_string() })
            }
            None => Ok(String::new()),
        }
    }
}

/// Reports whether a class is valid for the engine.
fn is_valid(class: &str) -> bool {
    regex_syntax::parse(class).is_ok()
}

/// Returns the characters of a Perl class. Go's have ASCII characters only.
fn shorthand(class: char) -> &'static str {
    match class {
        'd' => "0-9",
        's' => "\\t\\n\\x0c\\r ",
        _ => "0-9A-Za-z_",
    }
}
