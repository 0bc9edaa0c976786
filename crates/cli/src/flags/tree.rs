//! The table of all commands and flags.

use super::completion::Shell;
use super::value::Kind;
use crate::commands::get_kubeconfig::options;
use crate::environment::Environment;

pub(crate) mod flags;

use flags::{
    DOCTOR, KUBECTL, LOGIN_OIDC, LOGIN_STATIC, LOGIN_TOKEN, LOGOUT, PROXY, SHELL, STATUS, VERSION, WHOAMI,
};

/// The action of a runnable command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Writes a kubeconfig.
    GetKubeconfig,
    /// An exec plugin with a fixed token.
    LoginStatic,
    /// An exec plugin with a login in the browser.
    LoginOidc,
    /// An exec plugin with the token of a workload.
    LoginToken,
    /// Runs kubectl with an identity.
    Kubectl,
    /// Prints the authenticated user.
    WhoAmI,
    /// Reports problems of a Concierge installation.
    Doctor,
    /// Serves a proxy that authenticates clients with a login.
    Proxy,
    /// Explains a condition, a reason or an error text.
    Explain,
    /// Removes sessions and cached credentials.
    Logout,
    /// Prints the state of each context.
    Status,
    /// Prints the version.
    Version,
    /// Prints a completion script for this shell.
    Completion(Shell),
    /// Prints candidates for completion scripts, with or without descriptions.
    Complete {
        /// Whether a tab and a description follow each candidate.
        descriptions: bool,
    },
    /// Writes the manual pages of all commands.
    Man,
    /// Prints the reference page of all commands.
    MarkdownHelp,
    /// Prints the help of the command in the arguments.
    Help,
}

/// A command or a group of commands.
#[derive(Debug)]
pub struct CommandSpec {
    /// The name.
    pub name: &'static str,
    /// The description, one line.
    pub short: &'static str,
    /// A longer description for the command's own help, instead of `short`.
    pub long: &'static str,
    /// Examples: a purpose, and one line for a shell.
    pub examples: &'static [(&'static str, &'static str)],
    /// Omitted from help and suggestions.
    pub hidden: bool,
    /// The action; `None` for a group.
    pub action: Option<Action>,
    /// Whether the command accepts arguments that are not flags.
    pub takes_words: bool,
    /// Whether all arguments after the name are passed on without parsing.
    pub flags_are_words: bool,
    /// The flags, sorted by name, without `--help`.
    pub flags: &'static [FlagSpec],
    /// The subcommands, sorted by name.
    pub children: &'static [CommandSpec],
}

impl CommandSpec {
    /// An empty group, for struct update syntax.
    const EMPTY: CommandSpec = CommandSpec {
        name: "",
        short: "",
        long: "",
        examples: &[],
        hidden: false,
        action: None,
        takes_words: false,
        flags_are_words: false,
        flags: &[],
        children: &[],
    };

    /// Returns the direct subcommand with this name.
    pub fn child(&self, name: &str) -> Option<&'static CommandSpec> {
        self.children.iter().find(|child| child.name == name)
    }

    /// Returns the flag with this name, including those of every command.
    pub fn flag(&self, name: &str) -> Option<&'static FlagSpec> {
        let global = [&HELP_FLAG, &COLOR_FLAG].into_iter().find(|flag| flag.name == name);
        global.or_else(|| self.own_flag(name))
    }

    /// Returns the flag with this name, excluding those of every command.
    pub fn own_flag(&self, name: &str) -> Option<&'static FlagSpec> {
        self.flags.iter().find(|flag| flag.name == name)
    }

    /// Returns the flag with this letter, including `-h`.
    pub fn flag_by_letter(&self, letter: char) -> Option<&'static FlagSpec> {
        if HELP_FLAG.short == Some(letter) {
            return Some(&HELP_FLAG);
        }
        self.flags.iter().find(|flag| flag.short == Some(letter))
    }
}

/// The default value of a flag, as the help prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Default {
    /// An empty, false or zero value, which is not printed.
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

