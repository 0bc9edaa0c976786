//! Random serial numbers.

use aws_lc_rs::rand;

/// The random source failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no random bytes available")]
pub struct RandomError;

/// Returns 128 random bits for the serial number of a certificate, never zero; big endian.
///
/// # Errors
///
/// Returns an error when the system's random source fails.
pub fn serial_number() -> Result<[u8; 16], RandomError> {
    let mut serial = [0; 16];
    // Zero is not a positive integer (RFC 5280, section 4.1.2.2), and about as likely as a broken
    // random source.
    while serial == [0; 16] {
        rand::fill(&mut serial).map_err(|_| RandomError)?;
    }
    Ok(serial)
}

#[cfg(test)]
mod tests {
    use super::serial_number;

    #[test]
    fn two_serial_numbers_differ() {
        assert_ne!(serial_number().unwrap(), serial_number().unwrap());
    }
}
