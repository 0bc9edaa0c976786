//! Command line errors, help, version and completion, without a server.

use crate::support::Home;

#[test]
fn command_line_errors_print_one_line_and_exit_with_one() {
    let home = Home::new();
    for (args, stderr) in [
        (&["foo"][..], "Error: unknown command \"foo\" for \"pinniped\"\nRun 'pinniped --help' for usage.\n"),
        (
            &["whoam"],
            "Error: unknown command \"whoam\" for \"pinniped\"\n\nDid you mean this?\n\twhoami\n\nRun 'pinniped --help' for usage.\n",
        ),
        (
            &["get", "kubeconfig", "extra"],
            "Error: unknown command \"extra\" for \"pinniped get kubeconfig\"\n",
        ),
        (
            &["get", "foo"],
            "Error: unknown command \"foo\" for \"pinniped get\"\nRun 'pinniped get --help' for usage.\n",
        ),
        (
            &["login", "statc"],
            "Error: unknown command \"statc\" for \"pinniped login\"\n\nDid you mean this?\n\tstatic\n\nRun 'pinniped login --help' for usage.\n",
        ),
        (
            &["help", "get", "kubeconfg"],
            "Error: unknown command \"kubeconfg\" for \"pinniped get\"\n\nDid you mean this?\n\tkubeconfig\n\nRun 'pinniped get --help' for usage.\n",
        ),
        (
            &["help", "nonsense"],
            "Error: unknown command \"nonsense\" for \"pinniped\"\nRun 'pinniped --help' for usage.\n",
        ),
        (&["whoami", "--version"], "Error: unknown flag: --version\n"),
        (&["login", "oidc"], "Error: required flag(s) \"issuer\" not set\n"),
        (&["version", "-o", "xml"], "Error: 'xml' is not a valid option for output\n"),
        (&["login", "static"], "Error: one of --token or --token-env must be set\n"),
    ] {
        let run = home.run(args);
        assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (1, "", stderr), "{args:?}");
    }
}

#[test]
fn the_color_flag_applies_to_errors_of_the_command_line() {
    let home = Home::new();
    for args in [
        &["whoami", "--ouput=json", "--color=always"][..],
        &["--color", "always", "whoami", "--ouput"],
        &["whoami", "--color=never", "--ouput", "--color=always"],
    ] {
        let run = home.run(args);
        assert!(run.code == 1 && run.stderr.contains("\x1b["), "{args:?}: {run:?}");
        assert!(run.stderr.contains("--output"), "{args:?}: {run:?}");
    }
    for args in [
        &["whoami", "--ouput", "--color=never"][..],
        &["whoami", "--ouput", "--color"],
        &["whoami", "--ouput", "--color=blue"],
        &["whoami", "--ouput", "--", "--color=always"],
    ] {
        let run = home.run(args);
        assert_eq!((run.code, run.stderr.as_str()), (1, "Error: unknown flag: --ouput\n"), "{args:?}");
    }
}

#[test]
fn commands_without_a_kubeconfig_say_so() {
    let home = Home::new();
    for args in [&["proxy"][..], &["whoami"], &["status"], &["logout"], &["get", "kubeconfig"], &["doctor"]] {
        let run = home.run(args);
        assert_eq!(
            run.last_error(),
            Some("no kubeconfig found: set KUBECONFIG or pass --kubeconfig"),
            "{args:?}: {run:?}"
        );
    }
}

#[test]
fn groups_and_help_succeed() {
    let home = Home::new();
    for args in [&[][..], &["help"], &["get"], &["login"], &["help", "get", "kubeconfig"]] {
        let run = home.run(args);
        assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{args:?}");
        assert!(run.stdout.contains("\nUsage:\n  pinniped"), "{args:?}: {}", run.stdout);
    }
}

#[test]
fn the_version_is_one_line_or_a_document() {
    let home = Home::new();
    let version = home.run(&["version"]).stdout;
    assert_eq!(version, format!("{}\n", pinniped_version::VERSION));
    assert_eq!(home.run(&["--version"]).stdout, version);
    let run = home.run(&["version", "-o", "json"]);
    assert!(
        run.stdout.starts_with("{\n  \"major\": \"") && run.stdout.ends_with("\"\n}\n"),
        "{}",
        run.stdout
    );
    let keys: Vec<String> = home
        .run(&["version", "--output=yaml"])
        .stdout
        .lines()
        .map(|line| line.split(':').next().unwrap().to_owned())
        .collect();
    assert_eq!(
        keys,
        [
            "buildDate",
            "compiler",
            "gitCommit",
            "gitTreeState",
            "gitVersion",
            "goVersion",
            "major",
            "minor",
            "platform"
        ]
    );
}

