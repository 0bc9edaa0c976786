//! A real OpenTelemetry collector for tests: `tools/third-party/otel-collector`.

use std::path::PathBuf;

use super::Tool;
use super::cache::cached;
use super::module::Module;

/// Environment variable with the path of the program, for tests.
pub(crate) const ENV: &str = "PINNIPED_OTEL_COLLECTOR";

const OTEL_COLLECTOR: Tool = Tool { name: "otel-collector", package: ".", version_args: &[], version: None };

/// Returns the path of the program.
pub(crate) fn find_or_build(offline: bool) -> anyhow::Result<PathBuf> {
    let module = Module::of_program(
        "otel-collector",
        "OpenTelemetry collector",
        "go.opentelemetry.io/collector/otelcol",
    )?;
    Ok(cached(&module, "collector of traces", &[OTEL_COLLECTOR], offline)?.join(OTEL_COLLECTOR.name))
}
