//! The section `recording.sessions`: the recording of sessions that go through the impersonation
//! proxy.

use std::path::PathBuf;

use pinniped_session_recording::{Mode, RecordingParams, WhenFull};
use serde_json::Value;

use super::{Config, ConfigError, invalid, raw};

const SETTING: &str = "recording.sessions";

const MEGABYTE: u64 = 1 << 20;

/// With the other defaults, half of the folder remains for complete recordings.
const MAX_SESSIONS: i64 = 32;
const MAX_SESSION_MEGABYTES: i64 = 16;
const MAX_TOTAL_MEGABYTES: i64 = 1024;

/// Returns the parameters; `None` if sessions are not recorded.
pub(super) fn params(raw: raw::Sessions) -> Result<Option<RecordingParams>, ConfigError> {
    let raw::Sessions {
        directory,
        mode,
        record_input,
        when_full,
        max_sessions,
        max_session_megabytes,
        max_total_megabytes,
    } = raw;
    if directory.is_empty() {
        // Otherwise, a mistake would silently disable recordings that are required.
        let has_others = !mode.is_empty()
            || record_input.is_some()
            || !when_full.is_empty()
            || [max_sessions, max_session_megabytes, max_total_megabytes].iter().any(Option::is_some);
        return match has_others {
            false => Ok(None),
            true => Err(invalid(
                SETTING,
                "directory is required with the other keys: the path of a folder on a volume",
            )),
        };
    }
    if !directory.starts_with('/') {
        return Err(invalid(
            SETTING,
            format!("directory must be an absolute path (instead of {directory:?})"),
        ));
    }
    let mode = match mode.as_str() {
        "" | "bestEffort" => Mode::BestEffort,
        "required" => Mode::Required,
        _ => {
            return Err(invalid(
                SETTING,
                "mode: valid choices are 'bestEffort', 'required', or empty string (equivalent to 'bestEffort')",
            ));
        }
    };
    let when_full = match (when_full.as_str(), mode) {
        ("removeOldest", _) | ("", Mode::BestEffort) => WhenFull::RemoveOldest,
        ("keep", _) | ("", Mode::Required) => WhenFull::Keep,
        _ => {
            return Err(invalid(
                SETTING,
                "whenFull: valid choices are 'removeOldest' (the default of mode 'bestEffort') and 'keep' \
                 (the default of mode 'required')",
            ));
        }
    };
    let max_sessions = number("maxSessions", max_sessions.unwrap_or(MAX_SESSIONS), 128)?;
    let max_session = MEGABYTE
        * number("maxSessionMegabytes", max_session_megabytes.unwrap_or(MAX_SESSION_MEGABYTES), 10_000)?;
    let max_total = MEGABYTE
        * number("maxTotalMegabytes", max_total_megabytes.unwrap_or(MAX_TOTAL_MEGABYTES), 10_000_000)?;
    if max_total < max_session {
        return Err(invalid(
            SETTING,
            "maxTotalMegabytes cannot be smaller than maxSessionMegabytes: a session counts with its maximum size",
        ));
    }
    Ok(Some(RecordingParams {
        directory: PathBuf::from(directory),
        mode,
        record_input: record_input.unwrap_or(false),
        when_full,
        max_sessions: usize::try_from(max_sessions).unwrap_or(usize::MAX),
        max_session,
        max_total,
    }))
}

fn number(key: &str, number: i64, most: u64) -> Result<u64, ConfigError> {
    match u64::try_from(number) {
        Ok(number) if (1..=most).contains(&number) => Ok(number),
        _ => Err(invalid(SETTING, format!("{key} must be within range 1 to {most}"))),
    }
}

/// Returns the name of a mode in the file.
pub(super) fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::BestEffort => "bestEffort",
        Mode::Required => "required",
    }
}

/// Returns the name of the handling of a full directory in the file.
pub(super) fn when_full_name(when_full: WhenFull) -> &'static str {
    match when_full {
        WhenFull::RemoveOldest => "removeOldest",
        WhenFull::Keep => "keep",
    }
}

/// Returns a value in effect, for comparisons and logs; null if sessions are not recorded.
pub(super) fn of_sessions(config: &Config, value: fn(&RecordingParams) -> Value) -> Value {
    config.recorded_sessions.as_ref().map_or(Value::Null, value)
}

#[cfg(test)]
mod tests {
    use super::super::tests::with;
    use super::*;

    fn sessions(more: &str) -> Result<Option<RecordingParams>, String> {
        with(&format!("recording: {{sessions: {{{more}}}}}"))
            .map(|config| config.recorded_sessions)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn sessions_are_not_recorded_by_default_and_a_directory_is_sufficient() {
        assert_eq!(with("").unwrap().recorded_sessions, None);
        assert_eq!(sessions("directory: ''").unwrap(), None);
        let default = RecordingParams {
            directory: PathBuf::from("/r"),
            mode: Mode::BestEffort,
            record_input: false,
            when_full: WhenFull::RemoveOldest,
            max_sessions: 32,
            max_session: 16 << 20,
            max_total: 1 << 30,
        };
        assert_eq!(sessions("directory: /r").unwrap(), Some(default.clone()));
        // Recordings that are required are not removed unless that is configured.
        let required = RecordingParams { mode: Mode::Required, when_full: WhenFull::Keep, ..default };
        assert_eq!(sessions("directory: /r, mode: required").unwrap(), Some(required));
        let text = "directory: /r, mode: required, whenFull: removeOldest, recordInput: true, \
             maxSessions: 1, maxSessionMegabytes: 2, maxTotalMegabytes: 3";
        let wanted = RecordingParams {
            directory: PathBuf::from("/r"),
            mode: Mode::Required,
            record_input: true,
            when_full: WhenFull::RemoveOldest,
            max_sessions: 1,
            max_session: 2 << 20,
            max_total: 3 << 20,
        };
        assert_eq!(sessions(text).unwrap(), Some(wanted));
    }

    #[test]
    fn incomplete_and_invalid_values_are_refused_with_the_key() {
        for (text, wanted) in [
            ("mode: required", "directory is required with the other keys: the path of a folder on a volume"),
            ("maxSessions: 1", "directory is required with the other keys: the path of a folder on a volume"),
            ("directory: r", "directory must be an absolute path (instead of \"r\")"),
            (
                "directory: /r, mode: strict",
                "mode: valid choices are 'bestEffort', 'required', or empty string (equivalent to 'bestEffort')",
            ),
            (
                "directory: /r, whenFull: stop",
                "whenFull: valid choices are 'removeOldest' (the default of mode 'bestEffort') and 'keep' \
                 (the default of mode 'required')",
            ),
            ("directory: /r, maxSessions: 129", "maxSessions must be within range 1 to 128"),
            ("directory: /r, maxSessionMegabytes: 0", "maxSessionMegabytes must be within range 1 to 10000"),
            ("directory: /r, maxTotalMegabytes: -1", "maxTotalMegabytes must be within range 1 to 10000000"),
            (
                "directory: /r, maxTotalMegabytes: 15",
                "maxTotalMegabytes cannot be smaller than maxSessionMegabytes: a session counts with its maximum size",
            ),
        ] {
            assert_eq!(
                sessions(text).unwrap_err(),
                format!("validate recording.sessions: {wanted}"),
                "{text}"
            );
        }
    }
}
