//! Our files against upstream's, and our types against our files.

mod crds;
mod difference;
mod documents;
mod manifests;
mod openapi;
mod samples;
