//! The functions that expressions can call: names, overloads and signatures.
//!
//! The signatures are text, in the form of cel-go's documentation: `size_string: (string) -> int`,
//! `string_size: string.() -> int`. Upper-case letters are type parameters. Implementations are in
//! `libraries.rs`.

mod kubernetes;
mod lists;
mod operators;
mod optional;
mod standard;
mod text;

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::types::Type;

/// The name of a function and its signatures.
type Declaration = (&'static str, &'static [&'static str]);

/// One signature of a function.
#[derive(Debug)]
pub(crate) struct Overload {
    pub(crate) id: &'static str,
    /// The first argument is written before the name, as in `text.size()`.
    pub(crate) member: bool,
    /// The types of the target, if there is one, and of the arguments.
    pub(crate) arguments: Vec<Type>,
    pub(crate) result: Type,
    pub(crate) parameters: Vec<Type>,
}

/// Returns the overloads of a function.
pub(crate) fn overloads(name: &str) -> Option<&'static [Overload]> {
    FUNCTIONS.get(name).map(Vec::as_slice)
}

static FUNCTIONS: LazyLock<HashMap<&str, Vec<Overload>>> = LazyLock::new(|| {
    [
        operators::FUNCTIONS,
        standard::FUNCTIONS,
        text::FUNCTIONS,
        lists::FUNCTIONS,
        optional::FUNCTIONS,
        kubernetes::FUNCTIONS,
    ]
    .into_iter()
    .flatten()
    .map(|(name, signatures)| (*name, signatures.iter().filter_map(|text| parse(text)).collect()))
    .collect()
});

/// Parses `id: (A, B) -> C` or `id: A.(B) -> C`. A test checks that all signatures parse.
fn parse(text: &'static str) -> Option<Overload> {
    let (id, signature) = text.split_once(": ")?;
    let (left, result) = signature.rsplit_once(" -> ")?;
    let mut rest = left;
    let mut arguments = Vec::new();
    let member = !rest.starts_with('(');
    if member {
        let (target, after) = type_of(rest)?;
        arguments.push(target);
        rest = after.strip_prefix('.')?;
    }
    rest = rest.strip_prefix('(')?;
    while !rest.starts_with(')') {
        let (argument, after) = type_of(rest)?;
        arguments.push(argument);
        rest = after.strip_prefix(", ").unwrap_or(after);
    }
    let (result, _) = type_of(result)?;
    let mut parameters = Vec::new();
    for ty in arguments.iter().chain([&result]) {
        collect_parameters(ty, &mut parameters);
    }
    Some(Overload { id, member, arguments, result, parameters })
}

/// Reads a type from the beginning of a text. Returns the text after it.
fn type_of(text: &str) -> Option<(Type, &str)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
    let mut end = text.find(|c| !is_name(c)).unwrap_or(text.len());
    if text[..end].ends_with('.') {
        end -= 1;
    }
    let (name, mut rest) = text.split_at(end);
    let mut inner = Vec::new();
    if let Some(after) = rest.strip_prefix('(') {
        rest = after;
        while !rest.starts_with(')') {
            let (ty, after) = type_of(rest)?;
            inner.push(ty);
            rest = after.strip_prefix(", ").unwrap_or(after);
        }
        rest = rest.strip_prefix(')')?;
    }
    let mut inner = inner.into_iter();
    let ty = match name {
        "dyn" => Type::Dyn,
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "duration" => Type::Duration,
        "timestamp" => Type::Timestamp,
        "list" => Type::list(inner.next()?),
        "map" => Type::map(inner.next()?, inner.next()?),
        "type" => Type::type_of(inner.next()?),
        "optional_type" => Type::optional(inner.next()?),
        _ if name.starts_with("net.") => Type::Opaque(name.into(), [].into()),
        _ if name.starts_with("kubernetes.") => Type::object(name),
        _ if name.len() == 1 => Type::Parameter(name.into()),
        _ => return None,
    };
    Some((ty, rest))
}

fn collect_parameters(ty: &Type, to: &mut Vec<Type>) {
    match ty {
        Type::Parameter(_) if !to.contains(ty) => to.push(ty.clone()),
        Type::List(element) => collect_parameters(element, to),
        Type::Map(entry) => {
            collect_parameters(&entry.0, to);
            collect_parameters(&entry.1, to);
        }
        Type::Type(Some(of)) => collect_parameters(of, to),
        Type::Opaque(_, parameters) => parameters.iter().for_each(|ty| collect_parameters(ty, to)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signature_parses() {
        let all = [
            operators::FUNCTIONS,
            standard::FUNCTIONS,
            text::FUNCTIONS,
            lists::FUNCTIONS,
            optional::FUNCTIONS,
            kubernetes::FUNCTIONS,
        ];
        for (name, signatures) in all.into_iter().flatten() {
            assert_eq!(overloads(name).map(<[_]>::len), Some(signatures.len()), "{name}");
        }
    }
}
