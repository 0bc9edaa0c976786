//! Users as Secrets: the name of the Secret is the user name, `passwordHash` and `groups` contain
//! the rest.

use k8s_openapi::api::core::v1::Secret;
use kube::runtime::reflector::{ObjectRef, Store};
use zeroize::Zeroizing;

use super::NAMESPACE;

/// The data of a user's Secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct User {
    /// The bcrypt hash; empty if there is none.
    pub password_hash: Zeroizing<Vec<u8>>,
    /// CSV text whose first record contains the groups. See [`groups`].
    pub groups: Vec<u8>,
}

impl From<&Secret> for User {
    fn from(secret: &Secret) -> Self {
        let value = |key: &str| {
            let data = secret.data.as_ref().and_then(|data| data.get(key));
            data.map(|bytes| bytes.0.clone()).unwrap_or_default()
        };
        Self { password_hash: Zeroizing::new(value("passwordHash")), groups: value("groups") }
    }
}

/// A directory of users.
pub trait Directory: Send + Sync + 'static {
    /// Returns the user with exactly this name.
    fn find(&self, name: &str) -> Option<User>;
}

/// The Secrets of the namespace from a watch cache. Before it has synced, there are no users.
#[derive(Clone)]
pub struct Secrets(pub Store<Secret>);

impl Directory for Secrets {
    fn find(&self, name: &str) -> Option<User> {
        let secret = self.0.get(&ObjectRef::new(name).within(NAMESPACE))?;
        Some(User::from(secret.as_ref()))
    }
}

/// The reasons why the text of `groups` is not valid CSV. The texts are those of Go's
/// `encoding/csv`; they appear only in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupsError {
    /// There is no record.
    #[error("EOF")]
    NoRecord,
    /// A quote inside of an unquoted field.
    #[error("bare \" in non-quoted-field")]
    BareQuote,
    /// Text after the closing quote, or no closing quote.
    #[error("extraneous or missing \" in quoted-field")]
    Quote,
}

/// Parses the first record of CSV text with the rules of Go's `encoding/csv`, and trims white space
/// from each field. Empty text has no groups; empty fields are groups without a name.
///
/// # Errors
///
/// When the record is invalid, or there are only empty lines.
pub fn groups(csv: &[u8]) -> Result<Vec<String>, GroupsError> {
    if csv.is_empty() {
        return Ok(Vec::new());
    }
    let fields = first_record(&String::from_utf8_lossy(csv))?;
    Ok(fields.into_iter().map(|field| field.trim().to_owned()).collect())
}

fn first_record(text: &str) -> Result<Vec<String>, GroupsError> {
    // Lines end in LF. CR LF counts as LF, and a CR at the end of the text is removed.
    let text = text.strip_suffix('\r').unwrap_or(text).replace("\r\n", "\n");
    let mut rest = text.trim_start_matches('\n');
    if rest.is_empty() {
        return Err(GroupsError::NoRecord);
    }
    let mut fields = Vec::new();
    loop {
        let (field, behind) = match rest.strip_prefix('"') {
            Some(quoted) => quoted_field(quoted)?,
            None => plain_field(rest)?,
        };
        fields.push(field);
        match behind.strip_prefix(',') {
            Some(next) => rest = next,
            None => return Ok(fields),
        }
    }
}

/// Parses a field without quotes. Returns it and the rest: a comma, the end of the line, or
/// nothing.
fn plain_field(text: &str) -> Result<(String, &str), GroupsError> {
    let end = text.find([',', '\n']).unwrap_or(text.len());
    let (field, behind) = text.split_at(end);
    if field.contains('"') { Err(GroupsError::BareQuote) } else { Ok((field.to_owned(), behind)) }
}

/// Parses a field after its opening quote. It may span lines; two quotes stand for one.
fn quoted_field(mut text: &str) -> Result<(String, &str), GroupsError> {
    let mut field = String::new();
    loop {
        let (part, behind) = text.split_once('"').ok_or(GroupsError::Quote)?;
        field.push_str(part);
        match behind.as_bytes().first() {
            Some(b'"') => {
                field.push('"');
                text = &behind[1..];
            }
            None | Some(b',' | b'\n') => return Ok((field, behind)),
            Some(_) => return Err(GroupsError::Quote),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_parsed_like_the_csv_reader_of_go() {
        let table: &[(&str, Result<&[&str], GroupsError>)] = &[
            ("", Ok(&[])),
            ("group1", Ok(&["group1"])),
            ("group1,group2", Ok(&["group1", "group2"])),
            ("a, b ,c", Ok(&["a", "b", "c"])),
            ("\u{a0}a\t,\u{2003}b", Ok(&["a", "b"])),
            ("\"a,b\",c", Ok(&["a,b", "c"])),
            ("\"a\"\"b\",\" c \"", Ok(&["a\"b", "c"])),
            ("\"a\nb\",c", Ok(&["a\nb", "c"])),
            ("\"a\r\nb\",c", Ok(&["a\nb", "c"])),
            ("\"\",a", Ok(&["", "a"])),
            ("a,b\nc", Ok(&["a", "b"])),
            ("a,b\r\nc", Ok(&["a", "b"])),
            ("a,b\n", Ok(&["a", "b"])),
            ("a,b\r", Ok(&["a", "b"])),
            ("\"a\"\n\"", Ok(&["a"])),
            ("\n\r\n\na,b", Ok(&["a", "b"])),
            ("a,,b", Ok(&["a", "", "b"])),
            (",", Ok(&["", ""])),
            (" ", Ok(&[""])),
            ("#a", Ok(&["#a"])),
            ("\n", Err(GroupsError::NoRecord)),
            ("\r\n\n", Err(GroupsError::NoRecord)),
            ("a\"b", Err(GroupsError::BareQuote)),
            ("a,b\"", Err(GroupsError::BareQuote)),
            (" \"a\"", Err(GroupsError::BareQuote)),
            ("\"a\" ,b", Err(GroupsError::Quote)),
            ("\"a\"b", Err(GroupsError::Quote)),
            ("\"a", Err(GroupsError::Quote)),
            ("\"", Err(GroupsError::Quote)),
        ];
        for (text, expected) in table {
            let expected = expected.map(|fields| fields.iter().map(|&field| field.to_owned()).collect());
            assert_eq!(groups(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn invalid_utf_8_is_replaced() {
        assert_eq!(groups(b"a\xff,b"), Ok(vec!["a\u{fffd}".to_owned(), "b".to_owned()]));
    }
}
