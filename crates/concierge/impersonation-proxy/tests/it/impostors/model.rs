//! The expected identity of a client: a second implementation of authentication and impersonation,
//! without caches and reviews.

use std::collections::BTreeMap;

use super::{Actor, Header};
use crate::impostors::random_headers::in_base64;

pub(super) const CREDENTIAL_ID: &str = "impersonate-extra-authentication.kubernetes.io%2fcredential-id";
pub(super) const ORIGINAL_USER: &str =
    "impersonate-extra-original-user-info.impersonation-proxy.concierge.pinniped.dev";

/// The identity with which a request should arrive.
#[derive(Debug)]
pub(super) struct Identity {
    /// The client's own token, if it is passed through; then there are no other headers.
    pub(super) passed_through: Option<&'static str>,
    /// All headers that begin with `impersonate`. For the original user, only its name.
    pub(super) headers: BTreeMap<String, Vec<String>>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct User {
    name: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

/// Returns the name in the JSON of an original user.
pub(super) fn name_of_original(json: &str) -> String {
    let user: serde_json::Value = serde_json::from_str(json).unwrap();
    user["username"].as_str().unwrap().to_owned()
}

/// Returns the expected identity; `None` when the request must not arrive.
pub(super) fn identity(actor: Actor, headers: &[Header]) -> Option<Identity> {
    let headers = Headers(headers);
    let caller = caller(actor, &headers)?;
    let target = target(&caller.user, &headers)?;
    let user = target.as_ref().unwrap_or(&caller.user);
    // With a UID and without impersonation, the client's own token is passed through.
    if !user.uid.is_empty() && target.is_none() {
        let token = match caller.by_websocket {
            true => headers.websocket_token().ok().flatten(),
            false => headers.bearer(),
        };
        if let Some(token) = token
            && user_of_token(&token).is_some_and(|owner| with_authenticated(owner) == *user)
        {
            let passed_through = super::TOKENS.into_iter().find(|known| *known == token);
            return Some(Identity { passed_through, headers: BTreeMap::new() });
        }
    }
    let mut written = BTreeMap::new();
    written.insert("impersonate-user".to_owned(), vec![user.name.clone()]);
    if !user.uid.is_empty() {
        written.insert("impersonate-uid".to_owned(), vec![user.uid.clone()]);
    }
    if !user.groups.is_empty() {
        written.insert("impersonate-group".to_owned(), user.groups.clone());
    }
    for (key, values) in &user.extra {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "/-._".contains(c);
        if key.is_empty()
            || !key.chars().all(plain)
            || key.ends_with(".impersonation-proxy.concierge.pinniped.dev")
        {
            return None;
        }
        written.insert(format!("impersonate-extra-{}", key.replace('/', "%2f")), values.clone());
    }
    if target.is_some() {
        written.insert(ORIGINAL_USER.to_owned(), vec![caller.user.name.clone()]);
    }
    Some(Identity { passed_through: None, headers: written })
}

struct Caller {
    user: User,
    by_websocket: bool,
}

/// The authentication chain: front proxy, certificate, bearer token, WebSocket token, anonymous.
fn caller(actor: Actor, headers: &Headers<'_>) -> Option<Caller> {
    let known = |user: User| Some(Caller { user: with_authenticated(user), by_websocket: false });
    let mut has_failed = false;
    match actor {
        Actor::Nobody => {}
        Actor::Alice => return known(certificate("alice", "a")),
        Actor::Root => return known(certificate("root", "system:masters")),
        Actor::Stranger => has_failed = true,
        Actor::FrontProxy => {
            if let Ok(Some(user)) = headers.front_proxy_user() {
                return known(user);
            }
            // The certificate is not from a client CA.
            has_failed = true;
        }
    }
    if let Some(token) = headers.bearer() {
        match user_of_token(&token) {
            Some(user) => return known(user),
            None => has_failed = true,
        }
    }
    match headers.websocket_token() {
        Ok(None) => {}
        Ok(Some(token)) => match user_of_token(&token) {
            Some(user) => return Some(Caller { user: with_authenticated(user), by_websocket: true }),
            None => has_failed = true,
        },
        Err(()) => has_failed = true,
    }
    let anonymous = User {
        name: "system:anonymous".to_owned(),
        groups: vec!["system:unauthenticated".to_owned()],
        ..User::default()
    };
    (!has_failed).then_some(Caller { user: anonymous, by_websocket: false })
}

/// Returns `None` when impersonation is refused, and `Some(None)` without impersonation.
fn target(caller: &User, headers: &Headers<'_>) -> Option<Option<User>> {
    let name = headers.first("impersonate-user").ok()?.unwrap_or_default();
    let uid = headers.first("impersonate-uid").ok()?.unwrap_or_default();
    let groups = headers.all("impersonate-group").ok()?;
    let mut extra = BTreeMap::<String, Vec<String>>::new();
    let mut is_unknown = false;
    let mut is_extra = false;
    for (header, value) in headers.0 {
        let header = header.to_ascii_lowercase();
        if let Some(key) = header.strip_prefix("impersonate-extra-") {
            is_extra = true;
            let key = match key {
                "%ff" => return None,
                "example.com%2fcolour" => "example.com/colour",
                key => key,
            };
            extra.entry(key.to_owned()).or_default().push(String::from_utf8(value.clone()).ok()?);
        } else if header.starts_with("impersonate") {
            is_unknown |= !matches!(&*header, "impersonate-user" | "impersonate-uid" | "impersonate-group");
        }
    }
    if name.is_empty() {
        let any = headers.0.iter().any(|(header, _)| header.to_ascii_lowercase().starts_with("impersonate"));
        return (!any).then_some(None);
    }
    if is_unknown {
        return None;
    }
    let is_account = name == "system:serviceaccount:ns:sa";
    let only_name = uid.is_empty() && groups.is_empty() && !is_extra;
    let is_master = caller.groups.iter().any(|group| group == "system:masters");
    let is_tina = caller.name == "tina" && only_name && !is_account;
    if !is_master && !is_tina {
        return None;
    }
    let mut user = User { name, uid, groups, extra };
    if is_account && user.groups.is_empty() {
        user.groups = vec!["system:serviceaccounts".to_owned(), "system:serviceaccounts:ns".to_owned()];
    }
    let has = |group: &str| user.groups.iter().any(|one| one == group);
    let is_anonymous = user.name == "system:anonymous";
    if is_anonymous && !has("system:unauthenticated") {
        user.groups.push("system:unauthenticated".to_owned());
    } else if !is_anonymous && !has("system:unauthenticated") && !has("system:authenticated") {
        user.groups.push("system:authenticated".to_owned());
    }
    Some(Some(user))
}

fn certificate(name: &str, group: &str) -> User {
    let id = vec!["(of the certificate)".to_owned()];
    User {
        name: name.to_owned(),
        groups: vec![group.to_owned()],
        extra: BTreeMap::from([("authentication.kubernetes.io/credential-id".to_owned(), id)]),
        ..User::default()
    }
}

fn user_of_token(token: &str) -> Option<User> {
    let user = |name: &str, uid: &str, groups: &[&str], key: &str, values: &[&str]| {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let extra = if key.is_empty() { BTreeMap::new() } else { [(key.to_owned(), owned(values))].into() };
        Some(User { name: name.to_owned(), uid: uid.to_owned(), groups: owned(groups), extra })
    };
    match token {
        "token-of-tina" => user("tina", "", &["t"], "", &[]),
        "token-with-uid" => user("system:serviceaccount:a:b", "7", &["s"], "", &[]),
        "token-with-extra" => user("eve", "", &[], "example.com/k", &["v", "w"]),
        "token-with-bad-key" => user("mallory", "", &[], "party~~time", &["v"]),
        _ => None,
    }
}

fn with_authenticated(mut user: User) -> User {
    let has = user.groups.iter().any(|one| one == "system:authenticated" || one == "system:unauthenticated");
    if !has && user.name != "system:anonymous" {
        user.groups.push("system:authenticated".to_owned());
    }
    user
}

/// The headers of a request. Values that are not UTF-8 are `Err`.
struct Headers<'a>(&'a [Header]);

impl Headers<'_> {
    fn raw(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.0.iter().filter(move |(header, _)| header == name).map(|(_, value)| &value[..])
    }

