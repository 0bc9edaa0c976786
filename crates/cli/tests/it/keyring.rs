//! Refresh tokens in a keyring: GNOME Keyring on a session bus of its own.

use std::io::Write as _;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pinniped_test_support::tools;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::oidc::browser::{Desktop, Running, wait_for};
use crate::oidc::flows::token;
use crate::oidc::issuer::{Issuer, Settings};
use crate::support::{Run, plugin_kubeconfig};

/// Stores the refresh token in the keyring.
const KEYRING: &str = "--refresh-token-store=keyring";
/// Only the session cache.
const NO_CREDENTIAL_CACHE: &str = "--credential-cache=";
const SESSIONS: &str = ".config/pinniped/sessions.yaml";
/// The password of the keyring.
const PASSWORD: &str = "open sesame";
/// More than the program waits for a keyring that does not respond, in all calls of a login.
const GIVES_UP_WITHIN: Duration = Duration::from_secs(30);

/// A session bus and a keyring on it; dropping it stops both.
struct Session {
    folder: tempfile::TempDir,
    bus: Child,
    keyring: Option<Child>,
}

impl Session {
    /// Starts a bus and an unlocked keyring. Returns `None` and records a skip if a program is
    /// missing.
    fn start(test: &str) -> Option<Self> {
        for program in ["dbus-daemon", "dbus-send", "gnome-keyring-daemon"] {
            if tools::in_path(program).is_none() {
                tools::skip(
                    test,
                    &format!("{program} is not installed (packages dbus-daemon, dbus-bin and gnome-keyring)"),
                );
                return None;
            }
        }
        let folder = tempfile::tempdir().unwrap();
        // No program is started on demand: a keyring that terminates stays away.
        let config = format!(
            "<busconfig><type>session</type><listen>unix:path={}</listen><auth>EXTERNAL</auth>\
             <policy context=\"default\"><allow send_destination=\"*\" eavesdrop=\"true\"/>\
             <allow eavesdrop=\"true\"/><allow own=\"*\"/></policy></busconfig>",
            folder.path().join("bus").display()
        );
        let path = folder.path().join("bus.conf");
        std::fs::write(&path, config).unwrap();
        let mut bus = Command::new("dbus-daemon");
        bus.arg("--nofork").arg("--config-file").arg(path);
        let bus = bus.stderr(Stdio::null()).spawn().unwrap();
        let mut session = Self { folder, bus, keyring: None };
        session.start_keyring();
        Some(session)
    }

    fn address(&self) -> String {
        format!("unix:path={}", self.folder.path().join("bus").display())
    }

    /// Starts and unlocks the keyring, which creates it the first time.
    fn start_keyring(&mut self) {
        wait_for("the bus", || self.folder.path().join("bus").exists().then_some(()));
        let mut keyring = Command::new("gnome-keyring-daemon");
        keyring.env_clear().env("DBUS_SESSION_BUS_ADDRESS", self.address());
        for variable in ["HOME", "XDG_RUNTIME_DIR", "XDG_DATA_HOME"] {
            keyring.env(variable, self.folder.path());
        }
        keyring.args(["--foreground", "--components=secrets", "--unlock"]);
        keyring.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut keyring = keyring.spawn().unwrap();
        // The daemon reads the password until the end of its input.
        keyring.stdin.take().unwrap().write_all(PASSWORD.as_bytes()).unwrap();
        self.keyring = Some(keyring);
        wait_for("the unlocked keyring", || (!self.is_locked()?).then_some(()));
    }

    /// Calls the keyring, and returns its response.
    fn call(&self, path: &str, method: &str, arguments: &[&str]) -> Option<String> {
        let mut call = Command::new("dbus-send");
        call.arg(format!("--bus={}", self.address()));
        call.args(["--print-reply", "--dest=org.freedesktop.secrets", path, method]).args(arguments);
        let output = call.output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }

    fn is_locked(&self) -> Option<bool> {
        let arguments = ["string:org.freedesktop.Secret.Collection", "string:Locked"];
        let get = "org.freedesktop.DBus.Properties.Get";
        let response = self.call("/org/freedesktop/secrets/aliases/default", get, &arguments)?;
        Some(response.contains("boolean true"))
    }

    fn lock(&self) {
        let collection = "array:objpath:/org/freedesktop/secrets/collection/login";
        let lock = "org.freedesktop.Secret.Service.Lock";
        self.call("/org/freedesktop/secrets", lock, &[collection]).unwrap();
        assert_eq!(self.is_locked(), Some(true));
    }

    /// Restarts the keyring, and unlocks it with its password.
    fn restart_keyring(&mut self) {
        self.kill_keyring();
        self.start_keyring();
    }

    /// Returns the number of items of the program.
    fn items(&self) -> usize {
        let search = "org.freedesktop.Secret.Service.SearchItems";
        let found =
            self.call("/org/freedesktop/secrets", search, &["dict:string:string:application,pinniped"]);
        found.unwrap().matches("object path").count()
    }

    fn kill_keyring(&mut self) {
        let mut keyring = self.keyring.take().unwrap();
        keyring.kill().unwrap();
        keyring.wait().unwrap();
    }

    /// Stops or continues the keyring, which then does not respond or does.
    fn signal_keyring(&self, signal: Signal) {
        kill_process(Pid::from_child(self.keyring.as_ref().unwrap()), signal).unwrap();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for program in self.keyring.iter_mut().chain([&mut self.bus]) {
            let _ = program.kill();
            let _ = program.wait();
        }
    }
}

/// An issuer whose ID tokens are so short-lived that each login needs a refresh.
fn issuer() -> Issuer {
    Issuer::start(Settings { id_lifetime: 300, revocation: Some(200), ..Settings::default() })
}

/// A desktop on this bus, whose kubeconfig has a user of the issuer.
fn desktop(issuer: &Issuer, bus: &str, flags: &[&str]) -> Desktop {
    let mut desktop = Desktop::new();
    let config = plugin_kubeconfig("https://127.0.0.1:1", "", &issuer.args(flags));
    let path = desktop.home.write("config", &config);
    desktop.home.set("KUBECONFIG", path.to_str().unwrap()).set("DBUS_SESSION_BUS_ADDRESS", bus);
    desktop
}

fn sessions_file(desktop: &Desktop) -> String {
    std::fs::read_to_string(desktop.file(SESSIONS)).unwrap()
}

fn has_refresh_token(desktop: &Desktop) -> bool {
    let text = sessions_file(desktop);
    text.contains("refresh:") || text.contains("refresh-")
}

/// Checks that a login warned about the keyring, and that no refresh token is in the file.
#[track_caller]
fn warns(run: &Run, desktop: &Desktop, text: &str) {
    token(run);
    let warning = format!("The login cannot be remembered in the keyring: {text}");
    assert_eq!(run.stderr.matches("cannot be remembered").count(), 1, "{run:?}");
    assert!(run.stderr.contains(&warning), "{run:?}");
    assert!(!has_refresh_token(desktop), "{}", sessions_file(desktop));
}

