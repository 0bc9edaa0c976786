//! Compiled expressions.

mod tests;

use std::sync::Arc;

use crate::ast::{Expr, Id, Literal};
use crate::budget::{Budget, Usage};
use crate::checker::{self, Checked, Name};
use crate::environment::Environment;
use crate::error::{CompileError, EvaluationError};
use crate::interpreter;
use crate::plan::Plan;
use crate::source::Source;
use crate::types::Type;
use crate::value::Value;

/// A compiled expression. It holds no value of a token.
pub struct Program {
    pub(crate) checked: Checked,
    pub(crate) plan: Plan,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").field("output_type", &self.output_type()).finish_non_exhaustive()
    }
}

/// Compiles an expression: parses it, checks its types and validates its literals.
///
/// # Errors
///
/// Returns the issues of the expression with the texts and the positions of cel-go.
pub fn compile(environment: &Environment, source: &str) -> Result<Program, CompileError> {
    let source = Source::new(source);
    let (ast, root) = crate::parser::parse(&source).map_err(CompileError::Issues)?;
    let checked = checker::check(&source, environment, ast, root).map_err(CompileError::Issues)?;
    let plan = Plan::new(&checked)
        .map_err(|error| CompileError::Literal { error, output_type: checked.output_type().clone() })?;
    Ok(Program { checked, plan })
}

impl Program {
    /// Returns the type of the result.
    pub fn output_type(&self) -> &Type {
        self.checked.output_type()
    }

    /// Reports whether the expression selects a path of fields on a variable, such as
    /// `claims.email` or `claims.?email`. A selection by index, such as `claims['email']`, does not
    /// count.
    pub fn selects(&self, variable: &str, path: &[&str]) -> bool {
        let ast = &self.checked.ast;
        ast.descendants(self.checked.root).into_iter().any(|id| self.is_path(id, variable, path))
    }

    fn is_path(&self, mut id: Id, variable: &str, path: &[&str]) -> bool {
        for field in path.iter().rev() {
            let (operand, selected) = match self.checked.ast.expr(id) {
                Expr::Select { operand, field, .. } => (*operand, field),
                Expr::Call { function, arguments, .. } if &**function == "_?._" => {
                    let [operand, name] = arguments[..] else { return false };
                    match self.checked.ast.expr(name) {
                        Expr::Literal(Literal::String(name)) => (operand, name),
                        _ => return false,
                    }
                }
                _ => return false,
            };
            if **selected != **field {
                return false;
            }
            id = operand;
        }
        matches!(&self.checked.names[id.index()], Some(Name::Variable(name)) if **name == *variable)
    }

    /// Evaluates the expression.
    ///
    /// # Errors
    ///
    /// Returns the failure with the text of cel-go, or an error if the evaluation exceeds its
    /// budget.
    pub fn evaluate(&self, variables: &[(&str, Value)], budget: Budget) -> Result<Value, EvaluationError> {
        self.evaluate_with_cost(variables, budget).0
    }

    /// Evaluates the expression, and returns its cost in the units of Kubernetes' cost model.
    pub fn evaluate_with_cost(
        &self,
        variables: &[(&str, Value)],
        budget: Budget,
    ) -> (Result<Value, EvaluationError>, u64) {
        let mut usage = Usage::new(budget, Arc::clone(&self.plan.literals));
        let result = interpreter::evaluate(self, variables, &mut usage);
        (result, usage.cost())
    }
}
