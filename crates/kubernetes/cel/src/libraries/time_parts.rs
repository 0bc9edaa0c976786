//! Parts of times and of durations, such as the hour.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::{Function, no_overload, opaque, timestamp::Timestamp};
use crate::error::EvaluationError;
use crate::interpreter::Evaluation;
use crate::value::{OpaqueValue, Value};

pub(crate) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "getFullYear" => |_, arguments| part("getFullYear", arguments, |time| i64::from(time.year())),
        "getMonth" => |_, arguments| part("getMonth", arguments, |time| i64::from(time.month()) - 1),
        "getDate" => |_, arguments| part("getDate", arguments, |time| i64::from(time.day())),
        "getDayOfMonth" => |_, arguments| part("getDayOfMonth", arguments, |time| i64::from(time.day()) - 1),
        "getDayOfWeek" => |_, arguments| {
            part("getDayOfWeek", arguments, |time| i64::from(time.weekday().to_sunday_zero_offset()))
        },
        "getDayOfYear" => {
            |_, arguments| part("getDayOfYear", arguments, |time| i64::from(time.day_of_year()) - 1)
        }
        "getHours" => |_, arguments| match arguments {
            [value] if let Some(span) = duration(value) => Ok(Value::Int(span / 3_600_000_000_000)),
            _ => part("getHours", arguments, |time| i64::from(time.hour())),
        },
        "getMinutes" => |_, arguments| match arguments {
            [value] if let Some(span) = duration(value) => Ok(Value::Int(span / 60_000_000_000)),
            _ => part("getMinutes", arguments, |time| i64::from(time.minute())),
        },
        "getSeconds" => |_, arguments| match arguments {
            [value] if let Some(span) = duration(value) => Ok(Value::Int(span / 1_000_000_000)),
            _ => part("getSeconds", arguments, |time| i64::from(time.second())),
        },
        "getMilliseconds" => |_, arguments| match arguments {
            [value] if let Some(span) = duration(value) => Ok(Value::Int(span / 1_000_000)),
            _ => part("getMilliseconds", arguments, |time| i64::from(time.millisecond())),
        },
        _ => return None,
    })
}

fn duration(value: &Value) -> Option<i64> {
    match opaque(value) {
        Some(OpaqueValue::Duration(nanoseconds)) => Some(*nanoseconds),
        _ => None,
    }
}

fn part(name: &str, arguments: &[Value], of: fn(DateTime) -> i64) -> Evaluation {
    let (time, zone) = match arguments {
        [time] => (time, None),
        [time, Value::String(zone)] => (time, Some(zone)),
        _ => return Err(no_overload(name, arguments)),
    };
    let Some(OpaqueValue::Timestamp(time)) = opaque(time) else {
        return Err(no_overload(name, arguments));
    };
    let offset = match zone {
        Some(zone) => offset(time, zone)?,
        None => 0,
    };
    Ok(Value::Int(of(time.civil(offset))))
}

/// Returns the offset of a time zone from UTC in seconds. The zone is a name, or hours and minutes.
fn offset(time: &Timestamp, zone: &str) -> Result<i64, EvaluationError> {
    let Some((hours, minutes)) = zone.split_once(':') else {
        return named_offset(time, zone)
            .ok_or_else(|| EvaluationError::failed(format!("unknown time zone {zone}")));
    };
    let number = |text: &str| -> Result<i64, EvaluationError> {
        let invalid = |_| {
            let quoted = pinniped_go_compat::json::quote(text);
            EvaluationError::failed(format!("strconv.Atoi: parsing {quoted}: invalid syntax"))
        };
        text.parse::<i32>().map(i64::from).map_err(invalid)
    };
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    let minutes = if zone.starts_with('-') { hours * 60 - minutes } else { hours * 60 + minutes };
    Ok(minutes * 60)
}

fn named_offset(time: &Timestamp, zone: &str) -> Option<i64> {
    if matches!(zone, "" | "UTC") {
        return Some(0);
    }
    let zone = TimeZone::get(zone).ok()?;
    // The range of the library is a day shorter at both ends.
    let at = jiff::Timestamp::from_second(time.seconds()).ok()?;
    Some(i64::from(zone.to_offset(at).seconds()))
}
