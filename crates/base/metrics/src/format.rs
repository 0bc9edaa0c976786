//! The text formats of a scrape.

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The text format of Prometheus, for clients that request no other one.
    Text,
    /// OpenMetrics.
    OpenMetrics,
}

impl Format {
    /// Selects the format for the `Accept` header of a request.
    pub fn of(accept: Option<&str>) -> Self {
        match accept {
            Some(accept) if accept.contains("application/openmetrics-text") => Self::OpenMetrics,
            _ => Self::Text,
        }
    }

    /// Returns the content type.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Converts OpenMetrics, the only text format that `prometheus_client` writes, to the text format
/// of Prometheus: there the name of a counter has its suffix in the descriptions, too, and comments
/// for units and the end do not exist.
pub(crate) fn to_text(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len() + 4096);
    let mut help = None;
    for line in open_metrics.lines() {
        if let Some(described) = line.strip_prefix("# HELP ") {
            help = described.split_once(' ');
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|described| described.split_once(' '))
        {
            let suffix = if kind == "counter" { "_total" } else { "" };
            if let Some((_, help)) = help.take() {
                text.push_str(&format!("# HELP {name}{suffix} {help}\n"));
            }
            text.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
        } else if !line.starts_with('#') {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_metrics_is_for_clients_that_accept_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3";
        assert_eq!(Format::of(Some(prometheus)), Format::OpenMetrics);
        assert_eq!(Format::of(Some("application/json, */*")), Format::Text);
        assert_eq!(Format::of(None), Format::Text);
    }

    #[test]
    fn counters_have_their_suffix_and_open_metrics_comments_are_removed() {
        let open_metrics = "# HELP a Some a.\n# TYPE a counter\n# UNIT a bytes\na_total{x=\"# y\"} 1\n\
                            # HELP b Some b.\n# TYPE b gauge\nb 2\n# EOF\n";
        let expected = "# HELP a_total Some a.\n# TYPE a_total counter\na_total{x=\"# y\"} 1\n\
                        # HELP b Some b.\n# TYPE b gauge\nb 2\n";
        assert_eq!(to_text(open_metrics), expected);
    }
}
