//! Reads the configuration file again while the program runs, and applies the values that take
//! effect at once.
//!
//! The kubelet replaces the file by a change of a symbolic link, up to a minute or two after the
//! ConfigMap was changed. The content is compared, so it does not matter how the file changed.

use std::path::PathBuf;
use std::time::Duration;

use pinniped_concierge_controllers::api_server_address::DiscoveryUrl;
use pinniped_http_server::Capacity;
use pinniped_logging::log::InstalledLevel;
use pinniped_logging::value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::changes::changes;
use super::{Config, parse, read, warn_of_unknown_keys};

/// Interval between two reads of the file. It has a few kilobytes, and the kubelet needs longer to
/// replace it.
const INTERVAL: Duration = Duration::from_secs(5);

/// The configuration file as it was read at start.
#[derive(Debug)]
pub struct ConfigFile {
    /// The path.
    pub path: PathBuf,
    /// The content.
    pub content: String,
    /// The level of the installed log output.
    pub level: InstalledLevel,
}

/// The parts of the running program that use a value which takes effect at once.
pub(crate) struct LiveSettings {
    pub(crate) level: InstalledLevel,
    pub(crate) discovery_url: DiscoveryUrl,
    pub(crate) credential_lifetime: watch::Sender<Duration>,
    pub(crate) capacity: Capacity,
}

impl LiveSettings {
    /// Applies all values, except for the log level.
    fn apply(&self, config: &Config) {
        self.discovery_url.set(config.discovery_url.clone());
        self.credential_lifetime.send_replace(config.credential_lifetime);
        self.capacity.set_connections(config.max_connections, config.max_connections_per_address);
    }
}

/// Applies changes of the file.
pub(crate) struct Reload {
    path: PathBuf,
    /// The last content, or the text of the error if it could not be read.
    last: Result<String, String>,
    /// The configuration in use.
    running: watch::Sender<Config>,
    live: LiveSettings,
}

impl Reload {
    /// Returns the task, and the configuration in use.
    pub(crate) fn new(
        path: PathBuf,
        content: String,
        running: Config,
        live: LiveSettings,
    ) -> (Self, watch::Receiver<Config>) {
        let (running, in_use) = watch::channel(running);
        (Self { path, last: Ok(content), running, live }, in_use)
    }

    /// Reads the file regularly until `stop` is cancelled.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(INTERVAL)).await.is_some() {
            self.check();
        }
    }

    /// Reads the file. Each content is processed, and each error logged, once.
    fn check(&mut self) {
        let content = read(&self.path).map_err(|error| error.to_string());
        if content == self.last {
            return;
        }
        let parsed = match &content {
            Ok(text) => {
                warn_of_unknown_keys(text);
                parse(text).map_err(|error| error.to_string())
            }
            Err(error) => Err(error.clone()),
        };
        match parsed {
            Ok(new) => self.apply(&new),
            Err(error) => tracing::error!(
                path = %self.path.display(), error,
                "the changed configuration is invalid, the previous one stays in use"
            ),
        }
        self.last = content;
    }

    fn apply(&mut self, new: &Config) {
        let running = self.running.borrow().clone();
        let changes = changes(&running, new);
        self.live.apply(new);
        // The changes are logged if either level allows it.
        self.live.level.set(new.log_level.max(running.log_level));
        for change in changes.at_once {
            tracing::info!(key = change.key, new = value::json(&change.value), "configuration changed");
        }
        self.live.level.set(new.log_level);
        if !changes.next_start.is_empty() {
            tracing::warn!(
                keys = value::json(&changes.next_start),
                "changed keys of the configuration take effect at the next start"
            );
        }
        self.running.send_replace(running.with_changes_at_once(new));
    }
}

#[cfg(test)]
mod tests;
