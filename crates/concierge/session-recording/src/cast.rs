//! The lines of a recording: asciicast, version 2.
//!
//! ```text
//! {"version":2,"width":80,"height":24,"timestamp":1764250000,"title":"...","kubernetes":{...}}
//! [0.250000, "o", "text"]       output; standard error, too
//! [1.500000, "i", "typed"]      input
//! [2.000000, "r", "120x40"]     size of the terminal
//! [3.000000, "m", "label"]      a marker
//! ```
//!
//! Text is UTF-8. A character that arrives in parts is completed, and bytes that are not UTF-8
//! become U+FFFD.

use std::io::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::streams::Stream;

/// The size of a session without a terminal, and of one whose size is not known when its output
/// begins.
const DEFAULT_SIZE: Size = Size { width: 80, height: 24 };

/// Maximum length in bytes of text in one event, before it is escaped.
const MAX_TEXT: usize = 16 << 10;

/// Maximum length in bytes of the JSON of a terminal's size.
const MAX_SIZE_TEXT: usize = 1 << 10;

/// The beginning of a recording.
#[derive(Clone, Debug, Serialize)]
pub struct Header {
    /// The start, as Unix time.
    pub timestamp: i64,
    /// One line for people.
    pub title: String,
    /// The command of `kubectl exec`, joined with spaces.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub command: String,
    /// The session. Players ignore members that they do not know.
    pub kubernetes: SessionMetadata,
}

/// The session, the user and the pod, for the header of a recording.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionMetadata {
    /// The identifier of the request.
    #[serde(rename = "auditID")]
    pub audit_id: String,
    /// The user of the session.
    pub username: String,
    /// The groups of the user.
    pub groups: Vec<String>,
    /// The client, if it impersonates the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub impersonated_by: Option<String>,
    /// The namespace of the pod.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The container; empty for the default one.
    pub container: String,
    /// `exec` or `attach`.
    pub subresource: String,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// The session has a terminal.
    pub tty: bool,
    /// The session has input.
    pub stdin: bool,
}

/// The size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Size {
    /// Columns.
    #[serde(rename(deserialize = "Width"))]
    pub width: u16,
    /// Rows.
    #[serde(rename(deserialize = "Height"))]
    pub height: u16,
}

/// Encodes the parts of one session.
#[derive(Debug)]
pub struct Cast {
    /// The header, until the first event.
    header: Option<Box<Header>>,
    stdout: Characters,
    stderr: Characters,
    stdin: Characters,
    /// JSON of sizes that is not complete.
    size_text: Vec<u8>,
    size: Size,
    lines: Vec<u8>,
}

impl Cast {
    /// Creates a recording without events.
    pub fn new(header: Header) -> Self {
        Self {
            header: Some(Box::new(header)),
            stdout: Characters::default(),
            stderr: Characters::default(),
            stdin: Characters::default(),
            size_text: Vec::new(),
            size: DEFAULT_SIZE,
            lines: Vec::new(),
        }
    }

    /// Adds a part of a stream at this time after the start.
    pub fn part(&mut self, at: Duration, stream: Stream, bytes: &[u8]) {
        match stream {
            Stream::Resize => self.resize(at, bytes),
            Stream::Stdout => self.text(at, 'o', bytes, |cast| &mut cast.stdout),
            Stream::Stderr => self.text(at, 'o', bytes, |cast| &mut cast.stderr),
            Stream::Stdin => self.text(at, 'i', bytes, |cast| &mut cast.stdin),
            // The result of the session, which is not part of what the user saw.
            Stream::Error => {}
        }
    }

    /// Adds a marker.
    pub fn marker(&mut self, at: Duration, label: &str) {
        self.begin();
        event(&mut self.lines, at, 'm', label);
    }

    /// Adds the incomplete characters at the end of the streams.
    pub fn end(&mut self, at: Duration) {
        self.begin();
        for (code, characters) in [('o', &mut self.stdout), ('o', &mut self.stderr), ('i', &mut self.stdin)] {
            if !std::mem::take(&mut characters.0).is_empty() {
                event(&mut self.lines, at, code, "\u{fffd}");
            }
        }
    }

    /// Removes and returns the lines so far.
    pub fn take_lines(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.lines)
    }

    fn text(
        &mut self,
        at: Duration,
        code: char,
        bytes: &[u8],
        characters: impl Fn(&mut Self) -> &mut Characters,
    ) {
        self.begin();
        for part in bytes.chunks(MAX_TEXT) {
            let text = characters(self).complete(part);
            if !text.is_empty() {
                event(&mut self.lines, at, code, &text);
            }
        }
    }

    /// Reads objects without other objects inside them. The work is linear in the length, whatever
    /// the client sends. Text that is no size does not change the terminal, and hides no output.
    fn resize(&mut self, at: Duration, bytes: &[u8]) {
        for byte in bytes {
            if self.size_text.len() == MAX_SIZE_TEXT {
                self.size_text.clear();
            }
            self.size_text.push(*byte);
            if *byte != b'}' {
                continue;
            }
            let start = self.size_text.iter().rposition(|byte| *byte == b'{').unwrap_or_default();
            let size = serde_json::from_slice::<Size>(&self.size_text[start..]);
            self.size_text.clear();
            let Ok(size) = size else { continue };
            if std::mem::replace(&mut self.size, size) == size {
                continue;
            }
            if self.header.is_some() {
                self.begin();
            } else {
                event(&mut self.lines, at, 'r', &format!("{}x{}", size.width, size.height));
            }
        }
    }

    /// Writes the header, if it is not written. Every event does this first.
    pub(crate) fn begin(&mut self) {
        #[derive(Serialize)]
        struct Line<'h> {
            version: u8,
            #[serde(flatten)]
            size: Size,
            #[serde(flatten)]
            header: &'h Header,
        }
        let Some(header) = self.header.take() else { return };
        let line = Line { version: 2, size: self.size, header: &header };
        json(&mut self.lines, &line);
        self.lines.push(b'\n');
    }
}

