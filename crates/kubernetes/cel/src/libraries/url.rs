//! URLs, as Go's `net/url` parses them.

use std::collections::BTreeMap;

use pinniped_go_compat::url::{ParsedUrl, escaped_path, parse, parse_request_uri, query_pairs};

use super::{Function, bool, no_overload, opaque};
use crate::budget::Usage;
use crate::error::EvaluationError;
use crate::interpreter::{ELEMENT_SIZE, Evaluation};
use crate::value::{Key, Map, OpaqueValue, Value};

pub(crate) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "url" => |usage, arguments| match arguments {
            [Value::String(text)] => {
                // Decoded and as written.
                usage.allocate(2 * text.len())?;
                // Only the first parser requires an absolute URL; only the second one knows
                // fragments.
                let url = parse_request_uri(text).and_then(|_| parse(text)).map_err(|error| {
                    EvaluationError::failed(format!("URL parse error during conversion from string: {error}"))
                })?;
                Ok(OpaqueValue::Url(url.into()).into())
            }
            _ => Err(no_overload("url", arguments)),
        },
        "isURL" => |_, arguments| match arguments {
            [Value::String(text)] => bool(parse_request_uri(text).is_ok()),
            _ => Err(no_overload("isURL", arguments)),
        },
        "getScheme" => |_, arguments| of("getScheme", arguments, |url| url.scheme.clone()),
        "getHost" => |_, arguments| of("getHost", arguments, |url| url.host.clone()),
        "getHostname" => |_, arguments| of("getHostname", arguments, |url| url.hostname().to_owned()),
        "getPort" => |_, arguments| of("getPort", arguments, |url| url.port().to_owned()),
        "getEscapedPath" => {
            |_, arguments| of("getEscapedPath", arguments, |url| escaped_path(&url.raw_path).into_owned())
        }
        "getQuery" => |usage, arguments| match arguments {
            [value] if let Some(OpaqueValue::Url(url)) = opaque(value) => query(usage, url),
            _ => Err(no_overload("getQuery", arguments)),
        },
        _ => return None,
    })
}

fn of(name: &str, arguments: &[Value], f: fn(&ParsedUrl) -> String) -> Evaluation {
    match arguments {
        [value] if let Some(OpaqueValue::Url(url)) = opaque(value) => Ok(f(url).into()),
        _ => Err(no_overload(name, arguments)),
    }
}

fn query(usage: &mut Usage, url: &ParsedUrl) -> Evaluation {
    let mut values: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for (name, value) in query_pairs(&url.query) {
        usage.allocate(2 * ELEMENT_SIZE + name.len() + value.len())?;
        values.entry(name).or_default().push(value.into());
    }
    let entries = values.into_iter().map(|(name, values)| (Key::String(name.into()), Value::list(values)));
    Ok(Value::Map(Map::built(entries.collect()).into()))
}
