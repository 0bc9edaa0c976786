//! The client to which requests and reviews are charged.

use std::net::IpAddr;

use http::HeaderMap;
use pinniped_fair_semaphore::LEVELS;
use pinniped_http_core::client_network;
use pinniped_kube_request::identity::User;

use crate::request::Method;

const X_FORWARDED_FOR: &str = "x-forwarded-for";

/// A client among those that share permits: the levels of a key of a [`FairSemaphore`].
///
/// A user is identified by name. Anonymous clients are identified by their address, and together
/// count as one client among the named users.
///
/// [`FairSemaphore`]: pinniped_fair_semaphore::FairSemaphore
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientKey<'a> {
    levels: [Level<'a>; LEVELS],
    length: usize,
}

/// A level of a [`ClientKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level<'a> {
    /// A user, by name.
    User(&'a str),
    /// All anonymous clients.
    Anonymous,
    /// The network of a client, if it is known.
    Network(Option<IpAddr>),
}

impl<'a> ClientKey<'a> {
    /// Returns the key of the user with this name.
    pub fn user(name: &'a str) -> Self {
        Self { levels: [Level::User(name), Level::Anonymous, Level::Anonymous], length: 1 }
    }

    /// Returns the key of an anonymous client at this address.
    pub fn anonymous(address: Option<IpAddr>) -> Self {
        let network = Level::Network(address.map(client_network));
        Self { levels: [Level::Anonymous, network, Level::Network(None)], length: 2 }
    }

    /// Returns the key of the client that sends a request with these headers as this user.
    ///
    /// A front proxy appends the address of its client to `X-Forwarded-For`. The address before
    /// that one is the next level, because the client may be a proxy, too, such as the
    /// impersonation proxy. A client can forge that address, but then only divides the share of its
    /// own address.
    pub fn of(user: &'a User, method: Option<Method>, address: Option<IpAddr>, headers: &HeaderMap) -> Self {
        if !user.is_anonymous() {
            return Self::user(&user.name);
        }
        if method != Some(Method::FrontProxy) {
            return Self::anonymous(address);
        }
        let mut forwarded = forwarded_for(headers);
        let client = Self::anonymous(forwarded.next().flatten());
        match forwarded.next() {
            None => client,
            Some(before) => {
                let [anonymous, nearest, _] = client.levels;
                Self {
                    levels: [anonymous, nearest, Level::Network(before.map(client_network))],
                    length: LEVELS,
                }
            }
        }
    }

    /// Returns the levels, outermost first.
    pub fn levels(&self) -> &[Level<'a>] {
        &self.levels[..self.length]
    }
}

impl<'a> From<&'a str> for ClientKey<'a> {
    fn from(name: &'a str) -> Self {
        Self::user(name)
    }
}

/// Returns the addresses in `X-Forwarded-For`, nearest first; `None` for an entry that is not an
/// address.
fn forwarded_for(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let values = headers.get_all(X_FORWARDED_FOR).iter().rev();
    values
        .flat_map(|value| value.to_str().unwrap_or_default().rsplit(',').map(|text| text.trim().parse().ok()))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    fn key(user: &User, method: Option<Method>, forwarded: &[&'static str]) -> Vec<Level<'static>> {
        let values = forwarded.iter().map(|value| HeaderValue::from_static(value));
        let name = http::HeaderName::from_static(X_FORWARDED_FOR);
        let headers = values.map(|value| (name.clone(), value)).collect();
        let key = ClientKey::of(user, method, address("10.0.0.1"), &headers);
        key.levels()
            .iter()
            .map(|level| match level {
                Level::User(name) => Level::User(Box::leak(Box::from(*name))),
                Level::Anonymous => Level::Anonymous,
                Level::Network(network) => Level::Network(*network),
            })
            .collect()
    }

    #[test]
    fn the_key_is_the_user_name_or_the_addresses_of_an_anonymous_client() {
        let (alice, anonymous) = (User { name: "alice".to_owned(), ..User::default() }, User::anonymous());
        let proxy = Some(Method::FrontProxy);
        let network = |text| Level::Network(address(text));
        assert_eq!(key(&alice, proxy, &["10.0.0.2"]), [Level::User("alice")]);
        assert_eq!(key(&anonymous, None, &["10.0.0.2"]), [Level::Anonymous, network("10.0.0.1")]);
        for (forwarded, wanted) in [
            (vec![], vec![Level::Network(None)]),
            (vec!["10.0.0.2"], vec![network("10.0.0.2")]),
            (vec!["a, 10.0.0.3, 10.0.0.2"], vec![network("10.0.0.2"), network("10.0.0.3")]),
            (vec!["10.0.0.3", "10.0.0.2"], vec![network("10.0.0.2"), network("10.0.0.3")]),
            (vec!["anything, 10.0.0.2"], vec![network("10.0.0.2"), Level::Network(None)]),
            (vec!["2001:db8::1, 2001:db8:0:1::2"], vec![network("2001:db8:0:1::"), network("2001:db8::")]),
            (vec!["::ffff:10.0.0.2"], vec![network("10.0.0.2")]),
        ] {
            let levels = [vec![Level::Anonymous], wanted].concat();
            assert_eq!(key(&anonymous, proxy, &forwarded), levels, "{forwarded:?}");
        }
    }
}