/// The values that completion offers for a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// None, or those of the flag's kind.
    OfKind,
    /// These.
    Listed(&'static [&'static str]),
    /// Paths of files.
    Files,
    /// The contexts of the kubeconfig.
    Contexts,
    /// The names of the authenticators that the users of the kubeconfig log in with.
    Authenticators,
}

/// A flag.
#[derive(Debug)]
pub struct FlagSpec {
    /// The name after two dashes.
    pub name: &'static str,
    /// The letter after one dash.
    pub short: Option<char>,
    /// The kind of value.
    pub kind: Kind,
    /// The default value.
    pub default: Default,
    /// The description, one line.
    pub usage: &'static str,
    /// Omitted from help.
    pub hidden: bool,
    /// Accepted, with this advice on stderr.
    pub deprecated: Option<&'static str>,
    /// The command requires the flag.
    pub required: bool,
    /// The values for completion, where the kind does not determine them.
    pub values: Values,
}

impl FlagSpec {
    pub(crate) const fn new(name: &'static str, kind: Kind, usage: &'static str) -> Self {
        Self {
            name,
            short: None,
            kind,
            default: Default::Zero,
            usage,
            hidden: false,
            deprecated: None,
            required: false,
            values: Values::OfKind,
        }
    }

    pub(crate) const fn text(name: &'static str, usage: &'static str) -> Self {
        Self::new(name, Kind::String, usage)
    }

    pub(crate) const fn switch(name: &'static str, usage: &'static str) -> Self {
        Self::new(name, Kind::Bool, usage)
    }

    pub(crate) const fn or(mut self, default: Default) -> Self {
        self.default = default;
        self
    }

    pub(crate) const fn or_text(self, default: &'static str) -> Self {
        self.or(Default::Text(default))
    }

    pub(crate) const fn letter(mut self, letter: char) -> Self {
        self.short = Some(letter);
        self
    }

    pub(crate) const fn values(mut self, values: &'static [&'static str]) -> Self {
        self.values = Values::Listed(values);
        self
    }

    pub(crate) const fn files(mut self) -> Self {
        self.values = Values::Files;
        self
    }

    pub(crate) const fn contexts(mut self) -> Self {
        self.values = Values::Contexts;
        self
    }

    pub(crate) const fn authenticators(mut self) -> Self {
        self.values = Values::Authenticators;
        self
    }

    pub(crate) const fn hidden(mut self) -> Self {
        self.hidden = true;
        self
    }

    pub(crate) const fn required(mut self) -> Self {
        self.required = true;
        self
    }
}

/// The default suffix of the API groups for the `--…api-group-suffix` flags.
pub const DEFAULT_SUFFIX: &str = "pinniped.dev";
/// The default OIDC client ID, which Supervisors assign to this program.
pub const DEFAULT_CLIENT_ID: &str = "pinniped-cli";
/// The default scopes.
pub const DEFAULT_SCOPES: &str = "offline_access,openid,pinniped:request-audience,username,groups";
/// The default message of kubectl if this program is missing at the path in the kubeconfig.
pub const DEFAULT_INSTALL_HINT: &str =
    "The pinniped CLI does not appear to be installed.  See https://get.pinniped.dev/cli for more details";
/// The suffix for the names in a generated kubeconfig.
pub const DEFAULT_NAME_SUFFIX: &str = "-pinniped";

/// The help flag of every command.
pub static HELP_FLAG: FlagSpec = FlagSpec::switch("help", "").letter('h');

/// The flag of every command for the use of colors.
pub static COLOR_FLAG: FlagSpec = FlagSpec::new(
    "color",
    Kind::Color,
    "Use of colors: 'auto' (on a terminal), 'always' (also selects the \
         output for a terminal) or 'never'",
)
.or_text("auto");

/// The flag of the program itself that prints its version.
pub const VERSION_FLAG: &str = "version";

static ROOT_FLAGS: [FlagSpec; 1] = [FlagSpec::switch(VERSION_FLAG, "Print the version and exit")];

