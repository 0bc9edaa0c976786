//! Flag values: a parser for each kind.

use std::fmt;
use std::path::Path;

use pinniped_concierge_api::login::CredentialType;
use pinniped_concierge_domain::identity_digest::{IdentityDigest, NotADigest};
use pinniped_go_compat::duration::{DurationError, GoDuration};
use pinniped_go_compat::io::GoIoError;
use pinniped_go_compat::json::quote;
use pinniped_pki::CaBundle;

use crate::bounded_file;
use crate::printer::style::ColorChoice;

/// The kind of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    String,
    /// `true` when given without a value.
    Bool,
    /// Comma-separated; the first use replaces the default, later uses append.
    Strings,
    /// 0..=65535, in Go's number syntax.
    Uint16,
    /// Go duration syntax.
    Duration,
    /// A mode to reach the Concierge.
    Mode,
    /// A kind of cluster credential.
    CredentialType,
    /// A method to add impersonation headers to requests.
    Delivery,
    /// The digest of an identity.
    Identity,
    /// A flow of the OIDC login.
    LoginFlow,
    /// A store of refresh tokens.
    RefreshTokenStore,
    /// A source of a workload's token.
    WorkloadTokenSource,
    /// The path of a PEM file, which is read immediately; repeatable.
    CaBundle,
    /// The use of colors.
    Color,
}

impl Kind {
    /// Returns the type name that help prints after the flag's name.
    pub fn type_name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Bool => "",
            Self::Strings => "strings",
            Self::Uint16 => "uint16",
            Self::Duration => "duration",
            Self::Mode => "mode",
            Self::CredentialType => "type",
            Self::Delivery => "delivery",
            Self::Identity => "digest",
            Self::LoginFlow => "flow",
            Self::RefreshTokenStore => "store",
            Self::WorkloadTokenSource => "source",
            Self::CaBundle => "path",
            Self::Color => "when",
        }
    }

    /// Returns the values of a kind that has a fixed number of them, for completion.
    pub fn values(self) -> Vec<&'static str> {
        match self {
            Self::Mode => vec!["TokenCredentialRequestAPI", "ImpersonationProxy", "ServiceAccountToken"],
            Self::CredentialType => vec![CLIENT_CERTIFICATE, SERVICE_ACCOUNT_TOKEN],
            Self::Delivery => Delivery::ALL.map(Delivery::as_str).to_vec(),
            Self::LoginFlow => vec![LoginFlow::Browser.as_str(), LoginFlow::Device.as_str()],
            Self::RefreshTokenStore => RefreshTokenStore::ALL.map(RefreshTokenStore::as_str).to_vec(),
            Self::WorkloadTokenSource => WorkloadTokenSource::ALL.map(WorkloadTokenSource::as_str).to_vec(),
            Self::Color => ColorChoice::ALL.map(ColorChoice::as_str).to_vec(),
            Self::String
            | Self::Bool
            | Self::Strings
            | Self::Uint16
            | Self::Duration
            | Self::Identity
            | Self::CaBundle => Vec::new(),
        }
    }
}

/// The value of a flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// [`Kind::String`].
    String(String),
    /// [`Kind::Bool`].
    Bool(bool),
    /// [`Kind::Strings`].
    Strings(Vec<String>),
    /// [`Kind::Uint16`].
    Uint16(u16),
    /// [`Kind::Duration`].
    Duration(GoDuration),
    /// [`Kind::Mode`].
    Mode(ConciergeMode),
    /// [`Kind::CredentialType`].
    CredentialType(CredentialType),
    /// [`Kind::Delivery`].
    Delivery(Delivery),
    /// [`Kind::Identity`].
    Identity(IdentityDigest),
    /// [`Kind::LoginFlow`].
    LoginFlow(LoginFlow),
    /// [`Kind::RefreshTokenStore`].
    RefreshTokenStore(RefreshTokenStore),
    /// [`Kind::WorkloadTokenSource`].
    WorkloadTokenSource(WorkloadTokenSource),
    /// [`Kind::CaBundle`]: the files' bytes joined with a newline.
    CaBundle(Vec<u8>),
    /// [`Kind::Color`].
    Color(ColorChoice),
}

