use serde_json::{Value, json};

use super::*;

#[test]
fn a_list_has_the_events_without_their_type() {
    let line = format!("{TYPE_META}\"auditID\":\"a\"}}\n");
    let list: Value = serde_json::from_slice(&event_list(line.repeat(2).as_bytes())).unwrap();
    assert_eq!(
        list,
        json!({
            "kind": "EventList", "apiVersion": "audit.k8s.io/v1", "metadata": {},
            "items": [{"auditID": "a"}, {"auditID": "a"}],
        })
    );
}

#[tokio::test(start_paused = true)]
async fn the_rate_of_batches_is_limited_after_a_burst() {
    let mut throttle = Throttle::default();
    let start = Instant::now();
    for _ in 0..BATCH_BURST {
        throttle.wait().await;
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    for _ in 0..BATCHES_PER_SECOND {
        throttle.wait().await;
    }
    assert_eq!(start.elapsed(), Duration::from_secs(1));
    // Time without batches allows another burst, which is not larger.
    sleep(Duration::from_secs(60)).await;
    let start = Instant::now();
    for _ in 0..=BATCH_BURST {
        throttle.wait().await;
    }
    assert_eq!(start.elapsed(), Duration::from_millis(100));
}
