//! The type checker. Its rules and its messages are those of cel-go.
//!
//! Types are unified in `checker/unify.rs`, calls are resolved in `checker/calls.rs`, and literal
//! arguments are validated in `checker/validators.rs`.

mod calls;
mod unify;
mod validators;

use std::sync::Arc;

use unify::{Bindings, MAX_TYPE_SIZE, most_general};

use crate::ast::{Ast, Comprehension, Element, Expr, Id, Literal};
use crate::environment::{Environment, type_of_name};
use crate::error::{Issue, Issues};
use crate::source::Source;
use crate::types::Type;

/// The largest number of issues that are kept.
const MAX_ISSUES: usize = 1_000;

/// A tree whose types are known.
pub(crate) struct Checked {
    pub(crate) ast: Ast,
    pub(crate) root: Id,
    pub(crate) types: Vec<Type>,
    /// The overload of each call, if only one fits.
    pub(crate) overloads: Vec<Option<&'static str>>,
    /// The thing that each identifier names.
    pub(crate) names: Vec<Option<Name>>,
}

impl Checked {
    /// Returns the type of the result.
    pub(crate) fn output_type(&self) -> &Type {
        &self.types[self.root.index()]
    }
}

/// The thing that an identifier names.
#[derive(Clone, Debug)]
pub(crate) enum Name {
    /// A variable of a loop: its place on the stack of these variables.
    Local(u32),
    /// A variable of the environment.
    Variable(Arc<str>),
    /// A type.
    Type(Type),
}

/// Checks the types of an expression.
pub(crate) fn check(
    source: &Source,
    environment: &Environment,
    ast: Ast,
    root: Id,
) -> Result<Checked, Issues> {
    let count = ast.len();
    let mut checker = Checker {
        source,
        environment,
        ast,
        bindings: Bindings::default(),
        scopes: Vec::new(),
        types: vec![None; count],
        overloads: vec![None; count],
        names: vec![None; count],
        issues: Vec::new(),
        issues_of: vec![0..0; count],
    };
    checker.check(root);
    if !checker.issues.is_empty() {
        return Err(Issues::new(source, checker.issues));
    }
    let types = checker.types.iter();
    let types = types.map(|ty| ty.as_ref().map_or(Type::Dyn, |ty| checker.bindings.substitute(ty, true)));
    let checked = Checked {
        types: types.collect(),
        ast: checker.ast,
        root,
        overloads: checker.overloads,
        names: checker.names,
    };
    validators::validate(source, &checked)?;
    Ok(checked)
}

struct Checker<'a> {
    source: &'a Source,
    environment: &'a Environment,
    ast: Ast,
    bindings: Bindings,
    /// The variables of loops, the innermost last.
    scopes: Vec<(Arc<str>, Type)>,
    types: Vec<Option<Type>>,
    overloads: Vec<Option<&'static str>>,
    names: Vec<Option<Name>>,
    issues: Vec<Issue>,
    /// The issues that were found below each node.
    issues_of: Vec<std::ops::Range<usize>>,
}

