//! An HTTPS server that cannot be held wrong.