    fn all(&self, name: &str) -> Result<Vec<String>, ()> {
        self.raw(name).map(|value| String::from_utf8(value.to_vec()).map_err(drop)).collect()
    }

    fn first(&self, name: &str) -> Result<Option<String>, ()> {
        self.raw(name).next().map(|value| String::from_utf8(value.to_vec()).map_err(drop)).transpose()
    }

    fn bearer(&self) -> Option<String> {
        let value = String::from_utf8_lossy(self.raw("authorization").next()?).into_owned();
        let mut words = value.split(' ');
        if !words.next()?.eq_ignore_ascii_case("bearer") {
            return None;
        }
        words.next().filter(|token| !token.is_empty()).map(str::to_owned)
    }

    fn front_proxy_user(&self) -> Result<Option<User>, ()> {
        let Some(name) = self.first("x-remote-user")?.filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        let uid = self.first("x-remote-uid")?.unwrap_or_default();
        let groups = self.all("x-remote-group")?.into_iter().filter(|group| !group.is_empty()).collect();
        let mut extra = BTreeMap::new();
        for (header, key) in [("x-remote-extra-example.com%2fk", "example.com/k"), ("x-remote-extra-k", "k")]
        {
            let values = self.all(header)?;
            if !values.is_empty() {
                extra.insert(key.to_owned(), values);
            }
        }
        Ok(Some(User { name, uid, groups, extra }))
    }

    fn websocket_token(&self) -> Result<Option<String>, ()> {
        let is_upgrade = |value: &[u8]| String::from_utf8_lossy(value).to_lowercase().contains("upgrade");
        if self.raw("upgrade").next() != Some(b"websocket") || !self.raw("connection").any(is_upgrade) {
            return Ok(None);
        }
        let protocols = self.all("sec-websocket-protocol")?;
        let protocols: Vec<&str> = protocols.iter().flat_map(|value| value.split(", ")).collect();
        let (tokens, others): (Vec<&str>, Vec<&str>) =
            protocols.into_iter().partition(|protocol| protocol.starts_with("base64url.bearer"));
        match tokens[..] {
            [] => Ok(None),
            [_] if others.is_empty() => Err(()),
            [token] => {
                let encoded = token.rsplit('.').next().unwrap();
                let known = super::TOKENS.iter().find(|token| in_base64(token) == encoded);
                Ok(Some(known.copied().unwrap_or("token-of-nobody").to_owned()))
            }
            _ => Err(()),
        }
    }
}
