//! Variables, fields, indexes and conditionals: the parts of an expression that cel-go calls
//! attributes.
//!
//! An attribute costs 1, and each field or index 1. An attribute that is a branch of a conditional
//! or an index costs only its fields.

use super::{Evaluation, Interpreter};
use crate::ast::{Expr, Id, Literal};
use crate::error::EvaluationError;
use crate::value::{Key, Value, exact_int};

/// A part of an attribute.
struct Qualifier {
    operand: Id,
    key: QualifierKey,
    optional: bool,
}

enum QualifierKey {
    Field(std::sync::Arc<str>),
    Index(Id),
}

impl Interpreter<'_> {
    /// Evaluates an attribute. `base` is set if the attribute itself has a cost.
    pub(super) fn attribute(&mut self, id: Id, base: bool) -> Evaluation {
        match self.expr(id) {
            Expr::Ident(_) => {
                self.usage.charge(u64::from(base))?;
                self.variable(id)
            }
            Expr::Call { function, arguments, .. } if &**function == "_?_:_" => self.conditional(arguments),
            _ => self.qualified(id, base),
        }
    }

    fn conditional(&mut self, arguments: &[Id]) -> Evaluation {
        let [condition, yes, no] = arguments else { return Err(EvaluationError::no_overload()) };
        match self.eval(*condition)? {
            Value::Bool(true) => self.branch(*yes),
            Value::Bool(false) => self.branch(*no),
            _ => Err(EvaluationError::no_overload()),
        }
    }

    /// Evaluates a branch of a conditional, or an index.
    fn branch(&mut self, id: Id) -> Evaluation {
        if self.is_attribute(id) {
            self.usage.work(1)?;
            self.attribute(id, false)
        } else {
            self.eval(id)
        }
    }

    fn is_attribute(&self, id: Id) -> bool {
        if self.constant(id).is_some() {
            return false;
        }
        match self.expr(id) {
            Expr::Ident(_) => true,
            Expr::Select { test, .. } => !test,
            Expr::Call { function, target: None, .. } => {
                matches!(&**function, "_?_:_" | "_[_]" | "_?._" | "_[?_]")
            }
            _ => false,
        }
    }

    /// Evaluates the operand of a field or of an index.
    fn operand(&mut self, id: Id, base: bool) -> Evaluation {
        if self.is_attribute(id) {
            self.usage.work(1)?;
            return self.attribute(id, base);
        }
        let value = self.eval(id)?;
        self.usage.charge(u64::from(base))?;
        Ok(value)
    }

    fn qualifier(&self, id: Id) -> Option<Qualifier> {
        match self.expr(id) {
            Expr::Select { operand, field, .. } => {
                let key = QualifierKey::Field(field.clone());
                Some(Qualifier { operand: *operand, key, optional: false })
            }
            Expr::Call { function, arguments, .. } => {
                let [operand, key] = arguments[..] else { return None };
                let key = match self.expr(key) {
                    Expr::Literal(Literal::String(field)) => QualifierKey::Field(field.clone()),
                    _ => QualifierKey::Index(key),
                };
                Some(Qualifier { operand, key, optional: &**function != "_[_]" })
            }
            _ => None,
        }
    }

    fn qualified(&mut self, id: Id, base: bool) -> Evaluation {
        let Some(Qualifier { operand, key, optional }) = self.qualifier(id) else {
            return Err(EvaluationError::no_overload());
        };
        let value = self.operand(operand, base)?;
        let (value, optional) = match value {
            Value::Optional(None) => return Ok(Value::Optional(None)),
            Value::Optional(Some(value)) => (value.as_ref().clone(), true),
            other => (other, optional),
        };
        let key = match key {
            QualifierKey::Field(field) => Value::String(field),
            QualifierKey::Index(id) => self.branch(id)?,
        };
        if optional {
            return Ok(match find(&value, &key)? {
                Some(found) => {
                    self.usage.charge(1)?;
                    if matches!(found, Value::Optional(_)) { found } else { Value::some(found) }
                }
                None => Value::Optional(None),
            });
        }
        self.usage.charge(1)?;
        select(&value, &key)
    }

    /// Evaluates `has(operand.field)`.
    pub(super) fn test(&mut self, operand: Id, field: &std::sync::Arc<str>) -> Evaluation {
        let value = match self.operand(operand, true) {
            Ok(value) => value,
            Err(error) => {
                self.usage.refund(1);
                return Err(error);
            }
        };
        let value = match value {
            Value::Optional(None) => return Ok(Value::Bool(false)),
            Value::Optional(Some(value)) => value.as_ref().clone(),
            other => other,
        };
        Ok(Value::Bool(find(&value, &Value::String(field.clone()))?.is_some()))
    }
}

/// Returns the element that an index or a key selects.
fn select(value: &Value, key: &Value) -> Evaluation {
    match (value, find(value, key)?) {
        (_, Some(found)) => Ok(found),
        (Value::List(_), None) => {
            Err(EvaluationError::failed(format!("index out of bounds: {}", key_text(key))))
        }
        _ => Err(EvaluationError::NoSuchKey(key_text(key))),
    }
}

/// Returns the element that an index or a key selects, if there is one.
fn find(value: &Value, key: &Value) -> Result<Option<Value>, EvaluationError> {
    match value {
        Value::Map(map) => Ok(map.get(key).cloned()),
        Value::List(elements) => {
            let index = list_index(key)?;
            Ok(index.and_then(|index| elements.get(index)).cloned())
        }
        _ => Ok(None),
    }
}

fn list_index(key: &Value) -> Result<Option<usize>, EvaluationError> {
    match key {
        Value::Int(index) => Ok(usize::try_from(*index).ok()),
        Value::Uint(index) => Ok(usize::try_from(*index).ok()),
        Value::Double(index) => match exact_int(*index) {
            Some(index) => Ok(usize::try_from(index).ok()),
            None => {
                let text = format!("unsupported index value {} in list", key_text(key));
                Err(EvaluationError::failed(text))
            }
        },
        other => {
            let text = format!("unsupported index type '{}' in list", other.type_name());
            Err(EvaluationError::failed(text))
        }
    }
}

fn key_text(key: &Value) -> String {
    Key::new(key).map_or_else(|| key.type_name().to_owned(), |key| key.text())
}