impl Checker<'_> {
    fn report(&mut self, at: Id, message: String) {
        self.report_at(self.ast.offset(at), message);
    }

    fn report_at(&mut self, offset: u32, message: String) {
        if self.issues.len() < MAX_ISSUES {
            self.issues.push(Issue { location: self.source.location(offset), message });
        }
    }

    fn report_mismatch(&mut self, at: Id, expected: &Type, found: &Type) {
        self.report(at, format!("expected type '{expected}' but found '{found}'"));
    }

    fn report_undeclared(&mut self, at: Id, name: &str) {
        self.report(at, format!("undeclared reference to '{name}' (in container '')"));
    }

    fn type_of(&self, id: Id) -> Type {
        self.types[id.index()].clone().unwrap_or(Type::Error)
    }

    fn set_type(&mut self, id: Id, ty: Type) {
        let ty = if ty.size(MAX_TYPE_SIZE) >= MAX_TYPE_SIZE {
            self.report(id, format!("type of the expression has more than {MAX_TYPE_SIZE} parts"));
            Type::Error
        } else {
            ty
        };
        self.types[id.index()] = Some(ty);
    }

    fn set_substituted(&mut self, id: Id, ty: &Type) {
        let ty = self.bindings.substitute(ty, false);
        self.set_type(id, ty);
    }

    fn check(&mut self, id: Id) {
        if self.types[id.index()].is_some() {
            // An expression that a macro repeats: its issues count again, as in cel-go.
            for index in self.issues_of[id.index()].clone() {
                let Issue { location, message } = &self.issues[index];
                let issue = Issue { location: *location, message: message.clone() };
                if self.issues.len() < MAX_ISSUES {
                    self.issues.push(issue);
                }
            }
            return;
        }
        let before = self.issues.len();
        self.check_new(id);
        self.issues_of[id.index()] = before..self.issues.len();
    }

    fn check_new(&mut self, id: Id) {
        match self.ast.expr(id) {
            Expr::Invalid => self.set_type(id, Type::Error),
            Expr::Literal(literal) => {
                let ty = match literal {
                    Literal::Null => Type::Null,
                    Literal::Bool(_) => Type::Bool,
                    Literal::Int(_) => Type::Int,
                    Literal::Uint(_) => Type::Uint,
                    Literal::Double(_) => Type::Double,
                    Literal::String(_) => Type::String,
                    Literal::Bytes(_) => Type::Bytes,
                };
                self.set_type(id, ty);
            }
            Expr::Ident(name) => {
                let name = name.clone();
                self.check_ident(id, &name);
            }
            Expr::Select { .. } => self.check_select(id),
            Expr::Call { .. } => self.check_call(id),
            Expr::List(elements) => {
                let elements = elements.clone();
                self.check_list(id, &elements);
            }
            Expr::Map(entries) => {
                let entries = entries.clone();
                self.check_map(id, &entries);
            }
            Expr::Object { .. } => self.check_object(id),
            Expr::Comprehension(_) => self.check_comprehension(id),
        }
    }

    /// Finds the thing with this name, which can begin with a dot.
    fn lookup(&self, name: &str) -> Option<(Name, Type)> {
        let name = name.strip_prefix('.').unwrap_or(name);
        let local = self.scopes.iter().enumerate().rev().find(|(_, (scoped, _))| **scoped == *name);
        if let Some((index, (_, ty))) = local {
            return Some((Name::Local(crate::source::offset(index)), ty.clone()));
        }
        let ty = self.environment.lookup(name)?;
        if self.environment.is_variable(name) {
            return Some((Name::Variable(name.into()), ty));
        }
        Some((Name::Type(type_of_name(name)?), ty))
    }

    fn check_ident(&mut self, id: Id, name: &str) {
        match self.lookup(name) {
            Some((found, ty)) => {
                self.names[id.index()] = Some(found);
                self.set_type(id, ty);
            }
            None => {
                self.set_type(id, Type::Error);
                self.report_undeclared(id, name);
            }
        }
    }

    fn check_select(&mut self, id: Id) {
        let Expr::Select { operand, field, test } = self.ast.expr(id) else { return };
        let (operand, field, test) = (*operand, field.clone(), *test);
        if !test
            && let Some(name) = self.ast.qualified_name(id)
            && let Some((found, ty)) = self.lookup(&name)
        {
            self.names[id.index()] = Some(found);
            self.ast.replace(id, Expr::Ident(name.into()));
            self.set_type(id, ty);
            return;
        }
        let selected = self.check_field(id, operand, &field, false);
        let ty = if test { Type::Bool } else { selected };
        self.set_substituted(id, &ty);
    }

    /// Checks the selection of a field, and returns its type.
    fn check_field(&mut self, id: Id, operand: Id, field: &str, optional: bool) -> Type {
        self.check(operand);
        let operand_type = self.bindings.substitute(&self.type_of(operand), false);
        let inner = operand_type.optional_value();
        let target = inner.unwrap_or(&operand_type);
        let selected = match target {
            Type::Map(entry) => entry.1.clone(),
            Type::Object(name) => match self.environment.fields(name).map(|fields| fields.get(field)) {
                Some(Some(ty)) => ty.clone(),
                Some(None) => {
                    self.report(id, format!("undefined field '{field}'"));
                    Type::Error
                }
                None => {
                    self.report(id, format!("unexpected failed resolution of '{name}'"));
                    Type::Error
                }
            },
            Type::Parameter(_) => {
                self.bindings.assignable(&Type::Dyn, target);
                Type::Dyn
            }
            other => {
                if !other.is_dyn_or_error() {
                    self.report(id, format!("type '{other}' does not support field selection"));
                }
                Type::Dyn
            }
        };
        if inner.is_some() || optional { Type::optional(selected) } else { selected }
    }

    /// Returns the type of an element, whose type must be optional if the element is.
    fn element_type(&mut self, element: Element) -> Type {
        let ty = self.type_of(element.value);
        if !element.optional {
            return ty;
        }
        if let Some(inner) = ty.optional_value() {
            return inner.clone();
        }
        if !ty.is_dyn() {
            self.report_mismatch(element.value, &Type::optional(ty.clone()), &ty);
        }
        ty
    }

    /// Returns the common type of the elements so far and of the next one.
    fn join(&mut self, previous: Option<Type>, current: Type) -> Type {
        let Some(previous) = previous else { return current };
        if self.bindings.assignable(&previous, &current) {
            return most_general(&previous, &current);
        }
        Type::Dyn
    }

    fn check_list(&mut self, id: Id, elements: &[Element]) {
        let mut joined = None;
        for element in elements {
            self.check(element.value);
            let ty = self.element_type(*element);
            joined = Some(self.join(joined, ty));
        }
        let joined = joined.unwrap_or_else(|| self.bindings.fresh());
        self.set_type(id, Type::list(joined));
    }

    fn check_map(&mut self, id: Id, entries: &[(Id, Element)]) {
        let (mut keys, mut values) = (None, None);
        for (key, element) in entries {
            self.check(*key);
            keys = Some(self.join(keys, self.type_of(*key)));
            self.check(element.value);
            let ty = self.element_type(*element);
            values = Some(self.join(values, ty));
        }
        let keys = keys.unwrap_or_else(|| self.bindings.fresh());
        let values = values.unwrap_or_else(|| self.bindings.fresh());
        self.set_type(id, Type::map(keys, values));
    }

    fn check_object(&mut self, id: Id) {
        let Expr::Object { name, fields } = self.ast.expr(id) else { return };
        let (name, fields) = (name.clone(), fields.clone());
        let plain = name.strip_prefix('.').unwrap_or(&name);
        let Some(declared) = self.environment.fields(plain).cloned() else {
            match self.lookup(plain) {
                Some((Name::Type(ty), _)) => {
                    self.report(id, format!("'{}' is not a message type", ty.name()));
                    self.check_fields(&fields, |field| format!("undefined field '{field}'"));
                }
                Some((_, ty)) => {
                    self.report(id, format!("'{}' is not a type", ty.name()));
                    self.check_fields(&fields, |_| format!("unexpected failed resolution of '{plain}'"));
                }
                None => self.report_undeclared(id, &name),
            }
            self.set_type(id, Type::Error);
            return;
        };
        self.set_type(id, Type::object(plain));
        for (field, element, offset) in fields {
            self.check(element.value);
            let expected = declared.get(&field).cloned().unwrap_or_else(|| {
                self.report_at(offset, format!("undefined field '{field}'"));
                Type::Error
            });
            let found = self.element_type(element);
            if !self.bindings.assignable(&expected, &found) {
                let message = format!(
                    "expected type of field '{field}' is '{expected}' but provided type is '{found}'"
                );
                self.report_at(offset, message);
            }
        }
    }

    /// Checks the values of fields that do not exist.
    fn check_fields(&mut self, fields: &[(Arc<str>, Element, u32)], message: impl Fn(&str) -> String) {
        for (field, element, offset) in fields {
            self.check(element.value);
            self.report_at(*offset, message(field));
        }
    }

    fn check_comprehension(&mut self, id: Id) {
        let Expr::Comprehension(parts) = self.ast.expr(id) else { return };
        let Comprehension { range, variable, second_variable, accumulator, initial, condition, step, result } =
            (**parts).clone();
        self.check(range);
        self.check(initial);
        let range_type = self.bindings.substitute(&self.type_of(range), false);
        let accumulated = self.type_of(initial);
        self.scopes.push((accumulator, accumulated.clone()));
        let two = second_variable.is_some();
        let (first, second) = match &range_type {
            Type::List(element) if two => (Type::Int, (**element).clone()),
            Type::List(element) => ((**element).clone(), Type::Dyn),
            Type::Map(entry) => entry.as_ref().clone(),
            Type::Dyn | Type::Error | Type::Parameter(_) => {
                self.bindings.assignable(&Type::Dyn, &range_type);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.report(range, message);
                (Type::Error, Type::Error)
            }
        };
        self.scopes.push((variable, first));
        if let Some(variable) = second_variable {
            self.scopes.push((variable, second));
        }
        self.check(condition);
        self.assert_type(condition, &Type::Bool);
        self.check(step);
        self.assert_type(step, &accumulated);
        self.scopes.truncate(self.scopes.len() - if two { 2 } else { 1 });
        self.check(result);
        self.scopes.pop();
        let ty = self.type_of(result);
        self.set_substituted(id, &ty);
    }

    fn assert_type(&mut self, id: Id, expected: &Type) {
        let found = self.type_of(id);
        if !self.bindings.assignable(expected, &found) {
            self.report_mismatch(id, expected, &found);
        }
    }
}
