//! Almost valid requests, randomly assembled and mutated from parts of real ones.

use pinniped_test_support::rng::Rng;

use super::request_parts::{
    ESCAPED, FIELD_TERMS, GROUPS, LABEL_PIECES, LABELS, METHODS, NAMES, OTHER_PATHS, RESOURCES, SUBRESOURCES,
    VERSIONS,
};

/// One request: all its properties that affect the server, as sent over the wire.
#[derive(Debug)]
pub(super) struct SentRequest {
    pub(super) method: String,
    pub(super) target: Vec<u8>,
    pub(super) accept: Option<&'static str>,
    pub(super) agent: Option<&'static str>,
}

impl SentRequest {
    pub(super) fn by(rng: &mut Rng) -> Self {
        let method = if rng.in_hundred(55) { "GET" } else { rng.one_of(&METHODS) };
        let mut target = path(rng);
        if rng.in_hundred(12) {
            spoil_path(rng, &mut target);
        }
        if rng.in_hundred(65) {
            target.push(b'?');
            target.extend(query(rng));
        }
        // With CONNECT it would be parsed as a host.
        if rng.in_hundred(2) && method != "CONNECT" {
            let prefix = rng.one_of(&["http://h", "https://h:443", "HTTP://h", "http://u@h", ""]);
            if prefix.is_empty() {
                target.remove(0);
            } else {
                target.splice(0..0, prefix.bytes());
            }
        }
        Self {
            method: method.to_owned(),
            target,
            accept: rng.in_hundred(50).then(|| rng.one_of(&super::presentation::ACCEPT)),
            agent: rng.in_hundred(25).then(|| rng.one_of(&super::presentation::AGENTS)),
        }
    }

    pub(super) fn to_wire(&self, audit_id: &str) -> Vec<u8> {
        let mut head =
            [self.method.as_bytes(), b" ", &self.target, b" HTTP/1.1\r\nHost: h\r\nAudit-ID: "].concat();
        head.extend_from_slice(audit_id.as_bytes());
        for (name, value) in [("Accept", self.accept), ("User-Agent", self.agent)] {
            if let Some(value) = value {
                head.extend_from_slice(format!("\r\n{name}: {value}").as_bytes());
            }
        }
        head.extend_from_slice(b"\r\n\r\n");
        head
    }
}

fn path(rng: &mut Rng) -> Vec<u8> {
    if rng.in_hundred(8) {
        return rng.one_of(&OTHER_PATHS).as_bytes().to_vec();
    }
    let mut segments: Vec<String> = Vec::new();
    let mut push = |segment: &str| segments.push(segment.to_owned());
    if rng.in_hundred(55) {
        push("api");
    } else {
        push("apis");
        push(rng.one_of(&GROUPS));
    }
    push(rng.one_of(&VERSIONS));
    if rng.in_hundred(12) {
        push(rng.one_of(&["watch", "proxy", "watch", "proxy", "Watch", "redirect"]));
    }
    if rng.in_hundred(50) {
        push("namespaces");
        if rng.in_hundred(90) {
            push(name(rng));
        }
    }
    if rng.in_hundred(85) {
        push(rng.one_of(&RESOURCES));
        if rng.in_hundred(50) {
            push(name(rng));
            if rng.in_hundred(45) {
                push(rng.one_of(&SUBRESOURCES));
                for _ in 0..rng.within(0..4) / 2 {
                    push(name(rng));
                }
            }
        }
    }
    format!("/{}", segments.join("/")).into_bytes()
}

fn name(rng: &mut Rng) -> &'static str {
    if rng.in_hundred(20) { rng.one_of(&ESCAPED) } else { rng.one_of(&NAMES) }
}

/// Doubles a slash, adds an unnecessary escape, or breaks an escape.
fn spoil_path(rng: &mut Rng, path: &mut Vec<u8>) {
    let at = 1 + rng.below(path.len());
    match rng.below(8) {
        0 | 1 => path.insert(at.min(path.len()), b'/'),
        2 => path.push(b'/'),
        3 => path.insert(0, b'/'),
        4 | 5 => {
            let at = rng.below(path.len());
            if path[at] != b'%' && at > 0 {
                let escaped = if rng.in_hundred(50) {
                    format!("%{:02X}", path[at])
                } else {
                    format!("%{:02x}", path[at])
                };
                path.splice(at..=at, escaped.bytes());
            }
        }
        6 => {
            let broken = rng.one_of(&["%", "%z", "%4", "%4g", "%%41", "%u0041", "% 41"]);
            path.splice(at.min(path.len())..at.min(path.len()), broken.bytes());
        }
        _ => {
            let odd = rng.one_of(&["#", "<", ">", "`", "\u{7f}", "?", "\u{1}", "%20"]);
            path.splice(at.min(path.len())..at.min(path.len()), odd.bytes());
        }
    }
}

