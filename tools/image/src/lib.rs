//! Builds container images from programs, the shared libraries that they need, and common system
//! files, as one archive. It needs no container daemon, no registry and no base image.
//!
//! ```text
//! Image { files, user, .. }  --build-->  base layer (libraries, roots, accounts)  \
//!                                        program layer (the image's own files)     > one tar
//!                                        configuration, manifest, index           /
//! ```
//!
//! The tar is an OCI layout with Docker's `manifest.json`. `ctr images import`, `docker load`,
//! `podman load` and `skopeo copy oci-archive:` accept it.
//!
//! The same files give the same bytes: entries are sorted, times are zero, owners are root, and the
//! archive contains neither the machine's name nor the time. Differences between machines come from
//! the input: another compiler, another C library, another bundle of certificate authorities.
//! Programs built by cargo also contain the folder of the crate sources
//! (`$CARGO_HOME/registry/src/..`) in their panic messages; `strip` removes the other paths with
//! the symbols. To get equal digests on two machines, build with the same `CARGO_HOME`, or add the
//! flag `--remap-path-prefix=$CARGO_HOME=/cargo` to `rustflags` in `.cargo/config.toml`, which
//! requires a second build of all crates. The variable `RUSTFLAGS` would replace these flags.
//!
//! The layers of a single image are not compressed, so that no digest depends on a compressor. An
//! index of images for several processors ([`build_index`]) is for registries, so its layers are
//! compressed; `Cargo.lock` pins the compressor. The archive of an index has no `manifest.json`,
//! because Docker's format cannot express it.
//!
//! Start with [`Image`] and [`build`]; [`product`] is the product's own image. The module
//! `libraries` documents the search for libraries.
#![forbid(unsafe_code)]

mod archive;
mod c_library;
mod elf;
mod error;
mod image;
mod layer;
mod libraries;
mod origin;
mod product;
mod strip;

pub use c_library::CLibrary;
pub use error::Error;
pub use image::{Built, BuiltIndex, File, Image, Link, Part, Program, Roots, build, build_index, program};
pub use libraries::Library;
pub use origin::Origin;
pub use product::{AUTHENTICATOR, CERT_AGENT, CONCIERGE, GATEWAY, REFERENCE, product, product_image};
