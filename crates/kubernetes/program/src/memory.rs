//! Returns memory that the allocator does not use to the operating system, also while the program
//! is idle.
//!
//! mimalloc retains freed pages for a second and returns them when a thread next allocates or frees
//! a page. After ten thousand connections have closed, no thread does so: 90 MiB stayed resident
//! for minutes. Returning pages immediately (`MIMALLOC_PURGE_DELAY=0`) would cost a system call
//! whenever a busy program reuses the page. Therefore this module allocates and frees a page every
//! few seconds.

use std::hint::black_box;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

const INTERVAL: Duration = Duration::from_secs(5);

/// Larger than any page that several values share, so the allocation is a page of its own. It is
/// never written to, so it uses no physical memory.
const OWN_PAGE: usize = 8 << 20;

/// Makes the allocator return memory until `stop` is cancelled.
pub async fn return_unused(stop: CancellationToken) {
    while stop.run_until_cancelled(tokio::time::sleep(INTERVAL)).await.is_some() {
        drop(black_box(Vec::<u8>::with_capacity(OWN_PAGE)));
    }
}
