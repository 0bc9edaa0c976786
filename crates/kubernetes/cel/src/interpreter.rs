//! The interpreter: walks the tree, and counts cost as cel-go does.
//!
//! Fields and indexes are in `interpreter/attributes.rs`, loops in `interpreter/loops.rs`. Each
//! kind of node has its own function, so that the stack frames of nested nodes are small.

mod attributes;
mod loops;

use std::collections::BTreeMap;

use crate::ast::{Element, Expr, Id};
use crate::budget::Usage;
use crate::checker::Name;
use crate::cost;
use crate::error::EvaluationError;
use crate::parser::ACCUMULATOR;
use crate::program::Program;
use crate::value::{Key, Map, Value};

pub(crate) type Evaluation = Result<Value, EvaluationError>;

/// The size that is counted for an element of a list or a map.
pub(crate) const ELEMENT_SIZE: usize = 32;

/// Evaluates a program.
pub(crate) fn evaluate(program: &Program, variables: &[(&str, Value)], usage: &mut Usage) -> Evaluation {
    let mut interpreter = Interpreter { program, variables, locals: Vec::new(), usage };
    interpreter.eval(program.checked.root)
}

struct Interpreter<'a> {
    program: &'a Program,
    variables: &'a [(&'a str, Value)],
    /// The variables of loops, the innermost last. The result of a loop can be an error.
    locals: Vec<Evaluation>,
    usage: &'a mut Usage,
}