const fn shell(
    name: &'static str,
    short: &'static str,
    long: &'static str,
    shell: Shell,
    examples: &'static [(&'static str, &'static str)],
) -> CommandSpec {
    let action = Some(Action::Completion(shell));
    CommandSpec { name, short, long, examples, action, flags: &SHELL, ..CommandSpec::EMPTY }
}

static SHELLS: [CommandSpec; 4] = [
    shell(
        "bash",
        "Generate the autocompletion script for bash",
        "Generate the autocompletion script for bash.\n\nTo load it in the current shell:\n\n\
         \tsource <(pinniped completion bash)\n\nTo load it in every new shell:\n\n\
         \tpinniped completion bash > /etc/bash_completion.d/pinniped",
        Shell::Bash,
        &[("Load it in the current shell", "source <(pinniped completion bash)")],
    ),
    shell(
        "fish",
        "Generate the autocompletion script for fish",
        "Generate the autocompletion script for fish.\n\nTo load it in the current shell:\n\n\
         \tpinniped completion fish | source\n\nTo load it in every new shell:\n\n\
         \tpinniped completion fish > ~/.config/fish/completions/pinniped.fish",
        Shell::Fish,
        &[("Load it in the current shell", "pinniped completion fish | source")],
    ),
    shell(
        "powershell",
        "Generate the autocompletion script for powershell",
        "Generate the autocompletion script for PowerShell.\n\nTo load it in the current shell:\n\n\
         \tpinniped completion powershell | Out-String | Invoke-Expression\n\n\
         To load it in every new shell, add this line to your profile. The script was written for PowerShell\n5.1 and newer; it is not tested.",
        Shell::PowerShell,
        &[(
            "Load it in the current shell",
            "pinniped completion powershell | Out-String | Invoke-Expression",
        )],
    ),
    shell(
        "zsh",
        "Generate the autocompletion script for zsh",
        "Generate the autocompletion script for zsh.\n\nTo load it in the current shell, once compinit has run:\n\n\
         \tsource <(pinniped completion zsh)\n\nTo load it in every new shell:\n\n\
         \tpinniped completion zsh > \"${fpath[1]}/_pinniped\"",
        Shell::Zsh,
        &[("Load it in the current shell", "source <(pinniped completion zsh)")],
    ),
];

static GET: [CommandSpec; 1] = [CommandSpec {
    name: "kubeconfig",
    short: "Generate a Pinniped-based kubeconfig for a cluster",
    long: "Generate a Pinniped-based kubeconfig for a cluster.\n\nThe kubeconfig holds no credential of a user and can be shared, unless --static-token is used: then\nthe token is part of it. --oidc-client-secret is also written into it. A file written with --output\nis created with the permissions of your umask.\n\nWith --merge, the cluster, the user and the context are added to the file of --output, or without it\nto the kubeconfig that you use; --kubeconfig is only the source. The previous file is kept beside\nit, with the suffix .pinniped-backup. An earlier result for the same cluster is replaced; another\nentry of the same name is an error, unless you choose another name with --context, or use\n--overwrite. The current context changes only if there is none, or with --set-current-context. With\n--all-contexts, the time limit is --timeout for each context, or one minute without the flag.\n\nWith --workload-token-from, the kubeconfig is for a workload, such as a CI job or a pod, which logs\nin with a JWT that its platform issues: see `pinniped login token --help`.\n\nIn mode ServiceAccountToken, users send a short-lived token of a service account to the API server,\ntogether with headers that impersonate them; without the headers, the token has no permissions.\n--impersonation-delivery selects the component that sends the headers:\n\n\tauto, kubeconfig  fields of the kubeconfig (as, as-uid, as-groups, as-user-extra), written by\n\t                  this command with --static-token, otherwise by the first login and when the\n\t                  identity changes; run kubectl again after that\n\twrapper           pinniped kubectl -- ARGS\n\tproxy             pinniped proxy, for programs of any kind\n\texec-headers      a client that sends the headers that its plugin returns; no kubectl does",
    examples: &[
        (
            "A kubeconfig for users who log in at the issuer of the only JWTAuthenticator",
            "pinniped get kubeconfig --output team.yaml",
        ),
        (
            "With a token from an environment variable, for a WebhookAuthenticator",
            "pinniped get kubeconfig --static-token-env TOKEN --output ci.yaml",
        ),
        (
            "Add a context for logins at the cluster of admin.yaml to your kubeconfig",
            "pinniped get kubeconfig --kubeconfig admin.yaml --merge --output ~/.kube/config --context prod",
        ),
    ],
    action: Some(Action::GetKubeconfig),
    flags: &options::FLAGS,
    ..CommandSpec::EMPTY
}];

