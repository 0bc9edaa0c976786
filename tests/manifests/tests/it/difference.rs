//! Lists every difference between two documents and compares the list with a table of intended
//! ones.

use std::collections::BTreeSet;

use serde_json::Value;

/// Returns the differences of `ours` against `theirs`, one line each, sorted: `+ path = value` is
/// only in ours, `- path = value` only in theirs, `~ path: theirs -> ours` is in both with
/// different values.
///
/// List items are identified by their own value if they are scalars, by an identifying member if
/// they have one (`name`, `type`, ...), and otherwise by their index.
pub(crate) fn of(theirs: &Value, ours: &Value) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    walk(theirs, ours, "", &mut lines);
    lines
}

fn walk(theirs: &Value, ours: &Value, path: &str, lines: &mut BTreeSet<String>) {
    match (theirs, ours) {
        (Value::Object(theirs), Value::Object(ours)) => {
            for (key, value) in theirs {
                match ours.get(key) {
                    Some(own) => walk(value, own, &format!("{path}.{key}"), lines),
                    None => drop(lines.insert(format!("- {path}.{key} = {value}"))),
                }
            }
            for (key, own) in ours.iter().filter(|(key, _)| !theirs.contains_key(*key)) {
                lines.insert(format!("+ {path}.{key} = {own}"));
            }
        }
        (Value::Array(theirs), Value::Array(ours)) => {
            let (theirs, ours) = (keyed(theirs), keyed(ours));
            for (key, value) in &theirs {
                match ours.iter().find(|(own_key, _)| own_key == key) {
                    Some((_, own)) => walk(value, own, &format!("{path}[{key}]"), lines),
                    None => drop(lines.insert(format!("- {path}[{key}] = {value}"))),
                }
            }
            for (key, own) in ours.iter().filter(|(key, _)| theirs.iter().all(|(other, _)| other != key)) {
                lines.insert(format!("+ {path}[{key}] = {own}"));
            }
            // The order of printer columns, volumes and ports is visible to users, so it is
            // compared.
            let common = |list: &[(String, &Value)], other: &[(String, &Value)]| -> Vec<String> {
                list.iter()
                    .filter(|(key, _)| other.iter().any(|(k, _)| k == key))
                    .map(|(key, _)| key.clone())
                    .collect()
            };
            if common(&theirs, &ours) != common(&ours, &theirs) {
                lines.insert(format!("~ {path}: other order"));
            }
        }
        (theirs, ours) if theirs == ours => {}
        (theirs, ours) => drop(lines.insert(format!("~ {path}: {theirs} -> {ours}"))),
    }
}

/// Returns a list with a key for each item that does not depend on its index, if possible.
fn keyed(items: &[Value]) -> Vec<(String, &Value)> {
    let keys = rule_keys(items)
        .or_else(|| ["name", "mountPath", "path"].iter().find_map(|member| member_keys(items, member)))
        .unwrap_or_else(|| {
            if items.iter().all(|item| !item.is_object() && !item.is_array()) {
                items.iter().map(Value::to_string).collect()
            } else {
                (0..items.len()).map(|place| place.to_string()).collect()
            }
        });
    keys.into_iter().zip(items).collect()
}

/// Returns keys if every item has the member with a unique text.
fn member_keys(items: &[Value], member: &str) -> Option<Vec<String>> {
    let keys: Vec<String> =
        items.iter().map(|item| item.get(member)?.as_str().map(ToOwned::to_owned)).collect::<Option<_>>()?;
    let distinct: BTreeSet<&String> = keys.iter().collect();
    (distinct.len() == keys.len()).then_some(keys)
}

/// Identifies an RBAC rule by its groups and resources; a second rule with the same ones gets a
/// number.
fn rule_keys(items: &[Value]) -> Option<Vec<String>> {
    let mut keys: Vec<String> = Vec::new();
    for item in items {
        let subject = format!("{} {}", item.get("apiGroups")?, item.get("resources")?);
        let again = keys.iter().filter(|key| key.starts_with(&subject)).count();
        keys.push(if again == 0 { subject } else { format!("{subject} #{}", again + 1) });
    }
    Some(keys)
}

/// Fails on a difference that is not in the table, and on a line of the table that matches no
/// difference.
pub(crate) fn assert_exactly(what: &str, found: &BTreeSet<String>, intended: &[&str]) {
    let intended: BTreeSet<String> = intended.iter().map(|line| (*line).to_owned()).collect();
    let unlisted: Vec<&String> = found.difference(&intended).collect();
    let absent: Vec<&String> = intended.difference(found).collect();
    assert!(
        unlisted.is_empty() && absent.is_empty(),
        "{what}\nnot in the table: {unlisted:#?}\nonly in the table: {absent:#?}"
    );
}

#[test]
fn every_kind_of_difference_is_found() {
    let theirs = serde_json::json!({"same": 1, "gone": 2, "other": 3, "list": ["a", "b"], "named": [{"name": "x", "v": 1}, {"name": "y"}]});
    let ours = serde_json::json!({"same": 1, "new": {}, "other": 4, "list": ["b", "a", "c"], "named": [{"name": "x", "v": 2}]});
    assert_exactly(
        "sample",
        &of(&theirs, &ours),
        &[
            "- .gone = 2",
            "+ .new = {}",
            "~ .other: 3 -> 4",
            "+ .list[\"c\"] = \"c\"",
            "~ .list: other order",
            "~ .named[x].v: 1 -> 2",
            "- .named[y] = {\"name\":\"y\"}",
        ],
    );
}
