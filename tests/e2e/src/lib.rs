//! The complete product: the walk-through of the release post as code, the demo program that
//! narrates it, and the end-to-end tests.
//!
//! [`walkthrough::Walk`] has one method per step. The demo (`pinniped-demo`, run by `cargo xtask
//! demo`) prints each step; the tests in `tests/it` run the same steps and check the results.
#![forbid(unsafe_code)]

pub mod bystanders;
pub mod cert_manager;
pub mod contour;
pub mod environment;
pub mod narrator;
pub mod pages;
pub mod prometheus;
pub mod requests_under_attack;
pub mod steady_load;
pub mod third_party;
pub mod walkthrough;
