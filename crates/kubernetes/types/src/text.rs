//! Texts with a maximum length.

/// Returns the text, truncated to at most `max_bytes` bytes.
pub fn truncated(text: &str, max_bytes: usize) -> String {
    if text.len() <= max_bytes {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(max_bytes - '…'.len_utf8());
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_truncated_at_a_character_boundary() {
        assert_eq!(truncated("abc", 3), "abc");
        assert_eq!(truncated(&"ä".repeat(600), 1024).len(), 1023);
        assert!(truncated(&"ä".repeat(600), 1024).ends_with("ä…"));
    }
}
