//! Parser of field selectors, equivalent to `k8s.io/apimachinery/pkg/fields`.

/// The selector cannot be parsed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Returns the value that a selector requires for `field`, if any.
pub(super) fn exact_match(selector: &[u8], field: &[u8]) -> Result<Option<Vec<u8>>, Malformed> {
    let mut terms = split_terms(selector);
    // The API server sorts the terms first, so the first term in sorted order applies.
    terms.sort_unstable();
    let mut found = None;
    for term in terms.into_iter().filter(|term| !term.is_empty()) {
        let (lhs, equal, value) = split_term(term).ok_or(Malformed)?;
        let value = unescape(value).ok_or(Malformed)?;
        if lhs == field && equal && found.is_none() {
            found = Some(value);
        }
    }
    Ok(found)
}

fn split_terms(selector: &[u8]) -> Vec<&[u8]> {
    let mut escaped = false;
    selector
        .split(|byte| {
            let is_end = *byte == b',' && !escaped;
            escaped = *byte == b'\\' && !escaped;
            is_end
        })
        .collect()
}

/// Splits a term into field, whether the operator is `=` rather than `!=`, and raw value.
fn split_term(term: &[u8]) -> Option<(&[u8], bool, &[u8])> {
    let at = (0..term.len()).find(|at| term[*at] == b'=' || term[*at..].starts_with(b"!="))?;
    let (lhs, rest) = term.split_at(at);
    Some(match rest {
        [b'!', b'=', value @ ..] => (lhs, false, value),
        [b'=', b'=', value @ ..] | [b'=', value @ ..] => (lhs, true, value),
        _ => return None,
    })
}

fn unescape(value: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(value.len());
    let mut bytes = value.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'\\' => out.push(*bytes.next().filter(|byte| matches!(byte, b'\\' | b',' | b'='))?),
            b',' | b'=' => return None,
            byte => out.push(byte),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exact_match_equals_that_of_the_api_server() {
        let name = |selector: &str| {
            let found = exact_match(selector.as_bytes(), b"metadata.name");
            found.map(|value| value.map(|value| String::from_utf8(value).unwrap()))
        };
        for (selector, wanted) in [
            ("", None),
            (",,", None),
            ("metadata.name=foo", Some("foo")),
            ("metadata.name==foo", Some("foo")),
            ("metadata.name=", Some("")),
            ("metadata.name=a\\,b\\=c\\\\", Some("a,b=c\\")),
            ("metadata.name!=foo", None),
            ("metadata.name =foo", None),
            ("spec.x!=1,metadata.name=foo,", Some("foo")),
            // The terms are sorted, so their order is not significant.
            ("metadata.name=b,metadata.name=a", Some("a")),
            ("metadata.name=a,metadata.name=", Some("")),
            ("=", None),
            ("=x", None),
            ("a=\\,,metadata.name=b", Some("b")),
            ("a\\,b=c", None),
        ] {
            assert_eq!(name(selector), Ok(wanted.map(str::to_owned)), "{selector}");
        }
        for malformed in [
            "garbage",
            "metadata.name=foo,garbage",
            "metadata.name=a=b",
            "metadata.name===b",
            "metadata.name=a\\",
            "metadata.name=a\\xb",
            "!",
            "a=!=",
        ] {
            assert_eq!(name(malformed), Err(Malformed), "{malformed}");
        }
    }
}
