//! The proxy's serving certificate when somebody else issues it, on a real control plane.

mod cert_manager;
mod delegation;
mod doctor;
mod howto;
mod lifecycle;
