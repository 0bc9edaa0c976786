//! The server programs: Concierge and local-user-authenticator.
