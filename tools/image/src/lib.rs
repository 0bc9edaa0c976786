//! Container images made from nothing: programs, the shared libraries they need, and what every program may
//! expect of its surroundings, in one archive. No container daemon, no registry, no base image.
//!
//! ```text
//! Image { files, user, .. }  --build-->  base layer (libraries, roots, accounts)  \
//!                                        program layer (the image's own files)     > one tar: OCI layout and
//!                                        configuration, manifest, index           /  docker's manifest.json
//! ```
//!
//! The archive is taken by `ctr images import`, `docker load`, `podman load` and `skopeo copy oci-archive:`.
//!
//! The same files give the same bytes: entries are sorted, times are zero, owners are root, and nothing tells the
//! machine's name or the hour. What does differ from machine to machine is what goes in: another compiler, another
//! C library, another bundle of certificate authorities. Programs built by cargo also carry the folder of the crate
//! sources (`$CARGO_HOME/registry/src/..`) in their panic messages; `strip` takes the rest of the paths with the
//! debug symbols. Whoever wants equal digests on two machines builds with the same `CARGO_HOME`, or with
//! `RUSTFLAGS=--remap-path-prefix=$CARGO_HOME=/cargo`, which costs a second build of everything.
//!
//! Layers are not compressed: `skopeo` compresses what it pushes, and no digest depends on a compressor's version.
//!
//! Start with [`Image`] and [`build`]; [`product`] is the product's own image. How libraries are found is told in
//! the module `libraries`.
#![forbid(unsafe_code)]

mod archive;
mod elf;
mod error;
mod image;
mod layer;
mod libraries;
mod origin;
mod product;
mod strip;

pub use error::Error;
pub use image::{Built, File, Image, Link, Roots, build};
pub use libraries::Library;
pub use origin::Origin;
pub use product::{AUTHENTICATOR, CERT_AGENT, CONCIERGE, GATEWAY, REFERENCE, product, product_image};
