//! Text that wipes its memory on drop and that `Debug` does not print.
//!
//! [`SecretString`] contains any secret text, [`Token`] a bearer token. [`TokenSource`] returns a
//! token that is replaced while it is in use.
//!
//! ```
//! use pinniped_secret::{SecretString, Token};
//!
//! let key = SecretString::new("private");
//! assert_eq!(format!("{key:?}"), "[redacted]");
//! assert_eq!(key.expose(), "private");
//! assert_eq!(format!("{:?}", Token::new("private")), "Token([redacted])");
//! ```

#![forbid(unsafe_code)]

pub mod text;
pub mod token;

pub use text::SecretString;
pub use token::{Token, TokenSource};
