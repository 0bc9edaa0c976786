//! The query parameters of a list that affect its request info: `watch`, and the single name that
//! the selector may require.
//!
//! The API server decodes all of them into `metav1.ListOptions` or none: after a limit that is not
//! a number, or a selector that cannot be parsed, the name is ignored. The verb is then determined
//! by a second, slightly different parse of `watch`.

use pinniped_go_compat::url::{first_query_bytes, text};

use super::{field_selector, label_selector};

/// The decoded query parameters; see the module documentation.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ListOptions {
    pub(super) watch: bool,
    pub(super) name: Option<String>,
}

impl ListOptions {
    pub(super) fn parse(query: &str) -> Self {
        if query.is_empty() {
            return Self::default();
        }
        let watch = first_query_bytes(query, "watch");
        match required_name(query) {
            Some(name) => Self {
                watch: watch.is_some_and(|value| !(value == b"0" || is_false_in_any_case(&value))),
                name: name.filter(|name| is_path_segment(name)).map(text),
            },
            None => Self {
                watch: watch.is_some_and(|value| !(value == b"0" || value.eq_ignore_ascii_case(b"false"))),
                name: None,
            },
        }
    }
}

/// Returns the name that the field selector requires, if any; `None` when an option cannot be
/// decoded.
fn required_name(query: &str) -> Option<Option<Vec<u8>>> {
    for key in ["limit", "timeoutSeconds"] {
        if let Some(number) = first_query_bytes(query, key) {
            std::str::from_utf8(&number).ok()?.parse::<i64>().ok()?;
        }
    }
    if let Some(selector) = first_query_bytes(query, "labelSelector")
        && !label_selector::is_valid(&selector)
    {
        return None;
    }
    match first_query_bytes(query, "fieldSelector") {
        Some(selector) => field_selector::exact_match(&selector, b"metadata.name").ok(),
        None => Some(None),
    }
}

/// Compares like Go's `strings.EqualFold`, which treats U+017F as a letter s.
fn is_false_in_any_case(value: &[u8]) -> bool {
    match std::str::from_utf8(value) {
        Ok(value) => value.replace('\u{17f}', "s").eq_ignore_ascii_case("false"),
        Err(_) => false,
    }
}

fn is_path_segment(name: &[u8]) -> bool {
    !matches!(name, b"." | b"..") && !name.contains(&b'/') && !name.contains(&b'%')
}
