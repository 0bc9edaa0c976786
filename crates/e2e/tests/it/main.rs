//! Our programs, installed from our manifests, against a real control plane.

mod demo;
mod impersonation;
mod installed;
mod walkthrough;
