//! Audit events: one JSON line on stderr for each step in the exchange of a token.
//!
//! They are part of the API of the product (users, credentials and reasons of failed logins), so
//! they are independent of the log level, and their keys have a fixed order. A token appears only
//! as its SHA-256. User names and groups appear only if configured, see [`Auditor::new`].
//!
//! Clients and webhooks choose many of the texts. [`pinniped_logging::truncate`] limits their
//! length.
//!
//! An event is written before the request continues, so no event is lost when the process
//! terminates; `docs/threat-model.md` describes the consequence.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::panic::Location;
use std::sync::Arc;

use jiff::Timestamp;
use pinniped_logging::truncate::{truncated, truncated_list, truncated_map};
use serde::Serialize;

/// The destination of audit lines; each line includes its newline.
type Sink = Arc<dyn Fn(&str) + Send + Sync>;

/// Writes audit events. Clones are cheap.
#[derive(Clone)]
pub struct Auditor {
    personal: bool,
    sink: Sink,
}

impl std::fmt::Debug for Auditor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Auditor").field("personal", &self.personal).finish_non_exhaustive()
    }
}

impl Auditor {
    /// Creates an auditor that writes to stderr. `log_usernames_and_groups` is the static
    /// configuration's `audit.logUsernamesAndGroups`: without it, personal values are redacted.
    pub fn new(log_usernames_and_groups: bool) -> Self {
        Self::with_sink(log_usernames_and_groups, |line| {
            // A closed stderr must not cause a failed login.
            let _closed = std::io::stderr().lock().write_all(line.as_bytes());
        })
    }

    /// Creates an auditor with another destination, for tests.
    pub fn with_sink(log_usernames_and_groups: bool, sink: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { personal: log_usernames_and_groups, sink: Arc::new(sink) }
    }

    /// Begins an event; [`Event::emit`] writes it.
    #[track_caller]
    pub fn event(&self, message: &'static str, audit_id: &str, now: Timestamp) -> Event<'_> {
        let caller = Location::caller();
        let mut line = String::with_capacity(256);
        let _infallible = write!(
            line,
            "{{\"level\":\"info\",\"timestamp\":\"{}\",\"caller\":{},\"message\":{},\"auditEvent\":true",
            pinniped_logging::log::timestamp(now),
            json(&format!("{}:{}$audit", caller.file(), caller.line())),
            json(message),
        );
        let mut event = Event { auditor: self, line, personal: String::new(), fields: String::new() };
        if !audit_id.is_empty() {
            put(&mut event.line, "auditID", &json(&truncated(audit_id)));
        }
        event
    }
}

/// An event that has not been written.
pub struct Event<'a> {
    auditor: &'a Auditor,
    line: String,
    personal: String,
    fields: String,
}

impl Event<'_> {
    /// Adds a text without personal information, for example an error.
    #[must_use]
    pub fn text(self, key: &str, value: &str) -> Self {
        self.field(key, &truncated(value))
    }

    /// Adds a field without personal information, whose length does not depend on clients.
    #[must_use]
    pub fn field<T: Serialize + ?Sized>(mut self, key: &str, value: &T) -> Self {
        put(&mut self.fields, key, &json(value));
        self
    }

    /// Adds a personal text.
    #[must_use]
    pub fn personal_text(mut self, key: &str, value: &str) -> Self {
        let value = if self.auditor.personal { json(&truncated(value)) } else { json("redacted") };
        put(&mut self.personal, key, &value);
        self
    }

    /// Adds a personal list.
    #[must_use]
    pub fn personal_list(mut self, key: &str, values: &[String]) -> Self {
        let value = if self.auditor.personal {
            json(&truncated_list(values))
        } else {
            json(&[format!("redacted {} values", values.len())])
        };
        put(&mut self.personal, key, &value);
        self
    }

    /// Adds a personal map.
    #[must_use]
    pub fn personal_map(mut self, key: &str, values: &BTreeMap<String, Vec<String>>) -> Self {
        let value = if self.auditor.personal {
            json(&truncated_map(values))
        } else {
            json(&BTreeMap::from([("redacted", format!("redacted {} keys", values.len()))]))
        };
        put(&mut self.personal, key, &value);
        self
    }

    /// Writes the event.
    pub fn emit(mut self) {
        if let Some(members) = self.personal.strip_prefix(',') {
            let _infallible = write!(self.line, ",\"personalInfo\":{{{members}}}");
        }
        self.line.push_str(&self.fields);
        self.line.push_str("}\n");
        (self.auditor.sink)(&self.line);
    }
}