/// An invalid value of a flag. The texts of the first four are those of Go's `strconv`,
/// `encoding/csv` and `time`, which pflag passes on.
#[derive(Debug, thiserror::Error)]
pub enum ValueError {
    /// [`Kind::Bool`].
    #[error("strconv.ParseBool: parsing {}: invalid syntax", quote(.0))]
    Bool(String),
    /// [`Kind::Uint16`].
    #[error("strconv.ParseUint: parsing {}: {problem}", quote(.text))]
    Uint16 {
        /// The value.
        text: String,
        /// The problem.
        problem: &'static str,
    },
    /// [`Kind::Strings`].
    #[error("parse error on line 1, column {column}: {problem}")]
    Strings {
        /// The position in bytes, counted from 1.
        column: usize,
        /// The problem.
        problem: &'static str,
    },
    /// [`Kind::Duration`].
    #[error(transparent)]
    Duration(#[from] DurationError),
    /// [`Kind::Mode`].
    #[error(
        "invalid mode {}, valid modes are TokenCredentialRequestAPI and ImpersonationProxy \
         (and ServiceAccountToken, where the cluster offers it)",
        quote(.0)
    )]
    Mode(String),
    /// [`Kind::CredentialType`].
    #[error(
        "invalid credential type {}, valid types are {CLIENT_CERTIFICATE} and {SERVICE_ACCOUNT_TOKEN}",
        quote(.0)
    )]
    CredentialType(String),
    /// [`Kind::Delivery`].
    #[error(
        "invalid delivery {}, valid deliveries are auto, kubeconfig, wrapper, proxy and exec-headers",
        quote(.0)
    )]
    Delivery(String),
    /// [`Kind::Identity`].
    #[error(transparent)]
    Identity(#[from] NotADigest),
    /// [`Kind::LoginFlow`].
    #[error("invalid flow {}, valid flows are browser and device", quote(.0))]
    LoginFlow(String),
    /// [`Kind::RefreshTokenStore`].
    #[error(transparent)]
    RefreshTokenStore(#[from] UnknownStore),
    /// [`Kind::WorkloadTokenSource`].
    #[error(
        "invalid source {}, valid sources are file, env, github-actions, gitlab and kubernetes",
        quote(.0)
    )]
    WorkloadTokenSource(String),
    /// [`Kind::Color`].
    #[error("invalid value {}, valid values are auto, always and never", quote(.0))]
    Color(String),
    /// [`Kind::CaBundle`]: the file cannot be read.
    #[error("could not read CA bundle path: open {path}")]
    CaBundleFile {
        /// The file.
        path: String,
        /// The failed call.
        #[source]
        source: GoIoError,
    },
    /// [`Kind::CaBundle`]: the file has no certificate.
    #[error("failed to load any CA certificates from {}", quote(.0))]
    CaBundleEmpty(String),
}

impl Value {
    /// Parses `text` as `kind`; `previous` is the value of an earlier use of the same flag.
    ///
    /// # Errors
    ///
    /// Returns an error for an invalid value, or for a file that cannot be read.
    pub fn read(kind: Kind, text: &str, previous: Option<&Value>) -> Result<Value, ValueError> {
        Ok(match kind {
            Kind::String => Value::String(text.to_owned()),
            Kind::Bool => Value::Bool(parse_bool(text)?),
            Kind::Strings => {
                let mut all = match previous {
                    Some(Value::Strings(earlier)) => earlier.clone(),
                    _ => Vec::new(),
                };
                all.extend(parse_csv(text)?);
                Value::Strings(all)
            }
            Kind::Uint16 => Value::Uint16(parse_uint16(text)?),
            Kind::Duration => Value::Duration(GoDuration::parse(text)?),
            Kind::Mode => Value::Mode(ConciergeMode::parse(text)?),
            Kind::CredentialType => Value::CredentialType(parse_credential_type(text)?),
            Kind::Delivery => Value::Delivery(Delivery::parse(text)?),
            Kind::Identity => Value::Identity(text.parse()?),
            Kind::LoginFlow => Value::LoginFlow(LoginFlow::parse(text)?),
            Kind::RefreshTokenStore => Value::RefreshTokenStore(text.parse()?),
            Kind::WorkloadTokenSource => Value::WorkloadTokenSource(WorkloadTokenSource::parse(text)?),
            Kind::Color => Value::Color(
                ColorChoice::ALL
                    .into_iter()
                    .find(|choice| choice.as_str() == text)
                    .ok_or_else(|| ValueError::Color(text.to_owned()))?,
            ),
            Kind::CaBundle => {
                let mut all = match previous {
                    Some(Value::CaBundle(earlier)) => earlier.clone(),
                    _ => Vec::new(),
                };
                let pem = bounded_file::read(Path::new(text)).map_err(|error| ValueError::CaBundleFile {
                    path: text.to_owned(),
                    source: error.into(),
                })?;
                CaBundle::from_pem(&pem).map_err(|_| ValueError::CaBundleEmpty(text.to_owned()))?;
                if !all.is_empty() {
                    all.push(b'\n');
                }
                all.extend(pem);
                Value::CaBundle(all)
            }
        })
    }
}

