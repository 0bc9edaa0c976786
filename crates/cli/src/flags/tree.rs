//! Every command and every flag, once.

use super::value::Kind;

/// What a runnable command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Writes a kubeconfig.
    GetKubeconfig,
    /// Exec plugin with a fixed token.
    LoginStatic,
    /// Exec plugin with a login in the browser.
    LoginOidc,
    /// Who the cluster thinks we are.
    WhoAmI,
    /// What is wrong with a Concierge.
    Doctor,
    /// Which build this is.
    Version,
    /// A completion script for this shell.
    Completion(clap_complete::Shell),
    /// Candidates for the scripts, with descriptions or without.
    Complete {
        /// Whether candidates have a tab and a description behind them.
        descriptions: bool,
    },
    /// The reference page of all commands.
    MarkdownHelp,
    /// Help about the command named by the words.
    Help,
}

/// A command or a group of commands.
#[derive(Debug)]
pub struct CommandSpec {
    /// The word that selects it.
    pub name: &'static str,
    /// One line.
    pub short: &'static str,
    /// More lines, instead of `short`, on top of the command's own help.
    pub long: &'static str,
    /// Kept out of help and suggestions.
    pub hidden: bool,
    /// What it does; none for a group.
    pub action: Option<Action>,
    /// Whether words behind it that are no flags are welcome.
    pub takes_words: bool,
    /// Whether everything behind it is passed on unread.
    pub flags_are_words: bool,
    /// Its flags, sorted by name, without `--help`.
    pub flags: &'static [FlagSpec],
    /// Its commands, sorted by name.
    pub children: &'static [CommandSpec],
}

impl CommandSpec {
    /// A group or leaf to fill in with struct update syntax.
    const EMPTY: CommandSpec = CommandSpec {
        name: "",
        short: "",
        long: "",
        hidden: false,
        action: None,
        takes_words: false,
        flags_are_words: false,
        flags: &[],
        children: &[],
    };

    /// The command of this name right below.
    pub fn child(&self, name: &str) -> Option<&'static CommandSpec> {
        self.children.iter().find(|child| child.name == name)
    }

    /// The flag of this name, `--help` included.
    pub fn flag(&self, name: &str) -> Option<&'static FlagSpec> {
        if name == HELP_FLAG.name { Some(&HELP_FLAG) } else { self.own_flag(name) }
    }

    /// The flag of this name, `--help` not included.
    pub fn own_flag(&self, name: &str) -> Option<&'static FlagSpec> {
        self.flags.iter().find(|flag| flag.name == name)
    }

    /// The flag of this letter, `-h` included.
    pub fn flag_by_letter(&self, letter: char) -> Option<&'static FlagSpec> {
        if HELP_FLAG.short == Some(letter) {
            return Some(&HELP_FLAG);
        }
        self.flags.iter().find(|flag| flag.short == Some(letter))
    }
}

/// What a flag has when it is not given, as far as help can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Default {
    /// Nothing worth printing: empty, false, zero.
    Zero,
    /// This text.
    Text(&'static str),
    /// The value of `KUBECONFIG`.
    Kubeconfig,
    /// `credentials.yaml` in the configuration directory.
    CredentialCache,
    /// `sessions.yaml` in the configuration directory.
    SessionCache,
}

/// A flag.
#[derive(Debug)]
pub struct FlagSpec {
    /// Behind two dashes.
    pub name: &'static str,
    /// Behind one dash.
    pub short: Option<char>,
    /// What it takes.
    pub kind: Kind,
    /// What it has when not given.
    pub default: Default,
    /// One line.
    pub usage: &'static str,
    /// Kept out of help.
    pub hidden: bool,
    /// Accepted with this advice on stderr.
    pub deprecated: Option<&'static str>,
    /// The command does not run without it.
    pub required: bool,
}

impl FlagSpec {
    const fn new(name: &'static str, kind: Kind, usage: &'static str) -> Self {
        Self {
            name,
            short: None,
            kind,
            default: Default::Zero,
            usage,
            hidden: false,
            deprecated: None,
            required: false,
        }
    }

    const fn text(name: &'static str, usage: &'static str) -> Self {
        Self::new(name, Kind::String, usage)
    }

    const fn switch(name: &'static str, usage: &'static str) -> Self {
        Self::new(name, Kind::Bool, usage)
    }

