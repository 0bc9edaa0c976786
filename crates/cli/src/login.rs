//! What the login commands share: what kubectl tells them ([`exec_info`]), the credentials they keep
//! ([`exec_cache`]).

pub mod exec_cache;
pub mod exec_info;