/// The mode in which a generated kubeconfig reaches the Concierge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConciergeMode {
    /// The mode of the first successful strategy.
    #[default]
    Auto,
    /// The aggregated API of the cluster itself.
    TokenCredentialRequestApi,
    /// The impersonation proxy.
    ImpersonationProxy,
    /// The API server itself, with a service account token and impersonation headers. Never
    /// selected automatically, because not every kubectl and not every use of it sends the headers.
    ServiceAccountToken,
}

impl ConciergeMode {
    /// Returns whether this mode may be selected without a request by the user.
    pub fn may_be_discovered(self) -> bool {
        matches!(self, Self::TokenCredentialRequestApi | Self::ImpersonationProxy)
    }

    fn parse(text: &str) -> Result<Self, ValueError> {
        if text.is_empty() {
            Ok(Self::Auto)
        } else if text.eq_ignore_ascii_case("TokenCredentialRequestAPI") {
            Ok(Self::TokenCredentialRequestApi)
        } else if text.eq_ignore_ascii_case("ImpersonationProxy") {
            Ok(Self::ImpersonationProxy)
        } else if text.eq_ignore_ascii_case("ServiceAccountToken") {
            Ok(Self::ServiceAccountToken)
        } else {
            Err(ValueError::Mode(text.to_owned()))
        }
    }
}

impl fmt::Display for ConciergeMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto | Self::TokenCredentialRequestApi => "TokenCredentialRequestAPI",
            Self::ImpersonationProxy => "ImpersonationProxy",
            Self::ServiceAccountToken => "ServiceAccountToken",
        })
    }
}

/// The method that adds the headers that a service account token needs to each request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// Currently the same as [`Delivery::Kubeconfig`].
    #[default]
    Auto,
    /// The user entry of the kubeconfig contains the identity (`as`, `as-uid`, `as-groups`,
    /// `as-user-extra`).
    Kubeconfig,
    /// `pinniped kubectl` runs kubectl with a temporary kubeconfig.
    Wrapper,
    /// `pinniped proxy` adds them.
    Proxy,
    /// The plugin returns them to a kubectl that can send them.
    ExecHeaders,
}

impl Delivery {
    const ALL: [Self; 5] = [Self::Auto, Self::Kubeconfig, Self::Wrapper, Self::Proxy, Self::ExecHeaders];

    fn parse(text: &str) -> Result<Self, ValueError> {
        Self::ALL
            .into_iter()
            .find(|delivery| delivery.as_str() == text)
            .ok_or_else(|| ValueError::Delivery(text.to_owned()))
    }

    /// Returns the value of the flag.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Kubeconfig => "kubeconfig",
            Self::Wrapper => "wrapper",
            Self::Proxy => "proxy",
            Self::ExecHeaders => "exec-headers",
        }
    }
}

/// The method by which the user authorizes an OIDC login.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoginFlow {
    /// The authorization code flow, or the flow that the identity provider of a Supervisor prefers.
    #[default]
    Browser,
    /// The device authorization grant (RFC 8628).
    Device,
}

impl LoginFlow {
    fn parse(text: &str) -> Result<Self, ValueError> {
        let mut all = [Self::Browser, Self::Device].into_iter();
        all.find(|flow| flow.as_str() == text).ok_or_else(|| ValueError::LoginFlow(text.to_owned()))
    }

    /// Returns the value of the flag.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Browser => "browser",
            Self::Device => "device",
        }
    }
}

/// The place where the refresh token of an OIDC session is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RefreshTokenStore {
    /// The file of the session cache, which upstream's command line shares.
    #[default]
    File,
    /// The keyring of the operating system.
    Keyring,
}

