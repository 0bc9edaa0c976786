//! Tests of the server programs, run as processes against a real API server.

mod restart;