/// Appends a marker for bytes of a recording that are lost.
pub(crate) fn lost_marker(lines: &mut Vec<u8>, at: Duration, bytes: u64) {
    event(lines, at, 'm', &format!("{bytes} bytes of the recording are lost here"));
}

fn event(lines: &mut Vec<u8>, at: Duration, code: char, text: &str) {
    // Writing to memory does not fail.
    let _infallible = write!(lines, "[{}.{:06}, \"{code}\", ", at.as_secs(), at.subsec_micros());
    json(lines, text);
    lines.extend_from_slice(b"]\n");
}

fn json<T: Serialize + ?Sized>(lines: &mut Vec<u8>, value: &T) {
    // Writing to memory does not fail, and neither do these types.
    let _infallible = serde_json::to_writer(lines, value);
}

/// The incomplete character at the end of a stream, at most three bytes.
#[derive(Debug, Default)]
struct Characters(Vec<u8>);

impl Characters {
    /// Returns the complete characters of the stream so far.
    fn complete(&mut self, bytes: &[u8]) -> String {
        let mut all = std::mem::take(&mut self.0);
        all.extend_from_slice(bytes);
        let mut text = String::with_capacity(all.len());
        let mut rest = &all[..];
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    return text;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(invalid) = error.error_len() else {
                        self.0 = after.to_vec();
                        return text;
                    };
                    text.push('\u{fffd}');
                    rest = &after[invalid..];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn header() -> Header {
        Header {
            timestamp: 1_700_000_000,
            title: "a title".to_owned(),
            command: String::new(),
            kubernetes: SessionMetadata { pod: "p".to_owned(), ..SessionMetadata::default() },
        }
    }

    fn lines(cast: &mut Cast) -> Vec<Value> {
        let lines = String::from_utf8(cast.take_lines()).unwrap();
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn the_first_size_of_the_terminal_is_in_the_header() {
        let mut cast = Cast::new(header());
        cast.part(at(1), Stream::Resize, br#"{"Width":120,"#);
        assert_eq!(lines(&mut cast), [Value::Null; 0]);
        cast.part(at(2), Stream::Resize, b"\"Height\":40}\n");
        cast.part(at(3), Stream::Stdout, b"$ ");
        cast.part(at(4), Stream::Resize, br#"{"Width":120,"Height":40}{"Width":80,"Height":24}"#);
        cast.part(at(1005), Stream::Stdin, b"\x03");
        cast.marker(at(1006), "end");
        let lines = lines(&mut cast);
        let session = &lines[0];
        assert_eq!(
            (&session["version"], &session["width"], &session["height"], &session["kubernetes"]["pod"]),
            (&json!(2), &json!(120), &json!(40), &json!("p"))
        );
        assert_eq!(
            lines[1..],
            [
                json!([0.003, "o", "$ "]),
                json!([0.004, "r", "80x24"]),
                json!([1.005, "i", "\u{3}"]),
                json!([1.006, "m", "end"])
            ]
        );
    }

    #[test]
    fn sizes_that_are_malformed_are_ignored_and_later_ones_count() {
        let mut cast = Cast::new(header());
        cast.part(at(0), Stream::Stdout, b"x");
        let many = [b' '; MAX_SIZE_TEXT];
        let nested = "{\"a\":".to_owned() + &"[".repeat(10 * MAX_SIZE_TEXT);
        for malformed in
            [&b"no size"[..], br#"{"Width":-1,"Height":2}"#, br#"{"Width":"#, &many, b"}}", nested.as_bytes()]
        {
            cast.part(at(1), Stream::Resize, malformed);
        }
        assert!(cast.size_text.len() <= MAX_SIZE_TEXT);
        cast.part(at(2), Stream::Resize, br#"{"Width":1,"Height":2}"#);
        assert_eq!(lines(&mut cast)[2..], [json!([0.002, "r", "1x2"])]);
    }

    #[test]
    fn characters_in_parts_are_completed_and_others_are_replaced() {
        let text = "aä€😀".as_bytes();
        for size in 1..text.len() {
            let mut cast = Cast::new(header());
            for part in text.chunks(size) {
                cast.part(at(0), Stream::Stdout, part);
                // The other stream does not interfere.
                cast.part(at(0), Stream::Stderr, b"\xe2");
            }
            cast.end(at(1));
            let lines = lines(&mut cast);
            let output = lines[1..].iter().map(|line| line[2].as_str().unwrap());
            let output: String = output.filter(|text| !text.contains('\u{fffd}')).collect();
            assert_eq!(output.as_bytes(), text, "{size}");
        }
        let mut characters = Characters::default();
        assert_eq!(characters.complete(b"a\xffb\xc3"), "a\u{fffd}b");
        assert_eq!(characters.complete(b"("), "\u{fffd}(");
        assert_eq!(characters.complete(b"\xf0\x9f\x98"), "");
        assert_eq!(characters.complete(b"\x80"), "😀");
    }

    #[test]
    fn long_text_becomes_several_events() {
        let mut cast = Cast::new(header());
        cast.part(at(0), Stream::Stdout, &[b'x'; MAX_TEXT + 1]);
        let lengths: Vec<_> =
            lines(&mut cast)[1..].iter().map(|line| line[2].as_str().unwrap().len()).collect();
        assert_eq!(lengths, [MAX_TEXT, 1]);
    }
}