    const fn or(mut self, default: Default) -> Self {
        self.default = default;
        self
    }

    const fn or_text(self, default: &'static str) -> Self {
        self.or(Default::Text(default))
    }

    const fn letter(mut self, letter: char) -> Self {
        self.short = Some(letter);
        self
    }

    const fn hidden(mut self) -> Self {
        self.hidden = true;
        self
    }

    const fn required(mut self) -> Self {
        self.required = true;
        self
    }
}

/// The suffix of the API groups when `--…api-group-suffix` is not given.
pub const DEFAULT_SUFFIX: &str = "pinniped.dev";
/// The client that Supervisors know this program by.
pub const DEFAULT_CLIENT_ID: &str = "pinniped-cli";
/// The scopes asked for unless told otherwise.
pub const DEFAULT_SCOPES: &str = "offline_access,openid,pinniped:request-audience,username,groups";
/// What kubectl prints when this program is not where the kubeconfig says.
pub const DEFAULT_INSTALL_HINT: &str =
    "The pinniped CLI does not appear to be installed.  See https://get.pinniped.dev/cli for more details";
/// Appended to the names in a generated kubeconfig.
pub const DEFAULT_NAME_SUFFIX: &str = "-pinniped";

/// Every command has it.
pub static HELP_FLAG: FlagSpec = FlagSpec::switch("help", "").letter('h');

const fn deprecated_namespace() -> FlagSpec {
    let mut flag = FlagSpec::text("concierge-namespace", "Namespace of the Concierge").hidden();
    flag.default = Default::Text("pinniped-concierge");
    flag.deprecated = Some("not needed anymore");
    flag
}

const fn suffix(name: &'static str) -> FlagSpec {
    FlagSpec::text(name, "Suffix of the Concierge's API groups").or_text(DEFAULT_SUFFIX)
}

const fn kubeconfig() -> FlagSpec {
    FlagSpec::text("kubeconfig", "Path of the kubeconfig to use").or(Default::Kubeconfig)
}

const fn scopes(name: &'static str) -> FlagSpec {
    FlagSpec::new(name, Kind::Strings, "OIDC scopes to ask for").or_text(DEFAULT_SCOPES)
}

static GET_KUBECONFIG: [FlagSpec; 34] = [
    suffix("concierge-api-group-suffix"),
    FlagSpec::text("concierge-authenticator-name", "Name of the authenticator (default: discovered)"),
    FlagSpec::text(
        "concierge-authenticator-type",
        "Type of the authenticator, either 'webhook' or 'jwt' (default: discovered)",
    ),
    FlagSpec::new(
        "concierge-ca-bundle",
        Kind::CaBundle,
        "PEM file of CA certificates for the Concierge; can be repeated (default: discovered)",
    ),
    FlagSpec::text("concierge-credential-issuer", "Name of the CredentialIssuer (default: discovered)"),
    FlagSpec::text("concierge-endpoint", "URL of the Concierge (default: discovered)"),
    FlagSpec::new("concierge-mode", Kind::Mode, "Way to reach the Concierge: 'TokenCredentialRequestAPI' or 'ImpersonationProxy', discovered if not given")
        .or_text("TokenCredentialRequestAPI"),
    deprecated_namespace(),
    FlagSpec::switch("concierge-skip-wait", "Take the Concierge as it is, even while strategies are pending"),
    FlagSpec::text("credential-cache", "Path of the file that caches cluster credentials"),
    FlagSpec::text("generated-name-suffix", "Suffix appended to the names of the cluster, context and user")
        .or_text(DEFAULT_NAME_SUFFIX),
    FlagSpec::text("install-hint", "What kubectl prints when the pinniped command is missing")
        .or_text(DEFAULT_INSTALL_HINT),
    kubeconfig(),
    FlagSpec::text("kubeconfig-context", "Context of the kubeconfig to use (default: the current one)"),
    FlagSpec::switch("no-concierge", "Send the token straight to the cluster, without a Concierge"),
    FlagSpec::new(
        "oidc-ca-bundle",
        Kind::CaBundle,
        "PEM file of CA certificates for the OIDC issuer; can be repeated",
    ),
    FlagSpec::text("oidc-client-id", "OIDC client ID").or_text(DEFAULT_CLIENT_ID),
    FlagSpec::switch("oidc-debug-session-cache", "Log what happens in the session cache").hidden(),
    FlagSpec::text("oidc-issuer", "OIDC issuer URL (default: discovered)"),
    FlagSpec::new(
        "oidc-listen-port",
        Kind::Uint16,
        "Port of the localhost listener (authorization code flow only)",
    ),
    FlagSpec::text("oidc-request-audience", "Exchange the token for one of this audience (RFC 8693)"),
    scopes("oidc-scopes"),
    FlagSpec::text("oidc-session-cache", "Path of the file that caches OIDC sessions"),
    FlagSpec::switch("oidc-skip-browser", "Do not open a browser, only print the URL"),
    FlagSpec::switch("oidc-skip-listen", "Do not listen on localhost").hidden(),
    FlagSpec::text("output", "File to write to (default: stdout)").letter('o'),
    FlagSpec::text("pinniped-cli-path", "Command that kubectl runs (default: this program's own path)"),
    FlagSpec::switch("skip-validation", "Write the kubeconfig without trying to connect"),
    FlagSpec::text("static-token", "Write this token into the kubeconfig instead of an OIDC login"),
    FlagSpec::text(
        "static-token-env",
        "Write the name of the environment variable that holds the token instead of an OIDC login",
    ),
    FlagSpec::new("timeout", Kind::Duration, "Time limit for the whole command").or_text("10m0s"),
    FlagSpec::text(
        "upstream-identity-provider-flow",
        "Flow of the Supervisor's identity provider: 'cli_password' or 'browser_authcode'",
    ),
    FlagSpec::text("upstream-identity-provider-name", "Name of the Supervisor's identity provider"),
    FlagSpec::text(
        "upstream-identity-provider-type",
        "Type of the Supervisor's identity provider: 'oidc', 'ldap', 'activedirectory' or 'github'",
    ),
];

