//! The cause chain of an error: prints it on one line, and searches it.
//!
//! Errors in this repository print one level (`Display`) and name their cause (`source()`). Log
//! lines and status messages need the whole chain; decisions such as "was the connection lost?"
//! need an error of a certain type somewhere in it. This crate is the only implementation of both.
//!
//! ```
//! use std::io;
//!
//! let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
//! let error = io::Error::other(refused);
//! assert_eq!(pinniped_error::chain(&error).to_string(), "connection refused");
//!
//! let io = pinniped_error::find::<io::Error>(&error).unwrap();
//! assert_eq!(io.kind(), io::ErrorKind::Other);
//! ```

#![forbid(unsafe_code)]

use std::error::Error;
use std::fmt;
use std::io;

/// Returns the error and its causes, outermost first.
///
/// The error inside an [`io::Error`] is part of the chain: `io::Error::source` skips it and returns
/// the cause of that error.
pub fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn Error + 'static)| {
        let error: &'a (dyn Error + 'static) = *error;
        match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(held) => Some(held),
            None => error.source(),
        }
    })
}

/// Returns the outermost error of type `E` in the chain.
pub fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

/// Returns the last error of the chain.
pub fn innermost<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    causes(error).last().unwrap_or(error)
}

/// Returns a value that prints the chain on one line, separated by `": "`.
///
/// A cause whose text is part of what was printed before is left out, because many errors repeat
/// the text of their cause.
pub fn chain<'a>(error: &'a (dyn Error + 'static)) -> Chain<'a> {
    Chain(error)
}

/// The result of [`chain`].
#[derive(Clone, Copy)]
pub struct Chain<'a>(&'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut printed = String::new();
        for cause in causes(self.0) {
            let text = cause.to_string();
            if printed.is_empty() {
                printed = text;
            } else if !printed.contains(&text) {
                printed.push_str(": ");
                printed.push_str(&text);
            }
        }
        f.write_str(&printed)
    }
}

impl fmt::Debug for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Layer(&'static str, Option<Box<dyn Error + Send + Sync>>);

    impl fmt::Display for Layer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Layer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    fn layers(texts: &[&'static str]) -> Layer {
        let (first, rest) = texts.split_first().unwrap();
        Layer(first, (!rest.is_empty()).then(|| Box::new(layers(rest)) as _))
    }

    #[test]
    fn a_chain_prints_each_text_once() {
        for (texts, printed) in [
            (&["a"][..], "a"),
            (&["a", "b", "c"], "a: b: c"),
            (&["could not dial: refused", "refused"], "could not dial: refused"),
            (&["a: b", "b", "c"], "a: b: c"),
        ] {
            assert_eq!(chain(&layers(texts)).to_string(), printed);
        }
    }

    #[test]
    fn an_error_inside_an_io_error_is_found() {
        let inner = io::Error::new(io::ErrorKind::UnexpectedEof, "eof");
        let outer = Layer("outer", Some(Box::new(io::Error::other(Layer("held", Some(Box::new(inner)))))));
        assert_eq!(find::<Layer>(&outer).unwrap().0, "outer");
        assert_eq!(causes(&outer).count(), 5);
        assert_eq!(innermost(&outer).to_string(), "eof");
        assert!(find::<fmt::Error>(&outer).is_none());
    }
}
