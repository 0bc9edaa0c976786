//! Files that no other user can read.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use data_encoding::HEXLOWER;

use crate::platform;

/// Creates a file that must not exist yet, with private permissions.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create_new(true).write(true);
    platform::private_options(&mut options);
    options.open(path)
}

/// Returns an unpredictable name.
pub(crate) fn random_name() -> io::Result<String> {
    let mut bytes = [0; 8];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| io::Error::other("no random numbers"))?;
    Ok(HEXLOWER.encode(&bytes))
}
