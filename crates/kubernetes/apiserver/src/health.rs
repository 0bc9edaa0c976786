//! `/healthz`, `/livez` and `/readyz`, with the texts of k8s.io/apiserver's `healthz` package.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Response, StatusCode};
use pinniped_http_server::{Body, body, layers};
use pinniped_kube_request::request_info::query_pairs;

type CheckFn = Arc<dyn Fn() -> Result<(), CheckFailure> + Send + Sync>;

/// The reason why a check fails, which the endpoint of the check and the log show.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CheckFailure(String);

impl CheckFailure {
    /// Creates the failure with a text for administrators.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

/// A named check.
#[derive(Clone)]
struct Check {
    name: String,
    run: CheckFn,
}

/// The checks of the health endpoints. Create it once, at start.
#[derive(Clone)]
pub struct Health {
    alive: Vec<Check>,
    ready: Vec<Check>,
    stopping: Stopping,
}

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Health")
            .field("alive", &names(&self.alive))
            .field("ready", &names(&self.ready))
            .finish_non_exhaustive()
    }
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

impl Health {
    /// Returns the checks that every API server has.
    pub fn new() -> Self {
        let fine: CheckFn = Arc::new(|| Ok(()));
        let alive = [
            "ping",
            "log",
            "poststarthook/max-in-flight-filter",
            "poststarthook/storage-object-count-tracker-hook",
        ]
        .map(|name| Check { name: name.to_owned(), run: Arc::clone(&fine) });
        Self { alive: alive.into(), ready: Vec::new(), stopping: Stopping::default() }
    }

    /// Returns only the check `ping`, for a program that is not an API server.
    pub fn of_program() -> Self {
        let fine: CheckFn = Arc::new(|| Ok(()));
        let ping = Check { name: "ping".to_owned(), run: fine };
        Self { alive: vec![ping], ready: Vec::new(), stopping: Stopping::default() }
    }

    /// Adds a step of the start, for example `start-controllers`. All three endpoints fail until
    /// [`StartStep::done`] is called on the returned value.
    pub fn start_step(&mut self, name: &str) -> StartStep {
        let step = StartStep(Arc::new(AtomicBool::new(false)));
        let done = Arc::clone(&step.0);
        let run: CheckFn = Arc::new(move || match done.load(Ordering::Acquire) {
            true => Ok(()),
            false => Err(CheckFailure::new("not finished")),
        });
        self.alive.push(Check { name: format!("poststarthook/{name}"), run });
        step
    }

    /// Adds a step to `/readyz` only, which fails until [`StartStep::done`] is called on the
    /// returned value.
    pub fn ready_step(&mut self, name: &str) -> StartStep {
        let step = StartStep(Arc::new(AtomicBool::new(false)));
        let done = Arc::clone(&step.0);
        self.ready_check(name, move || match done.load(Ordering::Acquire) {
            true => Ok(()),
            false => Err(CheckFailure::new("not finished")),
        });
        step
    }

    /// Adds a check to `/readyz` only.
    pub fn ready_check(
        &mut self,
        name: &str,
        check: impl Fn() -> Result<(), CheckFailure> + Send + Sync + 'static,
    ) {
        self.ready.push(Check { name: name.to_owned(), run: Arc::new(check) });
    }

    /// Returns the switch that makes `/readyz` fail before the server stops.
    pub fn stopping(&self) -> Stopping {
        self.stopping.clone()
    }

    /// Returns the names of the checks of `/healthz` and `/livez`.
    pub fn alive_names(&self) -> Vec<String> {
        names(&self.alive)
    }

    /// Returns the names of the checks of `/readyz`.
    pub fn ready_names(&self) -> Vec<String> {
        names(&self.checks("readyz"))
    }

    fn checks(&self, endpoint: &str) -> Vec<Check> {
        let mut checks = self.alive.clone();
        if endpoint == "readyz" {
            checks.extend(self.ready.iter().cloned());
            let stopping = self.stopping.clone();
            let run: CheckFn = Arc::new(move || match stopping.0.load(Ordering::Acquire) {
                true => Err(CheckFailure::new("process is shutting down")),
                false => Ok(()),
            });
            checks.push(Check { name: "shutdown".to_owned(), run });
        }
        checks
    }

