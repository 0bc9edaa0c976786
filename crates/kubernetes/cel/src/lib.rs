//! The Common Expression Language (CEL) with a static type checker, as Kubernetes configures it for
//! the claim mappings and the rules of its structured authentication configuration.
//!
//! The texts of errors, the results and the cost of evaluations are those of cel-go with the
//! environment of the Kubernetes API server: its libraries for URLs, regular expressions, lists,
//! quantities, IP addresses, formats and versions, cel-go's libraries for strings (version 2),
//! sets, lists (version 3) and two-variable comprehensions, optional values, and the comparison of
//! numbers of different types. Objects of protocol buffers cannot be created.
//!
//! Every input is bounded: the length and the nesting of an expression, the size of its types, the
//! cost of an evaluation, the size of the values that it builds, and regular expressions. The crate
//! does no I/O and reads no clock. It has no type for tokens: callers declare variables in an
//! [`Environment`].
//!
//! Read `program.rs` first: [`compile`] and [`Program::evaluate`] call the parser (`parser.rs`),
//! the checker (`checker.rs`) and the interpreter (`interpreter.rs`) in this order.
//!
//! ```
//! use pinniped_cel::{Budget, Environment, Map, Type, Value, compile};
//!
//! let environment = Environment::new().variable("claims", Type::map(Type::String, Type::Any));
//! let program = compile(&environment, "claims.email.endsWith('@example.com')").unwrap();
//! assert_eq!(program.output_type(), &Type::Bool);
//!
//! let claims = Map::object("claims", [("email".to_owned(), Value::from("jane@example.com"))]);
//! let claims = Value::Map(claims.into());
//! let result = program.evaluate(&[("claims", claims)], Budget::default()).unwrap();
//! assert!(matches!(result, Value::Bool(true)));
//!
//! let error = compile(&environment, "claims.email +").unwrap_err();
//! assert!(error.to_string().starts_with("compilation failed: ERROR: <input>:1:15: Syntax error: "));
//! ```

#![forbid(unsafe_code)]

mod ast;
mod budget;
mod checker;
mod cost;
mod declarations;
mod environment;
mod error;
mod interpreter;
mod lexer;
mod libraries;
mod parser;
mod plan;
mod program;
mod source;
mod token;
mod types;
mod value;

pub use budget::Budget;
pub use environment::Environment;
pub use error::{CompileError, EvaluationError, Issues};
pub use program::{Program, compile};
pub use types::Type;
pub use value::{Map, Opaque, Value};
