//! Text that wipes its memory on drop and that `Debug` does not print.
//!
//! [`SecretString`] contains any secret text, [`Token`] a bearer token. [`TokenSource`] returns a
//! token that is replaced while it is in use.

#![forbid(unsafe_code)]

pub mod text;
pub mod token;

pub use text::SecretString;
pub use token::{Token, TokenSource};
