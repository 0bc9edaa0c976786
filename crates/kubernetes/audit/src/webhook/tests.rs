use serde_json::{Value, json};

use super::*;
use crate::event::Format;
use crate::event::tests::event;

#[test]
fn a_list_has_the_events_without_their_type() {
    let mut encoded = Vec::new();
    ["a", "b"].into_iter().for_each(|id| event(id).write(Format::Item, &mut encoded));
    let list: Value = serde_json::from_slice(&event_list(&encoded)).unwrap();
    let items = list["items"].as_array().unwrap();
    let types = items.iter().map(|item| [item.get("kind"), item.get("apiVersion")]);
    assert_eq!(types.collect::<Vec<_>>(), [[None; 2]; 2]);
    assert_eq!([&items[0]["auditID"], &items[1]["auditID"]], ["a", "b"]);
    let expected =
        json!({"kind": "EventList", "apiVersion": "audit.k8s.io/v1", "metadata": {}, "items": items});
    assert_eq!(list, expected);
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
