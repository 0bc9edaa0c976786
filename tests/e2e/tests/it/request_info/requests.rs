//! Almost valid requests, randomly assembled and mutated from parts of real ones.

use pinniped_test_support::chance::Chance;

use super::words::{
    ESCAPED, FIELD_TERMS, GROUPS, LABEL_PIECES, LABELS, METHODS, NAMES, OTHER_PATHS, RESOURCES, SUBRESOURCES,
    VERSIONS,
};

/// One request: all its properties that affect the server, as sent over the wire.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) method: String,
    pub(super) target: Vec<u8>,
    pub(super) accept: Option<&'static str>,
    pub(super) agent: Option<&'static str>,
}

impl Asked {
    pub(super) fn by(chance: &mut Chance) -> Self {
        let method = if chance.in_hundred(55) { "GET" } else { chance.one_of(&METHODS) };
        let mut target = path(chance);
        if chance.in_hundred(12) {
            spoil_path(chance, &mut target);
        }
        if chance.in_hundred(65) {
            target.push(b'?');
            target.extend(query(chance));
        }
        // With CONNECT it would be parsed as a host.
        if chance.in_hundred(2) && method != "CONNECT" {
            let prefix = chance.one_of(&["http://h", "https://h:443", "HTTP://h", "http://u@h", ""]);
            if prefix.is_empty() {
                target.remove(0);
            } else {
                target.splice(0..0, prefix.bytes());
            }
        }
        Self {
            method: method.to_owned(),
            target,
            accept: chance.in_hundred(50).then(|| chance.one_of(&super::presentation::ACCEPT)),
            agent: chance.in_hundred(25).then(|| chance.one_of(&super::presentation::AGENTS)),
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

fn path(chance: &mut Chance) -> Vec<u8> {
    if chance.in_hundred(8) {
        return chance.one_of(&OTHER_PATHS).as_bytes().to_vec();
    }
    let mut segments: Vec<String> = Vec::new();
    let mut push = |segment: &str| segments.push(segment.to_owned());
    if chance.in_hundred(55) {
        push("api");
    } else {
        push("apis");
        push(chance.one_of(&GROUPS));
    }
    push(chance.one_of(&VERSIONS));
    if chance.in_hundred(12) {
        push(chance.one_of(&["watch", "proxy", "watch", "proxy", "Watch", "redirect"]));
    }
    if chance.in_hundred(50) {
        push("namespaces");
        if chance.in_hundred(90) {
            push(name(chance));
        }
    }
    if chance.in_hundred(85) {
        push(chance.one_of(&RESOURCES));
        if chance.in_hundred(50) {
            push(name(chance));
            if chance.in_hundred(45) {
                push(chance.one_of(&SUBRESOURCES));
                for _ in 0..chance.within(0..4) / 2 {
                    push(name(chance));
                }
            }
        }
    }
    format!("/{}", segments.join("/")).into_bytes()
}

fn name(chance: &mut Chance) -> &'static str {
    if chance.in_hundred(20) { chance.one_of(&ESCAPED) } else { chance.one_of(&NAMES) }
}

/// Doubles a slash, adds an unnecessary escape, or breaks an escape.
fn spoil_path(chance: &mut Chance, path: &mut Vec<u8>) {
    let at = 1 + chance.below(path.len());
    match chance.below(8) {
        0 | 1 => path.insert(at.min(path.len()), b'/'),
        2 => path.push(b'/'),
        3 => path.insert(0, b'/'),
        4 | 5 => {
            let at = chance.below(path.len());
            if path[at] != b'%' && at > 0 {
                let escaped = if chance.in_hundred(50) {
                    format!("%{:02X}", path[at])
                } else {
                    format!("%{:02x}", path[at])
                };
                path.splice(at..=at, escaped.bytes());
            }
        }
        6 => {
            let broken = chance.one_of(&["%", "%z", "%4", "%4g", "%%41", "%u0041", "% 41"]);
            path.splice(at.min(path.len())..at.min(path.len()), broken.bytes());
        }
        _ => {
            let odd = chance.one_of(&["#", "<", ">", "`", "\u{7f}", "?", "\u{1}", "%20"]);
            path.splice(at.min(path.len())..at.min(path.len()), odd.bytes());
        }
    }
}

fn query(chance: &mut Chance) -> Vec<u8> {
    let mut out = Vec::new();
    for at in 0..chance.within(1..5) {
        if at > 0 {
            let separator = if chance.in_hundred(93) { "&" } else { chance.one_of(&[";", "&&", "?", "&=&"]) };
            out.extend_from_slice(separator.as_bytes());
        }
        let (key, value) = parameter(chance);
        write_escaped(chance, &mut out, &key, true);
        if let Some(value) = value {
            out.push(b'=');
            write_escaped(chance, &mut out, &value, false);
        }
        if chance.in_hundred(2) {
            out.extend_from_slice(chance.one_of(&["%", "%zz", "+", ";", "%C3", "%FF", "=", "ü"]).as_bytes());
        }
    }
    out
}

fn parameter(chance: &mut Chance) -> (String, Option<String>) {
    let (key, value) = match chance.below(12) {
        0..3 => {
            let value = chance.one_of(&[
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
            let terms: Vec<&str> = (0..chance.within(1..4)).map(|_| chance.one_of(&FIELD_TERMS)).collect();
            ("fieldSelector", terms.join(","))
        }
        6..8 if chance.in_hundred(50) => ("labelSelector", chance.one_of(&LABELS).to_owned()),
        6..8 => ("labelSelector", (0..chance.within(1..6)).map(|_| chance.one_of(&LABEL_PIECES)).collect()),
        8 => {
            let value = chance.one_of(&[
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
            (chance.one_of(&["limit", "timeoutSeconds"]), value.to_owned())
        }
        9 => {
            let value = chance.one_of(&[
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
        10 => ("pretty", chance.one_of(&["1", "true", "TRUE", "0", "false", "", "x", "t"]).to_owned()),
        _ => {
            let key = chance.one_of(&[
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
            (key, chance.one_of(&["", "0", "1", "true", "x", "metadata.name=foo"]).to_owned())
        }
    };
    let bare = value.is_empty() && chance.in_hundred(50);
    (key.to_owned(), (!bare).then_some(value))
}

/// Writes `text` with all necessary and some random unnecessary escapes.
fn write_escaped(chance: &mut Chance, out: &mut Vec<u8>, text: &str, is_key: bool) {
    let all = chance.in_hundred(if is_key { 3 } else { 15 });
    for byte in text.bytes() {
        match byte {
            b' ' if chance.in_hundred(50) => out.push(b'+'),
            0..=b' ' | b'%' | b'&' | b'#' | b'<' | b'>' | b'+' | b';' | 0x7f => {
                out.extend(format!("%{byte:02X}").bytes());
            }
            _ if all => out.extend(format!("%{byte:02x}").bytes()),
            _ => out.push(byte),
        }
    }
}
