//! The text of client-go for a response of a server that is not a [`Status`](super::Status).

use pinniped_go_compat::json::quote;

/// Returns the message of a response with this status code, like `NewGenericServerResponse` of
/// `k8s.io/apimachinery`. `body` is the text of the response, trimmed.
///
/// The caller appends the resource, such as ` (get pods)`.
pub fn generic_message(code: u16, body: &str) -> String {
    let text = match code {
        400 => "the server rejected our request for an unknown reason",
        401 => "the server has asked for the client to provide credentials",
        403 | 415 => body,
        404 => "the server could not find the requested resource",
        405 => "the server does not allow this method on the requested resource",
        406 if body.is_empty() || body == "unknown" => {
            "the server was unable to respond with a content type that the client supports"
        }
        406 => body,
        409 => "the server reported a conflict",
        422 => "the server rejected our request due to an error in our request",
        429 => "the server has received too many requests and has asked us to try again later",
        503 => "the server is currently unable to handle the request",
        504 => {
            "the server was unable to return a response in the time allotted, but may still be processing the \
             request"
        }
        500.. => {
            return format!(
                "an error on the server ({}) has prevented the request from succeeding",
                quote(body)
            );
        }
        _ => {
            return format!(
                "the server responded with the status code {code} but did not return more information"
            );
        }
    };
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_depends_on_the_code_and_for_some_codes_on_the_body() {
        for (code, body, message) in [
            (302, "x", "the server responded with the status code 302 but did not return more information"),
            (403, "no, you", "no, you"),
            (404, "404 page not found", "the server could not find the requested resource"),
            (406, "only JSON", "only JSON"),
            (406, "unknown", "the server was unable to respond with a content type that the client supports"),
            (409, "", "the server reported a conflict"),
            (415, "only JSON", "only JSON"),
            (
                500,
                "say \"boom\"",
                "an error on the server (\"say \\\"boom\\\"\") has prevented the request from succeeding",
            ),
            (503, "x", "the server is currently unable to handle the request"),
        ] {
            assert_eq!(generic_message(code, body), message);
        }
    }
}
