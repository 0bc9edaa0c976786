//! The command line. One table of commands and flags ([`tree`]) is the source of the parser
//! ([`mod@parse`]), the help ([`help`]), the suggestions and the completion scripts.
//!
//! Users, scripts and kubeconfigs depend on the behaviour of cobra and pflag: the accepted forms of
//! flags, the error texts, and the layout of the help. clap differs in nearly all of these, so this
//! crate has its own parser.

pub mod completion;
pub mod help;
pub mod man;
pub mod markdown;
pub mod parse;
pub mod tree;
pub mod value;

pub use parse::{Parsed, parse};
pub use tree::{Action, CommandSpec, FlagSpec};
pub use value::{ConciergeMode, Delivery, Kind, LoginFlow, RefreshTokenStore, Value, WorkloadTokenSource};
