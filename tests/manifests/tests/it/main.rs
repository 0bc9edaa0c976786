//! Compares our files with upstream's, and our types with our files.
#![expect(clippy::unwrap_used, reason = "a test that cannot continue should stop")]

mod crds;
mod difference;
mod documents;
mod gateway;
mod manifests;
mod openapi;
mod samples;
