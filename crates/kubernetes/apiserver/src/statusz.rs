//! `/statusz`: start time, version and paths of the server, for administrators.
//!
//! The formats are those of k8s.io/apiserver 1.36: text, and `Statusz` of `config.k8s.io` in JSON
//! or YAML for clients that name it in the `Accept` header. Upstream separates names from values in
//! the text with a character that it selects at random, so that no program parses it; here it is a
//! colon. Clients need the permission for the path, as for metrics.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, WARNING};
use http::{HeaderMap, HeaderValue, Response};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use pinniped_go_compat::json as gojson;
use pinniped_http_server::{Body, body};
use pinniped_kube_types::status::Status;
use serde_json::{Value, json};

use crate::respond::accept::{self, Clause};
use crate::respond::{Encoding, json_to_yaml, wants_pretty};

/// The media types in error messages.
const MEDIA_TYPES: [&str; 3] = ["application/json", "application/yaml", "text/plain"];

/// The warning about the older version of `config.k8s.io`.
const DEPRECATED: HeaderValue = HeaderValue::from_static(
    "299 - \"This version of the statusz endpoint is deprecated. Please use a newer version.\"",
);

/// The first segments of paths that are not listed: APIs and their descriptions.
const NOT_LISTED: [&str; 5] = ["apis", "api", "openid", "openapi", ".well-known"];

/// The content of the page.
#[derive(Clone, Copy, Debug)]
pub struct Statusz<'a> {
    /// Name of the component, as the page shows it.
    pub component: &'static str,
    /// The start time of the process.
    pub started: Timestamp,
    /// The current time.
    pub now: Timestamp,
    /// The version of the program.
    pub version: &'static str,
    /// The paths that the server lists at `/`. Only their first segments are shown.
    pub paths: &'a [String],
}

/// The format that a client requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Text,
    Object { encoding: Encoding, version: &'static str, pretty: bool },
}

impl Statusz<'_> {
    /// Returns the page in the format that the client requests; text by default.
    ///
    /// # Errors
    /// 406 when the client accepts none of the formats.
    pub fn respond(&self, headers: &HeaderMap, query: Option<&str>) -> Result<Response<Body>, Box<Status>> {
        let Some(format) = Format::negotiate(headers) else {
            return Err(Box::new(Status::not_acceptable(&MEDIA_TYPES)));
        };
        let Format::Object { encoding, version, pretty } = format else {
            return Ok(respond("text/plain; charset=utf-8", self.text()));
        };
        let object = self.object(version);
        let json = gojson::to_string(&object);
        let text = match encoding {
            Encoding::Yaml => json_to_yaml(&json).unwrap_or(json),
            _ if pretty || wants_pretty(headers, query) => gojson::to_string_pretty(&object),
            _ => json + "\n",
        };
        let media_type = format!("{};g=config.k8s.io;v={version};as=Statusz", encoding.media_type());
        let mut response = respond(&media_type, text);
        if version == "v1alpha1" {
            response.headers_mut().insert(WARNING, DEPRECATED);
        }
        Ok(response)
    }

    fn object(&self, version: &str) -> Value {
        json!({
            "kind": "Statusz",
            "apiVersion": format!("config.k8s.io/{version}"),
            "metadata": { "name": self.component },
            "startTime": self.started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            "uptimeSeconds": self.up_seconds(),
            // This is no Go program.
            "goVersion": "",
            "binaryVersion": self.version,
            "paths": self.folders(),
        })
    }

    fn text(&self) -> String {
        let up = self.up_seconds();
        let (hours, minutes, seconds) = (up / 3600, (up / 60) % 60, up % 60);
        let started = self.started.to_zoned(TimeZone::UTC).strftime("%a %b %e %H:%M:%S UTC %Y");
        format!(
            "\n{} statusz\n\
             Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility \
             guarantees and is for debugging purposes only.\n\
             \nStarted: {started}\nUp: {hours} hr {minutes:02} min {seconds:02} sec\nGo version: \n\
             Binary version: {}\n\nPaths: {}\n",
            self.component,
            self.version,
            self.folders().join(" ")
        )
    }

    fn up_seconds(&self) -> i64 {
        (self.now.as_second() - self.started.as_second()).max(0)
    }

    /// Returns the first segments of the paths, sorted.
    fn folders(&self) -> Vec<String> {
        let segments = self.paths.iter().filter_map(|path| path.split('/').nth(1));
        let listed = segments.filter(|segment| !segment.is_empty() && !NOT_LISTED.contains(segment));
        let mut folders: Vec<String> = listed.map(|segment| format!("/{segment}")).collect();
        folders.sort();
        folders.dedup();
        folders
    }
}

