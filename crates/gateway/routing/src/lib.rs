//! The gateway's routing table: what `HTTPProxy`, `IngressRoute` and `Ingress` objects say about hosts, certificates
//! and backends, decided without IO.
//!
//! [`Objects`] and [`Settings`] go in; out come the [`RoutingTable`] that the data plane serves from, what the status
//! of each object should say ([`status`]), and what is worth a line in the log ([`Notice`]). The [`Builder`] that does
//! it keeps nothing but what is dear to compute again (certificates, expressions): the same objects always give the
//! same table.
//!
//! ```text
//! Objects ──► Builder ──► RoutingTable { tls: port 443 by SNI, plain: port 80 by Host }
//!                    ├──► Verdicts     one for each object of our class
//!                    └──► Notices      what Kubernetes has no status for
//! ```
//!
//! An object is worked out aside and enters the table only as a whole: one that turns out to be refused at its last
//! field leaves no trace. Fields that could restrict who may pass and are not implemented refuse the object, see
//! [`pinniped_gateway_api::Others`]. Whose certificate may be used is decided in [`pinniped_delegation::grants`], before
//! anybody looks whether a Secret exists.
//!
//! Read [`table`] first: it is what the data plane has to understand.

#![forbid(unsafe_code)]

mod build;
mod objects;
pub mod status;
pub mod table;

pub use build::{Builder, Built, LookedUp, addresses, addresses_of_service};
pub use objects::{HostOwnership, Kind, Name, Notice, Objects, Settings};
pub use pinniped_delegation::grants::SecretReference;
pub use table::RoutingTable;
