//! Tests of the delegation design: objects as input; hosts, routes and statuses as output. The name
//! of a test for a row of the table in the specification starts with the name of the row.

#![expect(clippy::unwrap_used, reason = "a failed step of a test should end it")]
#![expect(clippy::needless_pass_by_value, reason = "JSON is written where it is passed")]

mod delegation;
mod ingress;
mod ingress_route;
mod limits;
mod overlap;
mod ownership;
mod proxy_routes;
mod proxy_tls;
mod secrets;
mod separation;
mod support;
mod tcp;
mod world;
