//! The static types of expressions, and their text forms.
//!
//! The unification of types is in `checker/unify.rs`, declarations of functions in
//! `declarations.rs`.

use std::fmt;
use std::sync::Arc;

/// A static type. Clones are cheap: parts are shared.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Type {
    /// A type that is known at run time only.
    Dyn,
    /// A value of an unknown type, written `any`. The values of claims have it.
    Any,
    /// The type of an expression that has an error.
    Error,
    /// The type of `null`.
    Null,
    /// A boolean.
    Bool,
    /// A signed integer of 64 bits.
    Int,
    /// An unsigned integer of 64 bits.
    Uint,
    /// A floating-point number of 64 bits.
    Double,
    /// A text.
    String,
    /// A sequence of bytes.
    Bytes,
    /// A span of time.
    Duration,
    /// A point in time.
    Timestamp,
    /// A list with the type of its elements.
    List(Arc<Type>),
    /// A map with the types of its keys and of its values.
    Map(Arc<(Type, Type)>),
    /// The type of types. The parameter is absent for the name `type` itself.
    Type(Option<Arc<Type>>),
    /// A type with a name and parameters, such as `optional_type(string)`.
    Opaque(Arc<str>, Arc<[Type]>),
    /// An object with named fields.
    Object(Arc<str>),
    /// A parameter of a function's signature, or a type that is not yet known.
    Parameter(Arc<str>),
}

/// The name of the opaque type of optional values.
pub(crate) const OPTIONAL: &str = "optional_type";

impl Type {
    /// Returns the type of lists of `element`.
    pub fn list(element: Type) -> Self {
        Self::List(Arc::new(element))
    }

    /// Returns the type of maps from `key` to `value`.
    pub fn map(key: Type, value: Type) -> Self {
        Self::Map(Arc::new((key, value)))
    }

    /// Returns the type of optional values of `value`.
    pub fn optional(value: Type) -> Self {
        Self::Opaque(OPTIONAL.into(), Arc::new([value]))
    }

    /// Returns the object type of this name.
    pub fn object(name: &str) -> Self {
        Self::Object(name.into())
    }

    pub(crate) fn type_of(of: Type) -> Self {
        Self::Type(Some(Arc::new(of)))
    }

    /// Reports whether the type permits every value.
    pub(crate) fn is_dyn(&self) -> bool {
        matches!(self, Self::Dyn | Self::Any)
    }

    pub(crate) fn is_dyn_or_error(&self) -> bool {
        matches!(self, Self::Dyn | Self::Any | Self::Error)
    }

    /// Returns the type of the value inside an optional type.
    pub(crate) fn optional_value(&self) -> Option<&Type> {
        match self {
            Self::Opaque(name, parameters) if &**name == OPTIONAL => parameters.first(),
            _ => None,
        }
    }

    /// Returns the name of the type without its parameters, as `type()` shows it at run time.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Dyn => "dyn",
            Self::Any => "google.protobuf.Any",
            Self::Error => "error",
            Self::Null => "null_type",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Duration => "google.protobuf.Duration",
            Self::Timestamp => "google.protobuf.Timestamp",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Type(_) => "type",
            Self::Opaque(name, _) | Self::Object(name) | Self::Parameter(name) => name,
        }
    }

    /// Counts the types that this type is made of, and stops at `limit`.
    pub(crate) fn size(&self, limit: usize) -> usize {
        let mut pending = vec![self];
        let mut count = 0;
        while let Some(next) = pending.pop() {
            count += 1;
            if count >= limit {
                return limit;
            }
            match next {
                Self::List(element) => pending.push(element),
                Self::Map(entry) => pending.extend([&entry.0, &entry.1]),
                Self::Type(Some(of)) => pending.push(of),
                Self::Opaque(_, parameters) => pending.extend(parameters.iter()),
                _ => {}
            }
        }
        count
    }
}

/// The form that compile errors use, such as `map(string, any)`.
impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Duration => f.write_str("duration"),
            Self::Error => f.write_str("!error!"),
            Self::Null => f.write_str("null"),
            Self::Timestamp => f.write_str("timestamp"),
            Self::List(element) => write!(f, "list({element})"),
            Self::Map(entry) => write!(f, "map({}, {})", entry.0, entry.1),
            Self::Type(Some(of)) => write!(f, "type({of})"),
            Self::Opaque(name, parameters) if !parameters.is_empty() => {
                write!(f, "{name}(")?;
                for (index, parameter) in parameters.iter().enumerate() {
                    if index > 0 {
                        f.write_str(", ")?;
                    }
                    write!(f, "{parameter}")?;
                }
                f.write_str(")")
            }
            other => f.write_str(other.name()),
        }
    }
}
