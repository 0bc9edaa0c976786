//! A user who comes again and again, with what is needed for each of their requests made only once.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

use super::User;
use crate::impersonation::{Impersonation, InvalidHeader};

/// Headers of a user with more groups and extra values than this are made anew each time: such users are few, and
/// what is kept for them would be large.
const MOST_KEPT: usize = 64;

/// A [`User`] to be shared. Clones are the same user.
#[derive(Clone)]
pub struct KnownUser(Arc<Known>);

struct Known {
    user: User,
    impersonation: OnceLock<Result<Vec<(HeaderName, HeaderValue)>, InvalidHeader>>,
    digest: OnceLock<[u8; 32]>,
}

impl KnownUser {
    /// A digest of everything about the user, made by `make` when it is asked for the first time. There is room for one,
    /// so it has to be the same function each time.
    pub fn digest(&self, make: impl FnOnce(&User) -> [u8; 32]) -> &[u8; 32] {
        self.0.digest.get_or_init(|| make(&self.0.user))
    }

    /// Adds the headers that make a request this user's, as [`Impersonation::write`] does for a user who is not
    /// impersonated by another one.
    ///
    /// # Errors
    /// As [`Impersonation::write`].
    pub fn write_impersonation(&self, headers: &mut HeaderMap) -> Result<(), InvalidHeader> {
        let impersonation = Impersonation::of(self);
        let user = &self.0.user;
        if user.groups.len() + user.extra.values().map(Vec::len).sum::<usize>() > MOST_KEPT {
            return impersonation.write(headers);
        }
        let made = self.0.impersonation.get_or_init(|| impersonation.headers());
        let made = made.as_ref().map_err(|invalid| *invalid)?;
        for (name, value) in made {
            headers.try_append(name, value.clone()).map_err(|_| InvalidHeader)?;
        }
        Ok(())
    }
}

impl From<User> for KnownUser {
    fn from(user: User) -> Self {
        Self(Arc::new(Known { user, impersonation: OnceLock::new(), digest: OnceLock::new() }))
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
    fn the_headers_are_those_of_an_impersonation_however_often_they_are_written() {
        for groups in [0, 1, 62, 63, 200] {
            let user = user(groups);
            let mut wanted = HeaderMap::new();
            Impersonation::of(&user).write(&mut wanted).unwrap();
            let known = KnownUser::from(user);
            for _ in 0..2 {
                let mut written = HeaderMap::new();
                known.write_impersonation(&mut written).unwrap();
                assert_eq!(written, wanted, "{groups}");
            }
        }
    }

    #[test]
    fn a_user_who_fits_into_no_header_is_refused_each_time() {
        for name in ["", "a\nb"] {
            let known = KnownUser::from(User { name: name.to_owned(), ..user(1) });
            for _ in 0..2 {
                let mut headers = HeaderMap::new();
                assert_eq!(known.write_impersonation(&mut headers), Err(InvalidHeader));
                assert!(headers.is_empty());
            }
        }
    }

    #[test]
    fn the_digest_is_made_once() {
        let known = KnownUser::from(user(1));
        let same = known.clone();
        assert_eq!(*known.digest(|user| [user.name.len() as u8; 32]), [7; 32]);
        assert_eq!(*same.digest(|_| unreachable!("it is there")), [7; 32]);
    }
}
