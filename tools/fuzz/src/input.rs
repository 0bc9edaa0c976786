//! Converts inputs to header maps and text.

use std::cell::RefCell;

use http::{HeaderMap, HeaderName, HeaderValue};

/// Parses header lines, `name: value`. Lines that HTTP does not allow are left out, because a
/// server would never pass them on.
pub fn headers(data: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in data.split(|&byte| byte == b'\n') {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
        let value = line[colon + 1..].strip_prefix(b" ").unwrap_or(&line[colon + 1..]);
        let (Ok(name), Ok(value)) = (HeaderName::from_bytes(&line[..colon]), HeaderValue::from_bytes(value))
        else {
            continue;
        };
        // The map panics with more than about 24,000 different names; servers have far lower
        // limits.
        if headers.len() < 1000 {
            headers.append(name, value);
        }
    }
    headers
}

/// Returns header values as text.
pub fn text(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

/// Runs a future that waits for nothing outside of the process.
pub fn block_on<F: Future>(future: F) -> F::Output {
    thread_local! {
        static RUNTIME: RefCell<tokio::runtime::Runtime> = RefCell::new(
            tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime can be built"),
        );
    }
    RUNTIME.with_borrow(|runtime| runtime.block_on(future))
}
