//! The rules of the grammar.
//!
//! The rules that only delegate to the next one (conditional, or, and, relation, calculation) are
//! one function, `operators`, so that nesting costs few stack frames.

use std::sync::Arc;

use super::recovery::State;
use super::{Abort, Failure, MAX_DEPTH, Parser};
use crate::ast::{Element, Expr, Id};
use crate::token::{Kind, Set, Token};

const END: Set = Set::RULE_END;
/// The tokens with which an expression begins.
const EXPR: Set = Set::of(&[
    Kind::LeftBracket,
    Kind::LeftBrace,
    Kind::LeftParen,
    Kind::Dot,
    Kind::Minus,
    Kind::Exclamation,
    Kind::True,
    Kind::False,
    Kind::Null,
    Kind::Float,
    Kind::Int,
    Kind::Uint,
    Kind::String,
    Kind::Bytes,
    Kind::Identifier,
]);
const OPTIONAL_EXPR: Set = EXPR.or(Set::of(&[Kind::Question]));
const OPTIONAL_FIELD: Set = Set::of(&[Kind::Question, Kind::Identifier, Kind::EscapedIdentifier]);
const CALCULATION: Set = Set::of(&[Kind::Plus, Kind::Minus, Kind::Star, Kind::Slash, Kind::Percent]);
const RELATION: Set = Set::of(&[
    Kind::Equals,
    Kind::NotEquals,
    Kind::In,
    Kind::Less,
    Kind::LessEquals,
    Kind::GreaterEquals,
    Kind::Greater,
]);
/// The tokens that can follow an operand, before the rule of the operators ends.
const AFTER_OPERAND: Set = CALCULATION.or(RELATION).or(Set::of(&[Kind::And, Kind::Or])).or(END);
const AFTER_MEMBER: Set = Set::of(&[Kind::Dot, Kind::LeftBracket]).or(END);
const COMMA: Set = Set::of(&[Kind::Comma]);
const COLON: Set = Set::of(&[Kind::Colon]);
const PAREN: Set = Set::of(&[Kind::RightParen]);
const BRACKET: Set = Set::of(&[Kind::RightBracket]);
const BRACE: Set = Set::of(&[Kind::RightBrace]);

