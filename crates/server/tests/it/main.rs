//! The server programs, run as processes against a real API server.

mod gateway;
mod local_user_authenticator;
mod restart;
