//! Decides whether a value of one type can be used where another is expected, and binds type
//! parameters on the way. The rules are those of cel-go's checker.

use std::collections::HashMap;
use std::sync::Arc;

use crate::types::Type;

/// Larger types are refused: macros can double the size of a type with each nesting.
pub(super) const MAX_TYPE_SIZE: usize = 1_000;

/// The types that parameters are bound to.
#[derive(Default)]
pub(super) struct Bindings {
    types: HashMap<Arc<str>, Type>,
    /// The bindings before each change, to undo an attempt that failed.
    changes: Vec<(Arc<str>, Option<Type>)>,
    fresh: usize,
}

impl Bindings {
    /// Returns a new parameter.
    pub(super) fn fresh(&mut self) -> Type {
        let name = format!("_var{}", self.fresh);
        self.fresh += 1;
        Type::Parameter(name.into())
    }

    fn find(&self, ty: &Type) -> Option<&Type> {
        match ty {
            Type::Parameter(name) => self.types.get(name),
            _ => None,
        }
    }

    fn bind(&mut self, parameter: &Type, to: Type) {
        if let Type::Parameter(name) = parameter {
            let before = self.types.insert(name.clone(), to);
            self.changes.push((name.clone(), before));
        }
    }

    /// Reports whether each type can be used where the other is expected. Stores the bindings that
    /// this needs only if all can.
    pub(super) fn assignable_all(&mut self, from: &[Type], to: &[Type]) -> bool {
        self.changes.clear();
        if self.unify_all(from, to) {
            return true;
        }
        while let Some((name, before)) = self.changes.pop() {
            match before {
                Some(ty) => self.types.insert(name, ty),
                None => self.types.remove(&name),
            };
        }
        false
    }

    pub(super) fn assignable(&mut self, from: &Type, to: &Type) -> bool {
        self.assignable_all(std::slice::from_ref(from), std::slice::from_ref(to))
    }

    fn unify_all(&mut self, from: &[Type], to: &[Type]) -> bool {
        from.len() == to.len() && from.iter().zip(to).all(|(from, to)| self.unify(from, to))
    }

    fn unify(&mut self, first: &Type, second: &Type) -> bool {
        if matches!(second, Type::Parameter(_)) {
            let (valid, bound) = self.substitute_for(first, second);
            if valid {
                return true;
            }
            if bound {
                return false;
            }
        }
        if matches!(first, Type::Parameter(_)) {
            return self.substitute_for(second, first).0;
        }
        if first.is_dyn_or_error() || second.is_dyn_or_error() {
            return true;
        }
        match (first, second) {
            (Type::Null, other) | (other, Type::Null) => matches!(
                other,
                Type::Null | Type::Opaque(..) | Type::Object(_) | Type::Duration | Type::Timestamp
            ),
            (Type::Type(_), Type::Type(_)) => true,
            (Type::List(a), Type::List(b)) => self.unify(a, b),
            (Type::Map(a), Type::Map(b)) => self.unify(&a.0, &b.0) && self.unify(&a.1, &b.1),
            (Type::Opaque(a, first), Type::Opaque(b, second)) => a == b && self.unify_all(first, second),
            _ => first == second,
        }
    }

    /// Tries to use `ty` for a parameter. Returns whether it fits, and whether the parameter was
    /// bound before.
    fn substitute_for(&mut self, ty: &Type, parameter: &Type) -> (bool, bool) {
        if ty == parameter {
            return (true, true);
        }
        if let Some(bound) = self.find(parameter).cloned() {
            if *ty == bound {
                return (true, true);
            }
            if !self.unify(ty, &bound) {
                return (false, true);
            }
            let general = most_general(ty, &bound);
            if !self.occurs(parameter, &general) {
                self.bind(parameter, general);
            }
            return (true, true);
        }
        if self.occurs(parameter, ty) {
            return (false, false);
        }
        self.bind(parameter, ty.clone());
        (true, false)
    }

    /// Reports whether a parameter occurs in a type.
    fn occurs(&self, parameter: &Type, within: &Type) -> bool {
        let mut pending = vec![within];
        // Bindings have no cycle, and types have a bounded size. The count is a second protection.
        for _ in 0..100 * MAX_TYPE_SIZE {
            let Some(next) = pending.pop() else { return false };
            if next == parameter {
                return true;
            }
            match next {
                Type::Parameter(_) => pending.extend(self.find(next)),
                Type::List(element) => pending.push(element),
                Type::Map(entry) => pending.extend([&entry.0, &entry.1]),
                Type::Type(Some(of)) => pending.push(of),
                Type::Opaque(_, parameters) => pending.extend(parameters.iter()),
                _ => {}
            }
        }
        true
    }

    /// Replaces bound parameters by their types, and unbound ones by `dyn` if `to_dyn` is set.
    pub(super) fn substitute(&self, ty: &Type, to_dyn: bool) -> Type {
        let mut budget = 4 * MAX_TYPE_SIZE;
        self.substitute_within(ty, to_dyn, &mut budget)
    }

    fn substitute_within(&self, ty: &Type, to_dyn: bool, budget: &mut usize) -> Type {
        if *budget == 0 {
            return Type::Dyn;
        }
        *budget -= 1;
        if let Some(bound) = self.find(ty) {
            return self.substitute_within(bound, to_dyn, budget);
        }
        let mut inner = |ty: &Type| self.substitute_within(ty, to_dyn, budget);
        match ty {
            Type::Parameter(_) if to_dyn => Type::Dyn,
            Type::List(element) => Type::list(inner(element)),
            Type::Map(entry) => Type::map(inner(&entry.0), inner(&entry.1)),
            Type::Type(Some(of)) => Type::type_of(inner(of)),
            Type::Opaque(name, parameters) if !parameters.is_empty() => {
                Type::Opaque(name.clone(), parameters.iter().map(inner).collect())
            }
            other => other.clone(),
        }
    }
}

/// Returns the less specific of two types that unify.
pub(super) fn most_general(first: &Type, second: &Type) -> Type {
    if less_specific(first, second) { first.clone() } else { second.clone() }
}

fn less_specific(first: &Type, second: &Type) -> bool {
    let open = |ty: &Type| ty.is_dyn() || matches!(ty, Type::Parameter(_));
    if open(first) {
        return true;
    }
    if open(second) {
        return false;
    }
    match (first, second) {
        (Type::Opaque(a, first), Type::Opaque(b, second)) => {
            a == b
                && first.len() == second.len()
                && first.iter().zip(second.iter()).all(|(a, b)| less_specific(a, b))
        }
        (Type::List(a), Type::List(b)) => less_specific(a, b),
        (Type::Map(a), Type::Map(b)) => less_specific(&a.0, &b.0) && less_specific(&a.1, &b.1),
        (Type::Type(_), Type::Type(_)) => true,
        _ => first == second,
    }
}
