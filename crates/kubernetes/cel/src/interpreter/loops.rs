//! Loops, to which macros such as `all` and `map` expand.

use std::sync::Arc;

use super::{Evaluation, Interpreter};
use crate::ast::Comprehension;
use crate::error::EvaluationError;
use crate::value::{Key, Map, Value};

/// The values that a loop visits, one or two at a time.
enum Range {
    List(Arc<Vec<Value>>),
    Entries(Vec<(Value, Value)>),
}

impl Range {
    fn len(&self) -> usize {
        match self {
            Self::List(elements) => elements.len(),
            Self::Entries(entries) => entries.len(),
        }
    }

    /// Returns the values of the variables, if there are one or two.
    fn at(&self, index: usize, two: bool) -> (Value, Value) {
        match self {
            Self::List(elements) => {
                let element = elements.get(index).cloned().unwrap_or(Value::Null);
                if two { (position(index), element) } else { (element, Value::Null) }
            }
            Self::Entries(entries) => entries.get(index).cloned().unwrap_or((Value::Null, Value::Null)),
        }
    }
}

fn position(index: usize) -> Value {
    Value::Int(i64::try_from(index).unwrap_or(i64::MAX))
}

impl Interpreter<'_> {
    pub(super) fn comprehension(&mut self, parts: &Comprehension) -> Evaluation {
        let range = self.eval(parts.range)?;
        let range = match range {
            Value::List(elements) => Range::List(elements),
            Value::Map(map) => {
                self.usage.work(map.len())?;
                Range::Entries(entries(&map))
            }
            other => {
                let text = format!("got '{}', expected iterable type", go_type(&other));
                return Err(EvaluationError::failed(text));
            }
        };
        let initial = self.eval(parts.initial);
        if let Err(error) = &initial
            && error.is_fatal()
        {
            return initial;
        }
        let place = self.locals.len();
        self.locals.push(initial);
        let looped = self.rounds(parts, &range, place);
        self.locals.truncate(place + 1);
        let result = looped.and_then(|()| self.eval(parts.result));
        self.locals.truncate(place);
        result
    }

    fn rounds(&mut self, parts: &Comprehension, range: &Range, place: usize) -> Result<(), EvaluationError> {
        let two = parts.second_variable.is_some();
        for index in 0..range.len() {
            self.usage.work(1)?;
            let (first, second) = range.at(index, two);
            self.locals.truncate(place + 1);
            self.locals.push(Ok(first));
            if two {
                self.locals.push(Ok(second));
            }
            match self.eval(parts.condition) {
                Ok(Value::Bool(false)) => return Ok(()),
                Err(error) if error.is_fatal() => return Err(error),
                _ => {}
            }
            let step = self.eval(parts.step);
            if let Err(error) = &step
                && error.is_fatal()
            {
                return step.map(drop);
            }
            self.locals[place] = step;
        }
        Ok(())
    }
}

/// Returns the entries of a map. For the value of a variable, the first variable of a loop is the
/// value of a field, as in Kubernetes, whose map of claims iterates over values.
fn entries(map: &Map) -> Vec<(Value, Value)> {
    let object = map.object_name().is_some();
    let entry = |(key, value): (&Key, &Value)| {
        if object { (value.clone(), Value::Null) } else { (key.value(), value.clone()) }
    };
    map.entries().iter().map(entry).collect()
}

/// Returns the name of the type in cel-go's source, which one error shows.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "types.Null",
        Value::Bool(_) => "types.Bool",
        Value::Int(_) => "types.Int",
        Value::Uint(_) => "types.Uint",
        Value::Double(_) => "types.Double",
        Value::String(_) => "types.String",
        Value::Bytes(_) => "types.Bytes",
        Value::Optional(_) => "*types.Optional",
        _ => "ref.Val",
    }
}