fn put(members: &mut String, key: &str, json_value: &str) {
    let _infallible = write!(members, ",{}:{json_value}", json(key));
}

fn json<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn lines(personal: bool, write: impl FnOnce(&Auditor)) -> Vec<String> {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&lines);
        let auditor =
            Auditor::with_sink(personal, move |line| sink.lock().expect("lock").push(line.to_owned()));
        write(&auditor);
        let lines = lines.lock().expect("lock").clone();
        // The line number of the caller changes with every edit.
        lines
            .into_iter()
            .map(|line| {
                let start = line.find("\"caller\":\"").expect("a caller") + 10;
                let end = start + line[start..].find('"').expect("its end");
                assert!(line[start..end].starts_with("crates/concierge/server/src/audit.rs:"), "{line}");
                format!("{}CALLER{}", &line[..start], &line[end..])
            })
            .collect()
    }

    fn now() -> Timestamp {
        "2026-01-02T03:04:05.5Z".parse().expect("a time")
    }

    fn event(auditor: &Auditor, audit_id: &str) {
        auditor
            .event("TokenCredentialRequest Authenticated User", audit_id, now())
            .personal_text("username", "pinny")
            .personal_list("groups", &["a".to_owned(), "b".to_owned()])
            .personal_map("extras", &BTreeMap::from([("k".to_owned(), vec!["v".to_owned()])]))
            .field("issuedClientCert", &BTreeMap::from([("notBefore", "x")]))
            .emit();
    }

    #[test]
    fn personal_values_are_redacted_by_default() {
        assert_eq!(
            lines(false, |auditor| event(auditor, "id-1")),
            [concat!(
                r#"{"level":"info","timestamp":"2026-01-02T03:04:05.500000Z","caller":"CALLER","#,
                r#""message":"TokenCredentialRequest Authenticated User","auditEvent":true,"auditID":"id-1","#,
                r#""personalInfo":{"username":"redacted","groups":["redacted 2 values"],"#,
                r#""extras":{"redacted":"redacted 1 keys"}},"issuedClientCert":{"notBefore":"x"}}"#,
                "\n"
            )]
        );
    }

    #[test]
    fn personal_values_are_logged_when_configured() {
        assert_eq!(
            lines(true, |auditor| event(auditor, "")),
            [concat!(
                r#"{"level":"info","timestamp":"2026-01-02T03:04:05.500000Z","caller":"CALLER","#,
                r#""message":"TokenCredentialRequest Authenticated User","auditEvent":true,"#,
                r#""personalInfo":{"username":"pinny","groups":["a","b"],"extras":{"k":["v"]}},"#,
                r#""issuedClientCert":{"notBefore":"x"}}"#,
                "\n"
            )]
        );
    }

    #[test]
    fn texts_of_clients_and_webhooks_are_cut_with_a_mark() {
        let long = "\u{1}".repeat(1 << 20);
        let many = vec!["g".to_owned(); 100_000];
        let written = lines(true, |auditor| {
            auditor
                .event("TokenCredentialRequest Authenticated User", &long, now())
                .personal_text("username", &long)
                .personal_list("groups", &many)
                .personal_map("extras", &BTreeMap::from([(long.clone(), many.clone())]))
                .text("err", &long)
                .emit();
        });
        // A character may take six bytes in JSON.
        assert!(written[0].len() < 6 * 4 * (8 << 10) + 2 * (32 << 10) * 4 / 3, "{}", written[0].len());
        let event: serde_json::Value = serde_json::from_str(&written[0]).expect("JSON");
        let personal = &event["personalInfo"];
        let key = personal["extras"].as_object().and_then(|extras| extras.keys().next()).expect("a key");
        for text in [&event["auditID"], &event["err"], &personal["username"], &key.as_str().into()] {
            assert!(text.as_str().is_some_and(|text| text.ends_with(" [truncated 1040384 bytes]")));
        }
        for list in [&personal["groups"], &personal["extras"][key]] {
            let last = list.as_array().and_then(|list| list.last()).and_then(|last| last.as_str());
            assert!(last.is_some_and(|last| last.starts_with("[truncated ")), "{last:?}");
        }
    }

    #[test]
    fn an_event_without_personal_values_has_no_such_key() {
        let written = lines(false, |auditor| {
            auditor.event("TokenCredentialRequest Token Received", "i", now()).field("tokenID", "ab").emit();
        });
        assert!(
            written[0].ends_with("\"auditEvent\":true,\"auditID\":\"i\",\"tokenID\":\"ab\"}\n"),
            "{written:?}"
        );
    }
}