impl Format {
    fn negotiate(headers: &HeaderMap) -> Option<Self> {
        let Some(clauses) = accept::from_headers(headers) else { return Some(Self::Text) };
        clauses.iter().find_map(|clause| {
            if clause.param("stream").is_some_and(|stream| !stream.is_empty())
                || clause.param("sv").is_some_and(|version| !version.is_empty())
            {
                return None;
            }
            let encoding = [Encoding::Json, Encoding::Yaml]
                .into_iter()
                .find(|encoding| encoding.is_covered_by(clause))
                .zip(requested_version(clause));
            match encoding {
                Some((encoding, version)) => {
                    Some(Self::Object { encoding, version, pretty: clause.param("pretty") == Some("1") })
                }
                None => (clause.covers("text", "plain") && clause.is_plain()).then_some(Self::Text),
            }
        })
    }
}

/// Returns the version of `Statusz` that a clause names.
fn requested_version(clause: &Clause) -> Option<&'static str> {
    let names_kind = clause.param("g") == Some("config.k8s.io") && clause.param("as") == Some("Statusz");
    ["v1beta1", "v1alpha1"].into_iter().find(|version| names_kind && clause.param("v") == Some(version))
}

fn respond(media_type: &str, content: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(body::full(content));
    if let Ok(media_type) = HeaderValue::try_from(media_type) {
        response.headers_mut().insert(CONTENT_TYPE, media_type);
    }
    response
}

#[cfg(test)]
mod tests {
    use http::header::ACCEPT;
    use http_body_util::BodyExt as _;

    use super::*;

    /// Returns content type, warning and body for an `Accept` header; the message of a refusal.
    async fn get(accept: &'static str) -> Result<(String, bool, String), String> {
        let paths = ["/apis/group", "/healthz/log", "/healthz", "/version", "/openapi/v2"].map(str::to_owned);
        let page = Statusz {
            component: "apiserver",
            started: "2026-01-02T03:04:05.6Z".parse().unwrap(),
            now: "2026-01-03T04:04:06Z".parse().unwrap(),
            version: "1.2.3",
            paths: &paths,
        };
        let mut headers = HeaderMap::new();
        if !accept.is_empty() {
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
        }
        let response = page.respond(&headers, None).map_err(|status| status.message)?;
        let media_type = response.headers()[CONTENT_TYPE].to_str().unwrap().to_owned();
        let has_warning = response.headers().contains_key(WARNING);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        Ok((media_type, has_warning, String::from_utf8(body.to_vec()).unwrap()))
    }

    #[tokio::test]
    async fn the_page_is_text_unless_the_client_names_the_kind() {
        let wanted = "\napiserver statusz\nWarning: This endpoint is not meant to be machine parseable, has \
                      no formatting compatibility guarantees and is for debugging purposes only.\n\nStarted: \
                      Fri Jan  2 03:04:05 UTC 2026\nUp: 25 hr 00 min 01 sec\nGo version: \nBinary version: \
                      1.2.3\n\nPaths: /healthz /version\n";
        for accept in ["", "*/*", "text/plain", "application/json, text/*;q=0.5"] {
            let text = ("text/plain; charset=utf-8".to_owned(), false, wanted.to_owned());
            assert_eq!(get(accept).await, Ok(text), "{accept}");
        }
        let (media_type, has_warning, body) =
            get("application/json;g=config.k8s.io;v=v1beta1;as=Statusz").await.unwrap();
        assert_eq!(media_type, "application/json;g=config.k8s.io;v=v1beta1;as=Statusz");
        assert!(!has_warning && body.ends_with("}\n"));
        assert_eq!(
            serde_json::from_str::<Value>(&body).unwrap(),
            json!({"kind": "Statusz", "apiVersion": "config.k8s.io/v1beta1", "metadata": {"name": "apiserver"},
                "startTime": "2026-01-02T03:04:05Z", "uptimeSeconds": 90_001, "goVersion": "",
                "binaryVersion": "1.2.3", "paths": ["/healthz", "/version"]})
        );
        let (media_type, has_warning, body) =
            get("application/yaml;g=config.k8s.io;v=v1alpha1;as=Statusz").await.unwrap();
        assert_eq!(media_type, "application/yaml;g=config.k8s.io;v=v1alpha1;as=Statusz");
        assert!(has_warning && body.starts_with("apiVersion: config.k8s.io/v1alpha1\n"), "{body}");
    }

    #[tokio::test]
    async fn other_formats_are_refused_with_the_list_of_formats() {
        let wanted =
            "only the following media types are accepted: application/json, application/yaml, text/plain";
        for accept in [
            "application/json",
            "application/vnd.kubernetes.protobuf",
            "text/html",
            "application/json;g=config.k8s.io;v=v1;as=Statusz",
        ] {
            assert_eq!(get(accept).await, Err(wanted.to_owned()), "{accept}");
        }
    }
}
