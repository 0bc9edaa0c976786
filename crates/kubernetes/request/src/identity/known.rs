//! A user that is shared between requests, with the values that its requests need computed only
//! once.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use super::User;
use crate::impersonation::{Impersonation, InvalidHeader, Refusal};
use pinniped_http_headers::precomputed::PrecomputedHeaders;

/// The maximum number of groups and extra values for which headers are cached. Users with more are
/// rare and their headers large, so they are computed for each request.
const MAX_CACHED_USERS: usize = 64;

/// A shared [`User`]. Clones refer to the same user.
#[derive(Clone)]
pub struct KnownUser(Arc<Known>);

struct Known {
    user: User,
    impersonation: OnceLock<Result<PrecomputedHeaders, InvalidHeader>>,
    refused: OnceLock<Option<Refusal>>,
    digest: OnceLock<[u8; 32]>,
    user_info: OnceLock<Option<Arc<[u8]>>>,
}

impl KnownUser {
    /// Returns a digest of all attributes of the user, computed by `make` in the first call. Only
    /// one digest is stored, so every caller must pass the same function.
    pub fn digest(&self, make: impl FnOnce(&User) -> [u8; 32]) -> &[u8; 32] {
        self.0.digest.get_or_init(|| make(&self.0.user))
    }

    /// Returns the headers that impersonate this user, equal to those of [`Impersonation::write`]
    /// for a user who is not impersonated by another one. Returns `None` for a user with too many
    /// groups to cache the headers.
    ///
    /// # Errors
    /// As [`Impersonation::write`].
    pub fn impersonation(&self) -> Result<Option<&PrecomputedHeaders>, InvalidHeader> {
        let user = &self.0.user;
        if user.groups.len() + user.extra.values().map(Vec::len).sum::<usize>() > MAX_CACHED_USERS {
            return Ok(None);
        }
        let made = self
            .0
            .impersonation
            .get_or_init(|| Impersonation::of(self).headers().map(PrecomputedHeaders::new));
        made.as_ref().map(Some).map_err(|invalid| *invalid)
    }

    /// Returns the user as an encoded `UserInfo`, computed by `make` in the first call, or `None`
    /// if that call had no result. Only one text is stored, so every caller must pass the same
    /// function.
    pub fn user_info(&self, make: impl FnOnce(&User) -> Option<Arc<[u8]>>) -> Option<&Arc<[u8]>> {
        self.0.user_info.get_or_init(|| make(&self.0.user)).as_ref()
    }

    /// Returns the reason why this user cannot be impersonated because of an extra, computed by
    /// `find` in the first call.
    pub(crate) fn refused(&self, find: impl FnOnce(&User) -> Option<Refusal>) -> Option<&Refusal> {
        self.0.refused.get_or_init(|| find(&self.0.user)).as_ref()
    }
}

impl From<User> for KnownUser {
    fn from(user: User) -> Self {
        Self(Arc::new(Known {
            user,
            impersonation: OnceLock::new(),
            refused: OnceLock::new(),
            digest: OnceLock::new(),
            user_info: OnceLock::new(),
        }))
    }
}

impl Deref for KnownUser {
    type Target = User;

    fn deref(&self) -> &User {
        &self.0.user
    }
}

impl PartialEq for KnownUser {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for KnownUser {}

impl fmt::Debug for KnownUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.user.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;

    fn user(groups: usize) -> User {
        User {
            name: "someone".to_owned(),
            uid: "u".to_owned(),
            groups: (0..groups).map(|group| format!("group {group}")).collect(),
            extra: [("a.io/b".to_owned(), vec!["1".to_owned(), "2".to_owned()])].into(),
        }
    }

    #[test]
    fn cached_headers_equal_those_of_an_impersonation() {
        for (groups, kept) in [(0, true), (1, true), (62, true), (63, false), (200, false)] {
            let user = user(groups);
            let mut wanted = HeaderMap::new();
            Impersonation::of(&user).write(&mut wanted).unwrap();
            let known = KnownUser::from(user);
            for _ in 0..2 {
                let ready = known.impersonation().unwrap();
                assert_eq!(ready.is_some(), kept, "{groups}");
                let mut written = HeaderMap::new();
                if let Some(ready) = ready {
                    ready.append_to(&mut written).unwrap();
                    assert_eq!(written, wanted, "{groups}");
                }
            }
        }
    }

    #[test]
    fn a_user_with_an_invalid_name_is_refused_each_time() {
        for name in ["", "a\nb"] {
            let known = KnownUser::from(User { name: name.to_owned(), ..user(1) });
            for _ in 0..2 {
                assert_eq!(known.impersonation().err(), Some(InvalidHeader));
            }
        }
    }

    #[test]
    fn the_digest_is_computed_once() {
        let known = KnownUser::from(user(1));
        let same = known.clone();
        assert_eq!(*known.digest(|user| [user.name.len() as u8; 32]), [7; 32]);
        assert_eq!(*same.digest(|_| unreachable!("it is there")), [7; 32]);
    }
}
