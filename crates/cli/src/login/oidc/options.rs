//! The options of an OIDC login, from the flags of `login oidc` and the environment.

use std::path::Path;
use std::sync::Arc;

use pinniped_go_compat::base64::{self as gobase64, CorruptInput};
use pinniped_go_compat::io::GoIoError;
use pinniped_http_client::tcp_dialer::TcpDialer;
use pinniped_pki::CaBundle;
use pinniped_pki::tls::Roots;
use pinniped_secret::SecretString;

use super::browser::Browser;
use crate::bounded_file;
use crate::default_scopes;
use crate::environment::{
    Environment, PINNIPED_PASSWORD, PINNIPED_REFRESH_TOKEN_STORE, PINNIPED_SKIP_PRINT_LOGIN_URL,
    PINNIPED_UPSTREAM_IDENTITY_PROVIDER_FLOW, PINNIPED_USERNAME,
};
use crate::flags::tree::{DEFAULT_CLIENT_ID, DEFAULT_SCOPES};
use crate::flags::value::UnknownStore;
use crate::flags::{LoginFlow, Parsed, RefreshTokenStore, Value};
use crate::login::keyring::{Keyring, Unlock};
use crate::login::session_cache::{SessionCache, SessionKey};
use crate::printer::Printer;

/// The path of the redirect URI.
pub(super) const CALLBACK_PATH: &str = "/callback";
/// The flag that selects the flow of a Supervisor's identity provider.
const PROVIDER_FLOW_FLAG: &str = "--upstream-identity-provider-flow";

/// The options are invalid.
#[derive(Debug, thiserror::Error)]
pub enum OidcOptionsError {
    /// A CA file cannot be read.
    #[error("could not read --ca-bundle: open {path}")]
    CaBundle {
        /// The file.
        path: String,
        /// The failed call.
        #[source]
        source: GoIoError,
    },
    /// A CA bundle is not base64.
    #[error("could not read --ca-bundle-data")]
    CaBundleData(#[from] CorruptInput),
    /// The default path of the session cache is not known.
    #[error(
        "could not find the session cache: neither XDG_CONFIG_HOME nor HOME is set, \
         set one of them or use --session-cache"
    )]
    NoCachePath,
    /// The variable names no store of refresh tokens.
    #[error("{PINNIPED_REFRESH_TOKEN_STORE}")]
    RefreshTokenStore(#[from] UnknownStore),
}

/// The identity provider of a Supervisor. All parts are empty for other issuers.
#[derive(Clone, Debug, Default)]
pub(super) struct UpstreamProvider {
    pub(super) name: String,
    pub(super) type_: String,
    /// The requested flow; empty if the Supervisor determines it.
    pub(super) flow: String,
    /// The flag or environment variable with the flow, for messages.
    pub(super) flow_source: &'static str,
}

/// The options.
#[derive(Clone, Debug)]
pub(super) struct OidcOptions {
    pub(super) issuer: String,
    pub(super) client_id: String,
    pub(super) client_secret: SecretString,
    /// The scopes of the flag or its default, sorted as in upstream's requests and session keys,
    /// and each once. [`OidcOptions::requested_scopes`] returns those of the request.
    pub(super) scopes: Vec<String>,
    /// Whether the scopes are the default.
    pub(super) has_default_scopes: bool,
    pub(super) listen_port: u16,
    pub(super) skip_browser: bool,
    pub(super) skip_listen: bool,
    pub(super) skip_print_login_url: bool,
    pub(super) request_audience: String,
    pub(super) flow: LoginFlow,
    pub(super) upstream: UpstreamProvider,
    /// CA certificates instead of those of the system, as PEM files.
    pub(super) ca: Option<Vec<Vec<u8>>>,
    pub(super) session_cache: Option<SessionCache>,
    /// The keyring with the refresh tokens of the session cache, if it has them.
    pub(super) keyring: Option<Keyring>,
    /// The reaction to a locked keyring of a user who may be involved.
    pub(super) unlock: Unlock,
    pub(super) debug_session_cache: bool,
    /// `PINNIPED_USERNAME` and `PINNIPED_PASSWORD`; empty if they are not set.
    pub(super) username: String,
    pub(super) password: SecretString,
    pub(super) browser: Arc<Browser>,
    pub(super) dialer: TcpDialer,
    /// The program that called this one as its plugin, if one did.
    pub(super) caller: Option<String>,
    /// Whether the user may be involved. Otherwise only a cached session is used.
    pub(super) interactive: bool,
}

