use pinniped_test_support::log_events::LogEvents;
use tracing::Level;

#[test]
fn events_of_the_targets_are_recorded_with_their_fields_and_others_are_not() {
    let events = LogEvents::record(&["it::log_events"], Level::INFO);
    tracing::warn!(object = "pod", error = %"not found", count = 3, "first");
    tracing::debug!("less severe");
    tracing::error!(target: "elsewhere", "of another crate");
    std::thread::spawn(|| tracing::error!("of another thread")).join().unwrap();
    let recorded = events.all();
    assert_eq!(recorded.len(), 1, "{recorded:?}");
    assert_eq!(recorded[0].level, Level::WARN);
    let fields = ["message", "object", "error", "count", "missing"].map(|name| recorded[0].field(name));
    assert_eq!(fields, ["first", "pod", "not found", "3", ""]);
    events.clear();
    assert!(events.all().is_empty());
}
