//! The section `audit.proxiedRequests`: the audit of requests to the impersonation proxy.

use std::path::PathBuf;
use std::time::Duration;

use pinniped_kube_audit::auditor::{AuditParams, LogParams};
use pinniped_kube_audit::bodies::BodyParams;
use pinniped_kube_audit::file::FileParams;
use pinniped_kube_audit::queue::BatchParams;
use pinniped_kube_audit::webhook::{WebhookMode, WebhookParams};
use serde_json::{Value, json};

use super::{Config, ConfigError, invalid, raw};

const SETTING: &str = "audit.proxiedRequests";

const DAY: Duration = Duration::from_secs(86_400);
const MEGABYTE: u64 = 1 << 20;

/// The default of `maxBodyBytes`. An event with two such bodies has less than 100 KiB, which is the
/// size at which kube-apiserver removes bodies (`--audit-log-truncate-max-event-size`).
const MAX_BODY_BYTES: i64 = 40 << 10;
/// The defaults of the batches. The buffer is that of kube-apiserver's log, and the size of a batch
/// that of its webhook.
const BUFFER_SIZE: i64 = 10_000;
const MAX_SIZE: i64 = 400;
const LOG_MAX_WAIT_SECONDS: i64 = 1;
/// The defaults of kube-apiserver's webhook.
const WEBHOOK_MAX_WAIT_SECONDS: i64 = 30;
const INITIAL_BACKOFF_SECONDS: i64 = 10;

/// Returns the parameters; `None` if proxied requests are not audited.
pub(super) fn params(raw: raw::ProxiedRequests) -> Result<Option<AuditParams>, ConfigError> {
    let raw::ProxiedRequests { policy_file, max_body_bytes, log, webhook } = raw;
    if policy_file.is_empty() {
        return match (log, webhook) {
            (None, None) => Ok(None),
            (Some(_), _) => Err(invalid(SETTING, "policyFile is required for an audit log")),
            (None, Some(_)) => Err(invalid(SETTING, "policyFile is required for an audit webhook")),
        };
    }
    let log = log.map(log_params).transpose()?;
    let webhook = webhook.map(webhook_params).transpose()?;
    if log.is_none() && webhook.is_none() {
        return Err(invalid(
            SETTING,
            "log.path or webhook.kubeconfigFile is required; a path is a file, or '-' for standard output",
        ));
    }
    let max_bytes = number("maxBodyBytes", max_body_bytes.unwrap_or(MAX_BODY_BYTES), 1, 1 << 18)? as usize;
    let bodies = BodyParams { max_bytes };
    Ok(Some(AuditParams { policy_file: PathBuf::from(policy_file), bodies, log, webhook }))
}

fn log_params(raw: raw::AuditLog) -> Result<LogParams, ConfigError> {
    if raw.path.is_empty() {
        return Err(invalid(SETTING, "log.path is required: a file, or '-' for standard output"));
    }
    let max_age = number("log.maxAgeDays", raw.max_age_days.unwrap_or(0), 0, 36_500)?;
    let batch = batch(
        "log",
        (raw.batch_buffer_size.unwrap_or(BUFFER_SIZE), raw.batch_max_size.unwrap_or(MAX_SIZE)),
        raw.batch_max_wait_seconds.unwrap_or(LOG_MAX_WAIT_SECONDS),
    )?;
    let batch = (!is_blocking("log", &raw.mode)?).then_some(batch);
    let file = FileParams {
        path: PathBuf::from(raw.path),
        max_age: (max_age > 0).then(|| DAY * max_age),
        max_backups: number("log.maxBackups", raw.max_backups.unwrap_or(0), 0, 100_000)? as usize,
        max_size: MEGABYTE
            * u64::from(number("log.maxSizeMegabytes", raw.max_size_megabytes.unwrap_or(100), 1, 1_000_000)?),
    };
    Ok(LogParams { file, batch })
}

