//! A real OpenTelemetry collector, which writes the spans that it gets to a file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::certs::Authority;
use crate::control_plane::free_port;
use crate::{tools, wait};

/// Environment variable with the path of the collector; `cargo xtask test` builds it and sets this.
const ENV: &str = "PINNIPED_OTEL_COLLECTOR";
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the path of the collector. Without one, records that a test is skipped.
#[must_use]
pub fn program() -> Option<PathBuf> {
    tools::built(ENV, "collector", "traces")
}

/// A collector that appends spans to a file.
#[derive(Debug)]
pub struct Collector {
    spans: PathBuf,
    /// The URL for OTLP over HTTPS.
    pub endpoint: String,
    /// The certificate of its authority, PEM.
    pub ca_pem: String,
    /// Terminates when it is dropped.
    _process: Child,
}

/// A span in the file.
#[derive(Debug)]
pub struct Span {
    /// The attribute `service.name` of the program.
    pub service: String,
    /// The name.
    pub name: String,
    /// The identifier of the trace.
    pub trace: String,
    /// The identifier of the span.
    pub id: String,
    /// The identifier of the parent; empty without one.
    pub parent: String,
    /// The trace and the span of each link.
    pub links: Vec<(String, String)>,
    /// The attributes that are texts.
    pub attributes: BTreeMap<String, String>,
}

impl Collector {
    /// Starts the collector, with its files in a folder. The API server sends with gRPC to the port
    /// `grpc`, and the programs of this project with HTTPS.
    ///
    /// # Errors
    /// Returns an error when the program does not start.
    pub async fn start(program: &Path, dir: &Path, grpc: u16) -> anyhow::Result<Self> {
        let authority = Authority::new("collector authority")?;
        let pair = authority.server("collector", &["localhost"], &[])?;
        let (certificate, key) = (dir.join("tls.crt"), dir.join("tls.key"));
        std::fs::write(&certificate, pair.certificate_pem.as_bytes())?;
        std::fs::write(&key, pair.private_key_pem.as_bytes())?;
        let (spans, file, http) = (dir.join("spans.json"), dir.join("collector.json"), free_port()?);
        let configuration = json!({
            "receivers": {"otlp": {"protocols": {
                "grpc": {"endpoint": format!("127.0.0.1:{grpc}")},
                "http": {
                    "endpoint": format!("127.0.0.1:{http}"),
                    "tls": {"cert_file": certificate, "key_file": key},
                },
            }}},
            "exporters": {"file": {"path": spans, "flush_interval": "100ms"}},
            "service": {
                "telemetry": {"metrics": {"level": "none"}},
                "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["file"]}},
            },
        });
        std::fs::write(&file, configuration.to_string())?;
        let log = dir.join("collector.log");
        let mut command = Command::new(program);
        command.arg("--config").arg(&file).stderr(std::fs::File::create(&log)?).kill_on_drop(true);
        let process = command.spawn().context("could not start the collector")?;
        wait::until_ok(PATIENCE, "the collector to listen", async || {
            anyhow::Ok(TcpStream::connect(("127.0.0.1", http)).await?)
        })
        .await
        .with_context(|| std::fs::read_to_string(&log).unwrap_or_default())?;
        Ok(Self {
            spans,
            endpoint: format!("https://localhost:{http}"),
            ca_pem: authority.certificate_pem,
            _process: process,
        })
    }

    /// Returns the spans that have arrived.
    #[must_use]
    pub fn spans(&self) -> Vec<Span> {
        let text = std::fs::read_to_string(&self.spans).unwrap_or_default();
        let mut spans = Vec::new();
        // The last line may be incomplete.
        for message in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            for resource in list(&message["resourceSpans"]) {
                let service = attributes(&resource["resource"]).remove("service.name").unwrap_or_default();
                for span in list(&resource["scopeSpans"]).flat_map(|scope| list(&scope["spans"])) {
                    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                    let links =
                        list(&span["links"]).map(|link| (text(&link["traceId"]), text(&link["spanId"])));
                    spans.push(Span {
                        service: service.clone(),
                        name: text(&span["name"]),
                        trace: text(&span["traceId"]),
                        id: text(&span["spanId"]),
                        parent: text(&span["parentSpanId"]),
                        links: links.collect(),
                        attributes: attributes(span),
                    });
                }
            }
        }
        spans
    }

    /// Waits for a span of this service.
    ///
    /// # Errors
    /// Returns an error when no such span arrives in time.
    pub async fn span(
        &self,
        service: &str,
        what: &str,
        fits: impl Fn(&Span) -> bool,
    ) -> anyhow::Result<Span> {
        wait::until_ok(PATIENCE, format!("the span of {what}"), async || {
            let spans = self.spans();
            let seen: BTreeSet<_> =
                spans.iter().map(|span| (span.service.clone(), span.name.clone())).collect();
            let found = spans.into_iter().find(|span| span.service == service && fits(span));
            found.with_context(|| format!("{seen:?}"))
        })
        .await
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn attributes(value: &Value) -> BTreeMap<String, String> {
    list(&value["attributes"])
        .map(|attribute| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            (text(&attribute["key"]), text(&attribute["value"]["stringValue"]))
        })
        .collect()
}
