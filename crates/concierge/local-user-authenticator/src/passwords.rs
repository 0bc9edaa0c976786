//! bcrypt password hashes, with the tolerance of Go's `golang.org/x/crypto/bcrypt`: `htpasswd`
//! writes `$2y$`, other programs write `$2a$`, and hashes in Secrets may be followed by newlines
//! and other bytes.

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose::NO_PAD},
};
use zeroize::Zeroizing;

/// Minimum length of a hash, that of one without a minor version.
const SHORTEST: usize = 59;
const SALT_CHARACTERS: usize = 22;
const SUM_CHARACTERS: usize = 31;
/// All implementations use 23 of the 24 bytes of the result.
const SUM_BYTES: usize = 23;
/// bcrypt ignores the rest of a longer password.
const MOST_PASSWORD_BYTES: usize = 72;
/// The default cost of `htpasswd -C 10` and Go, which most hashes have.
const USUAL_COST: u32 = 10;

const ENCODER: GeneralPurpose = GeneralPurpose::new(&alphabet::BCRYPT, NO_PAD);
/// 22 characters are 132 bits; implementations do not require the last four to be zero.
const SALT_DECODER: GeneralPurpose = GeneralPurpose::new(
    &alphabet::BCRYPT,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireNone),
);

/// Returns whether `hash` is a hash of `password`. This is slow by design: call it where blocking
/// is allowed.
///
/// A hash that is missing or invalid matches no password, after the time that a hash of the usual
/// cost takes.
pub fn matches(hash: &[u8], password: &[u8]) -> bool {
    match Parsed::parse(hash) {
        Some(parsed) => {
            let sum = ENCODER.encode(compute(parsed.cost, parsed.salt, password));
            aws_lc_rs::constant_time::verify_slices_are_equal(sum.as_bytes(), parsed.sum).is_ok()
        }
        None => {
            waste(password);
            false
        }
    }
}

/// Computes for the time that a password of the usual cost takes, so that the response time does
/// not distinguish unknown users from known ones.
pub fn waste(password: &[u8]) {
    std::hint::black_box(compute(USUAL_COST, [0; 16], password));
}

/// Returns the part of a password that bcrypt uses.
pub fn bcrypt_input(password: &str) -> Zeroizing<Vec<u8>> {
    let bytes = password.as_bytes();
    Zeroizing::new(bytes[..bytes.len().min(MOST_PASSWORD_BYTES)].to_vec())
}

struct Parsed<'a> {
    cost: u32,
    salt: [u8; 16],
    sum: &'a [u8],
}

impl<'a> Parsed<'a> {
    /// Parses `$2$` or `$2`, one byte, `$`; two digits, `$`; salt; sum; followed by any bytes.
    fn parse(hash: &'a [u8]) -> Option<Self> {
        if hash.len() < SHORTEST {
            return None;
        }
        let rest = hash.strip_prefix(b"$2")?;
        let rest = rest.strip_prefix(b"$").or_else(|| rest.get(1..)?.strip_prefix(b"$"))?;
        let (cost, rest) = rest.split_first_chunk::<2>()?;
        let cost: u32 = std::str::from_utf8(cost).ok()?.parse().ok()?;
        if !(4..=31).contains(&cost) {
            return None;
        }
        let rest = rest.strip_prefix(b"$")?;
        let (salt, rest) = rest.split_at_checked(SALT_CHARACTERS)?;
        let salt = SALT_DECODER.decode(salt).ok()?.try_into().ok()?;
        let sum = rest.get(..SUM_CHARACTERS)?;
        Some(Self { cost, salt, sum })
    }
}

