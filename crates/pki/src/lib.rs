//! Keys, certificates and TLS configurations on aws-lc-rs.