static LOGIN_STATIC: [FlagSpec; 10] = [
    suffix("concierge-api-group-suffix"),
    FlagSpec::text("concierge-authenticator-name", "Name of the authenticator"),
    FlagSpec::text("concierge-authenticator-type", "Type of the authenticator, either 'webhook' or 'jwt'"),
    FlagSpec::text("concierge-ca-bundle-data", "CA certificates for the Concierge: base64 of PEM"),
    FlagSpec::text("concierge-endpoint", "URL of the Concierge"),
    deprecated_namespace(),
    FlagSpec::text("credential-cache", "Path of the file that caches cluster credentials; '' for none")
        .or(Default::CredentialCache),
    FlagSpec::switch("enable-concierge", "Exchange the token for a cluster credential at the Concierge"),
    FlagSpec::text("token", "The token"),
    FlagSpec::text("token-env", "Name of the environment variable that holds the token"),
];

static LOGIN_OIDC: [FlagSpec; 22] = [
    FlagSpec::new("ca-bundle", Kind::Strings, "PEM file of CA certificates for the issuer; can be repeated"),
    FlagSpec::new(
        "ca-bundle-data",
        Kind::Strings,
        "CA certificates for the issuer: base64 of PEM; can be repeated",
    ),
    FlagSpec::text("client-id", "OIDC client ID").or_text(DEFAULT_CLIENT_ID),
    suffix("concierge-api-group-suffix"),
    FlagSpec::text("concierge-authenticator-name", "Name of the authenticator"),
    FlagSpec::text("concierge-authenticator-type", "Type of the authenticator, either 'webhook' or 'jwt'"),
    FlagSpec::text("concierge-ca-bundle-data", "CA certificates for the Concierge: base64 of PEM"),
    FlagSpec::text("concierge-endpoint", "URL of the Concierge"),
    deprecated_namespace(),
    FlagSpec::text("credential-cache", "Path of the file that caches cluster credentials; '' for none")
        .or(Default::CredentialCache),
    FlagSpec::switch("debug-session-cache", "Log what happens in the session cache").hidden(),
    FlagSpec::switch("enable-concierge", "Exchange the token for a cluster credential at the Concierge"),
    FlagSpec::text("issuer", "OIDC issuer URL").required(),
    FlagSpec::new(
        "listen-port",
        Kind::Uint16,
        "Port of the localhost listener (authorization code flow only)",
    ),
    FlagSpec::text("request-audience", "Exchange the token for one of this audience (RFC 8693)"),
    scopes("scopes"),
    FlagSpec::text("session-cache", "Path of the file that caches OIDC sessions").or(Default::SessionCache),
    FlagSpec::switch("skip-browser", "Do not open a browser, only print the URL"),
    FlagSpec::switch("skip-listen", "Do not listen on localhost").hidden(),
    FlagSpec::text(
        "upstream-identity-provider-flow",
        "Flow of the Supervisor's identity provider: 'cli_password' or 'browser_authcode'",
    ),
    FlagSpec::text("upstream-identity-provider-name", "Name of the Supervisor's identity provider"),
    FlagSpec::text(
        "upstream-identity-provider-type",
        "Type of the Supervisor's identity provider: 'oidc', 'ldap', 'activedirectory' or 'github'",
    )
    .or_text("oidc"),
];

