//! Timeouts of the wait for a response, on a paused clock.

use std::future::pending;
use std::time::Duration;

use super::*;

const LIMIT: Duration = Duration::from_secs(4);

/// Waits for a response that never arrives, and returns the time until the timeout.
async fn waited(timeouts: Timeouts, upload: Option<&Upload>) -> Duration {
    let began = Instant::now();
    let result = in_time(pin!(pending::<()>()), began, &timeouts, upload).await;
    assert!(matches!(result, Err(Failure::Late)));
    // Timers have a resolution of one millisecond.
    Duration::from_millis(u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX))
}

/// Returns a body that transfers a frame after each pause, and its progress.
fn uploading(pauses: u32, pause: Duration) -> Upload {
    let upload = Upload::default();
    let progress = upload.clone();
    tokio::spawn(async move {
        for _ in 0..pauses {
            tokio::time::sleep(pause).await;
            progress.alive().store(true, std::sync::atomic::Ordering::Relaxed);
        }
        progress.end();
    });
    upload
}

#[tokio::test(start_paused = true)]
async fn without_a_response_each_timeout_ends_the_wait_exactly() {
    let (response, idle) = (Some(LIMIT), Some(LIMIT));
    let longer = Some(LIMIT * 2);
    for (timeouts, wanted) in [
        (Timeouts { response, idle: None }, LIMIT),
        (Timeouts { response: None, idle }, LIMIT),
        (Timeouts { response, idle: longer }, LIMIT),
        (Timeouts { response: longer, idle }, LIMIT),
        (Timeouts { response: longer, idle: longer }, LIMIT * 2),
    ] {
        assert_eq!(waited(timeouts, None).await, wanted, "{timeouts:?}");
    }
    let none = Timeouts { response: None, idle: None };
    let forever = tokio::time::timeout(LIMIT * 1000, waited(none, None)).await;
    assert!(forever.is_err(), "no limit");
    let timeouts = Timeouts { response, idle };
    let late = async { tokio::time::sleep(LIMIT - Duration::from_millis(1)).await };
    assert!(in_time(pin!(late), Instant::now(), &timeouts, None).await.is_ok(), "a response in time");
}

#[tokio::test(start_paused = true)]
async fn the_response_timeout_starts_with_the_end_of_the_request_body() {
    // Six pauses of three seconds each exceed the limit together.
    let pause = Duration::from_secs(3);
    let timeouts = Timeouts { response: Some(LIMIT), idle: None };
    let upload = uploading(6, pause);
    assert_eq!(waited(timeouts, Some(&upload)).await, pause * 6 + LIMIT);
}

#[tokio::test(start_paused = true)]
async fn the_idle_timeout_starts_again_with_each_frame_of_the_request_body() {
    let pause = Duration::from_secs(3);
    let timeouts = Timeouts { response: None, idle: Some(LIMIT) };
    let upload = uploading(6, pause);
    let took = waited(timeouts, Some(&upload)).await;
    // A frame counts when the timer fires next, so the limit is exceeded by less than itself.
    assert!(took >= pause * 6 + LIMIT && took < pause * 6 + LIMIT * 2, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn the_response_timeout_covers_head_and_body_together() {
    let began = Instant::now();
    let timeouts = Timeouts { response: Some(LIMIT), idle: Some(LIMIT) };
    tokio::time::advance(LIMIT / 2).await;
    let rest = pace(began, timeouts, None);
    assert_eq!(rest.deadline, Some(began + LIMIT), "not the full limit again");
    assert!(rest.idle.is_some_and(|idle| idle.after == LIMIT));

    let upload = uploading(1, LIMIT / 4);
    assert_eq!(pace(began, timeouts, Some(&upload)).deadline, None, "the request is still being sent");
    tokio::time::sleep(LIMIT / 2).await;
    let sent = began + LIMIT / 2 + LIMIT / 4;
    let deadline = pace(began, timeouts, Some(&upload)).deadline.unwrap();
    assert!(deadline.duration_since(sent + LIMIT) <= Duration::from_millis(1), "{deadline:?}");
}