impl<'a> Interpreter<'a> {
    fn expr(&self, id: Id) -> &'a Expr {
        self.program.checked.ast.expr(id)
    }

    fn constant(&self, id: Id) -> Option<&'a Value> {
        self.program.plan.constants[id.index()].as_ref()
    }

    fn eval(&mut self, id: Id) -> Evaluation {
        self.usage.work(1)?;
        if let Some(constant) = self.constant(id) {
            return Ok(constant.clone());
        }
        match self.expr(id) {
            Expr::Invalid | Expr::Literal(_) => Err(EvaluationError::failed("invalid expression")),
            Expr::Ident(_) => {
                self.usage.charge(1)?;
                self.variable(id)
            }
            Expr::Select { operand, field, test: true } => self.test(*operand, field),
            Expr::Select { .. } => self.attribute(id, true),
            Expr::Call { function, target, arguments } => self.call(id, function, *target, arguments),
            Expr::List(elements) => self.list(elements),
            Expr::Map(entries) => self.map(entries),
            Expr::Object { name, fields } => {
                for (_, element, _) in fields {
                    self.eval(element.value)?;
                }
                self.usage.charge(cost::CREATE_OBJECT)?;
                let name = name.strip_prefix('.').unwrap_or(name);
                Err(EvaluationError::failed(format!("unknown type '{name}'")))
            }
            Expr::Comprehension(parts) => self.comprehension(parts),
        }
    }

    fn variable(&mut self, id: Id) -> Evaluation {
        match &self.program.checked.names[id.index()] {
            Some(Name::Local(index)) => match self.locals.get(*index as usize) {
                Some(value) => value.clone(),
                None => Err(EvaluationError::failed("no such attribute")),
            },
            Some(Name::Variable(name)) => {
                let found = self.variables.iter().find(|(variable, _)| **variable == **name);
                found
                    .map(|(_, value)| value.clone())
                    .ok_or_else(|| EvaluationError::failed(format!("no such attribute(s): {name}")))
            }
            // The name of a type is a constant.
            Some(Name::Type(_)) | None => Err(EvaluationError::failed("no such attribute")),
        }
    }

    fn call(&mut self, id: Id, function: &str, target: Option<Id>, arguments: &'a [Id]) -> Evaluation {
        match (function, target, arguments) {
            ("_&&_", None, [left, right]) => self.logical(*left, *right, false),
            ("_||_", None, [left, right]) => self.logical(*left, *right, true),
            ("_?_:_" | "_[_]" | "_?._" | "_[?_]", None, _) => self.attribute(id, true),
            ("@not_strictly_false", None, [argument]) => self.not_strictly_false(*argument),
            ("@in", None, [element, _]) if self.program.plan.sets[id.index()].is_some() => {
                self.in_set(id, *element)
            }
            ("or" | "orValue", Some(optional), [other]) => self.or(optional, *other, function == "or"),
            _ => self.function(id, function, target, arguments),
        }
    }

    fn function(&mut self, id: Id, name: &str, target: Option<Id>, arguments: &[Id]) -> Evaluation {
        let overload = self.program.checked.overloads[id.index()];
        let values = self.arguments(name, overload, target, arguments)?;
        self.usage.charge(cost::before(name, overload, &values))?;
        let result = self.apply(id, name, values);
        // The size of an error counts as 1.
        self.usage.charge(cost::after(overload, name, result.as_ref().unwrap_or(&Value::Null)))?;
        result
    }

    /// Evaluates the arguments of a call.
    ///
    /// As in cel-go, a call with one or two arguments evaluates both and has a cost even if one of
    /// them fails.
    fn arguments(
        &mut self,
        name: &str,
        overload: Option<&str>,
        target: Option<Id>,
        arguments: &[Id],
    ) -> Result<Vec<Value>, EvaluationError> {
        let count = arguments.len() + usize::from(target.is_some());
        let mut values = Vec::with_capacity(count);
        let mut failure = None;
        for id in target.iter().chain(arguments) {
            match self.argument(*id, values.is_empty()) {
                Ok(value) => values.push(value),
                Err(error) if error.is_fatal() || count > 2 => return Err(error),
                Err(error) => {
                    values.push(Value::Null);
                    failure = failure.or(Some(error));
                }
            }
        }
        match failure {
            Some(error) => {
                self.usage.charge(cost::before(name, overload, &values))?;
                Err(error)
            }
            None => Ok(values),
        }
    }

    fn apply(&mut self, id: Id, name: &str, values: Vec<Value>) -> Evaluation {
        let Some(function) = self.program.plan.functions[id.index()] else {
            return Err(EvaluationError::NoSuchOverload(format!(": {name}")));
        };
        if name == "_+_" && matches!(values[..], [Value::List(_), Value::List(_)]) {
            self.concatenate(values)
        } else if name == "cel.@mapInsert" {
            crate::libraries::insert(self.usage, values)
        } else {
            function(self.usage, &values)
        }
    }

    /// Evaluates an argument. The result of a loop so far is moved out of its variable, so that
    /// the step can append to it in place: the step replaces the variable.
    fn argument(&mut self, id: Id, first: bool) -> Evaluation {
        if first
            && let Expr::Ident(name) = self.expr(id)
            && &**name == ACCUMULATOR
            && let Some(Name::Local(index)) = &self.program.checked.names[id.index()]
            && let Some(local) = self.locals.get_mut(*index as usize)
            && matches!(local, Ok(Value::List(_) | Value::Map(_)))
        {
            let value = std::mem::replace(local, Ok(Value::Null));
            self.usage.charge(1)?;
            return value;
        }
        self.eval(id)
    }

    fn concatenate(&mut self, mut values: Vec<Value>) -> Evaluation {
        let (Some(Value::List(right)), Some(Value::List(mut left))) = (values.pop(), values.pop()) else {
            return Err(EvaluationError::no_overload());
        };
        let unique = std::sync::Arc::get_mut(&mut left).is_some();
        let copied = if unique { 0 } else { left.len() };
        self.usage.allocate((copied + right.len()) * ELEMENT_SIZE)?;
        std::sync::Arc::make_mut(&mut left).extend(right.iter().cloned());
        Ok(Value::List(left))
    }

    /// Evaluates `&&` (`decisive` is false) or `||` (`decisive` is true): the decisive value of one
    /// side hides an error of the other.
    fn logical(&mut self, left: Id, right: Id, decisive: bool) -> Evaluation {
        let mut failure = None;
        for side in [left, right] {
            match self.eval(side) {
                Ok(Value::Bool(value)) if value == decisive => return Ok(Value::Bool(decisive)),
                Ok(Value::Bool(_)) => {}
                Ok(_) => failure = failure.or_else(|| Some(EvaluationError::no_overload())),
                Err(error) if error.is_fatal() => return Err(error),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(Value::Bool(!decisive)), Err)
    }

    fn not_strictly_false(&mut self, argument: Id) -> Evaluation {
        let value = self.eval(argument);
        self.usage.charge(1)?;
        match value {
            Ok(Value::Bool(value)) => Ok(Value::Bool(value)),
            Err(error) if error.is_fatal() => Err(error),
            _ => Ok(Value::Bool(true)),
        }
    }

    fn in_set(&mut self, id: Id, element: Id) -> Evaluation {
        let element = self.eval(element)?;
        let set = self.program.plan.sets[id.index()].as_ref();
        Ok(Value::Bool(set.is_some_and(|set| set.get(&element).is_some())))
    }

    /// Evaluates `optional.or(other)` or `optional.orValue(other)`.
    fn or(&mut self, optional: Id, other: Id, keep: bool) -> Evaluation {
        match self.eval(optional)? {
            Value::Optional(Some(value)) if keep => Ok(Value::Optional(Some(value))),
            Value::Optional(Some(value)) => Ok(value.as_ref().clone()),
            Value::Optional(None) => self.eval(other),
            other => {
                let function = if keep { "or" } else { "orValue" };
                Err(EvaluationError::NoSuchOverload(format!(": {}.{function}(optional)", other.type_name())))
            }
        }
    }

    /// Evaluates an element. Returns `None` if it is optional and absent.
    fn element(&mut self, element: Element) -> Result<Option<Value>, EvaluationError> {
        let value = self.eval(element.value)?;
        match value {
            _ if !element.optional => Ok(Some(value)),
            Value::Optional(value) => Ok(value.map(|value| value.as_ref().clone())),
            other => {
                let text =
                    format!("cannot initialize optional list element from non-optional value {other:?}");
                Err(EvaluationError::failed(text))
            }
        }
    }

    fn list(&mut self, elements: &[Element]) -> Evaluation {
        self.usage.allocate(elements.len() * ELEMENT_SIZE)?;
        let mut values = Vec::with_capacity(elements.len());
        for element in elements {
            values.extend(self.element(*element)?);
        }
        self.usage.charge(cost::CREATE_LIST)?;
        Ok(Value::list(values))
    }

    fn map(&mut self, entries: &[(Id, Element)]) -> Evaluation {
        self.usage.allocate(entries.len() * 2 * ELEMENT_SIZE)?;
        let mut built = BTreeMap::new();
        for (key, element) in entries {
            let key = self.eval(*key)?;
            let Some(key) = Key::new(&key) else {
                let text = format!("unsupported key type: {}", key.type_name());
                return Err(EvaluationError::failed(text));
            };
            match self.element(*element)? {
                Some(value) => built.insert(key, value),
                None => built.remove(&key),
            };
        }
        self.usage.charge(cost::CREATE_MAP)?;
        Ok(Value::Map(Map::built(built).into()))
    }
}
