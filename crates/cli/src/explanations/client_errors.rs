//! The errors of this program. `pinniped doctor` prints the remedy of the first row with a text
//! that is part of the error of a login, and the program prints the remedies of some after the
//! error.

use super::{Explanation, Kind};

const fn error(
    topic: &'static str,
    texts: &'static [&'static str],
    meaning: &'static str,
    remedy: &'static str,
) -> Explanation {
    Explanation { topic, kind: Kind::Error, meaning, remedy, texts }
}

/// The remedy of a kubeconfig that does not fit the cluster any more.
pub const REGENERATE: &str = "create the kubeconfig again: pinniped get kubeconfig";
/// The remedy of an error for which the doctor finds the cause.
pub const DOCTOR: &str = "pinniped doctor, which finds the cause";

/// The cluster does not serve the Concierge's API.
pub const NO_CONCIERGE: Explanation = error(
    "no-concierge",
    &[
        "no CredentialIssuers were found",
        "is the Pinniped WhoAmI API running and healthy?",
        "failed to list CredentialIssuer objects for autodiscovery: the server could not find the requested resource",
    ],
    "The cluster has no Concierge, or its API groups have another suffix.",
    "install the Concierge, or name its API groups with --concierge-api-group-suffix",
);
/// The cluster has no authenticator.
pub const NO_AUTHENTICATOR: Explanation = error(
    "no-authenticator",
    &["no authenticators were found"],
    "The cluster has no authenticator, so the Concierge accepts no token.",
    "create a WebhookAuthenticator or a JWTAuthenticator",
);
/// The context does not exist.
pub const NO_CONTEXT: Explanation = error(
    "no-such-context",
    &["no such context", "no configuration has been provided"],
    "The kubeconfig does not have the context, or has no current context.",
    "kubectl config get-contexts, which lists the contexts",
);
/// The plugin does not exist.
pub const NO_PLUGIN: Explanation = error(
    "plugin-not-found",
    &["credential plugin that is not installed", "there is no program"],
    "The program that the user entry of the kubeconfig runs does not exist on this machine.",
    "install the program, or correct `command` of the user in the kubeconfig",
);
/// The time limit has elapsed.
pub const TIMEOUT: Explanation = error(
    "timeout",
    &["context deadline exceeded"],
    "A server did not respond in time, or the user did not log in in time.",
    "a longer --timeout",
);
/// The login failed.
pub const LOGIN_FAILED: Explanation = error(
    "login-failed",
    &["could not complete Pinniped login", "could not complete Concierge credential exchange"],
    "The login failed; the rest of the text has the cause.",
    "run the command again; `pinniped doctor` finds the cause of a failed login",
);

/// The rows for failed logins, more specific texts first.
pub const OF_LOGINS: &[Explanation] = &[
    error(
        "authentication-failed",
        &["authentication failed"],
        "The authenticator does not accept the token. The Concierge does not report the cause to clients; its log has \
         it.",
        "the authenticator does not accept the token: see whether the token is right and valid, and whether the \
         kubeconfig names the right authenticator",
    ),
    error(
        "token-variable",
        &["is not set", "is empty"],
        "The environment variable with the token does not exist or is empty.",
        "set the environment variable",
    ),
    error(
        "token-missing",
        &["one of --token or --token-env"],
        "The plugin of the kubeconfig has no token.",
        REGENERATE,
    ),
    error(
        "concierge-parameters",
        &["invalid Concierge parameters"],
        "The plugin of the kubeconfig has a flag that is not valid.",
        REGENERATE,
    ),
    error(
        "unknown-authority",
        &["certificate signed by unknown authority"],
        "The kubeconfig has another CA than that of the server. The cluster has a new CA, or another server responds.",
        REGENERATE,
    ),
    error(
        "oidc-discovery",
        &["could not perform OIDC discovery"],
        "The issuer does not respond with its discovery document.",
        "see whether the issuer is reachable from here and its certificate is valid",
    ),
    error(
        "access-denied",
        &["access_denied"],
        "The identity provider refused the login, or the user cancelled it.",
        "log in again; the identity provider refused this login",
    ),
    error("interrupted", &["interrupted"], "The user interrupted the login.", "log in again"),
    error(
        "session-ended",
        &["the session has ended"],
        "The session cannot be refreshed any more, and a new login needs the user.",
        "log in again",
    ),
];

/// The other rows, more specific texts first.
pub const OTHERS: &[Explanation] = &[
    error(
        "unauthorized",
        &["Unauthorized", "You must be logged in to the server"],
        "The API server does not accept the credential: it is expired, or of another cluster.",
        DOCTOR,
    ),
    error(
        "no-working-strategy",
        &["could not autodiscover --concierge-mode", "could not find successful Concierge strategy"],
        "No strategy of the CredentialIssuer works, so there is nothing for a kubeconfig to use.",
        DOCTOR,
    ),
    error(
        "merge-clash",
        &["choose another name with --context"],
        "The kubeconfig has an entry of the same name that leads elsewhere.",
        "another name with --context, or --overwrite to replace the entry",
    ),
    error(
        "locked-kubeconfig",
        &["is locked by another program"],
        "Another program changes the kubeconfig, or was killed while it did. kubectl and this program hold the lock \
         for a moment only.",
        "if no other program runs, remove the file that ends in .lock",
    ),
    NO_CONCIERGE,
    NO_AUTHENTICATOR,
    NO_CONTEXT,
    NO_PLUGIN,
    TIMEOUT,
    LOGIN_FAILED,
];
