//! Runs the commands of a release as a person does, with real tools: dpkg, shells, Helm, a real
//! registry and containerd. The programs are those of the dev profile, except in the test of the
//! size of the image. The documentation site is read in a real browser.
#![expect(clippy::unwrap_used, reason = "a test that cannot continue should stop")]

mod dist;
mod documentation;
mod image;
mod release;
mod support;
