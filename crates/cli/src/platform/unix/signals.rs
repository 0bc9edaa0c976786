//! Termination signals: those for this process, and those that are forwarded to a child.

use std::io;

use rustix::process::{Pid, Signal, getpgrp, kill_process};
use rustix::termios::tcgetpgrp;
use tokio::process::Child;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// The signals that request termination, for another process.
pub(crate) struct ForwardedSignals {
    hangup: Stream,
    interrupt: Stream,
    quit: Stream,
    terminate: Stream,
}

impl ForwardedSignals {
    /// Starts to watch the signals.
    pub(crate) fn watch() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.hangup.recv() => Signal::HUP,
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.quit.recv() => Signal::QUIT,
            _ = self.terminate.recv() => Signal::TERM,
        }
    }

    /// Sends a signal to the child.
    pub(crate) fn pass_on(signal: Signal, child: &Child) {
        // The terminal sends its signals to the child as well, and many programs interpret a second
        // signal as immediate termination.
        if [Signal::INT, Signal::QUIT].contains(&signal) && in_foreground() {
            return;
        }
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // The process may have exited in the meantime.
            let _ = kill_process(pid, signal);
        }
    }
}

fn in_foreground() -> bool {
    let terminal = std::fs::File::open("/dev/tty");
    terminal.is_ok_and(|terminal| tcgetpgrp(terminal).is_ok_and(|group| group == getpgrp()))
}

/// Ctrl-C, or another termination signal.
pub(crate) struct StopSignals {
    terminate: Stream,
    interrupt: Stream,
}

impl StopSignals {
    /// Starts to watch the signals.
    pub(crate) fn install() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for a signal.
    pub(crate) async fn requested(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
