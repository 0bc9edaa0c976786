//! The `Date` header of responses.

use std::cell::RefCell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderValue;

/// Returns the date of the current second (RFC 9110, section 6.6.1). Each thread formats it once a
/// second.
pub(crate) fn now() -> HeaderValue {
    thread_local! {
        static LAST: RefCell<(u64, HeaderValue)> = const { RefCell::new((0, HeaderValue::from_static(""))) };
    }
    let second = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    LAST.with_borrow_mut(|(written, value)| {
        if *written != second {
            let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(second));
            *value = HeaderValue::try_from(date).expect("a date is a header value");
            *written = second;
        }
        value.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_date_has_the_http_format_and_the_current_time() {
        let before = SystemTime::now() - Duration::from_secs(1);
        let date = now();
        assert_eq!(date.len(), 29, "{date:?}");
        let read = httpdate::parse_http_date(date.to_str().unwrap()).unwrap();
        assert!(before <= read && read <= SystemTime::now(), "{date:?}");
    }
}
