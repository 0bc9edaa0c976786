//! Adds nodes to the tree, and enforces the limit of nested operations.

use std::sync::Arc;

use super::{Abort, MAX_DEPTH, Parser};
use crate::ast::{Expr, Id};
use crate::token::{Kind, Token};

impl Parser<'_> {
    pub(super) fn add(&mut self, offset: u32, expr: Expr) -> Id {
        let operations = self.operations_below(&expr);
        let id = self.ast.add(offset, expr);
        self.operations.push(operations);
        id
    }

    /// Adds a node that counts as an operation: a selection, a call with a target, an operator.
    pub(super) fn add_operation(&mut self, offset: u32, expr: Expr) -> Result<Id, Abort> {
        let operations = self.operations_below(&expr) + 1;
        if operations > MAX_DEPTH {
            return Err(self.abort("max recursion depth exceeded"));
        }
        let id = self.add(offset, expr);
        self.operations[id.index()] = operations;
        Ok(id)
    }

    /// Counts a node, such as the expansion of a macro, as an operation.
    pub(super) fn count_operation(&mut self, id: Id) -> Result<(), Abort> {
        let operations = &mut self.operations[id.index()];
        *operations += 1;
        if *operations > MAX_DEPTH {
            return Err(self.abort("max recursion depth exceeded"));
        }
        Ok(())
    }

    fn operations_below(&self, expr: &Expr) -> u32 {
        let mut most = 0;
        crate::ast::for_each_child(expr, |child| most = most.max(self.operations[child.index()]));
        most
    }

    pub(super) fn call(&mut self, offset: u32, function: &str, arguments: Vec<Id>) -> Id {
        self.add(offset, Expr::Call { function: function.into(), target: None, arguments })
    }

    pub(super) fn binary(&mut self, operator: Token, left: Id, right: Id) -> Result<Id, Abort> {
        let function: Arc<str> = operator_name(operator.kind).into();
        let call = Expr::Call { function, target: None, arguments: vec![left, right] };
        self.add_operation(operator.start, call)
    }

    /// Combines the terms of a chain of `&&` or `||` into a balanced tree.
    pub(super) fn balance(&mut self, function: &str, terms: &[Id], operators: &[u32]) -> Id {
        if let [only] = terms {
            return *only;
        }
        let middle = operators.len() / 2;
        let left = self.balance(function, &terms[..=middle], &operators[..middle]);
        let right = self.balance(function, &terms[middle + 1..], &operators[middle + 1..]);
        self.call(operators[middle], function, vec![left, right])
    }
}

/// Returns the function of a binary operator.
fn operator_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Equals => "_==_",
        Kind::NotEquals => "_!=_",
        Kind::In => "@in",
        Kind::Less => "_<_",
        Kind::LessEquals => "_<=_",
        Kind::GreaterEquals => "_>=_",
        Kind::Greater => "_>_",
        Kind::Plus => "_+_",
        Kind::Minus => "_-_",
        Kind::Star => "_*_",
        Kind::Slash => "_/_",
        _ => "_%_",
    }
}
