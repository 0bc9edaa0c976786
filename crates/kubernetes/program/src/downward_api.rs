//! Metadata of the pod from the files that the kubelet writes with the downward API (`namespace`,
//! `name`, `labels` under `--downward-api-path`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pinniped_go_compat::io::GoIoError;

/// Namespace, name and labels of the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodInfo {
    /// The namespace of this installation.
    pub namespace: String,
    /// The pod's name, used as the identity in leader election. Empty when the file is missing
    /// (upstream logs a warning).
    pub name: String,
    /// The pod's labels.
    pub labels: BTreeMap<String, String>,
}

/// The reasons why the pod's metadata could not be read, with the texts of upstream.
#[derive(Debug, thiserror::Error)]
pub enum PodInfoError {
    /// `namespace` is missing or unreadable.
    #[error("could not load namespace: {0}")]
    Namespace(FileError),
    /// `labels` is missing or unreadable.
    #[error("could not load labels: {0}")]
    Labels(FileError),
    /// `labels` contains a line that is not `key="value"`.
    #[error("could not parse labels: {0}")]
    ParseLabels(&'static str),
}

/// A file that cannot be read, with the text of Go's `os.ReadFile`.
#[derive(Debug, thiserror::Error)]
#[error("open {}: {source}", .path.display())]
pub struct FileError {
    path: PathBuf,
    source: GoIoError,
}

/// Reads the downward API directory.
pub fn load(directory: &Path) -> Result<PodInfo, PodInfoError> {
    let namespace = read(&directory.join("namespace")).map_err(PodInfoError::Namespace)?;
    let labels = read(&directory.join("labels")).map_err(PodInfoError::Labels)?;
    let name = name(directory);
    Ok(PodInfo { namespace, name, labels: parse_labels(&labels)? })
}

/// Reads the downward API directory without the labels, for a program that does not use them.
pub fn load_names(directory: &Path) -> Result<PodInfo, PodInfoError> {
    let namespace = read(&directory.join("namespace")).map_err(PodInfoError::Namespace)?;
    Ok(PodInfo { namespace, name: name(directory), labels: BTreeMap::new() })
}

fn name(directory: &Path) -> String {
    read(&directory.join("name")).unwrap_or_else(|error| {
        tracing::warn!(%error, "could not read 'name' downward API file");
        String::new()
    })
}

fn read(path: &Path) -> Result<String, FileError> {
    std::fs::read_to_string(path).map_err(|error| FileError { path: path.to_owned(), source: error.into() })
}

/// Parses the format of the kubelet: one label per line, the value quoted by the rules of Go.
fn parse_labels(text: &str) -> Result<BTreeMap<String, String>, PodInfoError> {
    text.lines()
        .filter(|line| !line.is_empty())
        .map(|line| {
            let (key, quoted) = line
                .split_once('=')
                .ok_or(PodInfoError::ParseLabels("expected 2 parts, found 1: short buffer"))?;
            let value =
                unquote(quoted).ok_or(PodInfoError::ParseLabels("invalid quoted value: invalid syntax"))?;
            Ok((key.to_owned(), value))
        })
        .collect()
}

/// Reverses Go's `%q`. The kubelet quotes with escapes that JSON shares, and with `\x..`, `\a`,
/// `\v` for the rest. Label values cannot contain the latter, but an unknown escape must be an
/// error.
fn unquote(quoted: &str) -> Option<String> {
    let inner = quoted.strip_prefix('"')?.strip_suffix('"')?;
    let mut value = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => return None,
            '\\' => value.push(match chars.next()? {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                'a' => '\x07',
                'b' => '\x08',
                'f' => '\x0c',
                'v' => '\x0b',
                same @ ('"' | '\\') => same,
                'x' => hex(&mut chars, 2)?,
                'u' => hex(&mut chars, 4)?,
                'U' => hex(&mut chars, 8)?,
                _ => return None,
            }),
            other => value.push(other),
        }
    }
    Some(value)
}

fn hex(chars: &mut std::str::Chars<'_>, digits: usize) -> Option<char> {
    let mut value = 0;
    for _ in 0..digits {
        value = value * 16 + chars.next()?.to_digit(16)?;
    }
    char::from_u32(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        directory
    }

    #[test]
    fn load_reads_all_three_files() {
        let directory = directory(&[
            ("namespace", "concierge"),
            ("name", "pod-1"),
            ("labels", "app=\"pinniped\"\nother=\"with \\\"quotes\\\"\""),
        ]);
        let info = load(directory.path()).unwrap();
        assert_eq!(info.namespace, "concierge");
        assert_eq!(info.name, "pod-1");
        assert_eq!(info.labels["app"], "pinniped");
        assert_eq!(info.labels["other"], "with \"quotes\"");
    }

    #[test]
    fn load_names_ignores_missing_labels() {
        let directory = directory(&[("namespace", "gateway"), ("name", "pod-1")]);
        let info = load_names(directory.path()).unwrap();
        assert_eq!((info.namespace.as_str(), info.name.as_str()), ("gateway", "pod-1"));
        let error = load_names(&directory.path().join("nowhere")).unwrap_err().to_string();
        assert!(error.starts_with("could not load namespace: "), "{error}");
    }

    #[test]
    fn a_missing_name_is_only_a_warning() {
        let directory = directory(&[("namespace", "concierge"), ("labels", "")]);
        assert_eq!(load(directory.path()).unwrap().name, "");
    }

    #[test]
    fn errors_describe_the_invalid_file() {
        for (files, text) in [
            (vec![("labels", "")], "could not load namespace: "),
            (vec![("namespace", "x")], "could not load labels: "),
            (
                vec![("namespace", "x"), ("labels", "novalue")],
                "could not parse labels: expected 2 parts, found 1: short buffer",
            ),
            (
                vec![("namespace", "x"), ("labels", "a=unquoted")],
                "could not parse labels: invalid quoted value: invalid syntax",
            ),
        ] {
            let error = load(directory(&files).path()).unwrap_err().to_string();
            assert!(error.starts_with(text), "{error}");
        }
    }
}
