//! Prompts on a terminal.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use rustix::termios::{LocalModes, tcgetattr};
use serde_json::json;

use super::browser::{Desktop, callback, interrupt, visit, wait_for};
use super::issuer::{Issuer, Settings, query};
use crate::support::pseudo_terminal;

/// A terminal, and a program that reads from it.
struct Terminal {
    master: File,
    /// The program's side.
    slave: File,
    child: Child,
    log: PathBuf,
}

impl Terminal {
    fn start(desktop: &Desktop, args: &[String]) -> Self {
        let (master, slave) = pseudo_terminal();
        let log = desktop.file("log");
        let mut command = desktop.home.command(args);
        command.stdin(slave.try_clone().unwrap()).stdout(Stdio::piped()).stderr(File::create(&log).unwrap());
        Self { master, slave, child: command.spawn().unwrap(), log }
    }

    fn messages(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until the messages contain a text, and returns them.
    fn wait_for(&self, text: &str) -> String {
        wait_for(text, || Some(self.messages()).filter(|messages| messages.contains(text)))
    }

    fn type_line(&mut self, line: &str) {
        self.master.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn shows_input(&self) -> bool {
        tcgetattr(&self.slave).unwrap().local_modes.contains(LocalModes::ECHO)
    }

    /// Waits for the end of the program, and returns whether it succeeded, and its output.
    fn finish(&mut self) -> (bool, String) {
        let mut output = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
        (self.child.wait().unwrap().success(), output)
    }

    /// Returns what the terminal has shown of the input.
    fn shown(mut self) -> String {
        // A last line marks the end.
        self.type_line("end");
        let mut shown = Vec::new();
        while !shown.ends_with(b"end\r\n") {
            let mut byte = [0];
            self.master.read_exact(&mut byte).unwrap();
            shown.push(byte[0]);
        }
        String::from_utf8(shown).unwrap()
    }
}

fn ldap() -> Issuer {
    let providers = json!([{"name": "some-ldap", "type": "ldap", "flows": ["cli_password"]}]);
    Issuer::start(Settings { identity_providers: Some(providers), form_post: true, ..Settings::default() })
}

const LDAP: [&str; 2] =
    ["--upstream-identity-provider-name=some-ldap", "--upstream-identity-provider-type=ldap"];

#[test]
fn a_password_is_not_shown() {
    let issuer = ldap();
    let desktop = Desktop::new();
    let mut terminal = Terminal::start(&desktop, &issuer.args(&LDAP));
    terminal.wait_for("\nLog in to some-ldap\n\nUsername: ");
    terminal.type_line("pinny");
    terminal.wait_for("Password: ");
    assert!(!terminal.shows_input());
    terminal.type_line("sécret");
    let (success, output) = terminal.finish();
    assert!(success && output.contains("ExecCredential"), "{}", terminal.messages());
    assert_eq!(terminal.messages(), "\nLog in to some-ldap\n\nUsername: Password: \n");
    assert!(terminal.shows_input());
    assert_eq!(terminal.shown(), "pinny\r\nend\r\n");
}

#[test]
fn ctrl_c_restores_the_terminal() {
    let issuer = ldap();
    let mut desktop = Desktop::new();
    desktop.home.set("PINNIPED_USERNAME", "pinny");
    let mut terminal = Terminal::start(&desktop, &issuer.args(&LDAP));
    terminal.wait_for("Password: ");
    assert!(!terminal.shows_input());
    interrupt(terminal.child.id());
    assert_eq!(terminal.finish(), (false, String::new()));
    assert!(
        terminal.shows_input() && terminal.messages().contains("Error: interrupted"),
        "{}",
        terminal.messages()
    );
}

#[test]
fn a_code_can_be_pasted() {
    let issuer = Issuer::start(Settings { form_post: true, ..Settings::default() });
    let desktop = Desktop::new();
    for with_address in [false, true] {
        let args =
            issuer.args(&["--skip-browser", "--skip-listen", "--session-cache=", "--credential-cache="]);
        let mut terminal = Terminal::start(&desktop, &args);
        let messages = terminal.wait_for("\n\n    Optionally, paste your authorization code: ");
        let url = messages.split("    ").nth(1).unwrap().trim().to_owned();
        let parameters = query(url.split_once('?').unwrap().1);
        assert_eq!(parameters["redirect_uri"], "http://127.0.0.1:0/callback");
        let code = issuer.authorize(&url);
        terminal.type_line(&match with_address {
            false => format!(" {code} "),
            true => format!("http://127.0.0.1:0/callback?code={code}&state={}", parameters["state"]),
        });
        let (success, output) = terminal.finish();
        assert!(success && output.contains("ExecCredential"), "{}", terminal.messages());
        assert!(
            terminal.messages().ends_with("paste your authorization code: \n"),
            "{}",
            terminal.messages()
        );
    }
}

#[test]
fn the_browser_ends_a_pending_prompt() {
    let issuer = Issuer::start(Settings { form_post: true, ..Settings::default() });
    let desktop = Desktop::new();
    let mut terminal = Terminal::start(&desktop, &issuer.args(&[]));
    let url = desktop.first_opened();
    terminal.wait_for("paste your authorization code: ");
    visit(&url, &issuer.authorize(&url));
    let (success, _) = terminal.finish();
    assert!(success, "{}", terminal.messages());
    assert!(
        terminal.messages().ends_with("paste your authorization code: [...]\n\n"),
        "{}",
        terminal.messages()
    );

    let mut terminal = Terminal::start(&desktop, &issuer.args(&["--session-cache=", "--credential-cache="]));
    let url = desktop.opened_after(1);
    terminal.wait_for("paste your authorization code: ");
    callback(&url, "state=wrong");
    assert!(!terminal.finish().0);
}
