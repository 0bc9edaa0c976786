//! Our programs, installed from our manifests, against a real control plane.

mod demo;
mod walkthrough;
