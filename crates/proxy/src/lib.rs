//! The impersonation proxy: one visible stack from TLS to the API server.
