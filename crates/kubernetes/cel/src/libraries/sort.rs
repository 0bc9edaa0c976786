//! The order of lists.

use std::cmp::Ordering;

use crate::budget::Usage;
use crate::error::EvaluationError;
use crate::interpreter::{ELEMENT_SIZE, Evaluation};
use crate::value::{Opaque, OpaqueValue, Value, compare};

/// Reports whether elements are sorted. As in Kubernetes, a pair without an order, such as NaN and
/// another number, counts as sorted.
pub(super) fn is_sorted(elements: &[Value]) -> Evaluation {
    let mut previous: Option<&Value> = None;
    for element in elements {
        require_comparable(element, "isSorted")?;
        if previous.is_some_and(|previous| compare(previous, element).is_ok_and(Ordering::is_gt)) {
            return Ok(Value::Bool(false));
        }
        previous = Some(element);
    }
    Ok(Value::Bool(true))
}

/// Returns the largest element if `better` is `Greater`, and the smallest if it is `Less`. As in
/// Kubernetes, an element without an order, such as NaN, neither replaces another one nor is
/// replaced.
pub(super) fn extreme(elements: &[Value], name: &str, better: Ordering) -> Evaluation {
    let mut best: Option<&Value> = None;
    for element in elements {
        require_comparable(element, name)?;
        match best {
            Some(best) if !compare(element, best).is_ok_and(|order| order == better) => {}
            _ => best = Some(element),
        }
    }
    best.cloned().ok_or_else(|| EvaluationError::failed(format!("{name} called on empty list")))
}

fn require_comparable(element: &Value, function: &str) -> Result<(), EvaluationError> {
    if is_comparable(element) {
        return Ok(());
    }
    Err(EvaluationError::NoSuchOverload(format!(": {function}(list)")))
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
    if keys.len() > 1 {
        // Keys of one type have a total order, except for NaN. Without one, sorting may panic.
        keys.iter().try_for_each(|key| compare(key, key).map(drop))?;
    }
    usage.allocate(2 * elements.len() * ELEMENT_SIZE)?;
    let mut indexes: Vec<usize> = (0..elements.len()).collect();
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
