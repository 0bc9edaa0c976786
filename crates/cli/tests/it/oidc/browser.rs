//! The browser of a user: a script that the program runs as `xdg-open`, and requests to the
//! callback listener.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::issuer::{Issuer, query};
use crate::support::{Home, Run};

/// The time in which a program has to do something.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A desktop: a home directory, and a browser that records the addresses that it opens.
pub(crate) struct Desktop {
    pub(crate) home: Home,
}

impl Desktop {
    pub(crate) fn new() -> Self {
        Self::with_browser("#!/bin/sh\necho \"$1\" >> \"$OPENED\"\necho noise\n")
    }

    pub(crate) fn with_browser(script: &str) -> Self {
        let mut home = Home::new();
        std::fs::create_dir(home.path().join("bin")).unwrap();
        let path = home.write("bin/xdg-open", script);
        #[cfg(unix)]
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let (bin, opened) = (home.path().join("bin"), home.path().join("opened"));
        home.set("PATH", bin.to_str().unwrap()).set("OPENED", opened.to_str().unwrap());
        Self { home }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Returns the addresses that the browser opened.
    pub(crate) fn opened(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.file("opened")).unwrap_or_default();
        // The last line may be incomplete.
        text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(str::to_owned).collect()
    }

    /// Waits for the first address that the browser opened.
    pub(crate) fn first_opened(&self) -> String {
        self.opened_after(0)
    }

    /// Waits until the browser has opened more addresses than `count`, and returns the last.
    pub(crate) fn opened_after(&self, count: usize) -> String {
        wait_for("an opened page", || self.opened().into_iter().skip(count).next_back())
    }

    /// Starts the program.
    pub(crate) fn start(&self, args: &[String]) -> Running {
        self.spawn(self.home.command(args))
    }

    /// Starts a command in this desktop.
    pub(crate) fn spawn(&self, mut command: Command) -> Running {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let log = self.file(&format!("stderr-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        command.stdout(Stdio::piped()).stderr(File::create(&log).unwrap());
        Running { child: command.spawn().unwrap(), log }
    }

    /// Runs a login in which the user logs in at once.
    pub(crate) fn log_in(&self, issuer: &Issuer, args: &[String]) -> Run {
        let before = self.opened().len();
        let running = self.start(args);
        let url = self.opened_after(before);
        let response = visit(&url, &issuer.authorize(&url));
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        running.finish()
    }
}

/// Waits for a value.
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} did not appear");
        std::thread::yield_now();
    }
}

/// A running program.
pub(crate) struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn messages(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until the messages contain a text, and returns them.
    pub(crate) fn wait_for(&self, text: &str) -> String {
        wait_for(text, || Some(self.messages()).filter(|messages| messages.contains(text)))
    }

    /// Waits for the address of the login page in the messages.
    pub(crate) fn printed_address(&self) -> String {
        wait_for("the address", || {
            let text = self.messages();
            let (_, rest) = text.split_once("Log in by visiting this link:\n\n    ")?;
            Some(rest.split_once("\n\n")?.0.to_owned())
        })
    }

    pub(crate) fn finish(self) -> Run {
        let log = self.log;
        let output = self.child.wait_with_output().unwrap();
        Run {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: std::fs::read_to_string(log).unwrap(),
        }
    }
}

/// Sends the program a signal.
pub(crate) fn interrupt(id: u32) {
    kill(&["-INT", &id.to_string()]);
}

/// Sends a program and its children a signal, as Ctrl-C in a terminal does.
pub(crate) fn interrupt_group(id: u32) {
    kill(&["-INT", "--", &format!("-{id}")]);
}

fn kill(args: &[&str]) {
    assert!(Command::new("/bin/kill").args(args).status().unwrap().success());
}

/// Brings a code to the callback listener of a login page, and returns the response.
pub(crate) fn visit(url: &str, code: &str) -> String {
    let parameters = query(url.split_once('?').unwrap().1);
    callback(url, &format!("code={code}&state={}", parameters["state"]))
}

/// Brings any parameters to the callback listener of a login page, in the mode that it requests.
pub(crate) fn callback(url: &str, text: &str) -> String {
    let parameters = query(url.split_once('?').unwrap().1);
    let redirect = parameters["redirect_uri"].strip_prefix("http://").unwrap();
    let (host, path) = redirect.split_at(redirect.find('/').unwrap());
    let request = match parameters.get("response_mode").map(String::as_str) {
        Some("form_post") => format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{text}",
            text.len()
        ),
        _ => format!("GET {path}?{text} HTTP/1.1\r\nHost: {host}\r\n\r\n"),
    };
    let mut stream = TcpStream::connect(host).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}
