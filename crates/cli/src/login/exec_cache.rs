//! A cache of cluster credentials: one YAML file with an advisory lock file.
//!
//! Format, keys and locking are compatible with the upstream command line, so that both can share a
//! file. An error of the cache never fails a command: at worst, a credential is fetched again.

use std::fs::File;
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use zeroize::Zeroizing;

use pinniped_concierge_api::login::ImpersonatedUser;
use pinniped_go_compat::json as gojson;
use pinniped_kube_types::client_auth::{Cluster, ExecCredentialStatus};

use super::Login;
use super::cache_file::{CacheEntry, CacheFile, CacheFileError};

/// The maximum time that a credential is cached, regardless of its expiration.
const MAX_AGE: SignedDuration = SignedDuration::from_hours(1);
/// The time before the expiration at which a used credential is renewed in the background.
const RENEW_BEFORE: SignedDuration = SignedDuration::from_secs(60);

/// Returns the key of a static login.
pub fn static_key(args: &[String], token: &str, cluster: Option<&Cluster>) -> String {
    #[derive(Serialize)]
    struct Key<'a> {
        args: &'a [String],
        token: &'a str,
        cluster: Option<&'a Cluster>,
    }
    key_of(&Key { args, token, cluster })
}

/// Returns the key of an OIDC login, which does not depend on a token.
pub fn oidc_key(args: &[String], cluster: Option<&Cluster>) -> String {
    #[derive(Serialize)]
    struct Key<'a> {
        args: &'a [String],
        cluster: Option<&'a Cluster>,
    }
    key_of(&Key { args, cluster })
}

/// Returns the SHA-256 of the key's JSON and a newline, in lower-case hexadecimal form.
fn key_of<T: Serialize + ?Sized>(key: &T) -> String {
    let mut text = Zeroizing::new(gojson::to_string(key));
    text.push('\n');
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
    HEXLOWER.encode(digest.as_ref())
}

/// The cache file.
#[derive(Clone, Debug)]
pub struct ExecCache {
    file: CacheFile<Entry>,
}

/// A login from the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The login.
    pub login: Login,
    /// Whether the next login should be fetched.
    pub renewal_due: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    key: String,
    #[serde(default)]
    creation_timestamp: Option<Time>,
    #[serde(default)]
    last_used_timestamp: Option<Time>,
    #[serde(default)]
    credential: Option<ExecCredentialStatus>,
    /// Unknown to upstream, which never finds entries with this field: their keys contain a flag
    /// that upstream does not have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    impersonate: Option<ImpersonatedUser>,
}

impl Entry {
    fn keep(&mut self, login: &Login) {
        self.credential = Some(login.credential.clone());
        self.impersonate = login.impersonate.clone();
    }
}

impl CacheEntry for Entry {
    const KIND: &'static str = "CredentialCache";
    const LIST: &'static str = "credentials";

    fn created(&self) -> Option<Timestamp> {
        self.creation_timestamp.as_ref().map(|time| time.0)
    }

    fn prune(&mut self, now: Timestamp) -> bool {
        let expiration =
            self.credential.as_ref().and_then(|credential| credential.expiration_timestamp.as_ref());
        let fresh = self.created().is_some_and(|created| now.duration_since(created) <= MAX_AGE);
        fresh && expiration.is_some_and(|expiration| expiration.0 > now)
    }
}

