//! The `Accept` header, read the way Kubernetes does (its copy of `goautoneg`).

use std::cmp::Ordering;

use http::HeaderMap;

/// One alternative of an `Accept` header.
#[derive(Clone, Debug, PartialEq)]
pub struct Clause {
    /// Before the slash; `*` for any.
    pub kind: String,
    /// After the slash; `*` for any.
    pub subtype: String,
    /// Quality, 1 when not given.
    pub quality: f64,
    /// Parameters other than `q`, in their order.
    pub params: Vec<(String, String)>,
}

impl Clause {
    /// The value of a parameter.
    pub fn param(&self, name: &str) -> Option<&str> {
        self.params.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Whether this alternative covers a media type.
    pub fn covers(&self, kind: &str, subtype: &str) -> bool {
        (self.kind == kind && (self.subtype == subtype || self.subtype == "*"))
            || (self.kind == "*" && self.subtype == "*")
    }

    /// Whether it asks for the object as it is: no table or other transformation, no stream.
    pub fn is_plain(&self) -> bool {
        ["as", "g", "v"].iter().all(|name| self.param(name).is_none())
            && self.param("stream").is_none_or(str::is_empty)
    }
}

/// The alternatives of the first `Accept` header, best first: by quality, then the more specific, then as given.
/// Empty when there is no such header.
pub fn parse_all(headers: &HeaderMap) -> Vec<Clause> {
    super::accept_header(headers).map(parse).unwrap_or_default()
}

/// The alternatives of a header value, best first. Parts that are no media type are left out.
pub fn parse(header: &str) -> Vec<Clause> {
    let mut clauses: Vec<Clause> = header.split(',').filter_map(parse_clause).collect();
    clauses.sort_by(|a, b| {
        b.quality
            .partial_cmp(&a.quality)
            .unwrap_or(Ordering::Equal)
            .then_with(|| (a.kind == "*").cmp(&(b.kind == "*")))
            .then_with(|| (a.subtype == "*").cmp(&(b.subtype == "*")))
    });
    clauses
}

fn parse_clause(part: &str) -> Option<Clause> {
    let mut pieces = part.split(';').map(str::trim);
    let media = pieces.next()?;
    let (kind, subtype) = match media.split_once('/') {
        Some((kind, subtype)) => (kind.trim(), subtype.trim()),
        // Java's HttpURLConnection sends a lone star for "anything".
        None if media == "*" => ("*", "*"),
        None => return None,
    };
    let mut clause =
        Clause { kind: kind.to_owned(), subtype: subtype.to_owned(), quality: 1.0, params: Vec::new() };
    for piece in pieces {
        let Some((name, value)) = piece.split_once('=') else { continue };
        let (name, value) = (name.trim(), value.trim());
        if name == "q" {
            clause.quality = value.parse().ok().filter(|q: &f64| q.is_finite()).unwrap_or(1.0);
        } else {
            clause.params.push((name.to_owned(), value.to_owned()));
        }
    }
    Some(clause)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(order(", ,nonsense"), Vec::<String>::new());
    }

    #[test]
    fn parameters_are_kept_and_trimmed() {
        let clauses = parse("application/json; as=Table ;v=v1; g=meta.k8s.io;q=0.5");
        assert_eq!(clauses.len(), 1);
        assert_eq!(clauses[0].param("as"), Some("Table"));
        assert_eq!(clauses[0].param("g"), Some("meta.k8s.io"));
        assert_eq!(clauses[0].param("q"), None);
        assert!(!clauses[0].is_plain());
    }
}