static LOGIN: [CommandSpec; 3] = [
    CommandSpec {
        name: "oidc",
        short: "Log in using an OpenID Connect provider",
        long: "Log in using an OpenID Connect provider.\n\nPrints the credential in the format that kubectl expects from a plugin. The session is kept in\n--session-cache and refreshed, so that a browser is opened only for the first login and after the\nsession has ended. With --refresh-token-store=keyring (or PINNIPED_REFRESH_TOKEN_STORE=keyring,\nwhich replaces the flag), the refresh token is in the keyring of the operating system instead;\nwithout a keyring that works, you log in again when the ID token has expired. On a machine without\na browser, --flow=device shows a code to enter on another device. A client secret is sent to the\nprovider only; it is visible in the kubeconfig, as providers expect of command line programs.",
        examples: &[(
            "Log in as kubectl does, without a Concierge",
            "pinniped login oidc --issuer https://issuer.example.com",
        )],
        action: Some(Action::LoginOidc),
        flags: &LOGIN_OIDC,
        ..CommandSpec::EMPTY
    },
    CommandSpec {
        name: "static",
        short: "Log in using a static token",
        long: "Log in using a static token.\n\nThe authenticator of the Concierge determines the format of the token. The tokens of the\nlocal-user-authenticator are USERNAME:PASSWORD.\n\nPrints the credential in the format that kubectl expects from a plugin. A service account token is\nprinted only if its impersonation headers will be sent: if the identity is that of\n--expected-identity (or of $PINNIPED_EXPECTED_IDENTITY, for kubectl with --as, --as-uid, --as-group\nand --as-user-extra), or if PINNIPED_EXEC_REQUEST_HEADERS=true declares that the program that runs\nthe plugin sends the requestHeaders of the response. Do not set it for a kubectl that does not.",
        examples: &[("Print a token as a credential for kubectl", "pinniped login static --token-env TOKEN")],
        action: Some(Action::LoginStatic),
        flags: &LOGIN_STATIC,
        ..CommandSpec::EMPTY
    },
    CommandSpec {
        name: "token",
        short: "Log in using the token of a workload, such as a CI job or a pod",
        long: "Log in using the token of a workload, such as a CI job or a pod.\n\nPresents a JWT that the platform has issued to a JWTAuthenticator of the Concierge, and prints the\ncredential in the format that kubectl expects from a plugin. --from selects the source of the JWT:\n\n\tfile            the file of --token-file\n\tenv             the environment variable of --token-env\n\tgithub-actions  the token service of GitHub Actions, for --audience; the workflow needs\n\t                `permissions: {id-token: write}`\n\tgitlab          the environment variable of --token-env (default PINNIPED_ID_TOKEN), which\n\t                `id_tokens` of the job defines\n\tkubernetes      the file of --token-file (default: the token of the pod's service account)",
        examples: &[("Use the token of the pod", "pinniped login token --from kubernetes")],
        action: Some(Action::LoginToken),
        flags: &LOGIN_TOKEN,
        ..CommandSpec::EMPTY
    },
];

