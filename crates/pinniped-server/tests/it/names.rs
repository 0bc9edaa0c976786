//! The file under several names, as an image has it.

use std::process::Output;

/// Runs the program through a link with this name, outside of a cluster.
fn run(name: &str, flags: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let mut command = crate::command(folder.path(), name);
    command.args(flags).env_remove("KUBERNETES_SERVICE_HOST").env_remove("KUBERNETES_SERVICE_PORT");
    command.output().unwrap()
}

#[test]
fn a_link_runs_the_program_of_its_name() {
    for name in ["pinniped-concierge", "pinniped-gateway"] {
        let printed = run(name, &["--version"]);
        assert!(printed.status.success(), "{printed:?}");
        let printed = String::from_utf8(printed.stdout).unwrap();
        assert_eq!(printed, format!("{name} {}\n", pinniped_version::VERSION));
    }

    let authenticator = run("local-user-authenticator", &[]);
    let errors = String::from_utf8(authenticator.stderr).unwrap();
    assert!(errors.contains("cannot create k8s client"), "{errors}");
    assert_eq!(authenticator.status.code(), Some(1));
}

#[test]
fn another_name_is_an_error_that_lists_the_names() {
    let other = run("pinniped-supervisor", &["--version"]);
    let errors = String::from_utf8(other.stderr).unwrap();
    let wanted = "Error: must be invoked as one of [local-user-authenticator pinniped-concierge \
                  pinniped-gateway], not \"pinniped-supervisor\"\n";
    assert_eq!((errors.as_str(), other.status.code()), (wanted, Some(1)));
}
