//! Finds the overload of a call.

use std::sync::Arc;

use super::Checker;
use crate::ast::{Expr, Id, Literal};
use crate::declarations::{Overload, overloads};
use crate::types::Type;

/// A call, taken out of the tree.
struct Call {
    function: Arc<str>,
    target: Option<Id>,
    arguments: Vec<Id>,
}

impl Checker<'_> {
    pub(super) fn check_call(&mut self, id: Id) {
        let Expr::Call { function, target, arguments } = self.ast.expr(id) else { return };
        let call = Call { function: function.clone(), target: *target, arguments: arguments.clone() };
        if &*call.function == "_?._" {
            return self.check_optional_field(id, &call);
        }
        for argument in &call.arguments {
            self.check(*argument);
        }
        let Some(target) = call.target else {
            let name = call.function.strip_prefix('.').unwrap_or(&call.function);
            match overloads(name) {
                Some(found) => {
                    if name != &*call.function {
                        let function = name.into();
                        let arguments = call.arguments.clone();
                        self.ast.replace(id, Expr::Call { function, target: None, arguments });
                    }
                    self.resolve(id, name, found, None, &call.arguments);
                }
                None => self.unknown_function(id, &call.function),
            }
            return;
        };
        // A function with a dotted name, such as `optional.of`.
        if let Some(prefix) = self.ast.qualified_name(target) {
            let name = format!("{}.{}", prefix.strip_prefix('.').unwrap_or(&prefix), call.function);
            if let Some(found) = overloads(&name) {
                let arguments = call.arguments.clone();
                let function = name.as_str().into();
                self.ast.replace(id, Expr::Call { function, target: None, arguments });
                return self.resolve(id, &name, found, None, &call.arguments);
            }
        }
        self.check(target);
        match overloads(&call.function) {
            Some(found) => self.resolve(id, &call.function, found, Some(target), &call.arguments),
            None => self.unknown_function(id, &call.function),
        }
    }

    fn unknown_function(&mut self, id: Id, name: &str) {
        self.set_type(id, Type::Error);
        self.report_undeclared(id, name);
    }

    fn check_optional_field(&mut self, id: Id, call: &Call) {
        let [operand, field] = call.arguments[..] else { return };
        let Expr::Literal(Literal::String(field)) = self.ast.expr(field) else { return };
        let field = field.clone();
        let ty = self.check_field(id, operand, &field, true);
        self.overloads[id.index()] = Some("select_optional_field");
        self.set_substituted(id, &ty);
    }

    /// Finds the overloads that accept the arguments, and sets the type of the result.
    fn resolve(
        &mut self,
        id: Id,
        name: &str,
        candidates: &'static [Overload],
        target: Option<Id>,
        arguments: &[Id],
    ) {
        let operands: Vec<Id> = target.iter().chain(arguments).copied().collect();
        let types: Vec<Type> = operands.iter().map(|id| self.type_of(*id)).collect();
        let mut result: Option<Type> = None;
        let mut overload = None;
        let mut count = 0;
        for candidate in candidates {
            if candidate.member != target.is_some() {
                continue;
            }
            if matches!(name, "_&&_" | "_||_") {
                return self.check_logical(id, candidate.id, &operands, &types);
            }
            let (expected, returned) = self.instantiate(candidate);
            if !self.bindings.assignable_all(&types, &expected) {
                continue;
            }
            count += 1;
            overload = overload.or(Some(candidate.id));
            let returned = self.bindings.substitute(&returned, false);
            result = Some(match result {
                None => returned,
                Some(first) if !first.is_dyn() && first != returned => Type::Dyn,
                Some(first) => first,
            });
        }
        match result {
            Some(ty) => {
                self.overloads[id.index()] = overload.filter(|_| count == 1);
                self.set_type(id, ty);
            }
            None => {
                self.set_type(id, Type::Error);
                self.report_no_overload(id, name, &types, target.is_some());
            }
        }
    }

    fn check_logical(&mut self, id: Id, overload: &'static str, operands: &[Id], types: &[Type]) {
        let mut result = Type::Bool;
        for (operand, ty) in operands.iter().zip(types) {
            if !self.bindings.assignable(ty, &Type::Bool) {
                self.report_mismatch(*operand, &Type::Bool, ty);
                result = Type::Error;
            }
        }
        self.overloads[id.index()] = Some(overload);
        self.set_type(id, result);
    }

    /// Replaces the type parameters of an overload by new ones.
    fn instantiate(&mut self, overload: &Overload) -> (Vec<Type>, Type) {
        if overload.parameters.is_empty() {
            return (overload.arguments.clone(), overload.result.clone());
        }
        let fresh: Vec<Type> = overload.parameters.iter().map(|_| self.bindings.fresh()).collect();
        let replace = |ty: &Type| replace(ty, &overload.parameters, &fresh);
        (overload.arguments.iter().map(replace).collect(), replace(&overload.result))
    }

    fn report_no_overload(&mut self, id: Id, name: &str, types: &[Type], member: bool) {
        let types: Vec<String> =
            types.iter().map(|ty| self.bindings.substitute(ty, true).to_string()).collect();
        let signature = match types.split_first() {
            Some((target, rest)) if member => format!("{target}.({})", rest.join(", ")),
            _ => format!("({})", types.join(", ")),
        };
        self.report(id, format!("found no matching overload for '{name}' applied to '{signature}'"));
    }
}

/// Replaces parameters by other types.
fn replace(ty: &Type, parameters: &[Type], by: &[Type]) -> Type {
    let inner = |ty: &Type| replace(ty, parameters, by);
    match ty {
        Type::Parameter(_) => {
            let index = parameters.iter().position(|parameter| parameter == ty);
            index.and_then(|index| by.get(index)).unwrap_or(ty).clone()
        }
        Type::List(element) => Type::list(inner(element)),
        Type::Map(entry) => Type::map(inner(&entry.0), inner(&entry.1)),
        Type::Type(Some(of)) => Type::type_of(inner(of)),
        Type::Opaque(name, of) => Type::Opaque(name.clone(), of.iter().map(inner).collect()),
        other => other.clone(),
    }
}
