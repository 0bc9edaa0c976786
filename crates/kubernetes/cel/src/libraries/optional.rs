//! Functions of optional values, and the insertion into maps.

use super::{Function, bool, no_overload};
use crate::budget::Usage;
use crate::error::EvaluationError;
use crate::interpreter::{ELEMENT_SIZE, Evaluation};
use crate::value::{Key, Map, Value};

pub(crate) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "optional.none" => |_, _| Ok(Value::Optional(None)),
        "optional.of" => |_, arguments| match arguments {
            [value] => Ok(Value::some(value.clone())),
            _ => Err(no_overload("optional.of", arguments)),
        },
        "optional.ofNonZeroValue" => |_, arguments| match arguments {
            [value] if value.is_zero() => Ok(Value::Optional(None)),
            [value] => Ok(Value::some(value.clone())),
            _ => Err(no_overload("optional.ofNonZeroValue", arguments)),
        },
        "hasValue" => |_, arguments| match arguments {
            [Value::Optional(value)] => bool(value.is_some()),
            _ => Err(no_overload("hasValue", arguments)),
        },
        "value" => |_, arguments| match arguments {
            [Value::Optional(Some(value))] => Ok(value.as_ref().clone()),
            [Value::Optional(None)] => Err(EvaluationError::failed("optional.none() dereference")),
            _ => Err(no_overload("value", arguments)),
        },
        "optional.unwrap" | "unwrapOpt" => |usage, arguments| match arguments {
            [Value::List(elements)] => unwrap(usage, elements),
            _ => Err(no_overload("unwrapOpt", arguments)),
        },
        "cel.@mapInsert" => |usage, arguments| insert(usage, arguments.to_vec()),
        _ => return None,
    })
}

fn unwrap(usage: &mut Usage, elements: &[Value]) -> Evaluation {
    usage.allocate(elements.len() * ELEMENT_SIZE)?;
    let mut values = Vec::new();
    for element in elements {
        match element {
            Value::Optional(value) => values.extend(value.as_ref().map(|value| value.as_ref().clone())),
            other => {
                let text = format!("value of type {} is not optional", other.type_name());
                return Err(EvaluationError::failed(text));
            }
        }
    }
    Ok(Value::list(values))
}

/// Inserts a key and a value, or the entries of another map, into a map.
pub(crate) fn insert(usage: &mut Usage, mut arguments: Vec<Value>) -> Evaluation {
    let refused = || EvaluationError::failed("no such overload: cel.@mapInsert");
    if arguments.len() < 2 || !matches!(arguments[0], Value::Map(_)) {
        return Err(refused());
    }
    let last = arguments.pop().ok_or_else(refused)?;
    let added: Vec<(Key, Value)> = match (arguments.len(), &last) {
        (2, _) => {
            let key = arguments.pop().as_ref().and_then(Key::new).ok_or_else(refused)?;
            vec![(key, last)]
        }
        (_, Value::Map(map)) => {
            map.entries().iter().map(|(key, value)| (key.clone(), value.clone())).collect()
        }
        _ => return Err(refused()),
    };
    let Some(Value::Map(mut map)) = arguments.pop() else { return Err(refused()) };
    let unique = std::sync::Arc::get_mut(&mut map).is_some();
    let copied = if unique { 0 } else { map.len() };
    usage.allocate((copied + added.len()) * 2 * ELEMENT_SIZE)?;
    let mut entries = match std::sync::Arc::try_unwrap(map) {
        Ok(map) => map.into_entries(),
        Err(shared) => shared.entries().clone(),
    };
    for (key, value) in added {
        if entries.contains_key(&key) {
            let text = format!("insert failed: key {} already exists", key.text());
            return Err(EvaluationError::failed(text));
        }
        entries.insert(key, value);
    }
    Ok(Value::Map(Map::built(entries).into()))
}