fn compute(cost: u32, salt: [u8; 16], password: &[u8]) -> [u8; SUM_BYTES] {
    let mut key = Zeroizing::new(Vec::with_capacity(MOST_PASSWORD_BYTES));
    // The zero byte that terminates a C string belongs to the key if it fits.
    key.extend(password.iter().copied().chain([0]).take(MOST_PASSWORD_BYTES));
    let mut sum = [0; SUM_BYTES];
    sum.copy_from_slice(&bcrypt::bcrypt(cost, salt, &key)[..SUM_BYTES]);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(password: &str) -> String {
        bcrypt::hash_with_salt(password, 4, *b"0123456789abcdef")
            .unwrap()
            .format_for_version(bcrypt::Version::TwoY)
    }

    #[test]
    fn hashes_of_other_programs_are_accepted() {
        // Test vectors of jBCrypt and of Go's package.
        let table = [
            ("$2a$06$DCq7YPn5Rq63x1Lad4cll.TV4S6ytwfsfvkgY8jIucDrjc8deX1s.", "", true),
            ("$2a$06$If6bvum7DFjUnE9p2uDeDu0YHzrHM6tf.iqN8.yx.jNN1ILEf7h0i", "abc", true),
            (
                "$2a$06$.rCVZVOThsIa97pEDOxvGuRRgzG64bvtJ0938xuqzv18d3ZpQhstC",
                "abcdefghijklmnopqrstuvwxyz",
                true,
            ),
            ("$2a$10$XajjQvNhvvRt5GSeFk1xFeyqRrsxkhBkUiQeg0dt.wU1qD4aFDcga", "allmine", true),
            ("$2a$10$XajjQvNhvvRt5GSeFk1xFeyqRrsxkhBkUiQeg0dt.wU1qD4aFDcga", "allmine2", false),
        ];
        for (hash, password, expected) in table {
            assert_eq!(matches(hash.as_bytes(), password.as_bytes()), expected, "{hash}");
        }
    }

    #[test]
    fn prefixes_tails_and_lengths_are_parsed_like_in_go() {
        let good = hash("hunter2");
        let (head, tail) = (&good[..3], &good[4..]);
        assert_eq!(head, "$2y");
        let long = "x".repeat(72);
        let cases = [
            ("as it is", good.clone(), "hunter2", true),
            ("another password", good.clone(), "hunter3", false),
            ("the empty password", hash(""), "", true),
            ("not the empty password", good.clone(), "", false),
            ("with a colon", hash("a:b:c"), "a:b:c", true),
            ("$2a$", good.replacen("$2y$", "$2a$", 1), "hunter2", true),
            ("$2b$", good.replacen("$2y$", "$2b$", 1), "hunter2", true),
            ("$2x$", good.replacen("$2y$", "$2x$", 1), "hunter2", true),
            ("any minor", good.replacen("$2y$", "$2~$", 1), "hunter2", true),
            ("no minor", format!("$2${tail}"), "hunter2", true),
            ("major 3", good.replacen("$2y$", "$3y$", 1), "hunter2", false),
            ("a newline behind", format!("{good}\n"), "hunter2", true),
            ("text behind", format!("{good}garbage"), "hunter2", true),
            ("a byte short", good[..good.len() - 1].to_owned(), "hunter2", false),
            ("cost 3", good.replacen("$04$", "$03$", 1), "hunter2", false),
            ("cost 32", good.replacen("$04$", "$32$", 1), "hunter2", false),
            ("cost no number", good.replacen("$04$", "$xx$", 1), "hunter2", false),
            ("salt no base64", format!("{}!{}", &good[..7], &good[8..]), "hunter2", false),
            ("empty", String::new(), "", false),
            ("malformed", "not a valid password hash".to_owned(), "foo", false),
            ("72 bytes", hash(&long), &long, true),
            ("cut at 72 bytes", hash(&long), &format!("{long}y"), true),
            ("not cut at 71 bytes", hash(&long[..71]), &long, false),
        ];
        for (name, hash, password, expected) in cases {
            assert_eq!(matches(hash.as_bytes(), password.as_bytes()), expected, "{name}");
            assert_eq!(matches(hash.as_bytes(), &bcrypt_input(password)), expected, "{name}");
        }
    }
}