fn query(rng: &mut Rng) -> Vec<u8> {
    let mut out = Vec::new();
    for at in 0..rng.within(1..5) {
        if at > 0 {
            let separator = if rng.in_hundred(93) { "&" } else { rng.one_of(&[";", "&&", "?", "&=&"]) };
            out.extend_from_slice(separator.as_bytes());
        }
        let (key, value) = parameter(rng);
        write_escaped(rng, &mut out, &key, true);
        if let Some(value) = value {
            out.push(b'=');
            write_escaped(rng, &mut out, &value, false);
        }
        if rng.in_hundred(2) {
            out.extend_from_slice(rng.one_of(&["%", "%zz", "+", ";", "%C3", "%FF", "=", "ü"]).as_bytes());
        }
    }
    out
}

fn parameter(rng: &mut Rng) -> (String, Option<String>) {
    let (key, value) = match rng.below(12) {
        0..3 => {
            let value = rng.one_of(&[
                "true",
                "false",
                "1",
                "0",
                "",
                "FALSE",
                "False",
                "fal\u{17f}e",
                "00",
                "no",
                "t",
                " ",
                "f",
                "false ",
            ]);
            ("watch", value.to_owned())
        }
        3..6 => {
            let terms: Vec<&str> = (0..rng.within(1..4)).map(|_| rng.one_of(&FIELD_TERMS)).collect();
            ("fieldSelector", terms.join(","))
        }
        6..8 if rng.in_hundred(50) => ("labelSelector", rng.one_of(&LABELS).to_owned()),
        6..8 => ("labelSelector", (0..rng.within(1..6)).map(|_| rng.one_of(&LABEL_PIECES)).collect()),
        8 => {
            let value = rng.one_of(&[
                "5",
                "0",
                "-5",
                "+5",
                "",
                "x",
                "5x",
                "0x5",
                "1_0",
                " 5",
                "9223372036854775807",
                "9223372036854775808",
                "1.0",
            ]);
            (rng.one_of(&["limit", "timeoutSeconds"]), value.to_owned())
        }
        9 => {
            let value = rng.one_of(&[
                "5s",
                "1m",
                "",
                "0",
                "abc",
                "5",
                "-1s",
                "1h5",
                "1.5m",
                "é",
                "\"",
                "\t",
                "99999999h",
            ]);
            ("timeout", value.to_owned())
        }
        10 => ("pretty", rng.one_of(&["1", "true", "TRUE", "0", "false", "", "x", "t"]).to_owned()),
        _ => {
            let key = rng.one_of(&[
                "resourceVersion",
                "resourceVersionMatch",
                "continue",
                "allowWatchBookmarks",
                "sendInitialEvents",
                "shardSelector",
                "dryRun",
                "Watch",
                "watch ",
                "fieldselector",
                "",
                "metadata.name",
            ]);
            (key, rng.one_of(&["", "0", "1", "true", "x", "metadata.name=foo"]).to_owned())
        }
    };
    let bare = value.is_empty() && rng.in_hundred(50);
    (key.to_owned(), (!bare).then_some(value))
}

/// Writes `text` with all necessary and some random unnecessary escapes.
fn write_escaped(rng: &mut Rng, out: &mut Vec<u8>, text: &str, is_key: bool) {
    let all = rng.in_hundred(if is_key { 3 } else { 15 });
    for byte in text.bytes() {
        match byte {
            b' ' if rng.in_hundred(50) => out.push(b'+'),
            0..=b' ' | b'%' | b'&' | b'#' | b'<' | b'>' | b'+' | b';' | 0x7f => {
                out.extend(format!("%{byte:02X}").bytes());
            }
            _ if all => out.extend(format!("%{byte:02x}").bytes()),
            _ => out.push(byte),
        }
    }
}
