//! Functions of lists and sets: Kubernetes' list library, cel-go's lists library (version 3) and
//! sets library.

use std::cmp::Ordering;

use super::{Function, bool, int, no_overload, sort, text};
use crate::budget::Usage;
use crate::error::EvaluationError;
use crate::interpreter::{ELEMENT_SIZE, Evaluation};
use crate::libraries::arithmetic;
use crate::value::{Value, equal};

pub(crate) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "isSorted" => |_, arguments| list("isSorted", arguments, sort::is_sorted),
        "sum" => |usage, arguments| match arguments {
            [Value::List(elements)] => sum(usage, elements),
            _ => Err(no_overload("sum", arguments)),
        },
        "max" => |_, arguments| {
            list("max", arguments, |elements| sort::extreme(elements, "max", Ordering::Greater))
        },
        "min" => {
            |_, arguments| list("min", arguments, |elements| sort::extreme(elements, "min", Ordering::Less))
        }
        "indexOf" => |usage, arguments| match arguments {
            [Value::List(elements), element] => position(usage, elements.iter().enumerate(), element),
            [Value::String(text), Value::String(part)] => text::index_of(text, part, 0),
            [Value::String(text), Value::String(part), Value::Int(from)] => text::index_of(text, part, *from),
            _ => Err(no_overload("indexOf", arguments)),
        },
        "lastIndexOf" => |usage, arguments| match arguments {
            [Value::List(elements), element] => position(usage, elements.iter().enumerate().rev(), element),
            [Value::String(text), Value::String(part)] => text::last_index_of(text, part, None),
            [Value::String(text), Value::String(part), Value::Int(from)] => {
                text::last_index_of(text, part, Some(*from))
            }
            _ => Err(no_overload("lastIndexOf", arguments)),
        },
        "slice" => |usage, arguments| match arguments {
            [Value::List(elements), Value::Int(start), Value::Int(end)] => {
                slice(usage, elements, *start, *end)
            }
            _ => Err(no_overload("slice", arguments)),
        },
        "flatten" => |usage, arguments| match arguments {
            [Value::List(elements)] => flatten(usage, elements, 1),
            [Value::List(elements), Value::Int(depth)] => flatten(usage, elements, *depth),
            _ => Err(no_overload("flatten", arguments)),
        },
        "lists.range" => |usage, arguments| match arguments {
            [Value::Int(count)] => range(usage, *count),
            _ => Err(no_overload("lists.range", arguments)),
        },
        "sort" => |usage, arguments| match arguments {
            [Value::List(elements)] => sort::by_keys(usage, elements, elements),
            _ => Err(no_overload("sort", arguments)),
        },
        "@sortByAssociatedKeys" => |usage, arguments| match arguments {
            [Value::List(elements), Value::List(keys)] => sort::by_keys(usage, elements, keys),
            _ => Err(no_overload("@sortByAssociatedKeys", arguments)),
        },
        "distinct" => |usage, arguments| match arguments {
            [Value::List(elements)] => distinct(usage, elements),
            _ => Err(no_overload("distinct", arguments)),
        },
        "reverse" => |usage, arguments| match arguments {
            [Value::List(elements)] => {
                usage.allocate(elements.len() * ELEMENT_SIZE)?;
                Ok(Value::list(elements.iter().rev().cloned().collect()))
            }
            _ => Err(no_overload("reverse", arguments)),
        },
        "first" => |_, arguments| list("first", arguments, |elements| Ok(optional(elements.first()))),
        "last" => |_, arguments| list("last", arguments, |elements| Ok(optional(elements.last()))),
        "sets.contains" => |usage, arguments| match arguments {
            [Value::List(of), Value::List(part)] => bool(contains_all(usage, of, part)?),
            _ => Err(no_overload("sets.contains", arguments)),
        },
        "sets.equivalent" => |usage, arguments| match arguments {
            [Value::List(a), Value::List(b)] => {
                bool(contains_all(usage, a, b)? && contains_all(usage, b, a)?)
            }
            _ => Err(no_overload("sets.equivalent", arguments)),
        },
        "sets.intersects" => |usage, arguments| match arguments {
            [Value::List(a), Value::List(b)] => {
                for element in a.iter() {
                    if contains(usage, b, element)? {
                        return bool(true);
                    }
                }
                bool(false)
            }
            _ => Err(no_overload("sets.intersects", arguments)),
        },
        _ => return None,
    })
}

