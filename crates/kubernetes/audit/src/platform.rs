//! The part of this crate that differs between operating systems.

use std::fs::OpenOptions;

/// Creates files that only their owner can read, as kube-apiserver does.
#[cfg(unix)]
pub(crate) fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600)
}

/// Does nothing: a file inherits the access rights of its folder.
#[cfg(not(unix))]
pub(crate) fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}
