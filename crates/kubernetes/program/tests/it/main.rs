//! Tests that unused memory returns to the system, with the allocator of the programs.

#![expect(clippy::unwrap_used, reason = "a failed step of a test should end it")]

use std::sync::mpsc;
use std::time::Duration;

use pinniped_program::memory;
use pinniped_test_support::{process_status, wait};
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Time in which the memory must return.
const TIME_LIMIT: Duration = Duration::from_secs(60);
const VALUES: usize = 16 << 10;
const VALUE_BYTES: usize = 4 << 10;
const ALL_BYTES: u64 = (VALUES * VALUE_BYTES) as u64;

/// Like the threads of the impersonation proxy after many clients have closed their connections: a
/// thread frees values and waits.
#[tokio::test]
async fn memory_that_idle_threads_have_freed_returns_to_the_system() {
    let before = resident();
    let (freed, is_freed) = mpsc::channel();
    let (_end, end) = mpsc::channel::<()>();
    let idle = std::thread::spawn(move || {
        let values: Vec<Vec<u8>> = (0..VALUES).map(|_| vec![1; VALUE_BYTES]).collect();
        let peak = resident();
        drop(values);
        freed.send(peak).unwrap();
        end.recv()
    });
    let peak = is_freed.recv().unwrap();
    assert!(peak >= before + ALL_BYTES / 2, "{before} bytes before, {peak} bytes afterwards");

    let task = tokio::spawn(memory::return_unused(CancellationToken::new()));
    let returned = wait::until(TIME_LIMIT, "the memory to return", async || {
        // The allocator keeps some of the pages.
        (resident() < before + ALL_BYTES / 4).then_some(())
    });
    returned.await.unwrap();
    assert!(!task.is_finished() && !idle.is_finished());
}

fn resident() -> u64 {
    process_status::resident_memory(std::process::id()).unwrap()
}
