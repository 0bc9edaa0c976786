//! Terminates started processes, whatever happens to the program that started them.
//!
//! A [`Guardian`] is a small shell process in its own process group that reads a pipe. Every child
//! is registered through the pipe before it runs its program. When the pipe closes (the owner
//! dropped the guardian, panicked, was interrupted or was killed with SIGKILL), the guardian
//! terminates all children and removes the temporary folder. A shell that waits for one line delays
//! each child, so that no child ever runs without being registered.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Mutex;

use anyhow::Context as _;
use rustix::process::{Pid, Signal};

/// The guardian's program. It ignores signals meant for the owner's terminal and exits when the
/// pipe closes.
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

/// How a child is terminated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// SIGTERM first, SIGKILL after two seconds.
    Gentle,
    /// SIGKILL at once, for programs whose data is disposable.
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

/// The guardian process. Dropping this value terminates all registered children and waits until
/// they have exited.
#[derive(Debug)]
pub struct Guardian {
    watcher: Mutex<Option<(Child, ChildStdin)>>,
}

impl Guardian {
    /// Starts the guardian process. If `dir` is given, the guardian finally removes it with all its
    /// content.
    ///
    /// # Errors
    /// Returns an error when there is no `sh`, or when the path of `dir` contains a space.
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
            guardian.notify(&format!("dir {}", dir.context("the temporary folder's name is not usable")?))?;
        }
        Ok(guardian)
    }

    fn notify(&self, line: &str) -> anyhow::Result<()> {
        let mut watcher = self.watcher.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (_, stdin) = watcher.as_mut().context("the guardian has ended")?;
        // A single write of less than PIPE_BUF bytes is atomic: the guardian reads the whole line
        // or nothing.
        stdin.write_all(format!("{line}\n").as_bytes()).context("could not write to the guardian")
    }

    /// Starts `command` (its program, arguments, environment and folder) in its own process group,
    /// registered before it runs, without standard input and with both outputs appended to `log`.
    ///
    /// # Errors
    /// Returns an error when the log cannot be opened or the process cannot be created. A program
    /// that does not exist appears as a child that exits at once with status 127 and a line in its
    /// log.
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
        self.notify(&format!("add {} {}", child.id(), ending.signal_name()))?;
        let mut go = child.stdin.take().context("the child has no standard input")?;
        go.write_all(b"go\n").context("could not release the child")?;
        Ok(Process { child })
    }

    /// Unregisters a child that has exited, so that its process id is not signalled after reuse.
    pub fn forget(&self, pid: u32) {
        // If the guardian has exited, there is nothing to unregister.
        let _ = self.notify(&format!("del {pid}"));
    }

    /// Terminates all children now and waits until they have exited. `drop` calls this.
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

/// A child process registered with a guardian.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// The process id, which is also the id of its process group.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the exit status if the process has exited.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Blocks until the process exits.
    ///
    /// # Errors
    /// As [`Child::wait`].
    pub fn wait(&mut self) -> std::io::Result<ExitStatus> {
        self.child.wait()
    }
}

/// Sends a signal to a process group. A group that no longer exists is not an error.
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
