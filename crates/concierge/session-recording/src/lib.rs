//! Recording of sessions in pods (`kubectl exec` and `kubectl attach`) that go through the
//! impersonation proxy, as asciicast files (version 2 of the format of asciinema).
//!
//! ```text
//! recorder.rs   decides which requests are recorded, and begins a recording; start reading here
//! tap.rs        observes the bytes of one session, and limits or ends it
//! streams/      bytes -> parts of a session: SPDY/3.1 and WebSockets, without I/O
//! cast.rs       parts -> lines of a file
//! session.rs    the bounded buffer between a session and its file
//! writer.rs     writes the buffers to the files, and completes the files
//! directory.rs  names, limits and recovery of files
//! ```
//!
//! A recording never changes the bytes of a session. In mode [`Mode::BestEffort`] it never delays
//! them either: text for which the buffer has no room is lost, and the file has a marker. In mode
//! [`Mode::Required`] a session waits for its file, and ends with a message if it cannot be
//! recorded.
//!
//! Clients and pods choose all bytes that are read here. The parsers collect nothing except for the
//! beginnings of frames, the headers of streams (16 KiB) and sizes of terminals (1 KiB).

#![forbid(unsafe_code)]

pub mod cast;
mod directory;
mod metrics;
mod recorder;
mod session;
pub mod streams;
mod tap;
mod writer;

pub use directory::WhenFull;
pub use recorder::{
    Begun, Mode, Recorder, RecordingError, RecordingParams, Refused, SessionRequest, session_of,
};
pub use writer::Writer;
