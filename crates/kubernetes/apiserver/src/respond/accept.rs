//! Parser of the `Accept` header, equivalent to the copy of `goautoneg` in Kubernetes.

use http::HeaderMap;

use super::Encoding;

/// One alternative of an `Accept` header.
#[derive(Clone, Debug, PartialEq)]
pub struct Clause {
    /// The type, before the slash; `*` for any.
    pub kind: String,
    /// The subtype, after the slash; `*` for any.
    pub subtype: String,
    /// The quality, 1 by default.
    pub quality: f64,
    /// Parameters other than `q`, in their original order.
    pub params: Vec<(String, String)>,
}

impl Clause {
    /// Returns the value of a parameter; the last one if it is repeated.
    pub fn param(&self, name: &str) -> Option<&str> {
        self.params.iter().rfind(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns whether this alternative covers a media type.
    pub fn covers(&self, kind: &str, subtype: &str) -> bool {
        (self.kind == kind && (self.subtype == subtype || self.subtype == "*"))
            || (self.kind == "*" && self.subtype == "*")
    }

    /// Returns whether it requests the unmodified object: no table or other transformation, no
    /// stream.
    pub fn is_plain(&self) -> bool {
        self.is_untransformed() && self.param("stream").is_none_or(str::is_empty)
    }

    /// Returns whether an error can be written in this encoding for this alternative. An error has
    /// no table form, but may be written for an alternative that requests a stream of watch events,
    /// if the encoding supports streams.
    pub fn fits_error(&self, encoding: Encoding) -> bool {
        let stream = match self.param("stream") {
            None | Some("") => true,
            Some(stream) => stream == "watch" && encoding != Encoding::Yaml,
        };
        stream && self.is_untransformed() && self.param("sv").is_none_or(str::is_empty)
    }

    fn is_untransformed(&self) -> bool {
        ["as", "g", "v"].iter().all(|name| self.param(name).is_none())
    }

    /// The comparison of `goautoneg`. It is not a strict order: an alternative with a lower quality
    /// may come first when it is more specific.
    fn is_before(&self, other: &Self) -> bool {
        self.quality > other.quality
            || self.kind != "*" && other.kind == "*"
            || self.subtype != "*" && other.subtype == "*"
    }
}

/// Returns the alternatives of the first `Accept` header as ordered by [`parse`]. Empty without
/// such a header.
pub fn parse_all(headers: &HeaderMap) -> Vec<Clause> {
    from_headers(headers).unwrap_or_default()
}

/// Like [`parse_all`]; `None` when the header is missing or empty.
pub fn from_headers(headers: &HeaderMap) -> Option<Vec<Clause>> {
    super::accept_header(headers).map(|header| parse(&header))
}

/// Maximum number of alternatives that are evaluated. Clients send a handful. The header may be a
/// megabyte long, comes from any client, and is sorted in quadratic time.
const MOST: usize = 64;

/// Returns the alternatives of a header value, best first. Parts that are not a media type are
/// skipped, and so is everything after the first 64 alternatives.
pub fn parse(header: &str) -> Vec<Clause> {
    let mut clauses: Vec<Clause> = header.split(',').filter_map(parse_clause).take(MOST).collect();
    // The comparison is not a strict order, so the sorting algorithm affects the result: Go uses
    // insertion sort for up to twelve alternatives, and real clients send fewer.
    for end in 1..clauses.len() {
        for at in (1..=end).rev() {
            if !clauses[at].is_before(&clauses[at - 1]) {
                break;
            }
            clauses.swap(at, at - 1);
        }
    }
    clauses
}

fn parse_clause(part: &str) -> Option<Clause> {
    let trim = |text: &str| text.trim_matches(' ').to_owned();
    let part = part.trim_matches(' ');
    let (media, params) = part.split_once(';').unwrap_or((part, ""));
    let (kind, rest) = media.split_once('/').unwrap_or((media, ""));
    let kind = trim(kind);
    let subtype = match rest.split_once('/') {
        Some((_, more)) if !more.is_empty() => return None,
        Some((subtype, _)) => trim(subtype),
        None if !rest.is_empty() => trim(rest),
        // Java's HttpURLConnection sends a single star for "anything".
        None if kind == "*" => "*".to_owned(),
        None => return None,
    };
    let mut clause = Clause { kind, subtype, quality: 1.0, params: Vec::new() };
    for param in params.split(';') {
        let Some((name, value)) = param.split_once('=').filter(|(_, value)| !value.is_empty()) else {
            continue;
        };
        let value = match value.split_once('=') {
            Some((_, more)) if !more.is_empty() => continue,
            Some((value, _)) => value,
            None => value,
        };
        match trim(name).as_str() {
            // A value that is not a number is zero, even if only because of a space before it.
            "q" => clause.quality = f64::from(value.parse::<f32>().unwrap_or(0.0)),
            name => clause.params.push((name.to_owned(), trim(value))),
        }
    }
    Some(clause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_with_many_alternatives_is_parsed_in_bounded_time() {
        let header: String = (0..100_000).map(|n| format!("a/b;q=0.{n:05},")).collect();
        assert_eq!(parse(&header).len(), MOST);
    }

    #[test]
    fn better_and_more_specific_alternatives_come_first() {
        let order = |header: &str| -> Vec<String> {
            parse(header).iter().map(|clause| format!("{}/{}", clause.kind, clause.subtype)).collect()
        };
        assert_eq!(order("text/html, application/json"), ["text/html", "application/json"]);
        assert_eq!(
            order("*/*, application/*, application/json"),
            ["application/json", "application/*", "*/*"]
        );
        assert_eq!(order("a/b;q=0.2, c/d;q=0.9, e/f"), ["e/f", "c/d", "a/b"]);
        assert_eq!(order("*"), ["*/*"]);
        // The result depends neither on the quality alone nor on the original order.
        assert_eq!(order("a/b;q=0.1, */*;q=0.9"), ["*/*", "a/b"]);
        assert_eq!(order("*/*;q=0.9, a/b;q=0.1"), ["a/b", "*/*"]);
        assert_eq!(order("a/b;q=x, c/d;q=0.1"), ["c/d", "a/b"]);
        assert_eq!(order("a/b;q= 0.9, c/d;q=0.1"), ["c/d", "a/b"]);
        assert_eq!(order("a/b/c, */, d/, /e"), ["/e", "*/*"]);
        assert_eq!(order(", ,nonsense"), Vec::<String>::new());
    }

    #[test]
    fn parameters_are_trimmed_and_preserved() {
        let clauses = parse("application/json; as=Table ;v=v1; g=meta.k8s.io;q=0.5");
        assert_eq!(clauses.len(), 1);
        assert_eq!(clauses[0].param("as"), Some("Table"));
        assert_eq!(clauses[0].param("g"), Some("meta.k8s.io"));
        assert_eq!(clauses[0].param("q"), None);
        let clauses = parse("a/b;as=;g=x=y;v; w = 1;w=2 ");
        assert_eq!(clauses[0].params, [("w".into(), "1".into()), ("w".into(), "2".into())]);
        assert_eq!(clauses[0].param("w"), Some("2"));
        let clauses = parse("application/json; as=Table ;v=v1; g=meta.k8s.io;q=0.5");
        assert!(!clauses[0].is_plain());
    }
}
