//! Our programs, installed from our manifests, against a real control plane.

mod demo;
mod installed;
mod walkthrough;
