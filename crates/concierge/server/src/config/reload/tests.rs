use pinniped_http_server::CapacityParams;
use pinniped_logging::log::{self, LogFormat, LogLevel};

use super::super::tests::NAMES;
use super::*;

/// A file, and the parts of a program that use its values.
struct Running {
    directory: tempfile::TempDir,
    reload: Reload,
    in_effect: watch::Receiver<Config>,
    discovery_url: DiscoveryUrl,
    credential_lifetime: watch::Receiver<Duration>,
    capacity: Capacity,
}

impl Running {
    fn new() -> Self {
        let config = parse(NAMES).unwrap();
        let discovery_url = DiscoveryUrl::new(config.discovery_url.clone());
        let (sender, credential_lifetime) = watch::channel(config.credential_lifetime);
        let capacity = Capacity::new(&CapacityParams {
            connections: config.max_connections,
            connections_per_address: None,
            memory: None,
            files: None,
            files_per_connection: 1,
        });
        let live = LiveSettings {
            level: log::init(LogLevel::Warning, LogFormat::Json, crate::concierge::LOG_TARGETS),
            discovery_url: discovery_url.clone(),
            credential_lifetime: sender,
            capacity: capacity.clone(),
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pinniped.yaml");
        let (reload, in_effect) = Reload::new(path, NAMES.to_owned(), config, live);
        Self { directory, reload, in_effect, discovery_url, credential_lifetime, capacity }
    }

    /// Replaces the file by a symbolic link, as the kubelet does, and reads it.
    fn replace(&mut self, name: &str, content: &str) {
        let target = self.directory.path().join(name);
        std::fs::write(&target, content).unwrap();
        let link = self.directory.path().join("link");
        std::os::unix::fs::symlink(target, &link).unwrap();
        std::fs::rename(link, &self.reload.path).unwrap();
        self.reload.check();
    }

    fn values(&self) -> (Option<String>, u64, u64) {
        (
            self.discovery_url.current().map(|url| (*url).clone()),
            self.credential_lifetime.borrow().as_secs(),
            self.capacity.stats().connections_limit,
        )
    }
}

#[test]
fn a_replaced_file_takes_effect_and_an_invalid_one_does_not() {
    let mut running = Running::new();
    let with = |more: &str| format!("{NAMES}{more}");
    let old = (None, 300, 16_384);
    assert_eq!(running.values(), old);
    running.reload.check();
    assert_eq!(running.values(), old, "there is no file");

    let changed = "discovery: {url: 'https://a'}\ncredentialLifetimeSeconds: 600\nmaxConnections: 9\n";
    running.replace("one", &with(changed));
    let new = (Some("https://a".to_owned()), 600, 9);
    assert_eq!(running.values(), new);
    for invalid in ["{{{", "", "credentialLifetimeSeconds: 1", "names: {}"] {
        running.replace("invalid", invalid);
        assert_eq!(running.values(), new, "{invalid}");
        assert_eq!(running.reload.last.as_deref(), Ok(invalid));
    }
    // A key that takes effect at the next start changes nothing, and does not prevent others.
    running.replace("two", &with("aggregatedAPIServerPort: 4444\ncredentialLifetimeSeconds: 900"));
    assert_eq!(running.values(), (None, 900, 16_384));
    assert_eq!(running.in_effect.borrow().values()["credentialLifetimeSeconds"], 900);
    assert_eq!(running.in_effect.borrow().values()["aggregatedAPIServerPort"], 10250);
}

#[tokio::test(start_paused = true)]
async fn the_file_is_read_until_the_program_stops() {
    let running = Running::new();
    let mut lifetime = running.credential_lifetime.clone();
    let stop = CancellationToken::new();
    std::fs::write(&running.reload.path, format!("{NAMES}credentialLifetimeSeconds: 700")).unwrap();
    let task = tokio::spawn(running.reload.run(stop.clone()));
    lifetime.changed().await.unwrap();
    assert_eq!(lifetime.borrow().as_secs(), 700);
    stop.cancel();
    task.await.unwrap();
}
