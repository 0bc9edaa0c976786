//! Memory that the allocator has no use for goes back to the system, also while the program has nothing to do.
//!
//! mimalloc keeps freed pages for a second, and returns them when a thread next takes or frees a page. After ten
//! thousand connections have ended nothing does: 90 MiB stayed resident for minutes. Returning pages at once
//! (`MIMALLOC_PURGE_DELAY=0`) would cost a system call where a busy program takes the page again. So a page is taken and
//! freed every few seconds.

use std::hint::black_box;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

const INTERVAL: Duration = Duration::from_secs(5);

/// More than any page that has room for several values, so that it is a page of its own. It is not written to, so that it
/// takes no memory.
const OWN_PAGE: usize = 8 << 20;

/// Lets the allocator return memory, until `stop` is cancelled.
pub async fn return_unused(stop: CancellationToken) {
    while stop.run_until_cancelled(tokio::time::sleep(INTERVAL)).await.is_some() {
        drop(black_box(Vec::<u8>::with_capacity(OWN_PAGE)));
    }
}
