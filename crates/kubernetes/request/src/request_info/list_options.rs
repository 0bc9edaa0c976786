//! What of a list's query parameters decides which request it is: `watch`, and the one name that it may be about.
//!
//! The API server decodes them into `metav1.ListOptions`, and all of them or none: a limit that is no number, or a
//! selector which cannot be parsed, takes the name away. The verb is then decided by a second, slightly different reading
//! of `watch`.

use pinniped_go_compat::url::{first_query_bytes, text};

use super::{field_selector, label_selector};

/// See the module.
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

/// The name that the field selector demands, if any; nothing at all where some option cannot be decoded.
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

/// Go's `strings.EqualFold`, for which U+017F is a letter s.
fn is_false_in_any_case(value: &[u8]) -> bool {
    match std::str::from_utf8(value) {
        Ok(value) => value.replace('\u{17f}', "s").eq_ignore_ascii_case("false"),
        Err(_) => false,
    }
}

fn is_path_segment(name: &[u8]) -> bool {
    !matches!(name, b"." | b"..") && !name.contains(&b'/') && !name.contains(&b'%')
}
