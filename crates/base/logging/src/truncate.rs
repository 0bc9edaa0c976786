//! Limits on the length of texts in log lines and audit events.
//!
//! Clients and the peers of the program choose many of these texts: names, groups, paths, header
//! fields, errors of webhooks. Without a limit, one request could write megabytes. A truncated
//! text ends with the number of missing bytes, and a list with the number of missing values.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// Maximum length of one text in bytes, before it is escaped for JSON.
pub const MAX_TEXT_BYTES: usize = 8 << 10;

/// Maximum length in bytes of the texts of one list or map together, before they are escaped.
pub const MAX_LIST_BYTES: usize = 32 << 10;

/// The bytes that JSON adds to each text of a list: quotation marks and a comma.
const JSON_OVERHEAD_BYTES: usize = 3;

/// Returns the text, or its beginning if it is longer than [`MAX_TEXT_BYTES`].
///
/// ```
/// use pinniped_logging::truncate::truncated;
///
/// assert_eq!(truncated("pinny"), "pinny");
/// assert!(truncated(&"a".repeat(10_000)).ends_with("aaa [truncated 1808 bytes]"));
/// ```
pub fn truncated(text: &str) -> Cow<'_, str> {
    truncated_at(text, MAX_TEXT_BYTES)
}

fn truncated_at(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return Cow::Borrowed(text);
    }
    let kept = &text[..text.floor_char_boundary(most)];
    Cow::Owned(format!("{kept} [truncated {} bytes]", text.len() - kept.len()))
}

/// Returns the values, each [`truncated`], or the first ones that fit into [`MAX_LIST_BYTES`] and a
/// last value with the number of missing ones.
pub fn truncated_list(values: &[String]) -> Vec<Cow<'_, str>> {
    take_list(values, &mut { MAX_LIST_BYTES })
}

/// Returns the entries like [`truncated_list`]. The key of the entry with the number of missing
/// ones is `[truncated]`.
pub fn truncated_map(values: &BTreeMap<String, Vec<String>>) -> BTreeMap<Cow<'_, str>, Vec<Cow<'_, str>>> {
    let mut remaining = MAX_LIST_BYTES;
    let mut entries = BTreeMap::new();
    for (at, (key, list)) in values.iter().enumerate() {
        let key = truncated(key);
        if !take(&mut remaining, key.len()) {
            let missing = format!("{} keys", values.len() - at);
            entries.insert(Cow::Borrowed("[truncated]"), vec![Cow::Owned(missing)]);
            break;
        }
        entries.insert(key, take_list(list, &mut remaining));
    }
    entries
}

fn take_list<'a>(values: &'a [String], remaining: &mut usize) -> Vec<Cow<'a, str>> {
    let mut kept = Vec::new();
    for (at, value) in values.iter().enumerate() {
        let value = truncated(value);
        if !take(remaining, value.len()) {
            kept.push(Cow::Owned(format!("[truncated {} values]", values.len() - at)));
            break;
        }
        kept.push(value);
    }
    kept
}

/// Returns whether a text of this length fits, and reduces `remaining` if it does.
fn take(remaining: &mut usize, length: usize) -> bool {
    let rest = remaining.checked_sub(length + JSON_OVERHEAD_BYTES);
    rest.inspect(|rest| *remaining = *rest).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_ends_with_the_number_of_missing_bytes() {
        assert_eq!(truncated_at("abc", 3), "abc");
        assert_eq!(truncated_at("abcdef", 3), "abc [truncated 3 bytes]");
        assert_eq!(truncated_at("\u{e4}\u{e4}", 3), "\u{e4} [truncated 2 bytes]");
        assert_eq!(truncated(&"a".repeat(MAX_TEXT_BYTES)).len(), MAX_TEXT_BYTES);
    }

    #[test]
    fn a_long_list_ends_with_the_number_of_missing_values() {
        let few = ["a".to_owned(), String::new()];
        assert_eq!(truncated_list(&few), few);
        let many = vec![String::new(); 1_000_000];
        let kept = truncated_list(&many);
        assert_eq!(kept.len(), MAX_LIST_BYTES / JSON_OVERHEAD_BYTES + 1);
        assert_eq!(kept.last().unwrap(), &format!("[truncated {} values]", many.len() + 1 - kept.len()));
        let long = vec!["a".repeat(1 << 20); 10];
        let kept = truncated_list(&long);
        assert_eq!(kept.last().unwrap(), "[truncated 7 values]");
        assert!(kept.iter().map(|text| text.len()).sum::<usize>() < MAX_LIST_BYTES + 100);
    }

    #[test]
    fn a_large_map_has_an_entry_with_the_number_of_missing_keys() {
        let few = BTreeMap::from([("k".to_owned(), vec!["v".to_owned()])]);
        assert_eq!(truncated_map(&few), BTreeMap::from([("k".into(), vec!["v".into()])]));
        let many: BTreeMap<_, _> = (0..100_000).map(|key| (format!("{key:06}"), Vec::new())).collect();
        let kept = truncated_map(&many);
        assert_eq!(kept["[truncated]"], [format!("{} keys", many.len() + 1 - kept.len())]);
        assert!(kept.len() <= MAX_LIST_BYTES / 6);
        let long = BTreeMap::from([("k".to_owned(), vec![String::new(); 1_000_000])]);
        assert_eq!(
            truncated_map(&long)["k"].len(),
            (MAX_LIST_BYTES - "k".len() - JSON_OVERHEAD_BYTES) / JSON_OVERHEAD_BYTES + 1
        );
    }
}
