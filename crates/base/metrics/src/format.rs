//! The format of a scrape.

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The text format of Prometheus, for clients that request no other one.
    Text,
    /// OpenMetrics.
    OpenMetrics,
    /// Messages of Protocol Buffers, the only format with native histograms.
    Protobuf,
}

const PROTOBUF: &str = "application/vnd.google.protobuf";
/// The type of the messages. Others are not supported.
const MESSAGE: &str = "io.prometheus.client.MetricFamily";

impl Format {
    /// Selects the format for the `Accept` header of a request: the first one with the largest
    /// weight.
    pub fn of(accept: Option<&str>) -> Self {
        let mut best = (Self::Text, 0.0);
        for range in accept.unwrap_or_default().split(',') {
            let mut parts = range.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default();
            let mut weight = 1.0;
            let (mut is_known, mut is_delimited) = (true, true);
            for (name, value) in parts.filter_map(|part| part.split_once('=')) {
                match name {
                    "q" => weight = value.parse().unwrap_or(0.0),
                    "proto" => is_known = value == MESSAGE,
                    "encoding" => is_delimited = value == "delimited",
                    _ => {}
                }
            }
            let format = match media_type {
                PROTOBUF if is_known && is_delimited => Self::Protobuf,
                "application/openmetrics-text" => Self::OpenMetrics,
                "text/plain" => Self::Text,
                _ => continue,
            };
            if weight > best.1 {
                best = (format, weight);
            }
        }
        best.0
    }

    /// Returns the content type.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accepted_format_with_the_largest_weight_is_selected() {
        const FOR_NATIVE: &str = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
            encoding=delimited;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1";
        for (accept, expected) in [
            (FOR_NATIVE, Format::Protobuf),
            (
                "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3",
                Format::OpenMetrics,
            ),
            ("text/plain, application/openmetrics-text;q=0.5", Format::Text),
            ("application/vnd.google.protobuf;proto=other;encoding=delimited", Format::Text),
            ("application/vnd.google.protobuf;encoding=text, text/plain;q=0.1", Format::Text),
            ("application/openmetrics-text;q=0, */*", Format::Text),
            ("application/json, */*", Format::Text),
            ("", Format::Text),
        ] {
            assert_eq!(Format::of(Some(accept)), expected, "{accept}");
        }
        assert_eq!(Format::of(None), Format::Text);
    }
}
