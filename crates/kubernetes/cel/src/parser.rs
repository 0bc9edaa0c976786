//! The parser: a recursive descent that follows the rules of cel-go's ANTLR grammar.
//!
//! Syntax errors have the positions and the texts of cel-go's parser. For that, the recovery from
//! errors (`parser/recovery.rs`) follows ANTLR's default strategy, and each rule pushes the set of
//! tokens that can follow it. Depth is limited as in cel-go.
//!
//! The rules are in `parser/rules.rs`, literals in `parser/literals.rs`, macros in
//! `parser/macros.rs`.

mod builder;
mod literals;
mod macros;
mod recovery;
mod rules;

pub(crate) use macros::ACCUMULATOR;

use crate::ast::{Ast, Id};
use crate::error::{Issue, Issues};
use crate::lexer;
use crate::source::{Location, Source};
use crate::token::{Kind, Set, Token};

/// The largest number of code points of an expression.
const MAX_LENGTH: usize = 100_000;
/// The largest nesting of one rule, and of operations.
const MAX_DEPTH: u32 = 250;
/// The largest depth of the tree after the expansion of macros. cel-go has no such limit; here, it
/// bounds the stack that the checker and the interpreter use.
const MAX_TREE_DEPTH: u32 = 450;
/// The largest number of recoveries from syntax errors.
const MAX_RECOVERIES: u32 = 30;
/// The largest number of tokens that one recovery skips.
const MAX_SKIPPED: u32 = 256;
/// The largest number of syntax errors that are reported.
const MAX_REPORTS: usize = 100;

/// Parses an expression and expands its macros.
pub(crate) fn parse(source: &Source) -> Result<(Ast, Id), Issues> {
    let length = source.text.len();
    if length > MAX_LENGTH {
        let message = format!("expression code point size exceeds limit: size: {length}, limit {MAX_LENGTH}");
        return Err(Issues::new(source, vec![Issue { location: Location::NONE, message }]));
    }
    let (tokens, issues) = lexer::tokenize(source);
    let mut parser = Parser::new(source, tokens, issues);
    let root = parser.start();
    let Parser { mut issues, later_issues, ast, .. } = parser;
    issues.extend(later_issues);
    match root {
        Ok(root) if issues.is_empty() && ast.depth(root) > MAX_TREE_DEPTH => {
            let message = format!("expression recursion limit exceeded: {MAX_TREE_DEPTH}");
            Err(Issues::new(source, vec![Issue { location: Location::NONE, message }]))
        }
        Ok(root) if issues.is_empty() => Ok((ast, root)),
        _ => Err(Issues::new(source, issues)),
    }
}

/// The end of parsing because of a limit. The issue is recorded.
struct Abort;

/// The reason for which a rule ends early.
enum Failure {
    Abort,
    /// The current token is not expected.
    Mismatch(Set),
    /// No alternative of the rule begins with the tokens up to this index.
    NoAlternative(usize),
}

impl From<Abort> for Failure {
    fn from(_: Abort) -> Self {
        Self::Abort
    }
}

struct Parser<'a> {
    source: &'a Source,
    tokens: Vec<Token>,
    position: usize,
    /// The tokens that can follow each active rule.
    follow: Vec<Set>,
    depth: Depth,
    recovery: recovery::Recovery,
    issues: Vec<Issue>,
    /// The issues that cel-go finds after it has parsed the whole text.
    later_issues: Vec<Issue>,
    ast: Ast,
    /// The number of nested operations below each node, as cel-go counts them.
    operations: Vec<u32>,
}

/// The numbers of active rules.
#[derive(Default)]
struct Depth {
    expressions: u32,
    relations: u32,
    calculations: u32,
}

impl<'a> Parser<'a> {
    fn new(source: &'a Source, tokens: Vec<Token>, issues: Vec<Issue>) -> Self {
        Self {
            source,
            tokens,
            position: 0,
            follow: Vec::new(),
            depth: Depth::default(),
            recovery: recovery::Recovery::default(),
            issues,
            later_issues: Vec::new(),
            ast: Ast::default(),
            operations: Vec::new(),
        }
    }

    fn token(&self) -> Token {
        self.tokens[self.position]
    }

    /// Returns the kind of the token that is `ahead` tokens after the current one.
    fn kind_at(&self, ahead: usize) -> Kind {
        self.tokens.get(self.position + ahead).map_or(Kind::End, |token| token.kind)
    }

    fn kind(&self) -> Kind {
        self.token().kind
    }

    fn text(&self, token: Token) -> String {
        self.source.text(token.start, token.end)
    }

    /// Consumes the current token, which is as expected.
    fn accept(&mut self) -> Token {
        self.recovery.end();
        let token = self.token();
        if token.kind != Kind::End {
            self.position += 1;
        }
        token
    }

    /// Ends parsing because a limit is exceeded.
    fn abort(&mut self, message: &str) -> Abort {
        self.later_issues.push(Issue { location: Location::NONE, message: message.to_owned() });
        Abort
    }

    /// Records an issue that cel-go finds after it has parsed the whole text.
    fn report_later(&mut self, offset: u32, message: String) {
        self.later_issues.push(Issue { location: self.source.location(offset), message });
    }
}
