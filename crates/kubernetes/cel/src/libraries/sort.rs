//! The order of lists.

use std::cmp::Ordering;

use crate::budget::Usage;
use crate::error::EvaluationError;
use crate::interpreter::{ELEMENT_SIZE, Evaluation};
use crate::value::{Opaque, OpaqueValue, Value, compare};

pub(super) fn is_sorted(elements: &[Value]) -> Evaluation {
    for pair in elements.windows(2) {
        let [a, b] = pair else { continue };
        if compare(a, b)?.is_gt() {
            return Ok(Value::Bool(false));
        }
    }
    Ok(Value::Bool(true))
}

/// Sorts elements by keys, of which each element has one at the same index.
pub(super) fn by_keys(usage: &mut Usage, elements: &[Value], keys: &[Value]) -> Evaluation {
    if elements.len() != keys.len() {
        let text = format!(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list, but got {} and {} elements respectively",
            elements.len(),
            keys.len()
        );
        return Err(EvaluationError::failed(text));
    }
    let Some(first) = keys.first() else { return Ok(Value::list(Vec::new())) };
    if !is_comparable(first) {
        return Err(EvaluationError::failed("list elements must be comparable"));
    }
    if keys.iter().any(|key| key.type_name() != first.type_name()) {
        return Err(EvaluationError::failed("list elements must have the same type"));
    }
    usage.allocate(2 * elements.len() * ELEMENT_SIZE)?;
    let mut indexes: Vec<usize> = (0..elements.len()).collect();
    // Numbers that are not ordered (NaN) compare as equal.
    indexes.sort_by(|a, b| compare(&keys[*a], &keys[*b]).unwrap_or(Ordering::Equal));
    Ok(Value::list(indexes.into_iter().map(|index| elements[index].clone()).collect()))
}

fn is_comparable(value: &Value) -> bool {
    match value {
        Value::Bool(_)
        | Value::Int(_)
        | Value::Uint(_)
        | Value::Double(_)
        | Value::String(_)
        | Value::Bytes(_) => true,
        Value::Opaque(Opaque(opaque)) => {
            matches!(opaque, OpaqueValue::Duration(_) | OpaqueValue::Timestamp(_))
        }
        _ => false,
    }
}