impl ExecCache {
    /// Creates a cache with this file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { file: CacheFile::new(path) }
    }

    /// Returns the login stored under `key`, if it is still valid at `now`. Updates the time of the
    /// last use.
    pub fn get(&self, key: &str, now: Timestamp) -> Option<Hit> {
        let mut hit = None;
        let read = self.file.read(now, |entries| {
            if let Some(entry) = entries.iter_mut().find(|entry| entry.key == key) {
                entry.last_used_timestamp = Some(Time(now));
                hit = entry
                    .credential
                    .clone()
                    .map(|credential| Login { credential, impersonate: entry.impersonate.clone() });
            }
        });
        read.ok()?;
        let login = hit?;
        Some(Hit { renewal_due: login.expires()?.duration_since(now) <= RENEW_BEFORE, login })
    }

    /// Stores a login under `key`, unless its credential has no expiration.
    ///
    /// # Errors
    ///
    /// Returns the error that prevented the write; callers continue without the cache.
    pub fn put(&self, key: &str, login: &Login, now: Timestamp) -> Result<(), CacheFileError> {
        let stored =
            self.file.transaction(now, |entries| match entries.iter_mut().find(|entry| entry.key == key) {
                Some(entry) => {
                    entry.last_used_timestamp = Some(Time(now));
                    entry.keep(login);
                }
                None => {
                    let mut entry = Entry {
                        key: key.to_owned(),
                        creation_timestamp: Some(Time(now)),
                        last_used_timestamp: Some(Time(now)),
                        credential: None,
                        impersonate: None,
                    };
                    entry.keep(login);
                    entries.push(entry);
                }
            });
        match stored {
            Err(CacheFileError::Replaced { .. }) => Ok(()),
            other => other,
        }
    }

    /// Returns the login stored under `key`, if it is still valid at `now`, without a change of the
    /// file.
    ///
    /// # Errors
    ///
    /// Returns the error that prevented the read.
    pub fn peek(&self, key: &str, now: Timestamp) -> Result<Option<Login>, CacheFileError> {
        let found = self.file.peek(now)?.into_iter().find(|entry| entry.key == key);
        Ok(found
            .and_then(|entry| Some(Login { credential: entry.credential?, impersonate: entry.impersonate })))
    }

    /// Removes the login stored under `key`. Returns whether there was one that is valid at `now`.
    ///
    /// # Errors
    ///
    /// Returns the error that prevented the change.
    pub fn remove(&self, key: &str, now: Timestamp) -> Result<bool, CacheFileError> {
        Ok(!self.file.take(now, |entry| entry.key == key)?.is_empty())
    }

    /// Removes all logins. Returns the number of those that are valid at `now`.
    ///
    /// # Errors
    ///
    /// Returns the error that prevented the change.
    pub fn clear(&self, now: Timestamp) -> Result<usize, CacheFileError> {
        Ok(self.file.take(now, |_| true)?.len())
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Takes the lock for background renewals; `None` if another process holds it.
    pub fn renewal_lock(&self) -> Option<File> {
        let lock = self.file.lock_file(".renew.lock").ok()?;
        lock.try_lock().ok()?;
        Some(lock)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::super::private_files::Folder;
    use super::*;

    fn args(args: &[&str]) -> Vec<String> {
        args.iter().map(|arg| (*arg).to_owned()).collect()
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn login(expiration: &str) -> Login {
        let credential = ExecCredentialStatus {
            expiration_timestamp: Some(Time(at(expiration))),
            client_certificate_data: "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\n".into(),
            client_key_data: "key".into(),
            ..ExecCredentialStatus::default()
        };
        Login { credential, impersonate: None }
    }

    #[test]
    fn keys_equal_the_hashes_of_upstream() {
        assert_eq!(key_of(&()), "38e0b9de817f645c4bec37c0d4a3e58baecccb040f5718dc069a72c7385a0bed");
        assert_eq!(key_of(&["k1", "k2"]), "625bb1f93dc90a1bda400fdaceb8c96328e567a0c6aaf81e7fccc68958b4565d");
        assert_eq!(
            static_key(&args(&["login", "static", "--token=a"]), "a", None),
            "25a18e769c4d7bb9b672b7a5bcbe8230cc5263e27aa75ed0f4001a2406d48cd3"
        );
        assert_eq!(
            static_key(&args(&["login", "static", "--token=a&b"]), "a&b", None),
            "6f57bdf72567d944a717aa2cec7f65c8f95a6a904867e47342ca18b429dded48"
        );
        let cluster = Cluster {
            server: "https://x".into(),
            certificate_authority_data: "AAAA".into(),
            ..Cluster::default()
        };
        assert_eq!(
            static_key(&args(&["login", "static", "--token=a"]), "a", Some(&cluster)),
            "71bffc5a935d3f4f04100274453965c90faee8c1a0c6c12b12b923ef5d1c216f"
        );
    }

    #[test]
    fn keys_of_oidc_logins_have_no_token() {
        let args = args(&["login", "oidc", "--issuer=https://a"]);
        assert_eq!(
            oidc_key(&args, None),
            key_of(&serde_json::json!({"args": args, "cluster": null})),
            "the members are args and cluster, in this order"
        );
        assert_ne!(oidc_key(&args, None), static_key(&args, "", None));
    }

    #[test]
    fn the_file_format_equals_that_of_upstream() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new").join("credentials.yaml");
        let cache = ExecCache::new(&path);
        assert_eq!(cache.get("k", at("2026-11-21T10:00:00Z")), None);
        assert!(!path.parent().unwrap().exists(), "a look into nothing must leave nothing");

        cache.put("k", &login("2026-11-21T10:05:00Z"), at("2026-11-21T10:00:00Z")).unwrap();
        assert_eq!(
            cache.get("k", at("2026-11-21T10:01:00Z")),
            Some(Hit { login: login("2026-11-21T10:05:00Z"), renewal_due: false })
        );
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "apiVersion: config.supervisor.pinniped.dev/v1alpha1
credentials:
- creationTimestamp: \"2026-11-21T10:00:00Z\"
  credential:
    clientCertificateData: |
      -----BEGIN CERTIFICATE-----
      abc
      -----END CERTIFICATE-----
    clientKeyData: key
    expirationTimestamp: \"2026-11-21T10:05:00Z\"
  key: k
  lastUsedTimestamp: \"2026-11-21T10:01:00Z\"
kind: CredentialCache
"
        );
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode(&path), 0o600);
            assert_eq!(mode(path.parent().unwrap()), 0o700);
        }
    }

    #[test]
    fn credentials_are_returned_until_they_expire_and_renewed_before() {
        let dir = tempfile::tempdir().unwrap();
        let cache = ExecCache::new(dir.path().join("c.yaml"));
        cache.put("k", &login("2026-11-21T10:05:00Z"), at("2026-11-21T10:00:00Z")).unwrap();
        for (now, due) in [
            ("2026-11-21T10:03:59Z", Some(false)),
            ("2026-11-21T10:04:00Z", Some(true)),
            ("2026-11-21T10:04:59Z", Some(true)),
            ("2026-11-21T10:05:00Z", None),
        ] {
            assert_eq!(cache.get("k", at(now)).map(|hit| hit.renewal_due), due, "{now}");
        }
        // The previous read has removed the expired entry.
        assert_eq!(cache.get("k", at("2026-11-21T10:01:00Z")), None);
        assert_eq!(
            std::fs::read_to_string(dir.path().join("c.yaml")).unwrap(),
            "apiVersion: config.supervisor.pinniped.dev/v1alpha1\ncredentials: []\nkind: CredentialCache\n"
        );
    }

    #[test]
    fn overwriting_keeps_the_creation_time_and_old_entries_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let cache = ExecCache::new(dir.path().join("c.yaml"));
        cache.put("k", &login("2026-11-21T12:00:00Z"), at("2026-11-21T10:00:00Z")).unwrap();
        cache.put("k", &login("2026-11-21T13:00:00Z"), at("2026-11-21T10:30:00Z")).unwrap();
        assert!(cache.get("k", at("2026-11-21T11:00:00Z")).is_some());
        assert_eq!(cache.get("k", at("2026-11-21T11:00:01Z")), None);
    }

    #[test]
    fn unreadable_or_unwritable_entries_count_as_missing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.yaml");
        let cache = ExecCache::new(&path);
        let now = at("2026-11-21T10:00:00Z");
        cache.put("k", &Login::default(), now).unwrap();
        assert_eq!(cache.get("k", now), None);
        for text in ["", "garbage: [", "apiVersion: v2\nkind: CredentialCache\n", "- 1\n"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(cache.get("k", now), None, "{text}");
            cache.put("k", &login("2026-11-21T10:05:00Z"), now).unwrap();
            assert!(cache.get("k", now).is_some(), "{text}");
        }
    }

    #[test]
    fn a_transaction_waits_for_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.yaml");
        let lock = Folder::of(&path).unwrap().open("c.yaml.lock".as_ref()).unwrap().file;
        lock.lock().unwrap();
        let (done, waiting) = mpsc::channel();
        std::thread::scope(|scope| {
            let cache = ExecCache::new(&path);
            scope.spawn(move || {
                let now = at("2026-11-21T10:00:00Z");
                done.send(cache.put("k", &login("2026-11-21T10:05:00Z"), now).is_ok()).unwrap();
            });
            assert!(waiting.recv_timeout(Duration::from_millis(100)).is_err());
            lock.unlock().unwrap();
            assert_eq!(waiting.recv_timeout(Duration::from_secs(10)), Ok(true));
        });
    }

    #[test]
    fn a_file_is_replaced_in_one_step() {
        let dir = tempfile::tempdir().unwrap();
        let cache = ExecCache::new(dir.path().join("c.yaml"));
        let now = at("2026-11-21T10:00:00Z");
        cache.put("k", &login("2026-11-21T10:05:00Z"), now).unwrap();
        // A process was killed before it finished its file.
        std::fs::write(dir.path().join("c.yaml.new"), "apiVersion: conf").unwrap();
        let open = std::fs::File::open(dir.path().join("c.yaml")).unwrap();
        cache.put("l", &login("2026-11-21T10:05:00Z"), now).unwrap();
        assert!(cache.get("k", now).is_some() && cache.get("l", now).is_some());
        let before = std::io::read_to_string(open).unwrap();
        assert!(before.contains("key: k") && !before.contains("key: l"), "{before}");
        assert!(!dir.path().join("c.yaml.new").exists());
    }

    #[cfg(unix)]
    mod of_other_users {
        use std::fs::Permissions;
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        use std::path::Path;

        use super::*;

        const NOW: &str = "2026-11-21T10:00:00Z";
        const LATER: &str = "2026-11-21T10:05:00Z";

        fn mode(path: &Path) -> u32 {
            path.metadata().unwrap().permissions().mode() & 0o777
        }

        #[test]
        fn a_symbolic_link_is_neither_read_nor_followed() {
            let dir = tempfile::tempdir().unwrap();
            let (path, target) = (dir.path().join("c.yaml"), dir.path().join("target"));
            let elsewhere = ExecCache::new(&target);
            elsewhere.put("k", &login(LATER), at(NOW)).unwrap();
            let content = std::fs::read(&target).unwrap();
            let cache = ExecCache::new(&path);
            for link in ["c.yaml", "c.yaml.lock"] {
                let link = dir.path().join(link);
                let _none = std::fs::remove_file(&link);
                symlink(&target, &link).unwrap();
                assert_eq!(cache.get("k", at(NOW)), None);
                cache.put("k", &login(LATER), at(NOW)).unwrap_err();
                assert_eq!(std::fs::read(&target).unwrap(), content);
                std::fs::remove_file(link).unwrap();
                let _none = std::fs::remove_file(&path);
            }
            symlink(&target, dir.path().join("c.yaml.renew.lock")).unwrap();
            assert!(cache.renewal_lock().is_none());
            // The target of a dangling link is not created.
            symlink(dir.path().join("nowhere"), &path).unwrap();
            cache.put("k", &login(LATER), at(NOW)).unwrap_err();
            assert!(!dir.path().join("nowhere").exists());
        }

        #[test]
        fn a_file_that_others_can_read_is_made_private() {
            let dir = tempfile::tempdir().unwrap();
            let folder = dir.path().join("pinniped");
            let path = folder.join("c.yaml");
            let cache = ExecCache::new(&path);
            cache.put("k", &login(LATER), at(NOW)).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
            std::fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
            assert!(cache.get("k", at(NOW)).is_some());
            assert_eq!((mode(&path), mode(&folder)), (0o600, 0o700));
        }

        #[test]
        fn the_mode_of_a_custom_directory_is_unchanged() {
            let dir = tempfile::tempdir().unwrap();
            std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
            ExecCache::new(dir.path().join("c.yaml")).put("k", &login(LATER), at(NOW)).unwrap();
            assert_eq!(mode(dir.path()), 0o755);
        }

        #[test]
        fn a_file_that_others_could_have_written_is_ignored() {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("c.yaml");
            let cache = ExecCache::new(&path);
            cache.put("k", &login(LATER), at(NOW)).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(0o620)).unwrap();
            assert_eq!(cache.get("k", at(NOW)), None);
            assert_eq!(mode(&path), 0o600);
            cache.put("k", &login(LATER), at(NOW)).unwrap();
            assert!(cache.get("k", at(NOW)).is_some());
        }

        #[test]
        fn a_pipe_or_a_directory_is_not_used_as_a_cache() {
            let dir = tempfile::tempdir().unwrap();
            let pipe = dir.path().join("pipe");
            nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
            for path in [pipe, dir.path().to_owned()] {
                let cache = ExecCache::new(&path);
                assert_eq!(cache.get("k", at(NOW)), None);
                cache.put("k", &login(LATER), at(NOW)).unwrap_err();
            }
        }
    }
}