fn list(name: &str, arguments: &[Value], f: fn(&[Value]) -> Evaluation) -> Evaluation {
    match arguments {
        [Value::List(elements)] => f(elements),
        _ => Err(no_overload(name, arguments)),
    }
}

fn optional(value: Option<&Value>) -> Value {
    value.map_or(Value::Optional(None), |value| Value::some(value.clone()))
}

fn sum(usage: &mut Usage, elements: &[Value]) -> Evaluation {
    let mut elements = elements.iter();
    let Some(first) = elements.next() else { return Ok(Value::Int(0)) };
    let Some(add) = arithmetic::function("_+_") else { return Err(EvaluationError::no_overload()) };
    let mut sum = first.clone();
    for element in elements {
        sum = add(usage, &[sum, element.clone()])?;
    }
    Ok(sum)
}

fn position<'a>(
    usage: &mut Usage,
    elements: impl Iterator<Item = (usize, &'a Value)>,
    element: &Value,
) -> Evaluation {
    for (index, other) in elements {
        if equal(usage, other, element)? {
            return int(index);
        }
    }
    Ok(Value::Int(-1))
}

fn slice(usage: &mut Usage, elements: &[Value], start: i64, end: i64) -> Evaluation {
    let refused =
        |reason: String| Err(EvaluationError::failed(format!("cannot slice({start}, {end}), {reason}")));
    let (Ok(from), Ok(to)) = (usize::try_from(start), usize::try_from(end)) else {
        return refused("negative indexes not supported".into());
    };
    if from > to {
        return refused("start index must be less than or equal to end index".into());
    }
    match elements.get(from..to) {
        Some(part) => {
            usage.allocate(part.len() * ELEMENT_SIZE)?;
            Ok(Value::list(part.to_vec()))
        }
        None => refused(format!("list is length {}", elements.len())),
    }
}

fn flatten(usage: &mut Usage, elements: &[Value], depth: i64) -> Evaluation {
    if depth < 0 {
        return Err(EvaluationError::failed("level must be non-negative"));
    }
    let mut flat = Vec::new();
    flatten_into(usage, elements, depth, &mut flat)?;
    Ok(Value::list(flat))
}

fn flatten_into(
    usage: &mut Usage,
    elements: &[Value],
    depth: i64,
    flat: &mut Vec<Value>,
) -> Result<(), EvaluationError> {
    for element in elements {
        usage.work(1)?;
        match element {
            Value::List(inner) if depth > 0 => flatten_into(usage, inner, depth - 1, flat)?,
            other => {
                usage.allocate(ELEMENT_SIZE)?;
                flat.push(other.clone());
            }
        }
    }
    Ok(())
}

fn range(usage: &mut Usage, count: i64) -> Evaluation {
    let count = usize::try_from(count).unwrap_or(0);
    usage.expect_cost(count as u64 + 11)?;
    usage.allocate(count.saturating_mul(ELEMENT_SIZE))?;
    Ok(Value::list((0..count).map(|index| Value::Int(i64::try_from(index).unwrap_or(i64::MAX))).collect()))
}

fn distinct(usage: &mut Usage, elements: &[Value]) -> Evaluation {
    let mut distinct: Vec<Value> = Vec::new();
    for element in elements {
        if !contains(usage, &distinct, element)? {
            usage.allocate(ELEMENT_SIZE)?;
            distinct.push(element.clone());
        }
    }
    Ok(Value::list(distinct))
}

fn contains(usage: &mut Usage, elements: &[Value], element: &Value) -> Result<bool, EvaluationError> {
    for other in elements {
        if equal(usage, element, other)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn contains_all(usage: &mut Usage, of: &[Value], part: &[Value]) -> Result<bool, EvaluationError> {
    for element in part {
        if !contains(usage, of, element)? {
            return Ok(false);
        }
    }
    Ok(true)
}