    /// Responds to `/<endpoint>` (`check` is `None`) or `/<endpoint>/<check>`. Returns `None` when
    /// the check does not exist.
    pub fn respond(&self, endpoint: &str, check: Option<&str>, query: &str) -> Option<Response<Body>> {
        let checks = self.checks(endpoint);
        if let Some(name) = check {
            let check = checks.into_iter().find(|check| check.name == name)?;
            return Some(match (check.run)() {
                Ok(()) => text("ok"),
                Err(error) => failure(&format!("internal server error: {error}")),
            });
        }
        let mut verbose = false;
        let mut excluded = Vec::new();
        for (key, value) in query_pairs(query) {
            match key.as_str() {
                "verbose" => verbose = true,
                "exclude" => excluded.push(value),
                _ => {}
            }
        }
        let mut report = String::new();
        let mut failed = false;
        for check in &checks {
            let name = &check.name;
            if excluded.contains(name) {
                report.push_str(&format!("[+]{name} excluded: ok\n"));
                continue;
            }
            match (check.run)() {
                Ok(()) => report.push_str(&format!("[+]{name} ok\n")),
                Err(error) => {
                    failed = true;
                    tracing::info!(endpoint, check = %name, %error, "health check failed");
                    report.push_str(&format!("[-]{name} failed: reason withheld\n"));
                }
            }
        }
        Some(match (failed, verbose) {
            (true, _) => failure(&format!("{report}{endpoint} check failed")),
            (false, true) => text(format!("{report}{endpoint} check passed\n")),
            (false, false) => text("ok"),
        })
    }

    /// Returns the gauges of `/metrics/slis`: 1 for each check that succeeds.
    pub fn slis(&self) -> String {
        let mut out = String::from(
            "# HELP kubernetes_healthcheck This metric records the result of a single healthcheck.\n\
             # TYPE kubernetes_healthcheck gauge\n",
        );
        for endpoint in ["healthz", "livez", "readyz"] {
            for check in self.checks(endpoint) {
                let value = i32::from((check.run)().is_ok());
                out.push_str(&format!(
                    "kubernetes_healthcheck{{name=\"{}\",type=\"{endpoint}\"}} {value}\n",
                    check.name
                ));
            }
        }
        out
    }
}

/// A step of the start that is not completed.
#[derive(Clone, Debug)]
pub struct StartStep(Arc<AtomicBool>);

impl StartStep {
    /// Completes the step; its check succeeds from now on.
    pub fn done(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A switch that makes `/readyz` fail.
#[derive(Clone, Debug, Default)]
pub struct Stopping(Arc<AtomicBool>);

impl Stopping {
    /// Starts the shutdown: `/readyz` fails from now on.
    pub fn begin(&self) {
        self.0.store(true, Ordering::Release);
    }
}

fn names(checks: &[Check]) -> Vec<String> {
    checks.iter().map(|check| check.name.clone()).collect()
}

fn text(content: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(body::full(content));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn failure(report: &str) -> Response<Body> {
    layers::plain_error(StatusCode::INTERNAL_SERVER_ERROR, report)
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    async fn get(health: &Health, endpoint: &str, check: Option<&str>, query: &str) -> (u16, String) {
        let response = health.respond(endpoint, check, query).expect("known");
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await.expect("a body").to_bytes();
        (status, String::from_utf8_lossy(&bytes).into_owned())
    }

    #[tokio::test]
    async fn all_endpoints_fail_until_the_start_is_complete() {
        let mut health = Health::new();
        let step = health.start_step("start-controllers");
        let wanted = "[+]ping ok\n[+]log ok\n[+]poststarthook/max-in-flight-filter ok\n\
            [+]poststarthook/storage-object-count-tracker-hook ok\n\
            [-]poststarthook/start-controllers failed: reason withheld\nhealthz check failed\n";
        assert_eq!(get(&health, "healthz", None, "").await, (500, wanted.to_owned()));
        assert_eq!(
            get(&health, "livez", Some("poststarthook/start-controllers"), "").await,
            (500, "internal server error: not finished\n".to_owned())
        );
        assert_eq!(get(&health, "livez", None, "exclude=poststarthook/start-controllers").await.0, 200);
        step.done();
        assert_eq!(get(&health, "healthz", None, "").await, (200, "ok".to_owned()));
        assert!(health.respond("healthz", Some("unknown"), "").is_none());
    }

    #[tokio::test]
    async fn readiness_has_additional_checks_and_fails_first_at_shutdown() {
        let mut health = Health::new();
        health.ready_check("impersonation-proxy", || Err(CheckFailure::new("not listening")));
        assert_eq!(get(&health, "healthz", None, "").await.0, 200);
        let (status, report) = get(&health, "readyz", None, "").await;
        assert_eq!(status, 500);
        assert!(report.ends_with(
            "[-]impersonation-proxy failed: reason withheld\n[+]shutdown ok\nreadyz check failed\n"
        ));

        let health = Health::new();
        let (status, report) = get(&health, "readyz", None, "verbose").await;
        assert_eq!(status, 200);
        assert!(report.ends_with("[+]shutdown ok\nreadyz check passed\n"), "{report}");
        health.stopping().begin();
        assert_eq!(get(&health, "readyz", None, "").await.0, 500);
        assert_eq!(get(&health, "livez", None, "").await.0, 200);
        assert!(health.slis().contains("kubernetes_healthcheck{name=\"shutdown\",type=\"readyz\"} 0\n"));
    }
}