impl OidcOptions {
    /// Reads the flags of `login oidc`.
    pub(super) fn new(
        parsed: &Parsed,
        environment: &Environment,
        printer: Printer,
    ) -> Result<Self, OidcOptionsError> {
        let mut scopes = match parsed.value("scopes") {
            Some(Value::Strings(scopes)) => scopes.clone(),
            _ => DEFAULT_SCOPES.split(',').map(str::to_owned).collect(),
        };
        scopes.sort();
        scopes.dedup();
        let session_cache = match parsed.given("session-cache") {
            Some(path) => path.to_owned(),
            None => environment.config_file("sessions.yaml").ok_or(OidcOptionsError::NoCachePath)?,
        };
        let session_cache = (!session_cache.is_empty()).then(|| SessionCache::new(session_cache));
        let keyring = match store_of(parsed, environment)? {
            RefreshTokenStore::File => None,
            RefreshTokenStore::Keyring => session_cache.as_ref().map(|cache| Keyring::of_cache(cache.path())),
        };
        Ok(Self {
            issuer: parsed.string("issuer"),
            client_id: parsed.string_or("client-id", DEFAULT_CLIENT_ID),
            client_secret: parsed.string("client-secret").into(),
            scopes,
            has_default_scopes: parsed.value("scopes").is_none(),
            listen_port: match parsed.value("listen-port") {
                Some(Value::Uint16(port)) => *port,
                _ => 0,
            },
            skip_browser: parsed.bool("skip-browser"),
            skip_listen: parsed.bool("skip-listen"),
            skip_print_login_url: environment.variable(PINNIPED_SKIP_PRINT_LOGIN_URL) == Some("true"),
            request_audience: parsed.string("request-audience"),
            flow: match parsed.value("flow") {
                Some(Value::LoginFlow(flow)) => *flow,
                _ => LoginFlow::default(),
            },
            upstream: upstream(parsed, environment),
            ca: ca(parsed)?,
            session_cache,
            keyring,
            unlock: Unlock::for_user(environment, printer),
            debug_session_cache: parsed.bool("debug-session-cache"),
            username: environment.non_empty(PINNIPED_USERNAME).unwrap_or_default().to_owned(),
            password: environment.non_empty(PINNIPED_PASSWORD).unwrap_or_default().into(),
            browser: Arc::new(Browser::new(environment)),
            dialer: TcpDialer::new(environment),
            caller: environment.plugin_caller(),
            interactive: true,
        })
    }

    /// Returns the scopes to request from an issuer that lists these, and the default scopes that
    /// are omitted. A Supervisor gets all default scopes, as from upstream.
    pub(super) fn requested_scopes(
        &self,
        is_supervisor: bool,
        supported: &[String],
    ) -> (Vec<String>, Vec<String>) {
        let mut scopes = self.scopes.clone();
        let omitted = match self.has_default_scopes && !is_supervisor {
            true => default_scopes::remove_unlisted(&mut scopes, supported),
            false => Vec::new(),
        };
        (scopes, omitted)
    }

    /// Returns the key of the session in the cache. It contains the configured scopes, not
    /// those of the request, because a cached session is found before the issuer is contacted.
    pub(super) fn session_key(&self) -> SessionKey {
        SessionKey {
            issuer: self.issuer.clone(),
            client_id: self.client_id.clone(),
            scopes: self.scopes.clone(),
            redirect_uri: format!("http://localhost:{}{CALLBACK_PATH}", self.listen_port),
            upstream_provider_name: self.upstream.name.clone(),
        }
    }

    /// Returns the reaction to a locked keyring.
    pub(super) fn unlock(&self) -> Unlock {
        if self.interactive { self.unlock } else { Unlock::Never }
    }

    /// Returns the roots for the issuer. Text that is not a certificate is ignored, as upstream
    /// does.
    pub(super) fn roots(&self) -> Roots {
        let Some(files) = &self.ca else { return Roots::System };
        let bundles = files.iter().filter_map(|pem| CaBundle::from_pem(pem).ok());
        let ders = bundles.flat_map(|bundle| bundle.ders().to_vec()).collect();
        Roots::Bundle(CaBundle::from_ders(ders))
    }
}

