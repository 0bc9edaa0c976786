//! Input from the console. A read of a console cannot be cancelled: its thread ends with the
//! process.

use std::io::{self, BufRead as _, ErrorKind, Read as _};

use rpassword::ConfigBuilder;
use tokio::sync::oneshot;
use zeroize::Zeroizing;

use crate::login::oidc::terminal::{MAX_LINE, PromptError};

type Line = Result<Zeroizing<Vec<u8>>, PromptError>;

/// Returns the next line of standard input.
pub(crate) async fn read_line() -> Line {
    in_thread(|| {
        let mut line = Zeroizing::new(Vec::new());
        match io::stdin().lock().take(MAX_LINE as u64).read_until(b'\n', &mut line) {
            Ok(0) => Err(PromptError::End),
            Ok(_) => Ok(line),
            Err(error) => Err(error.into()),
        }
    })
    .await
}

/// Returns the next line of the console, which does not show it.
pub(crate) async fn read_hidden_line(prompt: impl FnOnce()) -> Line {
    prompt();
    in_thread(|| match rpassword::read_password_with_config(ConfigBuilder::new().output_discard().build()) {
        Ok(line) => Ok(Zeroizing::new(line.into_bytes())),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(PromptError::End),
        Err(error) => Err(error.into()),
    })
    .await
}

async fn in_thread(read: fn() -> Line) -> Line {
    let (send, receive) = oneshot::channel();
    std::thread::spawn(move || send.send(read()));
    receive.await.unwrap_or(Err(PromptError::End))
}