fn webhook_params(raw: raw::AuditWebhook) -> Result<WebhookParams, ConfigError> {
    if raw.kubeconfig_file.is_empty() {
        return Err(invalid(SETTING, "webhook.kubeconfigFile is required: the kubeconfig of the webhook"));
    }
    let batch = batch(
        "webhook",
        (raw.batch_buffer_size.unwrap_or(BUFFER_SIZE), raw.batch_max_size.unwrap_or(MAX_SIZE)),
        raw.batch_max_wait_seconds.unwrap_or(WEBHOOK_MAX_WAIT_SECONDS),
    )?;
    let backoff = raw.initial_backoff_seconds.unwrap_or(INITIAL_BACKOFF_SECONDS);
    let mode = match is_blocking("webhook", &raw.mode)? {
        true => WebhookMode::Blocking,
        false => WebhookMode::Batch,
    };
    Ok(WebhookParams {
        kubeconfig: PathBuf::from(raw.kubeconfig_file),
        mode,
        batch,
        initial_backoff: Duration::from_secs(
            number("webhook.initialBackoffSeconds", backoff, 1, 3600)?.into(),
        ),
    })
}

fn is_blocking(backend: &str, mode: &str) -> Result<bool, ConfigError> {
    match mode {
        "" | "batch" => Ok(false),
        "blocking" => Ok(true),
        _ => Err(invalid(
            SETTING,
            format!(
                "{backend}.mode: valid choices are 'batch', 'blocking', or empty string (equivalent to \
                 'batch')"
            ),
        )),
    }
}

fn batch(
    backend: &str,
    (buffer_size, max_size): (i64, i64),
    max_wait: i64,
) -> Result<BatchParams, ConfigError> {
    let number = |key: &str, value, most| number(&format!("{backend}.{key}"), value, 1, most);
    Ok(BatchParams {
        buffer_size: number("batchBufferSize", buffer_size, 1_000_000)? as usize,
        max_size: number("batchMaxSize", max_size, 10_000)? as usize,
        max_wait: Duration::from_secs(number("batchMaxWaitSeconds", max_wait, 3600)?.into()),
    })
}

fn number(key: &str, number: i64, least: u32, most: u32) -> Result<u32, ConfigError> {
    match u32::try_from(number) {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(invalid(SETTING, format!("{key} must be within range {least} to {most}"))),
    }
}

/// Returns a value in effect, for comparisons and logs; null if proxied requests are not audited.
pub(super) fn in_effect(config: &Config, value: fn(&AuditParams) -> Value) -> Value {
    config.proxied_requests_audit.as_ref().map_or(Value::Null, value)
}

/// Returns a value of the log in effect.
pub(super) fn of_log(config: &Config, value: fn(&LogParams) -> Value) -> Value {
    let log = config.proxied_requests_audit.as_ref().and_then(|audit| audit.log.as_ref());
    log.map_or(Value::Null, value)
}

/// Returns a value of the webhook in effect.
pub(super) fn of_webhook(config: &Config, value: fn(&WebhookParams) -> Value) -> Value {
    let webhook = config.proxied_requests_audit.as_ref().and_then(|audit| audit.webhook.as_ref());
    webhook.map_or(Value::Null, value)
}

/// Returns a value of batches in effect.
pub(super) fn of_batch(batch: Option<&BatchParams>, value: fn(&BatchParams) -> u64) -> Value {
    json!(batch.map(value))
}

#[cfg(test)]
mod tests {
    use super::super::tests::with;
    use super::*;