static WHOAMI: [FlagSpec; 5] = [
    suffix("api-group-suffix"),
    kubeconfig(),
    FlagSpec::text("kubeconfig-context", "Context of the kubeconfig to use (default: the current one)"),
    FlagSpec::text("output", "Output format: 'text', 'json' or 'yaml'").letter('o').or_text("text"),
    FlagSpec::new("timeout", Kind::Duration, "Time limit for the request; 0 for none"),
];

static DOCTOR: [FlagSpec; 6] = [
    FlagSpec::text(
        "check-kubeconfig",
        "Kubeconfig of a user, to be compared with what the cluster advertises",
    ),
    suffix("concierge-api-group-suffix"),
    FlagSpec::text("concierge-credential-issuer", "Name of the CredentialIssuer (default: the only one)"),
    kubeconfig(),
    FlagSpec::text("kubeconfig-context", "Context of the kubeconfig to use (default: the current one)"),
    FlagSpec::new("timeout", Kind::Duration, "Time limit for the whole command; 0 for none").or_text("1m0s"),
];

static VERSION: [FlagSpec; 1] =
    [FlagSpec::text("output", "Output format: 'json' or 'yaml' (default: one line)").letter('o')];

static SHELL: [FlagSpec; 1] = [FlagSpec::switch("no-descriptions", "Leave the descriptions out")];

const fn shell(
    name: &'static str,
    short: &'static str,
    long: &'static str,
    shell: clap_complete::Shell,
) -> CommandSpec {
    let action = Some(Action::Completion(shell));
    CommandSpec { name, short, long, action, flags: &SHELL, ..CommandSpec::EMPTY }
}

static SHELLS: [CommandSpec; 4] = [
    shell(
        "bash",
        "Generate the autocompletion script for bash",
        "Generate the autocompletion script for bash.\n\nTo load it in the current shell:\n\n\
         \tsource <(pinniped completion bash)\n\nTo load it in every new shell:\n\n\
         \tpinniped completion bash > /etc/bash_completion.d/pinniped",
        clap_complete::Shell::Bash,
    ),
    shell(
        "fish",
        "Generate the autocompletion script for fish",
        "Generate the autocompletion script for fish.\n\nTo load it in the current shell:\n\n\
         \tpinniped completion fish | source\n\nTo load it in every new shell:\n\n\
         \tpinniped completion fish > ~/.config/fish/completions/pinniped.fish",
        clap_complete::Shell::Fish,
    ),
    shell(
        "powershell",
        "Generate the autocompletion script for powershell",
        "Generate the autocompletion script for PowerShell.\n\nTo load it in the current shell:\n\n\
         \tpinniped completion powershell | Out-String | Invoke-Expression\n\n\
         To load it in every new shell, add this line to your profile.",
        clap_complete::Shell::PowerShell,
    ),
    shell(
        "zsh",
        "Generate the autocompletion script for zsh",
        "Generate the autocompletion script for zsh.\n\nTo load it in the current shell, once compinit has run:\n\n\
         \tsource <(pinniped completion zsh)\n\nTo load it in every new shell:\n\n\
         \tpinniped completion zsh > \"${fpath[1]}/_pinniped\"",
        clap_complete::Shell::Zsh,
    ),
];

