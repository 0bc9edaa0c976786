//! CEL expressions over the claims of a token, and over the user that results from them.
//!
//! The environment is that of Kubernetes' structured authentication: `claims` is a map from text to
//! values of any type, `user` an object with the fields of a `UserInfo`.

use std::sync::Arc;

use pinniped_cel::{Budget, CompileError, Environment, Map, Type, Value};
use pinniped_concierge_domain::jwt_authenticator::expression::{self, CompileFailure, Compiler, Variable};
use pinniped_concierge_domain::status_text::StatusText;
use pinniped_kube_request::identity::User;
use serde_json::json;

use super::claim::Claims;

/// The name of the type of `user`.
const USER_TYPE: &str = "kubernetes.UserInfo";

/// Compiles the expressions of a spec.
#[derive(Debug)]
pub struct ExpressionCompiler {
    claims: Environment,
    user: Environment,
}

impl Default for ExpressionCompiler {
    fn default() -> Self {
        let claims = Type::map(Type::String, Type::Any);
        let fields = [
            ("username", Type::String),
            ("uid", Type::String),
            ("groups", Type::list(Type::String)),
            ("extra", Type::map(Type::String, Type::list(Type::String))),
        ];
        Self {
            claims: Environment::new().variable(Variable::Claims.name(), claims),
            user: Environment::new()
                .object(USER_TYPE, fields)
                .variable(Variable::User.name(), Type::object(USER_TYPE)),
        }
    }
}

/// A compiled expression.
#[derive(Debug)]
pub struct Program(pinniped_cel::Program);

/// The value of the variable of an expression. Built once for all expressions of a login.
#[derive(Debug)]
pub(super) struct Input {
    variable: Variable,
    value: Value,
}

/// The result of an expression, as far as an identity can use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Evaluated {
    /// A truth value.
    Bool(bool),
    /// A text.
    Text(String),
    /// A list that contains only texts.
    Texts(Vec<String>),
    /// Null.
    Null,
    /// Any other value.
    Other,
}

impl Compiler for ExpressionCompiler {
    type Program = Program;

    fn compile(&self, expression: &str, variable: Variable) -> Result<Program, CompileFailure> {
        let environment = match variable {
            Variable::Claims => &self.claims,
            Variable::User => &self.user,
        };
        pinniped_cel::compile(environment, expression).map(Program).map_err(|error| {
            let text = StatusText::of(&error);
            match error {
                CompileError::Literal { output_type, .. } => {
                    CompileFailure::Internal { detail: text, is_bool: output_type == Type::Bool }
                }
                _ => CompileFailure::Invalid(text),
            }
        })
    }
}

impl expression::Program for Program {
    fn is_bool(&self) -> bool {
        *self.0.output_type() == Type::Bool
    }

    fn selects_claim(&self, claim: &str) -> bool {
        self.0.selects(Variable::Claims.name(), &[claim])
    }
}

impl Input {
    /// Returns the variable `claims`.
    pub(super) fn claims(claims: &Claims) -> Self {
        let variable = Variable::Claims;
        let fields = claims.iter().map(|(name, value)| (name.clone(), Value::from(value)));
        Self { variable, value: Value::Map(Arc::new(Map::object(variable.name(), fields))) }
    }

    /// Returns the variable `user`.
    pub(super) fn user(user: &User) -> Self {
        let User { name, uid, groups, extra } = user;
        let fields = [
            ("username".to_owned(), Value::from(name.as_str())),
            ("uid".to_owned(), Value::from(uid.as_str())),
            ("groups".to_owned(), Value::from(&json!(groups))),
            ("extra".to_owned(), Value::from(&json!(extra))),
        ];
        Self { variable: Variable::User, value: Value::Map(Arc::new(Map::object(USER_TYPE, fields))) }
    }
}

impl Program {
    /// Evaluates the expression.
    ///
    /// # Errors
    ///
    /// Returns the text that upstream's interpreter prints.
    pub(super) fn evaluate(&self, input: &Input) -> Result<Evaluated, StatusText> {
        let variables = [(input.variable.name(), input.value.clone())];
        let result = self.0.evaluate(&variables, Budget::default());
        let value = result.map_err(|error| StatusText::of(&error))?;
        Ok(match value {
            Value::Null => Evaluated::Null,
            Value::Bool(value) => Evaluated::Bool(value),
            Value::String(text) => Evaluated::Text(text.to_string()),
            Value::List(elements) => {
                let texts: Option<Vec<_>> = elements.iter().map(text).collect();
                texts.map_or(Evaluated::Other, Evaluated::Texts)
            }
            _ => Evaluated::Other,
        })
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.to_string()),
        _ => None,
    }
}
