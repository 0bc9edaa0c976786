//! `pinniped-server`: one executable with the Concierge, the gateway and the
//! local-user-authenticator, so that an image contains the code that they share only once.
//!
//! The name under which the executable is started selects the program, as in upstream: an image
//! has links to it with the names of the programs (`tools/image/src/product.rs`). It has no flags
//! of its own. The kube-cert-agent is a separate executable, because it runs beside the control
//! plane and must be small.

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;

/// Requests use a quarter less CPU time than with the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs a program until it terminates.
type Run = fn() -> ExitCode;

/// The programs by name, sorted.
const PROGRAMS: [(&str, Run); 3] = [
    ("local-user-authenticator", pinniped_local_user_authenticator::run::main),
    ("pinniped-concierge", pinniped_concierge::main),
    ("pinniped-gateway", pinniped_gateway::main),
];

fn main() -> ExitCode {
    let started_as = std::env::args_os().next().unwrap_or_default();
    match program(&started_as) {
        Ok(run) => run(),
        Err(error) => {
            eprintln!("Error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the program that the first argument of the process names, with or without a folder.
///
/// # Errors
/// Returns an error with the text of upstream when there is no program of this name.
fn program(started_as: &OsStr) -> anyhow::Result<Run> {
    let name = Path::new(started_as).file_name().unwrap_or_default();
    let found = PROGRAMS.iter().find(|(known, _)| name == *known);
    found.map(|(_, run)| *run).with_context(|| {
        let names = PROGRAMS.map(|(known, _)| known).join(" ");
        format!("must be invoked as one of [{names}], not {:?}", name.to_string_lossy())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_name_selects_the_program() {
        for (name, run) in PROGRAMS {
            for started_as in [name.to_owned(), format!("./{name}"), format!("/usr/local/bin/{name}")] {
                assert!(std::ptr::fn_addr_eq(program(OsStr::new(&started_as)).unwrap(), run), "{started_as}");
            }
        }
    }

    #[test]
    fn other_names_are_refused_with_the_list_of_names() {
        for (started_as, name) in [
            ("/usr/local/bin/pinniped-server", "pinniped-server"),
            ("pinniped-concierge/other", "other"),
            ("pinniped-concierge-kube-cert-agent", "pinniped-concierge-kube-cert-agent"),
            ("..", ""),
            ("", ""),
        ] {
            assert_eq!(
                program(OsStr::new(started_as)).unwrap_err().to_string(),
                format!(
                    "must be invoked as one of [local-user-authenticator pinniped-concierge \
                     pinniped-gateway], not {name:?}"
                ),
            );
        }
    }
}
