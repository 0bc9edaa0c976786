//! The proxy's serving certificate from an external issuer, on a real control plane.

mod cert_manager;
mod delegation;
mod doctor;
mod howto;
mod lifecycle;
