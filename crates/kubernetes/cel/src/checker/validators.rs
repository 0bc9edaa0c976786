//! Validates literals in an expression whose types are right.

use super::Checked;
use crate::ast::{Element, Expr, Id, Literal};
use crate::error::{Issue, Issues};
use crate::libraries::interpolation::{self, Clause, Failure, Part};
use crate::libraries::regular_expression::{self, Limits};
use crate::libraries::{duration, timestamp};
use crate::source::Source;
use crate::types::Type;

/// Validates the literals that are durations, timestamps, regular expressions and formats, and that
/// the elements of list and map literals have one type.
pub(super) fn validate(source: &Source, checked: &Checked) -> Result<(), Issues> {
    let mut validator = Validator { source, checked, issues: Vec::new() };
    let ids = checked.ast.descendants(checked.root);
    let mut mixed = vec![false; checked.ast.len()];
    for id in &ids {
        // The arguments of a format can have any types.
        if matches!(checked.ast.expr(*id), Expr::Call { function, .. } if &**function == "format") {
            for inside in checked.ast.descendants(*id) {
                mixed[inside.index()] = true;
            }
        }
    }
    for id in ids {
        match checked.ast.expr(id) {
            Expr::Call { function, target: Some(target), arguments } if &**function == "format" => {
                validator.format(id, *target, arguments);
            }
            Expr::Call { function, arguments, .. } => validator.literal(function, arguments),
            Expr::List(elements) if !mixed[id.index()] => validator.list(elements),
            Expr::Map(entries) if !mixed[id.index()] => validator.map(entries),
            _ => {}
        }
    }
    let issues = validator.issues;
    if issues.is_empty() { Ok(()) } else { Err(Issues::new(source, issues)) }
}

struct Validator<'a> {
    source: &'a Source,
    checked: &'a Checked,
    issues: Vec<Issue>,
}

impl Validator<'_> {
    fn report(&mut self, id: Id, message: String) {
        let location = self.source.location(self.checked.ast.offset(id));
        self.issues.push(Issue { location, message });
    }

    /// Validates a literal that is the first argument of a call.
    fn literal(&mut self, function: &str, arguments: &[Id]) {
        let Some(first) = arguments.first() else { return };
        let Expr::Literal(literal) = self.checked.ast.expr(*first) else { return };
        let valid = match (function, literal) {
            ("duration", Literal::String(text)) => duration::parse(text).is_some(),
            ("duration", Literal::Int(_)) => false,
            ("timestamp", Literal::String(text)) => timestamp::parse(text).is_some(),
            ("timestamp", Literal::Int(seconds)) => timestamp::from_seconds(*seconds).is_some(),
            ("matches", Literal::String(pattern)) => {
                regular_expression::compile(pattern, &Limits::LITERAL).is_ok()
            }
            _ => true,
        };
        if !valid {
            self.report(*first, format!("invalid {function} argument"));
        }
    }

    /// Validates the types of the values that a literal text formats.
    fn format(&mut self, id: Id, target: Id, arguments: &[Id]) {
        let Expr::Literal(Literal::String(text)) = self.checked.ast.expr(target) else { return };
        let [values] = arguments else { return };
        let Expr::List(values) = self.checked.ast.expr(*values) else { return };
        let mut used = 0;
        let mut at = id;
        let walked = interpolation::walk(text, |part| {
            let Part::Clause(clause) = part else { return Ok(()) };
            let value = values.get(used).ok_or(Failure::Text(format!("index {used} out of range")))?;
            used += 1;
            match self.refused(clause, value.value) {
                Some(refused) => {
                    at = refused;
                    Err(Failure::Text(clause.refusal(self.checked.types[refused.index()].name())))
                }
                None => Ok(()),
            }
        });
        match walked {
            Err(Failure::Text(message)) => self.report(at, message),
            Err(Failure::Evaluation(_)) => {}
            Ok(()) if values.len() > used => {
                let given = values.len();
                let message =
                    format!("too many arguments supplied to string.format (expected {used}, got {given})");
                self.report(id, message);
            }
            Ok(()) => {}
        }
    }

    /// Returns the value, or a part of it, whose type a clause does not accept.
    fn refused(&self, clause: Clause, value: Id) -> Option<Id> {
        let ty = &self.checked.types[value.index()];
        let accepted = match (clause, ty) {
            (_, Type::Dyn) => true,
            (Clause::Decimal | Clause::Octal, ty) => matches!(ty, Type::Int | Type::Uint),
            (Clause::Fixed(_) | Clause::Scientific(_), ty) => matches!(ty, Type::Double | Type::String),
            (Clause::Binary, ty) => matches!(ty, Type::Int | Type::Uint | Type::Bool),
            (Clause::Hexadecimal { .. }, ty) => {
                matches!(ty, Type::Int | Type::Uint | Type::String | Type::Bytes)
            }
            (Clause::String, ty) => !matches!(ty, Type::Any | Type::Opaque(..) | Type::Object(_)),
        };
        if !accepted {
            return Some(value);
        }
        if !matches!(clause, Clause::String) {
            return None;
        }
        match self.checked.ast.expr(value) {
            Expr::List(elements) => elements.iter().find_map(|element| self.refused(clause, element.value)),
            Expr::Map(entries) => entries.iter().find_map(|(key, element)| {
                self.refused(clause, *key).or_else(|| self.refused(clause, element.value))
            }),
            _ => None,
        }
    }

    fn list(&mut self, elements: &[Element]) {
        let mut first: Option<Type> = None;
        for element in elements {
            let ty = self.element_type(element.value, element.optional);
            match &first {
                None => first = Some(ty),
                Some(first) if equivalent(first, &ty) => {}
                Some(first) => {
                    let message = mismatch(first, &ty);
                    self.report(element.value, message);
                    return;
                }
            }
        }
    }

    fn map(&mut self, entries: &[(Id, Element)]) {
        let mut first: Option<(Type, Type)> = None;
        for (key, element) in entries {
            let key_type = self.element_type(*key, false);
            let value_type = self.element_type(element.value, element.optional);
            let Some((keys, values)) = &first else {
                first = Some((key_type, value_type));
                continue;
            };
            let wrong_key = (!equivalent(keys, &key_type)).then(|| mismatch(keys, &key_type));
            let wrong_value = (!equivalent(values, &value_type)).then(|| mismatch(values, &value_type));
            if let Some(message) = wrong_key {
                self.report(*key, message);
            }
            if let Some(message) = wrong_value {
                self.report(element.value, message);
            }
        }
    }

    fn element_type(&self, id: Id, optional: bool) -> Type {
        let ty = &self.checked.types[id.index()];
        match ty.optional_value() {
            Some(inner) if optional => inner.clone(),
            _ => ty.clone(),
        }
    }
}

fn mismatch(expected: &Type, found: &Type) -> String {
    format!("expected type '{expected}' but found '{found}'")
}

/// Reports whether two types are equal. The parameter of a type's type does not matter.
fn equivalent(first: &Type, second: &Type) -> bool {
    match (first, second) {
        (Type::Type(_), Type::Type(_)) => true,
        (Type::List(a), Type::List(b)) => equivalent(a, b),
        (Type::Map(a), Type::Map(b)) => equivalent(&a.0, &b.0) && equivalent(&a.1, &b.1),
        (Type::Opaque(a, first), Type::Opaque(b, second)) => {
            a == b
                && first.len() == second.len()
                && first.iter().zip(second.iter()).all(|(a, b)| equivalent(a, b))
        }
        _ => first == second,
    }
}
