//! The interface to the compiler of CEL expressions.

use crate::status_text::StatusText;

/// The variable that an expression can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variable {
    /// `claims`, the claims of the token.
    Claims,
    /// `user`, the identity that results from the claims.
    User,
}

impl Variable {
    /// Returns the name of the variable.
    pub fn name(self) -> &'static str {
        match self {
            Self::Claims => "claims",
            Self::User => "user",
        }
    }
}

/// A compiled expression, as far as the validation of a spec inspects it.
pub trait Program {
    /// Returns whether the static type of the result is `bool`.
    fn is_bool(&self) -> bool;

    /// Returns whether the expression selects this claim, as in `claims.email` and `claims.?email`.
    fn selects_claim(&self, claim: &str) -> bool;
}

/// The reasons why an expression cannot be compiled, with upstream's texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompileFailure {
    /// The expression is not valid.
    Invalid(StatusText),
    /// The expression is valid, but cannot be evaluated.
    Internal {
        /// The reason.
        detail: StatusText,
        /// Whether the static type of the result is `bool`.
        is_bool: bool,
    },
}

/// Compiles expressions.
pub trait Compiler {
    /// The result for a valid expression.
    type Program: Program;

    /// Parses an expression and checks its types.
    ///
    /// # Errors
    ///
    /// Returns the text that upstream's compiler prints.
    fn compile(&self, expression: &str, variable: Variable) -> Result<Self::Program, CompileFailure>;
}