impl Parser<'_> {
    pub(super) fn start(&mut self) -> Result<Id, Abort> {
        let root = self.expr(Set::of(&[Kind::End]))?;
        match self.expect(Kind::End, END) {
            Ok(_) => {}
            Err(failure) => self.recover(&failure, State(0))?,
        }
        Ok(root)
    }

    /// Parses an expression. `follow` are the tokens that the rule of the caller expects after it.
    fn expr(&mut self, follow: Set) -> Result<Id, Abort> {
        self.depth.expressions += 1;
        if self.depth.expressions > MAX_DEPTH {
            return Err(self.too_deep());
        }
        self.follow.push(follow);
        let parsed = self.conditional();
        let parsed = match parsed {
            Ok(id) => id,
            Err(failure) => {
                self.recover(&failure, State(1))?;
                self.invalid()
            }
        };
        self.follow.pop();
        self.depth.expressions -= 1;
        Ok(parsed)
    }

    fn too_deep(&mut self) -> Abort {
        self.abort(&format!("expression recursion limit exceeded: {MAX_DEPTH}"))
    }

    fn invalid(&mut self) -> Id {
        let offset = self.token().start;
        self.add(offset, Expr::Invalid)
    }

    fn conditional(&mut self) -> Result<Id, Failure> {
        let condition = self.operators(Set::of(&[Kind::Question]).or(END))?;
        if self.kind() != Kind::Question {
            return Ok(condition);
        }
        let question = self.accept();
        let yes = self.operators(COLON)?;
        self.expect(Kind::Colon, EXPR)?;
        let no = self.expr(END)?;
        let arguments = vec![condition, yes, no];
        let call = Expr::Call { function: "_?_:_".into(), target: None, arguments };
        Ok(self.add_operation(question.start, call)?)
    }

    /// Parses operands and binary operators.
    fn operators(&mut self, follow: Set) -> Result<Id, Abort> {
        self.follow.push(follow);
        self.follow.push(AFTER_OPERAND);
        let (mut or, mut and) = (Chain::default(), Chain::default());
        let (mut relation, mut sum, mut product) = (None, None, None);
        let value = loop {
            let pending = u32::from(sum.is_some()) + u32::from(product.is_some());
            let operand = self.operand(1 + pending, 1 + u32::from(relation.is_some()))?;
            let mut value = self.fold(&mut product, operand)?;
            if matches!(self.kind(), Kind::Star | Kind::Slash | Kind::Percent) {
                product = Some((value, self.accept()));
                continue;
            }
            value = self.fold(&mut sum, value)?;
            if matches!(self.kind(), Kind::Plus | Kind::Minus) {
                sum = Some((value, self.accept()));
                continue;
            }
            value = self.fold(&mut relation, value)?;
            if RELATION.has(self.kind()) {
                relation = Some((value, self.accept()));
                continue;
            }
            and.terms.push(value);
            if self.kind() == Kind::And {
                and.operators.push(self.accept().start);
                continue;
            }
            let Chain { terms, operators } = std::mem::take(&mut and);
            or.terms.push(self.balance("_&&_", &terms, &operators));
            if self.kind() != Kind::Or {
                break self.balance("_||_", &or.terms, &or.operators);
            }
            or.operators.push(self.accept().start);
        };
        self.follow.truncate(self.follow.len() - 2);
        Ok(value)
    }

    fn fold(&mut self, pending: &mut Option<(Id, Token)>, right: Id) -> Result<Id, Abort> {
        match pending.take() {
            Some((left, operator)) => self.binary(operator, left, right),
            None => Ok(right),
        }
    }

    /// Parses an operand that is inside this many calculations and relations of its expression.
    fn operand(&mut self, calculations: u32, relations: u32) -> Result<Id, Abort> {
        self.depth.calculations += calculations;
        self.depth.relations += relations;
        if self.depth.calculations.max(self.depth.relations) > MAX_DEPTH {
            return Err(self.too_deep());
        }
        let parsed = match self.unary() {
            Ok(id) => id,
            Err(failure) => {
                self.recover(&failure, State(2))?;
                self.invalid()
            }
        };
        self.depth.calculations -= calculations;
        self.depth.relations -= relations;
        Ok(parsed)
    }

    fn unary(&mut self) -> Result<Id, Failure> {
        self.sync(EXPR)?;
        let first = self.token();
        if !EXPR.has(first.kind) {
            return Err(Failure::NoAlternative(self.position));
        }
        let (function, count) = match first.kind {
            Kind::Exclamation => {
                let mut count = 0;
                while self.kind() == Kind::Exclamation {
                    self.accept();
                    count += 1;
                    self.sync_loop(EXPR)?;
                }
                ("!_", count)
            }
            Kind::Minus if !self.is_signed_number() => {
                if !EXPR.without(Kind::Exclamation).has(self.kind_at(1)) {
                    return Err(Failure::NoAlternative(self.position + 1));
                }
                let mut count = 0;
                while self.kind() == Kind::Minus {
                    if !EXPR.without(Kind::Exclamation).has(self.kind_at(1)) {
                        return Err(Failure::NoAlternative(self.position + 1));
                    }
                    self.accept();
                    count += 1;
                }
                ("-_", count)
            }
            _ => ("", 0),
        };
        let member = self.member()?;
        if count % 2 == 0 { Ok(member) } else { Ok(self.call(first.start, function, vec![member])) }
    }

    fn is_signed_number(&self) -> bool {
        self.kind() == Kind::Minus && matches!(self.kind_at(1), Kind::Int | Kind::Float)
    }

    fn member(&mut self) -> Result<Id, Abort> {
        self.follow.push(END);
        self.follow.push(AFTER_MEMBER);
        let primary = self.primary();
        let mut operand = match primary {
            Ok(id) => id,
            Err(failure) => {
                self.recover(&failure, State(3))?;
                self.invalid()
            }
        };
        self.follow.pop();
        while matches!(self.kind(), Kind::Dot | Kind::LeftBracket) {
            let next = if self.kind() == Kind::Dot { self.dot(operand) } else { self.index(operand) };
            match next {
                Ok(id) => operand = id,
                Err(failure) => {
                    self.recover(&failure, State(4))?;
                    operand = self.invalid();
                    break;
                }
            }
        }
        self.follow.pop();
        Ok(operand)
    }

    fn dot(&mut self, operand: Id) -> Result<Id, Failure> {
        match (self.kind_at(1), self.kind_at(2)) {
            (Kind::Identifier, Kind::LeftParen) => self.member_call(operand),
            (Kind::Identifier | Kind::EscapedIdentifier | Kind::Question, _) => self.select(operand),
            _ => Err(Failure::NoAlternative(self.position + 1)),
        }
    }

    fn select(&mut self, operand: Id) -> Result<Id, Failure> {
        let dot = self.accept();
        let optional = self.kind() == Kind::Question;
        if optional {
            self.accept();
        }
        let Some((offset, field)) = self.field_name(END)? else { return Ok(operand) };
        if optional {
            let name = self.add(offset, Expr::Literal(crate::ast::Literal::String(field)));
            let arguments = vec![operand, name];
            let call = Expr::Call { function: "_?._".into(), target: None, arguments };
            return Ok(self.add_operation(dot.start, call)?);
        }
        Ok(self.add_operation(dot.start, Expr::Select { operand, field, test: false })?)
    }

    /// Parses the name of a field.
    fn field_name(&mut self, follow: Set) -> Result<Option<(u32, Arc<str>)>, Failure> {
        self.follow.push(follow);
        if let Err(failure) = self.sync(OPTIONAL_FIELD.without(Kind::Question)) {
            self.recover(&failure, State(5))?;
        }
        self.follow.pop();
        match self.kind() {
            Kind::Identifier => {
                let token = self.accept();
                Ok(Some((token.start, self.text(token).into())))
            }
            Kind::EscapedIdentifier => {
                let token = self.accept();
                self.report_later(token.start, "unsupported syntax: '`'".into());
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    fn member_call(&mut self, operand: Id) -> Result<Id, Failure> {
        self.accept();
        let name = self.accept();
        let open = self.accept();
        let arguments = self.arguments()?;
        self.expect(Kind::RightParen, AFTER_MEMBER)?;
        let name = self.text(name);
        if let Some(expanded) = self.expand_macro(open.start, &name, Some(operand), &arguments) {
            self.count_operation(expanded)?;
            return Ok(expanded);
        }
        let call = Expr::Call { function: name.into(), target: Some(operand), arguments };
        Ok(self.add_operation(open.start, call)?)
    }

    fn index(&mut self, operand: Id) -> Result<Id, Failure> {
        let open = self.accept();
        self.sync(OPTIONAL_EXPR)?;
        let optional = self.kind() == Kind::Question;
        if optional {
            self.accept();
        }
        let index = self.expr(BRACKET)?;
        self.expect(Kind::RightBracket, AFTER_MEMBER)?;
        let function = if optional { "_[?_]" } else { "_[_]" };
        let call = Expr::Call { function: function.into(), target: None, arguments: vec![operand, index] };
        Ok(self.add_operation(open.start, call)?)
    }

    fn arguments(&mut self) -> Result<Vec<Id>, Failure> {
        self.sync(EXPR.or(PAREN))?;
        let mut arguments = Vec::new();
        if !EXPR.has(self.kind()) {
            return Ok(arguments);
        }
        self.follow.push(PAREN);
        loop {
            arguments.push(self.expr(COMMA.or(END))?);
            if self.kind() != Kind::Comma {
                break;
            }
            self.accept();
        }
        self.follow.pop();
        Ok(arguments)
    }

    fn primary(&mut self) -> Result<Id, Failure> {
        self.sync(EXPR.without(Kind::Exclamation))?;
        match self.kind() {
            Kind::Dot | Kind::Identifier => self.name(),
            Kind::LeftParen => {
                self.accept();
                let inner = self.expr(PAREN)?;
                self.expect(Kind::RightParen, END)?;
                Ok(inner)
            }
            Kind::LeftBracket => self.list(),
            Kind::LeftBrace => self.map(),
            Kind::Minus if !self.is_signed_number() => Err(Failure::NoAlternative(self.position + 1)),
            kind if EXPR.without(Kind::Exclamation).has(kind) => Ok(self.literal()),
            _ => Err(Failure::NoAlternative(self.position)),
        }
    }

    /// Parses an identifier, a global call or the creation of an object.
    fn name(&mut self) -> Result<Id, Failure> {
        let first = self.token();
        let dot = first.kind == Kind::Dot;
        let ahead = usize::from(dot);
        if self.kind_at(ahead) != Kind::Identifier {
            return Err(Failure::NoAlternative(self.position + ahead));
        }
        let mut last = ahead;
        while self.kind_at(last + 1) == Kind::Dot && self.kind_at(last + 2) == Kind::Identifier {
            last += 2;
        }
        if self.kind_at(last + 1) == Kind::LeftBrace {
            return self.object(last);
        }
        if dot {
            self.accept();
        }
        let token = self.accept();
        let text = self.text(token);
        let prefix = if dot { "." } else { "" };
        if RESERVED.contains(&text.as_str()) {
            self.report_later(first.start, format!("reserved identifier: {text}"));
            if self.kind() == Kind::LeftParen {
                self.accept();
                self.arguments()?;
                self.expect(Kind::RightParen, END)?;
            }
            return Ok(self.add(first.start, Expr::Invalid));
        }
        let name = format!("{prefix}{text}");
        if self.kind() != Kind::LeftParen {
            return Ok(self.add(token.start, Expr::Ident(name.into())));
        }
        let open = self.accept();
        let arguments = self.arguments()?;
        self.expect(Kind::RightParen, END)?;
        if let Some(expanded) = self.expand_macro(open.start, &name, None, &arguments) {
            return Ok(expanded);
        }
        Ok(self.call(open.start, &name, arguments))
    }

    /// Parses the creation of an object, whose name is this many tokens long, less one.
    fn object(&mut self, last: usize) -> Result<Id, Failure> {
        let mut name = String::new();
        for _ in 0..=last {
            let token = self.accept();
            name.push_str(&self.text(token));
        }
        let open = self.accept();
        self.sync(OPTIONAL_FIELD.or(COMMA).or(BRACE))?;
        let mut fields = Vec::new();
        self.follow.push(COMMA.or(BRACE));
        if OPTIONAL_FIELD.has(self.kind())
            && let Err(failure) = self.fields(&mut fields)
        {
            self.recover(&failure, State(6))?;
        }
        self.follow.pop();
        self.close(Kind::RightBrace)?;
        Ok(self.add(open.start, Expr::Object { name: name.into(), fields }))
    }

    fn fields(&mut self, fields: &mut Vec<(Arc<str>, Element, u32)>) -> Result<(), Failure> {
        loop {
            let optional = self.kind() == Kind::Question;
            if optional {
                self.accept();
            }
            let name = self.field_name(COLON)?;
            let colon = self.expect(Kind::Colon, EXPR)?;
            let value = self.expr(COMMA.or(END))?;
            if let (Some((_, name)), Some(colon)) = (name, colon) {
                fields.push((name, Element { value, optional }, colon.start));
            }
            if self.kind() != Kind::Comma || !OPTIONAL_FIELD.has(self.kind_at(1)) {
                return Ok(());
            }
            self.accept();
        }
    }

    /// Parses an optional comma and the end of a list, a map or an object.
    fn close(&mut self, kind: Kind) -> Result<(), Failure> {
        self.sync(COMMA.or(Set::of(&[kind])))?;
        if self.kind() == Kind::Comma {
            self.accept();
        }
        self.expect(kind, END)?;
        Ok(())
    }

    fn list(&mut self) -> Result<Id, Failure> {
        let open = self.accept();
        self.sync(OPTIONAL_EXPR.or(COMMA).or(BRACKET))?;
        let mut elements = Vec::new();
        if OPTIONAL_EXPR.has(self.kind()) {
            self.follow.push(COMMA.or(BRACKET));
            loop {
                elements.push(self.element(COMMA.or(END))?);
                if self.kind() != Kind::Comma || !OPTIONAL_EXPR.has(self.kind_at(1)) {
                    break;
                }
                self.accept();
            }
            self.follow.pop();
        }
        self.close(Kind::RightBracket)?;
        Ok(self.add(open.start, Expr::List(elements)))
    }

    /// Parses an expression that can have a `?` in front of it.
    fn element(&mut self, follow: Set) -> Result<Element, Abort> {
        self.follow.push(follow);
        let element = match self.sync(OPTIONAL_EXPR) {
            Ok(()) => {
                let optional = self.kind() == Kind::Question;
                if optional {
                    self.accept();
                }
                Element { value: self.expr(END)?, optional }
            }
            Err(failure) => {
                self.recover(&failure, State(7))?;
                Element { value: self.invalid(), optional: false }
            }
        };
        self.follow.pop();
        Ok(element)
    }

    fn map(&mut self) -> Result<Id, Failure> {
        let open = self.accept();
        self.sync(OPTIONAL_EXPR.or(COMMA).or(BRACE))?;
        let mut entries = Vec::new();
        if OPTIONAL_EXPR.has(self.kind()) {
            self.follow.push(COMMA.or(BRACE));
            if let Err(failure) = self.entries(&mut entries) {
                self.recover(&failure, State(8))?;
            }
            self.follow.pop();
        }
        self.close(Kind::RightBrace)?;
        Ok(self.add(open.start, Expr::Map(entries)))
    }

    fn entries(&mut self, entries: &mut Vec<(Id, Element)>) -> Result<(), Failure> {
        loop {
            let key = self.element(COLON)?;
            self.expect(Kind::Colon, EXPR)?;
            let value = self.expr(COMMA.or(END))?;
            entries.push((key.value, Element { value, optional: key.optional }));
            if self.kind() != Kind::Comma || !OPTIONAL_EXPR.has(self.kind_at(1)) {
                return Ok(());
            }
            self.accept();
        }
    }
}

/// The terms of a chain of the same logical operator, and the offsets of the operators.
#[derive(Default)]
struct Chain {
    terms: Vec<Id>,
    operators: Vec<u32>,
}

/// Identifiers that must not be used as variables.
const RESERVED: [&str; 21] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "false",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "package",
    "namespace",
    "null",
    "return",
    "true",
    "var",
    "void",
    "while",
];
