//! The values of expressions.
//!
//! Equality and order are in `value/compare.rs`, maps in `value/map.rs`, the conversion from JSON
//! in `value/json.rs`.

mod compare;
mod json;
mod map;

use std::fmt;
use std::sync::Arc;

pub(crate) use compare::{compare, equal};
pub use map::Map;
pub(crate) use map::{Key, exact_int};
use pinniped_go_compat::url::ParsedUrl;

use crate::libraries::timestamp::Timestamp;
use crate::libraries::{cidr::Cidr, format::Format, ip::Ip, quantity::Quantity, semver::Version};
use crate::types::Type;

/// A value. Clones are cheap: parts are shared.
///
/// `Debug` prints the type alone, because values come from tokens.
#[derive(Clone)]
#[non_exhaustive]
pub enum Value {
    /// The value `null`.
    Null,
    /// A boolean.
    Bool(bool),
    /// A signed integer.
    Int(i64),
    /// An unsigned integer.
    Uint(u64),
    /// A floating-point number. Numbers of JSON are of this type.
    Double(f64),
    /// A text.
    String(Arc<str>),
    /// A sequence of bytes.
    Bytes(Arc<[u8]>),
    /// A list.
    List(Arc<Vec<Value>>),
    /// A map or an object.
    Map(Arc<Map>),
    /// A value that can be absent.
    Optional(Option<Arc<Value>>),
    /// A value that expressions compute with, but that has no other use.
    Opaque(Opaque),
}

/// A value of a type that only expressions use, such as a duration or a URL.
#[derive(Clone)]
pub struct Opaque(pub(crate) OpaqueValue);

#[derive(Clone)]
pub(crate) enum OpaqueValue {
    /// Nanoseconds.
    Duration(i64),
    Timestamp(Timestamp),
    Type(Type),
    Url(Arc<ParsedUrl>),
    Quantity(Arc<Quantity>),
    Ip(Ip),
    Cidr(Cidr),
    Version(Arc<Version>),
    Format(&'static Format),
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Value({})", self.type_name())
    }
}

impl Value {
    /// Returns a list.
    pub fn list(elements: Vec<Value>) -> Self {
        Self::List(Arc::new(elements))
    }

    pub(crate) fn some(value: Value) -> Self {
        Self::Optional(Some(Arc::new(value)))
    }

    pub(crate) fn duration(nanoseconds: i64) -> Self {
        OpaqueValue::Duration(nanoseconds).into()
    }

    /// Returns the type that `type()` shows.
    pub(crate) fn type_name(&self) -> &str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Double(_) => "double",
            Self::String(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::List(_) => "list",
            Self::Map(map) => map.object_name().unwrap_or("map"),
            Self::Optional(_) => crate::types::OPTIONAL,
            Self::Opaque(Opaque(opaque)) => match opaque {
                OpaqueValue::Duration(_) => "google.protobuf.Duration",
                OpaqueValue::Timestamp(_) => "google.protobuf.Timestamp",
                OpaqueValue::Type(_) => "type",
                OpaqueValue::Url(_) => "kubernetes.URL",
                OpaqueValue::Quantity(_) => "kubernetes.Quantity",
                OpaqueValue::Ip(_) => "net.IP",
                OpaqueValue::Cidr(_) => "net.CIDR",
                OpaqueValue::Version(_) => "kubernetes.Semver",
                OpaqueValue::Format(_) => "kubernetes.NamedFormat",
            },
        }
    }

    /// Returns the number of code points, bytes, elements or entries, as `size()` does.
    pub(crate) fn size(&self) -> Option<usize> {
        match self {
            Self::String(text) => Some(text.chars().count()),
            Self::Bytes(bytes) => Some(bytes.len()),
            Self::List(elements) => Some(elements.len()),
            Self::Map(map) if map.object_name().is_none() => Some(map.len()),
            Self::Opaque(Opaque(OpaqueValue::Ip(ip))) => Some(ip.octets()),
            Self::Opaque(Opaque(OpaqueValue::Cidr(cidr))) => Some(cidr.size()),
            _ => None,
        }
    }

    /// Returns the size that the cost of a function depends on: 1 for values without parts.
    pub(crate) fn cost_size(&self) -> u64 {
        match self {
            Self::Optional(Some(value)) => value.cost_size(),
            Self::Map(map) => map.len() as u64,
            other => other.size().map_or(1, |size| size as u64),
        }
    }

    /// Reports whether the value is the default of its type, as `optional.ofNonZeroValue` requires.
    pub(crate) fn is_zero(&self) -> bool {
        match self {
            Self::Null => true,
            Self::Bool(value) => !value,
            Self::Int(value) => *value == 0,
            Self::Uint(value) => *value == 0,
            Self::Double(value) => *value == 0.0,
            Self::String(text) => text.is_empty(),
            Self::Bytes(bytes) => bytes.is_empty(),
            Self::List(elements) => elements.is_empty(),
            Self::Map(map) => map.object_name().is_none() && map.len() == 0,
            Self::Optional(value) => value.as_ref().is_none_or(|value| value.is_zero()),
            Self::Opaque(Opaque(OpaqueValue::Duration(value))) => *value == 0,
            Self::Opaque(Opaque(OpaqueValue::Timestamp(value))) => value.is_zero(),
            Self::Opaque(_) => false,
        }
    }
}

impl From<OpaqueValue> for Value {
    fn from(value: OpaqueValue) -> Self {
        Self::Opaque(Opaque(value))
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::String(text.into())
    }
}
