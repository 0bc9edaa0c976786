//! The gateway's routing table: builds the configuration of hosts, certificates and backends from
//! `HTTPProxy`, `IngressRoute` and `Ingress` objects, without IO.
//!
//! The input consists of [`Objects`] and [`Settings`]. The output is the [`RoutingTable`] for the
//! data plane, the validation results for the status of each object ([`status`]), and messages for
//! the log ([`Notice`]). The [`Builder`] caches only values that are expensive to compute
//! (certificates, expressions): the same objects always result in the same table.
//!
//! ```text
//! Objects ──► Builder ──► RoutingTable { tls: port 443 by SNI, plain: port 80 by Host }
//!                    ├──► validations  one for each object of the configured classes
//!                    └──► notices      log messages without a status field
//! ```
//!
//! An object is evaluated separately and enters the table only as a whole: an object that is
//! refused at its last field has no effect. A field that could restrict access and is not
//! implemented causes the object to be refused, see [`pinniped_gateway_api::Others`]. The crate
//! [`pinniped_delegation::grants`] decides whether an object may use a certificate, before the
//! builder checks that the Secret exists.
//!
//! Start with [`table`]: it defines the data that the data plane interprets.

#![forbid(unsafe_code)]

mod build;
mod objects;
pub mod status;
pub mod table;

pub use build::{Builder, Built, ReferencedObjects, addresses, addresses_of_service};
pub use objects::{HostOwnership, Kind, Name, Notice, Objects, Settings};
pub use pinniped_delegation::grants::SecretReference;
pub use table::RoutingTable;
