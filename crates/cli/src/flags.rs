//! The command line: one table of commands and flags ([`tree`]) feeds the parser ([`parse`]), the help
//! ([`help`]), the suggestions and the completion scripts.
//!
//! Users, scripts and kubeconfigs know this program by the words of cobra and pflag: which flag forms are
//! accepted, which mistakes end in which text, that a group called with a wrong word prints its help and
//! succeeds. clap decides nearly all of these differently, so the parser is our own, of the same shape, and clap
//! is used for the one thing where its form is as good as any: generating completion scripts.

pub mod completion;
pub mod help;
pub mod markdown;
pub mod parse;
pub mod tree;
pub mod value;

pub use parse::{Parsed, parse};
pub use tree::{Action, CommandSpec, FlagSpec};
pub use value::{ConciergeMode, Delivery, Kind, Value};
