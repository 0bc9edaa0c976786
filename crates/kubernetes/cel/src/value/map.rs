//! Maps and objects.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::Value;

/// A map, or an object whose fields expressions select by name.
pub struct Map {
    entries: BTreeMap<Key, Value>,
    kind: Kind,
}

/// The origin of a map: it decides which keys select an entry.
#[derive(Clone)]
enum Kind {
    /// The map was built by an expression.
    Built,
    /// The map was read from JSON. A key that selects can be escaped: `a__dot__b` for `a.b`.
    Json,
    /// The map is the value of a variable. Like `Json`, but most functions refuse it.
    Object(Arc<str>),
}

/// A key of a map. Numbers of different types are different keys, but select the same entry.
#[derive(Clone)]
pub(crate) enum Key {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Arc<str>),
}

impl Key {
    pub(crate) fn new(value: &Value) -> Option<Self> {
        Some(match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(*value),
            Value::Int(value) => Self::Int(*value),
            Value::Uint(value) => Self::Uint(*value),
            Value::Double(value) => Self::Double(*value),
            Value::String(text) => Self::String(text.clone()),
            _ => return None,
        })
    }

    pub(crate) fn value(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(*value),
            Self::Int(value) => Value::Int(*value),
            Self::Uint(value) => Value::Uint(*value),
            Self::Double(value) => Value::Double(*value),
            Self::String(text) => Value::String(text.clone()),
        }
    }

    /// Returns the key as errors show it.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Null => "null".into(),
            Self::Bool(value) => value.to_string(),
            Self::Int(value) => value.to_string(),
            Self::Uint(value) => value.to_string(),
            Self::Double(value) => crate::libraries::convert::double_text(*value),
            Self::String(text) => text.to_string(),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Null => 0,
            Self::Bool(_) => 1,
            Self::Int(_) => 2,
            Self::Uint(_) => 3,
            Self::Double(_) => 4,
            Self::String(_) => 5,
        }
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => a.cmp(b),
            (Self::Int(a), Self::Int(b)) => a.cmp(b),
            (Self::Uint(a), Self::Uint(b)) => a.cmp(b),
            (Self::Double(a), Self::Double(b)) => a.total_cmp(b),
            (Self::String(a), Self::String(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Key {}

impl Map {
    pub(crate) fn built(entries: BTreeMap<Key, Value>) -> Self {
        Self { entries, kind: Kind::Built }
    }

    pub(crate) fn json(entries: BTreeMap<Key, Value>) -> Self {
        Self { entries, kind: Kind::Json }
    }

    /// Returns an object of the type with this name.
    pub fn object(name: &str, fields: impl IntoIterator<Item = (String, Value)>) -> Self {
        let entries = fields.into_iter().map(|(name, value)| (Key::String(name.into()), value));
        Self { entries: entries.collect(), kind: Kind::Object(name.into()) }
    }

    /// Returns the entries whose keys are text, in the order of these.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().filter_map(|(key, value)| match key {
            Key::String(text) => Some((&**text, value)),
            _ => None,
        })
    }

    pub(crate) fn entries(&self) -> &BTreeMap<Key, Value> {
        &self.entries
    }

    pub(crate) fn into_entries(self) -> BTreeMap<Key, Value> {
        self.entries
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the name of the type, if the map is the value of a variable.
    pub(crate) fn object_name(&self) -> Option<&str> {
        match &self.kind {
            Kind::Object(name) => Some(name),
            _ => None,
        }
    }

    /// Returns the value that a key selects.
    pub(crate) fn get(&self, key: &Value) -> Option<&Value> {
        let mut key = Key::new(key)?;
        if let (Key::String(text), Kind::Json | Kind::Object(_)) = (&key, &self.kind) {
            match unescape(text) {
                Some(unescaped) if unescaped != **text => key = Key::String(unescaped.into()),
                None if matches!(self.kind, Kind::Object(_)) => return None,
                _ => {}
            }
        }
        self.entries.get(&key).or_else(|| self.get_number(&key))
    }

    /// Finds a number of another type that has the same value.
    fn get_number(&self, key: &Key) -> Option<&Value> {
        let int = |value: i64| self.entries.get(&Key::Int(value));
        let uint = |value: u64| self.entries.get(&Key::Uint(value));
        match key {
            Key::Int(value) => uint(u64::try_from(*value).ok()?),
            Key::Uint(value) => int(i64::try_from(*value).ok()?),
            Key::Double(value) => {
                let signed = exact_int(*value).and_then(int);
                signed.or_else(|| exact_uint(*value).and_then(uint))
            }
            _ => None,
        }
    }
}

/// Returns the integer that equals a double.
pub(crate) fn exact_int(value: f64) -> Option<i64> {
    let limit = i64::MAX as f64;
    (value.fract() == 0.0 && value >= -limit && value < limit).then_some(value as i64)
}

fn exact_uint(value: f64) -> Option<u64> {
    (value.fract() == 0.0 && value >= 0.0 && value < u64::MAX as f64).then_some(value as u64)
}

/// Replaces the escape sequences that Kubernetes uses for names that are no identifiers. Returns
/// `None` if a sequence is not known.
fn unescape(name: &str) -> Option<String> {
    const KEYWORDS: [&str; 21] = [
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ];
    let mut unescaped = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(start) = rest.find("__") {
        let after = &rest[start + 2..];
        let end = after.find('_').filter(|end| *end > 0 && after[*end..].starts_with("__"));
        let Some(end) = end else {
            let keep = start + 1;
            unescaped.push_str(&rest[..keep]);
            rest = &rest[keep..];
            continue;
        };
        unescaped.push_str(&rest[..start]);
        match &after[..end] {
            "underscores" => unescaped.push_str("__"),
            "dot" => unescaped.push('.'),
            "dash" => unescaped.push('-'),
            "slash" => unescaped.push('/'),
            keyword if KEYWORDS.contains(&keyword) && keyword.len() + 4 == name.len() => {
                unescaped.push_str(keyword);
            }
            _ => return None,
        }
        rest = &after[end + 2..];
    }
    unescaped.push_str(rest);
    Some(unescaped)
}

#[cfg(test)]
mod tests {
    use super::unescape;

    #[test]
    fn escaped_names_select_what_they_stand_for() {
        for (escaped, name) in [
            ("plain", Some("plain")),
            ("a__dot__b", Some("a.b")),
            ("a__dash__b__slash__c", Some("a-b/c")),
            ("__namespace__", Some("namespace")),
            ("a__underscores__b", Some("a__b")),
            ("a__b", Some("a__b")),
            ("a__what__b", None),
        ] {
            assert_eq!(unescape(escaped).as_deref(), name, "{escaped}");
        }
    }
}