/// A store of refresh tokens that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid store {}, valid stores are file and keyring", quote(.0))]
pub struct UnknownStore(String);

impl std::str::FromStr for RefreshTokenStore {
    type Err = UnknownStore;

    fn from_str(text: &str) -> Result<Self, UnknownStore> {
        let mut all = Self::ALL.into_iter();
        all.find(|store| store.as_str() == text).ok_or_else(|| UnknownStore(text.to_owned()))
    }
}

impl RefreshTokenStore {
    const ALL: [Self; 2] = [Self::File, Self::Keyring];

    /// Returns the value of the flag.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Keyring => "keyring",
        }
    }
}

/// The source of the token of a workload, such as a CI job or a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadTokenSource {
    /// A file.
    File,
    /// An environment variable.
    Env,
    /// The token service of GitHub Actions.
    GithubActions,
    /// An environment variable that a job of GitLab defines.
    Gitlab,
    /// The file with the token of a pod.
    Kubernetes,
}

impl WorkloadTokenSource {
    const ALL: [Self; 5] = [Self::File, Self::Env, Self::GithubActions, Self::Gitlab, Self::Kubernetes];

    fn parse(text: &str) -> Result<Self, ValueError> {
        let mut all = Self::ALL.into_iter();
        all.find(|source| source.as_str() == text)
            .ok_or_else(|| ValueError::WorkloadTokenSource(text.to_owned()))
    }

    /// Returns the value of the flag.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Env => "env",
            Self::GithubActions => "github-actions",
            Self::Gitlab => "gitlab",
            Self::Kubernetes => "kubernetes",
        }
    }

    /// Returns the flag of `login token` without which the source is not complete.
    pub fn required_flag(self) -> Option<&'static str> {
        match self {
            Self::File => Some("token-file"),
            Self::Env => Some("token-env"),
            Self::GithubActions | Self::Gitlab | Self::Kubernetes => None,
        }
    }
}

/// The flag value `client-certificate`.
pub const CLIENT_CERTIFICATE: &str = "client-certificate";
/// The flag value `service-account-token`.
pub const SERVICE_ACCOUNT_TOKEN: &str = "service-account-token";

fn parse_credential_type(text: &str) -> Result<CredentialType, ValueError> {
    match text {
        CLIENT_CERTIFICATE => Ok(CredentialType::ClientCertificate),
        SERVICE_ACCOUNT_TOKEN => Ok(CredentialType::ServiceAccountToken),
        _ => Err(ValueError::CredentialType(text.to_owned())),
    }
}

fn parse_bool(text: &str) -> Result<bool, ValueError> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(ValueError::Bool(text.to_owned())),
    }
}

fn parse_uint16(text: &str) -> Result<u16, ValueError> {
    let fail = |problem| ValueError::Uint16 { text: text.to_owned(), problem };
    let lower = text.to_ascii_lowercase();
    let (radix, digits) = if let Some(rest) = lower.strip_prefix("0x") {
        (16, rest)
    } else if let Some(rest) = lower.strip_prefix("0b") {
        (2, rest)
    } else if let Some(rest) = lower.strip_prefix("0o") {
        (8, rest)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (8, &lower[1..])
    } else {
        (10, lower.as_str())
    };
    // Underscores may separate digits if the text itself determines the base.
    let digits = digits.replace('_', "");
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return Err(fail("invalid syntax"));
    }
    u16::from_str_radix(&digits, radix).map_err(|_| fail("value out of range"))
}