#[test]
fn a_refresh_token_is_only_in_the_keyring_until_the_user_logs_out() {
    let Some(session) = Session::start("refresh tokens in a keyring") else { return };
    let (issuer, flags) = (issuer(), [NO_CREDENTIAL_CACHE, KEYRING]);
    let desktop = desktop(&issuer, &session.address(), &flags);
    let args = issuer.args(&flags);
    let first = token(&desktop.log_in(&issuer, &args));
    assert!(!has_refresh_token(&desktop), "{}", sessions_file(&desktop));
    assert_eq!(session.items(), 1);
    // Each refresh replaces the token, also if the file is gone.
    for _ in 0..2 {
        let run = desktop.home.run(&args);
        assert_ne!(token(&run), first);
        assert_eq!(run.stderr, "");
        assert!(!has_refresh_token(&desktop), "{}", sessions_file(&desktop));
        assert_eq!((session.items(), desktop.opened().len()), (1, 1));
        std::fs::remove_file(desktop.file(SESSIONS)).unwrap();
    }
    assert_eq!(issuer.granted(), ["authorization_code", "refresh_token", "refresh_token"]);

    let status = desktop.home.run(&["status"]);
    assert!(
        status.stdout.contains("session:       with a refresh token in the keyring, no valid"),
        "{status:?}"
    );
    let status: Value = serde_json::from_str(&desktop.home.run(&["status", "-o", "json"]).stdout).unwrap();
    let state = &status["contexts"][0]["session"];
    assert_eq!((&state["refreshToken"], &state["refreshTokenStore"]), (&true.into(), &"keyring".into()));

    let config = desktop.file("config");
    let doctor = desktop.home.run(&["doctor", "--check-kubeconfig", config.to_str().unwrap()]);
    assert!(doctor.stdout.contains("stores refresh tokens in the keyring"), "{doctor:?}");

    let logout = desktop.home.run(&["logout"]);
    let removed =
        format!("removed the cached session of {}; its refresh token is revoked\n", issuer.server.url());
    assert_eq!((logout.code, logout.stdout.as_str(), logout.stderr.as_str()), (0, removed.as_str(), ""));
    assert_eq!((session.items(), issuer.refresh_tokens().len()), (0, 0));
    let logout = desktop.home.run(&["logout"]);
    assert!(logout.stdout.starts_with("nothing to remove"), "{logout:?}");
}

#[test]
fn a_refresh_token_moves_from_the_file_to_the_keyring_when_it_is_used() {
    let Some(session) = Session::start("refresh tokens in a keyring") else { return };
    let issuer = issuer();
    let mut desktop = desktop(&issuer, &session.address(), &[NO_CREDENTIAL_CACHE]);
    let args = issuer.args(&[NO_CREDENTIAL_CACHE]);
    token(&desktop.log_in(&issuer, &args));
    assert!(has_refresh_token(&desktop));
    assert_eq!(session.items(), 0);
    desktop.home.set("PINNIPED_REFRESH_TOKEN_STORE", "keyring");
    token(&desktop.home.run(&args));
    assert!(!has_refresh_token(&desktop), "{}", sessions_file(&desktop));
    assert_eq!((session.items(), desktop.opened().len()), (1, 1));
    // Without the file, the kubeconfig and the keyring know the session.
    std::fs::remove_file(desktop.file(SESSIONS)).unwrap();
    let other = Desktop::new();
    token(&other.log_in(&issuer, &issuer.args(&[NO_CREDENTIAL_CACHE])));
    let logout = desktop.home.run(&["logout", "--all"]);
    assert_eq!((logout.code, logout.stderr.as_str()), (0, ""), "{logout:?}");
    assert!(logout.stdout.contains("; its refresh token is revoked\n"), "{logout:?}");
    assert_eq!((session.items(), issuer.refresh_tokens().len()), (0, 1));
}