#[test]
fn completion_works_for_every_shell_and_for_scripts_of_earlier_releases() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let run = home.run(&["completion", shell]);
        assert_eq!(run.code, 0, "{shell}");
        assert!(run.stdout.contains("__complete"), "{shell}");
        // Bash shows no descriptions in either case.
        let short = home.run(&["completion", shell, "--no-descriptions"]).stdout;
        assert!(short.contains("__completeNoDesc"), "{shell}");
        assert_eq!(short == run.stdout, shell == "bash", "{shell}");
    }
    let run = home.run(&["__complete", "get", ""]);
    assert_eq!(run.stdout, "kubeconfig\tGenerate a Pinniped-based kubeconfig for a cluster\n:4\n");
    assert_eq!(run.stderr, "Completion ended with directive: ShellCompDirectiveNoFileComp\n");
    assert_eq!(home.run(&["__completeNoDesc", "login", "s"]).stdout, "static\n:4\n");
    let run = home.run(&["__complete", "whoami", "--kubeconfig", ""]);
    assert_eq!(run.stdout, ":0\n");
    assert_eq!(run.stderr, "Completion ended with directive: ShellCompDirectiveDefault\n");
}

#[test]
fn the_reference_page_is_up_to_date() {
    let page = Home::new().run(&["generate-markdown-help"]).stdout;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/cli.md");
    assert!(
        std::fs::read_to_string(path).is_ok_and(|text| text == page),
        "docs/reference/cli.md is not up to date, make it anew with: \
         cargo run -p pinniped-cli -- generate-markdown-help > docs/reference/cli.md"
    );
}

#[test]
fn bash_completion_works_with_the_generated_script() {
    // Calls the completion function as readline does and prints its result.
    const DRIVER: &str = r#"
        source "$1"; shift
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"
        # Readline splits words at these characters.
        COMP_LINE=${COMP_LINE// = /=}; COMP_LINE=${COMP_LINE// : /:}; COMP_LINE=${COMP_LINE/% =/=}
        COMP_POINT=${#COMP_LINE}
        _pinniped pinniped "${@: -1}" "${@: -2:1}" 2>/dev/null
        echo "${COMPREPLY[*]}""#;
    let home = Home::new();
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_pinniped")).parent().unwrap();
    let script = home.write("pinniped.bash", &home.run(&["completion", "bash"]).stdout);
    let config = home.write(
        "config",
        "contexts: [{name: 'a:b=c', context: {cluster: c}}, {name: 'a:d e', context: {cluster: c}}]",
    );
    home.write("a file", "");
    for (words, response) in [
        // Readline replaces the text after the last separator only.
        (&["pinniped", "whoami", "--kubeconfig-context", "a", ":", "b", "="][..], "c"),
        (&["pinniped", "whoami", "--kubeconfig-context", "=", "a", ":", "d"], "d\\ e"),
        (&["pinniped", "whoami", "--kubeconfig-context", "nothing"], ""),
        (&["pinniped", "whoami", "--kubeconfig", "a"], "a file"),
        (&["pinniped", "who"], "whoami"),
        (&["pinniped", "login", "s"], "static"),
        (&["pinniped", "get", "kubeconfig", "--static"], "--static-token --static-token-env"),
        (&["pinniped", "completion", "z"], "zsh"),
        (&["pinniped", "whoami", "--output", ""], "text wide json yaml"),
        (&["pinniped", "get", "kubeconfig", "--concierge-mode", "I"], "ImpersonationProxy"),
    ] {
        let output = std::process::Command::new("bash")
            .args(["--noprofile", "--norc", "-c", DRIVER, "bash"])
            .arg(&script)
            .args(words)
            .current_dir(home.path())
            .env("KUBECONFIG", &config)
            .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
            .output()
            .unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap().trim_end(), response, "{words:?}");
    }
}

#[test]
fn a_closed_stdout_is_not_an_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_pinniped"))
        .args(["get", "kubeconfig", "--help"])
        .stdout(writer)
        .stderr(std::process::Stdio::piped())
        .output()
        .unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn a_missing_home_directory_is_an_error_only_if_it_is_needed() {
    let home = Home::new();
    assert_eq!(home.run_without_variables(&["version"]).code, 0);
    assert_eq!(home.run_without_variables(&["login", "static", "--token=t", "--credential-cache="]).code, 0);
    let run = home.run_without_variables(&["login", "static", "--token=t"]);
    assert_eq!((run.code, run.stdout.as_str()), (1, ""));
    assert!(run.last_error().unwrap().contains("HOME"), "{run:?}");
}
