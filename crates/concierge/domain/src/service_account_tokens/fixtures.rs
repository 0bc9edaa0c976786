//! Users and objects for the tests of this module.

use std::time::Duration;

use jiff::Timestamp;
use pinniped_concierge_api::login::ImpersonatedUser;

use super::{Form, Maker, Settings};
use pinniped_kube_request::identity::User;

pub(crate) fn user(name: &str, groups: &[&str]) -> User {
    User {
        name: name.to_owned(),
        groups: groups.iter().map(|&group| group.to_owned()).collect(),
        ..User::default()
    }
}

pub(crate) fn identity(name: &str, groups: &[&str]) -> ImpersonatedUser {
    ImpersonatedUser {
        username: name.to_owned(),
        groups: groups.iter().map(|&group| group.to_owned()).collect(),
        ..ImpersonatedUser::default()
    }
}

pub(crate) fn settings() -> Settings {
    Settings {
        namespace: "users".to_owned(),
        token_lifetime: Duration::from_secs(300),
        idle_timeout: Duration::from_secs(3600),
        constrained: false,
    }
}

pub(crate) fn maker(form: Form) -> Maker {
    Maker {
        namespace: "users".to_owned(),
        labels: [("app".to_owned(), "pinniped-concierge".to_owned())].into(),
        form,
        name_users: false,
    }
}

pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).expect("a time")
}