static GET: [CommandSpec; 1] = [CommandSpec {
    name: "kubeconfig",
    short: "Generate a Pinniped-based kubeconfig for a cluster",
    long: "Generate a Pinniped-based kubeconfig for a cluster.\n\nThe kubeconfig holds no credential and can be shared, unless --static-token is used: then the\ntoken is part of it. A file written with --output is created with the permissions of your umask.",
    action: Some(Action::GetKubeconfig),
    flags: &GET_KUBECONFIG,
    ..CommandSpec::EMPTY
}];

static LOGIN: [CommandSpec; 2] = [
    CommandSpec {
        name: "oidc",
        short: "Log in using an OpenID Connect provider",
        action: Some(Action::LoginOidc),
        flags: &LOGIN_OIDC,
        ..CommandSpec::EMPTY
    },
    CommandSpec {
        name: "static",
        short: "Log in using a static token",
        action: Some(Action::LoginStatic),
        flags: &LOGIN_STATIC,
        ..CommandSpec::EMPTY
    },
];

static COMMANDS: [CommandSpec; 10] = [
    CommandSpec {
        name: "__complete",
        hidden: true,
        action: Some(Action::Complete { descriptions: true }),
        takes_words: true,
        flags_are_words: true,
        ..CommandSpec::EMPTY
    },
    CommandSpec {
        name: "__completeNoDesc",
        hidden: true,
        action: Some(Action::Complete { descriptions: false }),
        takes_words: true,
        flags_are_words: true,
        ..CommandSpec::EMPTY
    },
    CommandSpec {
        name: "completion",
        short: "Generate the autocompletion script for the specified shell",
        long: "Generate the autocompletion script for pinniped for the specified shell.\nSee each sub-command's help for details on how to use the generated script.",
        children: &SHELLS,
        ..CommandSpec::EMPTY
    },
    CommandSpec {
        name: "doctor",
        short: "Say what is wrong with the Concierge of a cluster, and what to do",
        long: "Say what is wrong with the Concierge of a cluster, and what to do.\n\nLooks at the CredentialIssuer, at the Secrets and Services of the impersonation proxy, at what\nanswers at its endpoint, and at kubeconfigs that lead there. What you may not see is said and\nleft out. Exits with 1 if there is a problem.",
        action: Some(Action::Doctor),
        flags: &DOCTOR,
        ..CommandSpec::EMPTY
    },
    CommandSpec {
        name: "generate-markdown-help",
        short: "Generate the reference page of this CLI in Markdown",
        hidden: true,
        action: Some(Action::MarkdownHelp),
        ..CommandSpec::EMPTY
    },
    CommandSpec {
        name: "get",
        short: "Get things for use with a Pinniped cluster: kubeconfig",
        children: &GET,
        ..CommandSpec::EMPTY
    },
    CommandSpec {
        name: "help",
        short: "Help about any command",
        action: Some(Action::Help),
        takes_words: true,
        ..CommandSpec::EMPTY
    },
    CommandSpec {
        name: "login",
        short: "Log in to a cluster as kubectl's exec plugin: oidc, static",
        children: &LOGIN,
        ..CommandSpec::EMPTY
    },
    CommandSpec {
        name: "version",
        short: "Print the version of this Pinniped CLI",
        action: Some(Action::Version),
        flags: &VERSION,
        ..CommandSpec::EMPTY
    },
    CommandSpec {
        name: "whoami",
        short: "Print information about the current user",
        action: Some(Action::WhoAmI),
        flags: &WHOAMI,
        ..CommandSpec::EMPTY
    },
];

/// The program.
pub static ROOT: CommandSpec = CommandSpec {
    name: "pinniped",
    short: "Log in to Kubernetes clusters with one identity",
    long: "The Pinniped CLI is a kubectl exec plugin and a helper for it: it writes kubeconfigs that\nlog in to Kubernetes clusters through the Pinniped Concierge.",
    children: &COMMANDS,
    ..CommandSpec::EMPTY
};

#[cfg(test)]
mod tests {
    use super::*;

    fn check(command: &CommandSpec) {
        assert!(command.flags.is_sorted_by_key(|flag| flag.name), "flags of {}", command.name);
        assert!(command.children.is_sorted_by_key(|child| child.name), "children of {}", command.name);
        for child in command.children {
            check(child);
        }
    }

    #[test]
    fn flags_and_commands_are_sorted_by_name() {
        check(&ROOT);
    }
}