#[test]
fn a_later_token_in_the_file_is_used_before_that_of_the_keyring_and_a_logout_revokes_both() {
    let Some(session) = Session::start("refresh tokens in a keyring") else { return };
    let issuer = issuer();
    let mut desktop = desktop(&issuer, &session.address(), &[NO_CREDENTIAL_CACHE, KEYRING]);
    let args = issuer.args(&[NO_CREDENTIAL_CACHE, KEYRING]);
    let without_keyring = issuer.args(&[NO_CREDENTIAL_CACHE]);
    token(&desktop.log_in(&issuer, &args));
    let of_keyring = issuer.refresh_tokens();
    // Upstream's program writes the file, too.
    token(&desktop.log_in(&issuer, &without_keyring));
    assert!(has_refresh_token(&desktop), "{}", sessions_file(&desktop));
    let run = desktop.home.run(&args);
    token(&run);
    assert_eq!((run.stderr.as_str(), session.items(), desktop.opened().len()), ("", 1, 2));
    assert!(!has_refresh_token(&desktop), "{}", sessions_file(&desktop));
    let tokens = issuer.refresh_tokens();
    assert!(tokens.len() == 2 && of_keyring.iter().all(|token| tokens.contains(token)), "{tokens:?}");

    token(&desktop.log_in(&issuer, &without_keyring));
    assert_eq!(issuer.refresh_tokens().len(), 3);
    let logout = desktop.home.run(&["logout"]);
    assert_eq!((logout.code, logout.stderr.as_str()), (0, ""), "{logout:?}");
    assert_eq!(logout.stdout.matches("its refresh token is revoked").count(), 2, "{logout:?}");
    assert_eq!((session.items(), issuer.refresh_tokens()), (0, of_keyring));

    // An item of a login that selected the keyring by the variable is not forgotten silently.
    desktop.home.set("PINNIPED_REFRESH_TOKEN_STORE", "keyring");
    token(&desktop.log_in(&issuer, &without_keyring));
    session.lock();
    desktop.home.set("PINNIPED_REFRESH_TOKEN_STORE", "file");
    let logout = desktop.home.run(&["logout", "--all", "--kubeconfig=/dev/null"]);
    assert_eq!(
        (logout.code, logout.last_error()),
        (1, Some("could not remove refresh tokens from the keyring: the keyring is locked"))
    );
    assert_eq!(session.items(), 1);
}

#[test]
fn a_locked_keyring_leads_to_a_login_and_loses_no_session() {
    let Some(mut session) = Session::start("a locked keyring") else { return };
    let (issuer, flags) = (issuer(), [NO_CREDENTIAL_CACHE, KEYRING]);
    let mut desktop = desktop(&issuer, &session.address(), &flags);
    let args = issuer.args(&flags);
    token(&desktop.log_in(&issuer, &args));
    session.lock();
    warns(&desktop.log_in(&issuer, &args), &desktop, "the keyring is locked\n");
    let status = desktop.home.run(&["status"]);
    assert!(status.stdout.contains("with a refresh token in the keyring"), "{status:?}");
    // Without the user, there is no login, and the keyring asks nothing.
    let check = desktop.home.run(&["status", "--check"]);
    assert!(
        check.stdout.contains("fails: could not complete Pinniped login: the session has ended"),
        "{check:?}"
    );
    let logout = desktop.home.run(&["logout", "--all"]);
    assert_eq!(
        (logout.code, logout.last_error()),
        (1, Some("could not remove refresh tokens from the keyring: the keyring is locked"))
    );
    assert_eq!(session.items(), 1);
    // The program of the keyring that would ask the user does not run here.
    desktop.home.set("DISPLAY", ":0");
    let run = desktop.log_in(&issuer, &args);
    assert!(run.stderr.contains("The keyring is locked: waiting until you unlock it\n"), "{run:?}");
    warns(&run, &desktop, "the keyring was not unlocked\n");

    session.restart_keyring();
    let (opened, granted) = (desktop.opened().len(), issuer.granted().len());
    let run = desktop.home.run(&args);
    token(&run);
    assert_eq!((desktop.opened().len(), run.stderr.as_str()), (opened, ""));
    assert_eq!(issuer.granted()[granted..], ["refresh_token"]);
}

#[test]
fn a_keyring_that_is_gone_or_does_not_respond_leads_to_a_login_in_time() {
    let Some(mut session) = Session::start("a keyring that fails") else { return };
    let (issuer, flags) = (issuer(), [NO_CREDENTIAL_CACHE, KEYRING]);
    let desktop = desktop(&issuer, &session.address(), &flags);
    let args = issuer.args(&flags);
    token(&desktop.log_in(&issuer, &args));

    session.signal_keyring(Signal::STOP);
    let begin = Instant::now();
    warns(&desktop.log_in(&issuer, &args), &desktop, "the keyring did not respond in time\n");
    assert!(begin.elapsed() < GIVES_UP_WITHIN, "{:?}", begin.elapsed());
    session.signal_keyring(Signal::CONT);
    let run = desktop.home.run(&args);
    token(&run);
    assert_eq!(run.stderr, "", "the session is still there");

    session.kill_keyring();
    let begin = Instant::now();
    warns(&desktop.log_in(&issuer, &args), &desktop, "");
    let status = desktop.home.run(&["status"]);
    assert!(status.stdout.contains("problem:       the keyring cannot be used: "), "{status:?}");
    assert!(begin.elapsed() < GIVES_UP_WITHIN, "{:?}", begin.elapsed());

    session.start_keyring();
    let run = desktop.home.run(&args);
    token(&run);
    assert_eq!(run.stderr, "", "the session is still there");
}

