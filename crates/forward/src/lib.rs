//! What every reverse proxy of this project does with a request that it has made up its mind about.
//!
//! ```text
//! upstream   the pool of connections to the server behind us
//! forward    the request there, the answer back as it comes
//! answer     the answer's body: its deadline, and what is held until its last byte
//! upgrade    requests that leave HTTP, and the bytes that follow
//! lingering  what a request that was given up still occupies
//! ```
//!
//! It decides nothing: who may ask, as whom, and what a client reads when there is no answer is the caller's. Its own
//! stack stays visible, and calls [`forward()`] or [`upgrade()`] at the end of it. A value of a type of the caller's
//! own, the *hold*, lives as long as the exchange, whichever way that ends, and a moment longer where the client gave it up
//! before the server had finished.
//!
//! Invariants: bodies are passed on frame by frame and never collected; hop-by-hop headers of an answer are removed; no
//! header and no body is logged; credentials are headers of single requests, never state of a pooled connection.

#![forbid(unsafe_code)]

mod answer;
mod forward;
mod lingering;
mod upgrade;
pub mod upstream;

pub use answer::{Idle, Pace};
pub use forward::{Carrier, ForwardError, Span, bearer, forward, relay};
pub use upgrade::{Wanted, upgrade};
