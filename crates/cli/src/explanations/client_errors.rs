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
    &["credential plugin that is not installed", "executable pinniped not found", "there is no program"],
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
        "identity-recorded",
        &["identity recorded in"],
        "The first login with a service account token wrote your identity into the kubeconfig.",
        "run the command again",
    ),
    error(
        "identity-changed",
        &["your identity or group membership changed"],
        "Your user or its groups are not those of the last login, so the kubeconfig was written again.",
        "run the command again",
    ),
    error(
        "impersonation-headers",
        &["this cluster requires impersonation headers"],
        "The login returns a service account token. The program that sends it does not send the headers with your \
         identity.",
        "run the command that the message names: pinniped kubectl, or pinniped proxy",
    ),
    error(
        "token-callback",
        &["timed out waiting for token callback"],
        "The browser did not return to this program in time. The browser may be on another machine.",
        "log in again; without a browser on this machine, use --flow device (--oidc-flow device of `pinniped get \
         kubeconfig`)",
    ),
    error(
        "no-display",
        &["this is an SSH session without a display"],
        "There is no browser on this machine.",
        "use --flow device (--oidc-flow device of `pinniped get kubeconfig`), or copy the URL into a browser here",
    ),
    error(
        "plugin-timeout",
        &["the plugin did not finish within"],
        "The credential plugin of the kubeconfig waits for something. This may be a login in a browser, or a server that \
         does not respond.",
        "run the plugin of the user alone to see for what it waits, or use a longer --timeout",
    ),
    error(
        "nonce",
        &["received ID token with invalid nonce"],
        "The response of the issuer belongs to another login.",
        "log in again",
    ),
    error(
        "keyring-locked",
        &["the keyring is locked", "the keyring was not unlocked"],
        "The keyring of the operating system, which holds the refresh token, is locked.",
        "unlock the keyring, or set PINNIPED_REFRESH_TOKEN_STORE=file to store refresh tokens in the session cache",
    ),
    error(
        "proxy-connection",
        &["proxyconnect tcp"],
        "The proxy between this machine and the server does not respond.",
        "see whether the proxy runs, or correct HTTPS_PROXY and NO_PROXY",
    ),
    error(
        "no-such-host",
        &["no such host", "server misbehaving"],
        "The name of a server has no address.",
        "see the DNS settings of this machine, and whether it needs a VPN",
    ),
    error(
        "connection-refused",
        &["connection refused"],
        "No program listens at the address. The server does not run, or the port is wrong.",
        "see whether the server runs, and whether the address is right",
    ),
    error(
        "certificate-expired",
        &["certificate has expired or is not yet valid"],
        "The certificate of a server is not valid at this time. It was not renewed, or the clock of this machine is \
         wrong.",
        "compare the clock of this machine with the time; otherwise, the administrator of the server has to renew \
         the certificate",
    ),
    error(
        "certificate-for-another-name",
        &[
            "x509: certificate is valid for",
            "x509: certificate is not valid for any names",
            "because it doesn't contain any IP SANs",
        ],
        "The certificate of a server is for another name than that of the address. The address may be wrong, or \
         another server responds.",
        "use one of the names of the certificate, or let the administrator issue it for this name",
    ),
    error(
        "authentication-failed",
        &["authentication failed"],
        "The authenticator does not accept the token, or its webhook does not respond. The Concierge does not report \
         the cause to clients; its log has it.",
        "the authenticator does not accept the token, or its webhook does not respond: see whether the token is right \
         and valid, whether the kubeconfig names the right authenticator, and the Concierge's log: kubectl logs \
         --namespace pinniped-concierge --selector deployment.pinniped.dev=concierge --tail=-1",
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
    error(
        "login-failed-with-code",
        &["login failed with code"],
        "The identity provider refused the request of the login. The code is the provider's (RFC 6749, section \
         4.1.2.1).",
        "see the code; for invalid_scope, use --scopes (--oidc-scopes of `pinniped get kubeconfig`) with scopes that \
         the provider allows",
    ),
    error("interrupted", &["interrupted"], "The user interrupted the login.", "log in again"),
    error(
        "session-ended",
        &["the session has ended"],
        "The session cannot be refreshed any more, and a new login needs the user.",
        "log in again",
    ),
    error(
        "workload-token",
        &["could not log in with the token of this workload"],
        "The token of the CI job or the pod cannot be read, or was not accepted.",
        "compare `aud` and `iss` of the token with the JWTAuthenticator",
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
    error(
        "no-kubeconfig",
        &["no kubeconfig found"],
        "The command needs a kubeconfig, and there is none.",
        "set KUBECONFIG, or pass --kubeconfig",
    ),
    error(
        "several-credential-issuers",
        &["multiple CredentialIssuers were found", "there are several CredentialIssuers"],
        "The cluster has several installations of the Concierge.",
        "name the CredentialIssuer with --concierge-credential-issuer",
    ),
    error(
        "several-authenticators",
        &["multiple authenticators were found"],
        "The cluster has several authenticators.",
        "name one with --concierge-authenticator-type and --concierge-authenticator-name",
    ),
    error(
        "kubeconfig-without-ca",
        &["invalid kubeconfig (no certificateAuthorityData)"],
        "The cluster entry of the kubeconfig has no CA bundle, which the new kubeconfig needs.",
        "use a kubeconfig with certificate-authority-data",
    ),
    error(
        "issuer-ca",
        &["tried to autodiscover --oidc-ca-bundle"],
        "The CA bundle of the JWTAuthenticator's issuer cannot be read.",
        "correct spec.tls of the JWTAuthenticator, or pass --oidc-ca-bundle",
    ),
    error(
        "proxy-login",
        &["pinniped proxy could not log in"],
        "The login of the running `pinniped proxy` does not work any more; the rest of the text has the cause.",
        DOCTOR,
    ),
    error(
        "clocks",
        &["the clock of this machine is"],
        "The clocks of this machine and of the cluster differ. Credentials are valid for minutes, so they may be \
         invalid.",
        "synchronize the clocks, for example with NTP",
    ),
    error(
        "untrusted-certificate",
        &["does not trust the certificate of"],
        "The kubeconfig has another CA than that of the server. The cluster has a new CA, or another server responds.",
        REGENERATE,
    ),
    error(
        "tls-terminated",
        &["does not request a client certificate"],
        "A server in front of the impersonation proxy terminates TLS. Requests arrive without the client certificate, \
         as those of system:anonymous.",
        "let the ingress pass TLS through, as virtualhost.tls.passthrough of an HTTPProxy does",
    ),
    NO_CONCIERGE,
    NO_AUTHENTICATOR,
    NO_CONTEXT,
    NO_PLUGIN,
    TIMEOUT,
    LOGIN_FAILED,
    error(
        "login-refused",
        &["login failed: "],
        "The Concierge did not issue a credential; the rest of the text has the cause.",
        DOCTOR,
    ),
];