#[test]
fn a_session_without_a_bus_leads_to_a_login() {
    let (issuer, flags) = (issuer(), [NO_CREDENTIAL_CACHE, KEYRING]);
    let desktop = desktop(&issuer, "unix:path=/no/such/bus", &flags);
    let run = desktop.log_in(&issuer, &issuer.args(&flags));
    warns(&run, &desktop, "Failed to connect to address `unix:path=/no/such/bus`: No such file");
    assert_eq!(desktop.home.run(&["logout"]).code, 1);
    // A keyring that no login uses is not missed.
    let other = Desktop::new();
    token(&other.log_in(&issuer, &issuer.args(&[])));
    let logout = other.home.run(&["logout", "--all", "--kubeconfig=/dev/null"]);
    assert_eq!((logout.code, logout.stderr.as_str()), (0, ""), "{logout:?}");
}

#[test]
fn many_processes_at_once_use_a_refresh_token_of_the_keyring_once() {
    let Some(session) = Session::start("refresh tokens in a keyring") else { return };
    let (issuer, flags) = (issuer(), [NO_CREDENTIAL_CACHE, KEYRING]);
    let desktop = desktop(&issuer, &session.address(), &flags);
    let args = issuer.args(&flags);
    token(&desktop.log_in(&issuer, &args));
    let all: Vec<Running> = (0..10).map(|_| desktop.start(&args)).collect();
    let runs: Vec<Run> = all.into_iter().map(Running::finish).collect();
    assert!(runs.iter().all(|run| run.code == 0 && !run.stderr.contains("keyring")), "{runs:?}");
    assert_eq!((desktop.opened().len(), session.items()), (1, 1));
    assert!(issuer.granted()[1..].iter().all(|grant| grant == "refresh_token"));
    assert_eq!(issuer.refresh_tokens().len(), 1, "a token was lost");
}

#[test]
fn a_cached_credential_or_session_needs_no_keyring() {
    let issuer = Issuer::start(Settings::default());
    let folder = tempfile::tempdir().unwrap();
    let bus: PathBuf = folder.path().join("bus");
    let address = format!("unix:path={}", bus.display());
    // The login finds no bus.
    for (flags, used) in [(&[KEYRING][..], true), (&[], false), (&[NO_CREDENTIAL_CACHE], false)] {
        let desktop = desktop(&issuer, &address, flags);
        let run = desktop.log_in(&issuer, &issuer.args(flags));
        assert_eq!(run.stderr.contains("keyring"), used, "{flags:?}: {run:?}");
        let listener = UnixListener::bind(&bus).unwrap();
        listener.set_nonblocking(true).unwrap();
        token(&desktop.home.run(&issuer.args(flags)));
        assert_eq!(desktop.home.run(&["version"]).code, 0);
        if !used {
            assert_eq!(desktop.home.run(&["status"]).code, 0);
            assert_eq!(desktop.home.run(&["logout"]).code, 0);
        } else {
            // Only the credential is gone.
            std::fs::remove_file(desktop.file(".config/pinniped/credentials.yaml")).unwrap();
            token(&desktop.home.run(&issuer.args(flags)));
        }
        assert!(listener.accept().is_err(), "{flags:?}: a program connected to the bus");
        drop(listener);
        std::fs::remove_file(&bus).unwrap();
    }
}