/// Returns the store of refresh tokens. The variable replaces the flag, so that a user can select
/// another store for the kubeconfig of an administrator.
fn store_of(parsed: &Parsed, environment: &Environment) -> Result<RefreshTokenStore, UnknownStore> {
    match (environment.non_empty(PINNIPED_REFRESH_TOKEN_STORE), parsed.value("refresh-token-store")) {
        (Some(text), _) => text.parse(),
        (None, Some(Value::RefreshTokenStore(store))) => Ok(*store),
        (None, _) => Ok(RefreshTokenStore::default()),
    }
}

fn upstream(parsed: &Parsed, environment: &Environment) -> UpstreamProvider {
    let (flow, flow_source) = match environment.variable(PINNIPED_UPSTREAM_IDENTITY_PROVIDER_FLOW) {
        Some(flow) => (flow.to_owned(), PINNIPED_UPSTREAM_IDENTITY_PROVIDER_FLOW),
        None => (parsed.string("upstream-identity-provider-flow"), PROVIDER_FLOW_FLAG),
    };
    UpstreamProvider {
        name: parsed.string("upstream-identity-provider-name"),
        type_: parsed.string_or("upstream-identity-provider-type", "oidc"),
        flow,
        flow_source,
    }
}

fn ca(parsed: &Parsed) -> Result<Option<Vec<Vec<u8>>>, OidcOptionsError> {
    let list = |name| match parsed.value(name) {
        Some(Value::Strings(all)) => all.clone(),
        _ => Vec::new(),
    };
    let (paths, data) = (list("ca-bundle"), list("ca-bundle-data"));
    if paths.is_empty() && data.is_empty() {
        return Ok(None);
    }
    let mut all = Vec::new();
    for path in paths {
        let pem = bounded_file::read(Path::new(&path));
        all.push(pem.map_err(|error| OidcOptionsError::CaBundle { path, source: error.into() })?);
    }
    for data in data {
        all.push(gobase64::decode(data.as_bytes())?);
    }
    Ok(Some(all))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use pinniped_error::chain;

    use super::*;
    use crate::flags::parse::ParseResult;
    use crate::flags::{parse, tree::ROOT};
    use crate::platform::NEEDS_DISPLAY;
    use crate::printer::Level;

    fn options(flags: &[&str], variables: &[(&str, &str)]) -> Result<OidcOptions, String> {
        let args: Vec<String> = ["login", "oidc", "--issuer=https://i"]
            .iter()
            .chain(flags)
            .map(|word| (*word).to_owned())
            .collect();
        let ParseResult::Run(parsed) = parse(&ROOT, &args) else { panic!("{args:?}") };
        let variables: HashMap<String, String> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        OidcOptions::new(&parsed, &Environment::new(args, variables), Printer::new(Level::Warning))
            .map_err(|error| chain(&error).to_string())
    }

    const HOME: (&str, &str) = ("HOME", "/h");

    #[test]
    fn the_session_key_has_sorted_scopes_and_the_requested_port() {
        let key = options(&["--scopes=z,openid,a", "--listen-port=1234"], &[HOME]).unwrap().session_key();
        assert_eq!(key.scopes, ["a", "openid", "z"]);
        // A scope that is given twice is sent once, and does not need a session of its own.
        let twice = options(&["--scopes=z,openid,z,a", "--scopes=openid"], &[HOME]).unwrap();
        assert_eq!(
            (twice.scopes.as_slice(), twice.session_key().scopes),
            (&key.scopes[..], key.scopes.clone())
        );
        assert_eq!(key.redirect_uri, "http://localhost:1234/callback");
        let key = options(&["--upstream-identity-provider-name=n"], &[HOME]).unwrap().session_key();
        assert_eq!(
            key.scopes,
            ["groups", "offline_access", "openid", "pinniped:request-audience", "username"]
        );
        assert_eq!(
            (key.redirect_uri.as_str(), key.upstream_provider_name.as_str()),
            ("http://localhost:0/callback", "n")
        );
    }

    #[test]
    fn only_default_scopes_depend_on_the_issuer_and_the_session_key_does_not() {
        let supported = ["openid", "groups"].map(str::to_owned);
        let default = options(&[], &[HOME]).unwrap();
        let all = ["groups", "offline_access", "openid", "pinniped:request-audience", "username"];
        assert_eq!(
            default.requested_scopes(false, &supported),
            (
                ["groups", "openid"].map(str::to_owned).to_vec(),
                ["offline_access", "pinniped:request-audience", "username"].map(str::to_owned).to_vec()
            )
        );
        assert_eq!(default.requested_scopes(true, &supported), (all.map(str::to_owned).to_vec(), Vec::new()));
        // The same scopes, but requested.
        let requested = options(&[&format!("--scopes={}", all.join(","))], &[HOME]).unwrap();
        assert_eq!(
            requested.requested_scopes(false, &supported),
            (all.map(str::to_owned).to_vec(), Vec::new())
        );
        assert_eq!(default.session_key(), requested.session_key());
        assert_eq!(default.session_key().scopes, all);
    }

    #[test]
    fn the_variable_with_the_flow_replaces_the_flag_even_if_it_is_empty() {
        let flag = "--upstream-identity-provider-flow=cli_password";
        let name = "PINNIPED_UPSTREAM_IDENTITY_PROVIDER_FLOW";
        for (variables, flow, source) in [
            (&[HOME][..], "cli_password", PROVIDER_FLOW_FLAG),
            (&[HOME, (name, "")], "", name),
            (&[HOME, (name, "x")], "x", name),
        ] {
            let upstream = options(&[flag], variables).unwrap().upstream;
            assert_eq!((upstream.flow.as_str(), upstream.flow_source), (flow, source));
        }
    }

    #[test]
    fn caches_may_be_disabled_and_need_no_home_then() {
        let cache = |flags: &[&str], variables: &[(&str, &str)]| {
            let options = options(flags, variables)?;
            Ok::<_, String>(options.session_cache.map(|cache| cache.path().to_string_lossy().into_owned()))
        };
        assert_eq!(cache(&[], &[HOME]), Ok(Some("/h/.config/pinniped/sessions.yaml".to_owned())));
        assert_eq!(cache(&["--session-cache=/s"], &[]), Ok(Some("/s".to_owned())));
        assert_eq!(cache(&["--session-cache="], &[]), Ok(None));
        assert!(cache(&[], &[]).unwrap_err().starts_with("could not find the session cache: "));
    }

    #[test]
    fn refresh_tokens_are_in_the_keyring_only_if_the_flag_or_the_variable_selects_it() {
        let flag = "--refresh-token-store=keyring";
        let name = "PINNIPED_REFRESH_TOKEN_STORE";
        for (flags, variables, is_keyring) in [
            (&[][..], &[HOME][..], false),
            (&[flag], &[HOME], true),
            (&[flag], &[HOME, (name, "")], true),
            (&[flag], &[HOME, (name, "file")], false),
            (&[], &[HOME, (name, "keyring")], true),
            // Without a session cache, no session is stored.
            (&[flag, "--session-cache="], &[HOME], false),
        ] {
            let keyring = options(flags, variables).unwrap().keyring;
            let expected =
                is_keyring.then(|| Keyring::of_cache(Path::new("/h/.config/pinniped/sessions.yaml")));
            assert_eq!(keyring, expected, "{flags:?} {variables:?}");
        }
        assert_eq!(
            options(&[], &[HOME, (name, "auto")]).unwrap_err(),
            "PINNIPED_REFRESH_TOKEN_STORE: invalid store \"auto\", valid stores are file and keyring"
        );
    }

    #[test]
    fn only_a_user_who_is_involved_and_sees_dialogs_unlocks_the_keyring() {
        for (variables, interactive, asks) in [
            (&[HOME, ("DISPLAY", ":0")][..], true, true),
            (&[HOME, ("WAYLAND_DISPLAY", "w")], true, true),
            (&[HOME, ("DISPLAY", ":0")], false, false),
            (&[HOME], true, !NEEDS_DISPLAY),
        ] {
            let options = OidcOptions { interactive, ..options(&[], variables).unwrap() };
            let unlock = options.unlock();
            assert_eq!(matches!(unlock, Unlock::AskUser(_)), asks, "{variables:?} {interactive}");
        }
    }

    #[test]
    fn certificates_are_read_and_other_text_is_ignored() {
        assert_eq!(options(&[], &[HOME]).unwrap().roots(), Roots::System);
        let garbage = options(&["--ca-bundle-data=aGVsbG8="], &[HOME]).unwrap().roots();
        assert!(matches!(garbage, Roots::Bundle(bundle) if bundle.is_empty()));
        for (flag, error) in [
            ("--ca-bundle-data=a", "could not read --ca-bundle-data: illegal base64 data at input byte 0"),
            ("--ca-bundle=/no/file", "could not read --ca-bundle: open /no/file: no such file or directory"),
        ] {
            assert_eq!(options(&[flag], &[HOME]).unwrap_err(), error);
        }
    }
}