    fn audit(more: &str) -> Result<Option<AuditParams>, String> {
        with(&format!("audit: {{proxiedRequests: {{{more}}}}}"))
            .map(|config| config.proxied_requests_audit)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn audit_is_off_by_default_and_its_log_has_defaults() {
        assert_eq!(audit("").unwrap(), None);
        let params = audit("policyFile: /p, log: {path: '-'}").unwrap().unwrap();
        let AuditParams { policy_file, bodies, log, webhook } = params;
        assert_eq!((policy_file, webhook), (PathBuf::from("/p"), None));
        assert_eq!(bodies, BodyParams { max_bytes: 40_960 });
        let batch = BatchParams { buffer_size: 10_000, max_size: 400, max_wait: Duration::from_secs(1) };
        let file =
            FileParams { path: PathBuf::from("-"), max_age: None, max_backups: 0, max_size: 100 << 20 };
        assert_eq!(log, Some(LogParams { file, batch: Some(batch) }));
    }

    #[test]
    fn a_webhook_has_the_defaults_of_the_api_server_or_these_values() {
        let params = audit("policyFile: /p, webhook: {kubeconfigFile: /k}").unwrap().unwrap();
        assert_eq!(params.log, None);
        let batch = BatchParams { buffer_size: 10_000, max_size: 400, max_wait: Duration::from_secs(30) };
        let webhook = WebhookParams {
            kubeconfig: PathBuf::from("/k"),
            mode: WebhookMode::Batch,
            batch,
            initial_backoff: Duration::from_secs(10),
        };
        assert_eq!(params.webhook, Some(webhook));
        let text = "policyFile: /p, log: {path: /l}, webhook: {kubeconfigFile: /k, mode: blocking, \
                    initialBackoffSeconds: 2, batchBufferSize: 3, batchMaxSize: 4, batchMaxWaitSeconds: 5}";
        let params = audit(text).unwrap().unwrap();
        assert!(params.log.is_some());
        let batch = BatchParams { buffer_size: 3, max_size: 4, max_wait: Duration::from_secs(5) };
        let webhook = WebhookParams {
            kubeconfig: PathBuf::from("/k"),
            mode: WebhookMode::Blocking,
            batch,
            initial_backoff: Duration::from_secs(2),
        };
        assert_eq!(params.webhook, Some(webhook));
    }

    #[test]
    fn values_of_the_log_are_used() {
        let text = "policyFile: /p, log: {path: /l, maxAgeDays: 2, maxBackups: 3, maxSizeMegabytes: 4, mode: blocking}";
        let log = audit(text).unwrap().unwrap().log.unwrap();
        let file = FileParams {
            path: PathBuf::from("/l"),
            max_age: Some(2 * DAY),
            max_backups: 3,
            max_size: 4 << 20,
        };
        assert_eq!(log, LogParams { file, batch: None });
        let text =
            "policyFile: /p, log: {path: /l, batchBufferSize: 5, batchMaxSize: 6, batchMaxWaitSeconds: 7}";
        let batch = audit(text).unwrap().unwrap().log.unwrap().batch.unwrap();
        assert_eq!((batch.buffer_size, batch.max_size, batch.max_wait.as_secs()), (5, 6, 7));
    }

    #[test]
    fn incomplete_and_invalid_values_are_refused_with_the_key() {
        for (text, wanted) in [
            ("log: {path: /l}", "policyFile is required for an audit log"),
            (
                "policyFile: /p, log: {path: /l}, maxBodyBytes: 0",
                "maxBodyBytes must be within range 1 to 262144",
            ),
            ("webhook: {kubeconfigFile: /k}", "policyFile is required for an audit webhook"),
            (
                "policyFile: /p",
                "log.path or webhook.kubeconfigFile is required; a path is a file, or '-' for standard \
                 output",
            ),
            (
                "policyFile: /p, webhook: {mode: batch}",
                "webhook.kubeconfigFile is required: the kubeconfig of the webhook",
            ),
            (
                "policyFile: /p, webhook: {kubeconfigFile: /k, mode: blocking-strict}",
                "webhook.mode: valid choices are 'batch', 'blocking', or empty string (equivalent to \
                 'batch')",
            ),
            (
                "policyFile: /p, webhook: {kubeconfigFile: /k, initialBackoffSeconds: 0}",
                "webhook.initialBackoffSeconds must be within range 1 to 3600",
            ),
            (
                "policyFile: /p, log: {mode: batch}",
                "log.path is required: a file, or '-' for standard output",
            ),
            (
                "policyFile: /p, log: {path: /l, mode: strict}",
                "log.mode: valid choices are 'batch', 'blocking', or empty string (equivalent to 'batch')",
            ),
            (
                "policyFile: /p, log: {path: /l, maxAgeDays: -1}",
                "log.maxAgeDays must be within range 0 to 36500",
            ),
            (
                "policyFile: /p, log: {path: /l, maxSizeMegabytes: 0}",
                "log.maxSizeMegabytes must be within range 1 to 1000000",
            ),
            (
                "policyFile: /p, log: {path: /l, batchMaxSize: 0}",
                "log.batchMaxSize must be within range 1 to 10000",
            ),
        ] {
            assert_eq!(
                audit(text).unwrap_err(),
                format!("validate audit.proxiedRequests: {wanted}"),
                "{text}"
            );
        }
    }
}
