//! Lists and maps of a user that are limited while they are parsed.
//!
//! An empty text is three bytes in a response and many times as large in memory, so the size of a
//! response does not limit the memory that it needs.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Parses groups; null gives `None`.
pub(super) fn groups<'de, const MAX_VALUES: usize, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<String>>, D::Error> {
    let mut remaining = MAX_VALUES;
    Values { remaining: &mut remaining, most: MAX_VALUES, of: "groups" }.deserialize(deserializer)
}

/// Parses extra attributes; null gives `None`, and an attribute that is null has no values.
pub(super) fn extra<'de, const MAX_VALUES: usize, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<BTreeMap<String, Vec<String>>>, D::Error> {
    deserializer.deserialize_option(ExtraVisitor { most: MAX_VALUES })
}

/// Counts one more value.
fn take<E: Error>(remaining: &mut usize, most: usize, of: &'static str) -> Result<(), E> {
    *remaining = remaining
        .checked_sub(1)
        .ok_or_else(|| E::custom(format!("the user has more than {most} values in {of}")))?;
    Ok(())
}

/// A list of texts, or null.
struct Values<'a> {
    /// The number of values that are still allowed.
    remaining: &'a mut usize,
    /// The number of values that were allowed at first, for errors.
    most: usize,
    /// The member, for errors.
    of: &'static str,
}

impl<'de> DeserializeSeed<'de> for Values<'_> {
    type Value = Option<Vec<String>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Values<'_> {
    type Value = Option<Vec<String>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of strings or null")
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element()? {
            take(self.remaining, self.most, self.of)?;
            values.push(value);
        }
        Ok(Some(values))
    }
}

struct ExtraVisitor {
    most: usize,
}

impl<'de> Visitor<'de> for ExtraVisitor {
    type Value = Option<BTreeMap<String, Vec<String>>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of lists of strings or null")
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        const OF: &str = "extra";
        let mut remaining = self.most;
        let mut extra = BTreeMap::new();
        while let Some(key) = map.next_key::<String>()? {
            take(&mut remaining, self.most, OF)?;
            let values =
                map.next_value_seed(Values { remaining: &mut remaining, most: self.most, of: OF })?;
            extra.insert(key, values.unwrap_or_default());
        }
        Ok(Some(extra))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{TokenReviewResponse, TokenReviewResult};

    const MAX_VALUES: usize = 10_000;

    fn parse(user: &str) -> Result<(usize, usize), String> {
        let text = format!(r#"{{"status":{{"authenticated":true,"user":{{{user}}}}}}}"#);
        let response: TokenReviewResponse<MAX_VALUES> =
            serde_json::from_str(&text).map_err(|error| error.to_string())?;
        match response.status.unwrap().into_result() {
            TokenReviewResult::Authenticated(user) => {
                Ok((user.groups.len(), user.extra.values().map(|values| 1 + values.len()).sum()))
            }
            TokenReviewResult::Unauthenticated(error) => Err(error),
        }
    }

    #[test]
    fn groups_and_extra_attributes_are_limited_and_may_be_null() {
        let list = |count: usize| format!("[{}]", vec!["\"\""; count].join(","));
        let keys = |count: usize| {
            let keys: Vec<_> = (0..count).map(|key| format!("\"{key}\":null")).collect();
            format!("{{{}}}", keys.join(","))
        };
        let most = MAX_VALUES;
        for (user, expected) in [
            (String::new(), Ok((0, 0))),
            (r#""groups":null,"extra":null"#.to_owned(), Ok((0, 0))),
            (r#""groups":[],"extra":{"a":null,"b":["c","d"]}"#.to_owned(), Ok((0, 4))),
            (format!("\"groups\":{}", list(most)), Ok((most, 0))),
            (format!("\"groups\":{}", list(most + 1)), Err("groups")),
            (format!("\"extra\":{{\"a\":{}}}", list(most - 1)), Ok((0, most))),
            (format!("\"extra\":{{\"a\":{}}}", list(most)), Err("extra")),
            (format!("\"extra\":{}", keys(most)), Ok((0, most))),
            (format!("\"extra\":{}", keys(most + 1)), Err("extra")),
            // Members that are not used are not limited, and not retained.
            (format!("\"other\":{}", list(most + 1)), Ok((0, 0))),
        ] {
            let start = &user[..user.len().min(40)];
            match (parse(&user), expected) {
                (Err(error), Err(of)) => {
                    let text = format!("the user has more than 10000 values in {of} at line 1");
                    assert!(error.starts_with(&text), "{start}: {error}");
                }
                (parsed, expected) => assert_eq!(parsed, expected.map_err(str::to_owned), "{start}"),
            }
        }
        for user in [r#""groups":{}"#, r#""groups":"a""#, r#""groups":[1]"#, r#""extra":[]"#] {
            parse(user).unwrap_err();
        }
    }
}