static COMMANDS: [CommandSpec; 16] = [
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
        examples: &[(
            "Load the completion of bash in the current shell",
            "source <(pinniped completion bash)",
        )],
        children: &SHELLS,
        ..CommandSpec::EMPTY
    },
    CommandSpec {
        name: "doctor",
        short: "Find out why logins fail, and how to solve it",
        long: "Find out why logins fail, and how to solve it.\n\nLogs in with the kubeconfig in use, or that of --check-kubeconfig, without the cached credential of\nthe cluster, and checks each step: plugin, proxies, DNS, connection, certificate, clock, login, and\nthe user that the cluster authenticates. Then reads the Concierge's pods, CredentialIssuer,\nauthenticators and their webhooks, Secrets and Services with the permissions of the kubeconfig in\nuse. A check that your permissions do not allow is reported and skipped. Root causes are printed\nfirst, and problems that follow from them are marked.\n\nA step that --timeout ends is reported with the others. Exits with 0 without problems, 1 with\nproblems, and 2 if the checks could not be made. Warnings do not count as problems.",
        examples: &[
            ("Check the cluster and your login", "pinniped doctor"),
            ("Check the kubeconfig of a user", "pinniped doctor --check-kubeconfig team.yaml"),
            ("For programs", "pinniped doctor --output json"),
        ],
        action: Some(Action::Doctor),
        flags: &DOCTOR,
        ..CommandSpec::EMPTY
    },
    CommandSpec {
        name: "explain",
        short: "Explain a condition, a reason or an error text",
        long: "Explain a condition, a reason or an error text.\n\nPrints the meaning of a type or reason in the status of a CredentialIssuer or an authenticator, of a\nmessage of a strategy, or of an error of this program, and what you can do. Without an argument, it\nlists the topics. It needs no cluster.",
        examples: &[
            ("List the topics", "pinniped explain"),
            ("Explain the reason of a strategy", "pinniped explain CouldNotFetchKey"),
            ("Explain an error text", "pinniped explain \"login failed: authentication failed\""),
        ],
        action: Some(Action::Explain),
        takes_words: true,
        ..CommandSpec::EMPTY
    },
    CommandSpec {
        name: "generate-man",
        short: "Write the manual pages of this CLI into a directory",
        hidden: true,
        action: Some(Action::Man),
        takes_words: true,
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
        examples: &[(
            "Create a kubeconfig for the users of a cluster",
            "pinniped get kubeconfig --output team.yaml",
        )],
        children: &GET,
        ..CommandSpec::EMPTY
    },
    CommandSpec {
        name: "help",
        short: "Help about any command",
        examples: &[("Print the help of a command", "pinniped help get kubeconfig")],
        action: Some(Action::Help),
        takes_words: true,
        ..CommandSpec::EMPTY
    },
    CommandSpec {
        name: "kubectl",
        short: "Run kubectl with the impersonation headers of your login",
        long: "Run kubectl with the impersonation headers of your login.\n\nLogs in with the credential plugin of the kubeconfig, then runs kubectl with a temporary kubeconfig\nthat contains the identity to impersonate. All arguments after `--` are passed to kubectl:\n\n\tpinniped kubectl -- get pods --all-namespaces\n\nIf the cluster requires no headers, and for `kubectl config`, kubectl runs with the original\nkubeconfig.",
        examples: &[("List the pods of all namespaces", "pinniped kubectl -- get pods --all-namespaces")],
        action: Some(Action::Kubectl),
        takes_words: true,
        flags: &KUBECTL,
        ..CommandSpec::EMPTY
    },
    CommandSpec {
        name: "login",
        short: "Log in to a cluster as kubectl's exec plugin: oidc, static, token",
        examples: &[
            (
                "Log in at an OpenID Connect provider",
                "pinniped login oidc --issuer https://issuer.example.com",
            ),
            ("Use the token in an environment variable", "pinniped login static --token-env TOKEN"),
            ("Use the token of the pod", "pinniped login token --from kubernetes"),
        ],
        children: &LOGIN,
        ..CommandSpec::EMPTY
    },
    CommandSpec {
        name: "logout",
        short: "Remove sessions and cached credentials of your logins",
        long: "Remove sessions and cached credentials of your logins.\n\nRemoves the tokens of the user's session, and the credentials that come from it, from the caches of\nthis program, and from the keyring if the login uses it; --all also removes the refresh tokens that\nearlier logins stored in the keyring. The session of your browser at the issuer does not end. If the\nissuer offers it, the refresh token is revoked (RFC 7009); the output reports whether it was. A\ncluster credential that another program already has stays valid until it expires, usually within\nfive minutes.",
        examples: &[
            ("Log out of the current context", "pinniped logout"),
            ("Remove everything from the caches", "pinniped logout --all"),
        ],
        action: Some(Action::Logout),
        flags: &LOGOUT,
        ..CommandSpec::EMPTY
    },
    CommandSpec {
        name: "proxy",
        short: "Serve the cluster on this machine for clients that cannot impersonate",
        long: "Serve the cluster on 127.0.0.1, for clients of any kind. Each request is forwarded with the service\naccount token of your login and with your identity in impersonation headers. Prints a kubeconfig for\nthese clients, which is valid while the command runs.\n\nCreate the kubeconfig of your login with `pinniped get kubeconfig` and the flags\n`--concierge-mode ServiceAccountToken --impersonation-delivery proxy`.",
        examples: &[(
            "Serve the cluster, and write a kubeconfig for clients",
            "pinniped proxy --output local.yaml",
        )],
        action: Some(Action::Proxy),
        flags: &PROXY,
        ..CommandSpec::EMPTY
    },
    CommandSpec {
        name: "status",
        short: "Print logins, credentials and sessions of the contexts",
        long: "Print logins, credentials and sessions of the contexts of the kubeconfig.\n\nReads the kubeconfig and the caches of this program, and searches the keyring for the refresh tokens\nthat are stored there; no request is sent, unless --check is given.",
        examples: &[
            ("Print all contexts", "pinniped status"),
            ("Also see whether each login works", "pinniped status --check"),
            ("For programs", "pinniped status --output json"),
        ],
        action: Some(Action::Status),
        flags: &STATUS,
        ..CommandSpec::EMPTY
    },
    CommandSpec {
        name: "version",
        short: "Print the version of this Pinniped CLI",
        examples: &[
            ("Print the version only", "pinniped version"),
            ("Print all information about the build", "pinniped version --output json"),
        ],
        action: Some(Action::Version),
        flags: &VERSION,
        ..CommandSpec::EMPTY
    },
    CommandSpec {
        name: "whoami",
        short: "Print information about the current user",
        examples: &[
            ("Print the user of the current context", "pinniped whoami"),
            ("With UID, extra attributes and the end of the credential", "pinniped whoami --output wide"),
            ("For another context", "pinniped whoami --kubeconfig-context production"),
        ],
        action: Some(Action::WhoAmI),
        flags: &WHOAMI,
        ..CommandSpec::EMPTY
    },
];

const fn root(name: &'static str) -> CommandSpec {
    CommandSpec {
        name,
        short: "Log in to Kubernetes clusters with one identity",
        long: "The Pinniped CLI is a kubectl exec plugin and a helper for it: it writes kubeconfigs that\nlog in to Kubernetes clusters through the Pinniped Concierge.",
        examples: &[
            ("Create a kubeconfig for the users of a cluster", "pinniped get kubeconfig --output team.yaml"),
            ("Print the user that the cluster authenticates", "pinniped whoami"),
            ("Find out why a login fails", "pinniped doctor"),
        ],
        flags: &ROOT_FLAGS,
        children: &COMMANDS,
        ..CommandSpec::EMPTY
    }
}

/// The program.
pub static ROOT: CommandSpec = root("pinniped");

/// The program as a plugin of kubectl.
static PLUGIN_ROOT: CommandSpec = root("kubectl pinniped");

/// Returns the program with the name by which users call it.
pub fn root_of(environment: &Environment) -> &'static CommandSpec {
    if environment.kubectl_plugin { &PLUGIN_ROOT } else { &ROOT }
}

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
