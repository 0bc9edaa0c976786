//! The variables and object types that expressions can use.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::types::{OPTIONAL, Type};

/// The variables of an expression with their types, and the object types among them.
///
/// The functions are always those of Kubernetes: see the [crate](crate) documentation.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    variables: BTreeMap<Arc<str>, Type>,
    objects: BTreeMap<Arc<str>, BTreeMap<Arc<str>, Type>>,
}

impl Environment {
    /// Returns an environment without variables.
    pub fn new() -> Self {
        Self::default()
    }

    /// Declares a variable.
    #[must_use]
    pub fn variable(mut self, name: &str, ty: Type) -> Self {
        self.variables.insert(name.into(), ty);
        self
    }

    /// Declares an object type with its fields. Variables have the type [`Type::object`].
    #[must_use]
    pub fn object<'a>(mut self, name: &str, fields: impl IntoIterator<Item = (&'a str, Type)>) -> Self {
        let fields = fields.into_iter().map(|(name, ty)| (name.into(), ty)).collect();
        self.objects.insert(name.into(), fields);
        self
    }

    /// Returns the type of a variable, or of the name of a type.
    pub(crate) fn lookup(&self, name: &str) -> Option<Type> {
        if let Some(ty) = self.variables.get(name) {
            return Some(ty.clone());
        }
        type_of_name(name).map(|ty| match ty {
            Type::Type(None) => Type::Type(None),
            other => Type::type_of(other),
        })
    }

    pub(crate) fn is_variable(&self, name: &str) -> bool {
        self.variables.contains_key(name)
    }

    /// Returns the fields of an object type.
    pub(crate) fn fields(&self, object: &str) -> Option<&BTreeMap<Arc<str>, Type>> {
        self.objects.get(object)
    }
}

/// Returns the type that a name denotes, such as `string` in `type(x) == string`.
pub(crate) fn type_of_name(name: &str) -> Option<Type> {
    let parameter = |name: &str| Type::Parameter(name.into());
    Some(match name {
        "bool" => Type::Bool,
        "bytes" => Type::Bytes,
        "double" => Type::Double,
        "int" => Type::Int,
        "list" => Type::list(parameter("A")),
        "map" => Type::map(parameter("A"), parameter("B")),
        "null_type" => Type::Null,
        "string" => Type::String,
        "type" => Type::Type(None),
        "uint" => Type::Uint,
        "net.CIDR" | "net.IP" | OPTIONAL => Type::Opaque(name.into(), [].into()),
        "google.protobuf.Duration" => Type::Duration,
        "google.protobuf.Timestamp" => Type::Timestamp,
        _ => return None,
    })
}
