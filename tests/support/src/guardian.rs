//! Ends what was started, whatever happens to the program that started it.
//!
//! A [`Guardian`] is a small shell process in its own process group that reads a pipe. Every child is written
//! into the pipe before it runs its program; when the pipe closes (the owner dropped the guardian, panicked,
//! was interrupted or was killed with SIGKILL) the guardian ends all of them and removes the temporary folder.
//! Children are held back by a shell that waits for one line, so there is no moment in which a child runs
//! without being registered.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Mutex;

use anyhow::Context as _;
use rustix::process::{Pid, Signal};

/// The guardian's own program. Signals meant for the owner's terminal do not end it: the pipe does.
const SCRIPT: &str = r#"
trap '' HUP INT TERM
list=
dir=
while read -r verb a b; do
  case $verb in
    add) list="$a:$b $list" ;;
    del) kept=; for e in $list; do [ "${e%%:*}" = "$a" ] || kept="$kept $e"; done; list=$kept ;;
    dir) dir=$a ;;
  esac
done
alive() {
  read -r line < "/proc/$1/stat" || return 1
  state=${line##*) }
  case $state in Z*|X*) return 1 ;; esac
}
for e in $list; do kill -s "${e#*:}" -- "-${e%%:*}"; done
n=0
while [ $n -lt 40 ]; do
  left=
  for e in $list; do if alive "${e%%:*}"; then left=1; fi; done
  [ -n "$left" ] || break
  sleep 0.05
  n=$((n + 1))
done
for e in $list; do kill -s KILL -- "-${e%%:*}"; done
if [ -n "$dir" ]; then rm -rf -- "$dir" || { sleep 0.2; rm -rf -- "$dir"; }; fi
"#;

/// How a child is asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// SIGTERM first, SIGKILL after two seconds.
    Gentle,
    /// SIGKILL at once: for programs whose data is thrown away.
    Kill,
}

impl Ending {
    fn signal_name(self) -> &'static str {
        match self {
            Ending::Gentle => "TERM",
            Ending::Kill => "KILL",
        }
    }
}

/// The watching process. Dropping it ends everything that it knows, and waits for that.
#[derive(Debug)]
pub struct Guardian {
    watcher: Mutex<Option<(Child, ChildStdin)>>,
}

impl Guardian {
    /// Starts the watching process. `dir`, when given, is removed with all its content at the end.
    ///
    /// # Errors
    /// Fails when there is no `sh`, or when `dir` has a space in its name.
    pub fn start(dir: Option<&Path>) -> anyhow::Result<Self> {
        let mut child = Command::new("sh")
            .args(["-c", SCRIPT, "pinniped-guardian"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .process_group(0)
            .spawn()
            .context("could not start the guardian process `sh`")?;
        let stdin = child.stdin.take().context("the guardian has no standard input")?;
        let guardian = Self { watcher: Mutex::new(Some((child, stdin))) };
        if let Some(dir) = dir {
            let dir = dir.to_str().filter(|d| !d.contains(char::is_whitespace) && d.len() > 4);
            guardian.tell(&format!("dir {}", dir.context("the temporary folder's name is not usable")?))?;
        }
        Ok(guardian)
    }

    fn tell(&self, line: &str) -> anyhow::Result<()> {
        let mut watcher = self.watcher.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (_, stdin) = watcher.as_mut().context("the guardian has ended")?;
        // One write below PIPE_BUF is atomic: the guardian sees the whole line or nothing.
        stdin.write_all(format!("{line}\n").as_bytes()).context("could not write to the guardian")
    }

    /// Starts `command` (its program, arguments, environment and folder) in its own process group, registered
    /// before it runs, with no standard input and with both outputs appended to `log`.
    ///
    /// # Errors
    /// Fails when the log cannot be opened or the process cannot be made. A program that does not exist shows
    /// as a child that ends at once with status 127 and a line in its log.
    pub fn spawn(&self, command: &Command, ending: Ending, log: &Path) -> anyhow::Result<Process> {
        let out = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("could not open the log {}", log.display()))?;
        let mut held = Command::new("sh");
        held.args(["-c", r#"read -r go && exec "$@" </dev/null"#, "sh"])
            .arg(command.get_program())
            .args(command.get_args())
            .stdin(Stdio::piped())
            .stdout(out.try_clone().context("could not share the log")?)
            .stderr(out)
            .process_group(0);
        for name in crate::kubectl::PROXY_VARIABLES {
            held.env_remove(name);
        }
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => held.env(key, value),
                None => held.env_remove(key),
            };
        }
        if let Some(dir) = command.get_current_dir() {
            held.current_dir(dir);
        }
        let mut child =
            held.spawn().with_context(|| format!("could not start {}", command.get_program().display()))?;
        self.tell(&format!("add {} {}", child.id(), ending.signal_name()))?;
        let mut go = child.stdin.take().context("the child has no standard input")?;
        go.write_all(b"go\n").context("could not release the child")?;
        Ok(Process { child })
    }

    /// Forgets a child that was seen to end, so that its number, when reused, is not signalled.
    pub fn forget(&self, pid: u32) {
        // A guardian that is gone has nothing to forget.
        let _ = self.tell(&format!("del {pid}"));
    }

    /// Ends everything now and waits for it. Called by drop.
    pub fn end(&self) {
        let taken = self.watcher.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some((mut child, stdin)) = taken {
            drop(stdin);
            let _ = child.wait();
        }
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        self.end();
    }
}

/// A child under a guardian.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Its process id, also its process group.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its exit status when it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Blocks until it ends.
    ///
    /// # Errors
    /// As [`Child::wait`].
    pub fn wait(&mut self) -> std::io::Result<ExitStatus> {
        self.child.wait()
    }
}

/// Sends a signal to a process group; a group that is gone is no error.
pub fn signal_group(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process_group(pid, signal);
    }
}

/// Whether a process exists and is not a zombie.
#[must_use]
pub fn alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|stat| stat.rsplit_once(") ").map(|(_, rest)| !rest.starts_with(['Z', 'X'])))
        .unwrap_or(false)
}