/// Parses one CSV record like `encoding/csv`.
fn parse_csv(text: &str) -> Result<Vec<String>, ValueError> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let fail = |column, problem| ValueError::Strings { column, problem };
    let mut fields = Vec::new();
    let mut rest = text;
    loop {
        let column = text.len() - rest.len() + 1;
        if let Some(quoted) = rest.strip_prefix('"') {
            let mut field = String::new();
            let mut tail = quoted;
            loop {
                let Some(end) = tail.find('"') else {
                    return Err(fail(text.len() + 1, "extraneous or missing \" in quoted-field"));
                };
                field.push_str(&tail[..end]);
                tail = &tail[end + 1..];
                match tail.strip_prefix('"') {
                    Some(after) => {
                        field.push('"');
                        tail = after;
                    }
                    None => break,
                }
            }
            fields.push(field);
            match tail.strip_prefix(',') {
                Some(after) => rest = after,
                None if tail.is_empty() => return Ok(fields),
                None => {
                    let at = text.len() - tail.len();
                    return Err(fail(at, "extraneous or missing \" in quoted-field"));
                }
            }
        } else {
            let (field, after) = match rest.split_once(',') {
                Some((field, after)) => (field, Some(after)),
                None => (rest, None),
            };
            if let Some(at) = field.find('"') {
                return Err(fail(column + at, "bare \" in non-quoted field"));
            }
            fields.push(field.to_owned());
            match after {
                Some(after) => rest = after,
                None => return Ok(fields),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_take_go_prefixes() {
        for (text, value) in
            [("0", 0), ("8080", 8080), ("0x10", 16), ("010", 8), ("0b11", 3), ("1_000", 1000)]
        {
            assert_eq!(parse_uint16(text).unwrap(), value, "{text}");
        }
        for (text, why) in [("99999", "value out of range"), ("", "invalid syntax"), ("-1", "invalid syntax")]
        {
            assert_eq!(
                parse_uint16(text).unwrap_err().to_string(),
                format!("strconv.ParseUint: parsing \"{text}\": {why}")
            );
        }
    }

    #[test]
    fn lists_are_csv() {
        let lists: [(&str, &[&str]); 5] = [
            ("a,b", &["a", "b"]),
            ("\"a,b\",c", &["a,b", "c"]),
            ("\"a\"\"b\"", &["a\"b"]),
            ("", &[]),
            ("a,", &["a", ""]),
        ];
        for (text, fields) in lists {
            assert_eq!(parse_csv(text).unwrap(), fields, "{text}");
        }
        assert!(parse_csv("a\"b").is_err());
        assert!(parse_csv("\"a").is_err());
    }

    #[test]
    fn the_values_of_a_kind_are_valid() {
        for kind in [
            Kind::Mode,
            Kind::CredentialType,
            Kind::Delivery,
            Kind::LoginFlow,
            Kind::RefreshTokenStore,
            Kind::WorkloadTokenSource,
            Kind::Color,
        ] {
            assert!(!kind.values().is_empty(), "{kind:?}");
            for value in kind.values() {
                assert!(Value::read(kind, value, None).is_ok(), "{kind:?} {value}");
            }
        }
    }

    #[test]
    fn modes_are_case_insensitive() {
        for (text, mode) in [
            ("impersonationproxy", ConciergeMode::ImpersonationProxy),
            ("", ConciergeMode::Auto),
            ("serviceaccounttoken", ConciergeMode::ServiceAccountToken),
        ] {
            assert_eq!(ConciergeMode::parse(text).unwrap(), mode, "{text}");
        }
        assert_eq!(
            ConciergeMode::parse("foo").unwrap_err().to_string(),
            "invalid mode \"foo\", valid modes are TokenCredentialRequestAPI and ImpersonationProxy (and ServiceAccountToken, where the cluster offers it)"
        );
    }

    #[test]
    fn deliveries_sources_and_credential_types_are_exact() {
        for delivery in Delivery::ALL {
            assert_eq!(Delivery::parse(delivery.as_str()).unwrap(), delivery);
        }
        for store in RefreshTokenStore::ALL {
            assert_eq!(store.as_str().parse(), Ok(store));
        }
        for source in WorkloadTokenSource::ALL {
            assert_eq!(WorkloadTokenSource::parse(source.as_str()).unwrap(), source);
        }
        assert_eq!(
            WorkloadTokenSource::parse("GitLab").unwrap_err().to_string(),
            "invalid source \"GitLab\", valid sources are file, env, github-actions, gitlab and kubernetes"
        );
        let error = Delivery::parse("Wrapper").unwrap_err().to_string();
        assert!(error.starts_with("invalid delivery \"Wrapper\", "), "{error}");
        assert_eq!(
            parse_credential_type(SERVICE_ACCOUNT_TOKEN).unwrap(),
            CredentialType::ServiceAccountToken
        );
        assert_eq!(
            parse_credential_type("").unwrap_err().to_string(),
            "invalid credential type \"\", valid types are client-certificate and service-account-token"
        );
    }
}
