//! QR codes for terminals.

use qrcode::render::unicode::Dense1x2;
use qrcode::{EcLevel, QrCode};

/// The longest address in bytes that fits into a terminal of 80 columns.
const MAX_LENGTH: usize = 300;

/// Returns the QR code of an address, two rows of modules in one line of text. Modules are
/// inverted, because most terminals have light text on a dark background; scanners read both.
pub(super) fn render(address: &str) -> Option<String> {
    if address.len() > MAX_LENGTH {
        return None;
    }
    let code = QrCode::with_error_correction_level(address.as_bytes(), EcLevel::L).ok()?;
    let inverted = (Dense1x2::Light, Dense1x2::Dark);
    let text = code.render::<Dense1x2>().dark_color(inverted.0).light_color(inverted.1).build();
    Some(text.lines().map(|line| format!("  {line}\n")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_qr_code_fits_into_a_terminal() {
        for length in [20, MAX_LENGTH] {
            let address = format!("https://i/{}", "a".repeat(length - "https://i/".len()));
            let text = render(&address).unwrap();
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{length}: {text}");
            assert!(text.contains('█'));
        }
        assert_eq!(render(&"a".repeat(MAX_LENGTH + 1)), None);
    }
}
