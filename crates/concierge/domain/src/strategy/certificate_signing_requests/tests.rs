use super::super::api_server_address::AddressError;
use super::*;

const KEY: &str = "KubeClusterSigningCertificate";
const PROXY: &str = "ImpersonationProxy";
const OWN: &str = "KubeCertificateSigningRequest";
const SECOND: Duration = Duration::from_secs(1);

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// An entry of the status: type, status, reason.
fn strategy(type_: &str, status: &str, reason: &str) -> CredentialIssuerStrategy {
    let entry = failing(StrategyType::from(type_), StrategyReason::from(reason), "m", at(0));
    CredentialIssuerStrategy { status: StrategyStatus::from(status), ..entry }
}

/// The entries of a cluster in which neither strategy of upstream is in use.
fn alone() -> Vec<CredentialIssuerStrategy> {
    vec![strategy(KEY, "Error", "CouldNotFetchKey"), strategy(PROXY, "Error", "Disabled")]
}

fn address() -> TokenCredentialRequestApiInfo {
    TokenCredentialRequestApiInfo { server: "https://x".into(), certificate_authority_data: "Y2E=".into() }
}

struct Leader {
    memory: Memory,
    start: Instant,
    mode: Result<Mode, ModeError>,
    strategies: Vec<CredentialIssuerStrategy>,
    address: Result<TokenCredentialRequestApiInfo, UnknownAddress>,
}

impl Leader {
    fn new(mode: Mode, strategies: Vec<CredentialIssuerStrategy>) -> Self {
        let (memory, start) = (Memory::default(), Instant::now());
        Self { memory, start, mode: Ok(mode), strategies, address: Ok(address()) }
    }

    fn plan(&mut self, second: u64) -> Plan {
        let observed =
            Observed { mode: &self.mode, strategies: &self.strategies, address: self.address.clone() };
        self.memory.decide(observed, self.start + Duration::from_secs(second), at(0))
    }

    /// Formats the plan at this second.
    fn decide(&mut self, second: u64) -> String {
        match self.plan(second) {
            Plan::Probe => "probe".to_owned(),
            Plan::Conclude(Conclusion { change: EntryChange::Remove, recheck_after }) => {
                format!("off {recheck_after:?}")
            }
            Plan::Conclude(Conclusion { change: EntryChange::Set(entry), recheck_after }) => {
                let CredentialIssuerStrategy { type_, status, reason, message, .. } = *entry;
                assert_eq!(type_.as_str(), OWN);
                format!("{status} {reason} {message} {recheck_after:?}")
            }
        }
    }

    fn probed(&mut self, second: u64, result: Result<(), &str>) {
        let result = result.map_err(StatusText::from);
        self.memory.probed(result, self.start + Duration::from_secs(second));
    }
}

#[test]
fn in_mode_auto_the_strategy_gives_way_to_those_of_upstream() {
    for (strategies, is_off) in [
        (vec![], true),
        (vec![strategy(KEY, "Error", "CouldNotFetchKey")], true),
        (vec![strategy(PROXY, "Error", "Disabled")], true),
        (vec![strategy(KEY, "Success", "FetchedKey"), strategy(PROXY, "Error", "Disabled")], true),
        (vec![strategy(KEY, "Error", "CouldNotFetchKey"), strategy(PROXY, "Success", "Listening")], true),
        (vec![strategy(KEY, "Error", "CouldNotFetchKey"), strategy(PROXY, "Error", "Pending")], true),
        (
            vec![strategy(KEY, "Error", "CouldNotFetchKey"), strategy(PROXY, "Error", "ErrorDuringSetup")],
            true,
        ),
        (alone(), false),
        (vec![strategy(KEY, "Error", "CouldNotGetClusterInfo"), strategy(PROXY, "Error", "Disabled")], false),
        ([alone(), vec![strategy("ServiceAccountToken", "Success", "Listening")]].concat(), false),
    ] {
        let mut leader = Leader::new(Mode::Auto, strategies.clone());
        let first = leader.decide(0);
        let later = leader.decide(3600);
        assert_eq!(
            (first.as_str(), later.as_str()),
            if is_off { ("off None", "off None") } else { ("off Some(60s)", "probe") },
            "{strategies:?}"
        );
        // Any other mode does not depend on the other strategies.
        assert_eq!(Leader::new(Mode::Enabled, strategies.clone()).decide(0), "probe");
        assert_eq!(Leader::new(Mode::Disabled, strategies).decide(0), "off None");
    }
}

#[test]
fn in_mode_auto_the_strategy_waits_for_a_minute_without_another_one() {
    let mut leader = Leader::new(Mode::Auto, alone());
    assert_eq!(leader.decide(0), "off Some(60s)");
    assert_eq!(leader.decide(45), "off Some(15s)");
    // The agent has read the key for a moment.
    let works = vec![strategy(KEY, "Success", "FetchedKey"), strategy(PROXY, "Error", "Disabled")];
    leader.strategies = works.clone();
    assert_eq!(leader.decide(50), "off None");
    leader.strategies = alone();
    assert_eq!(leader.decide(55), "off Some(60s)");
    assert_eq!(leader.decide(115), "probe");
    leader.probed(116, Ok(()));
    assert!(leader.decide(116).starts_with("Success Listening"), "{}", leader.decide(116));
    // The key is available again.
    leader.strategies = [works, vec![strategy(OWN, "Success", "Listening")]].concat();
    assert_eq!(leader.decide(120), "off None");
}

#[test]
fn a_new_leader_keeps_the_entry_of_the_previous_one() {
    let strategies = [alone(), vec![strategy(OWN, "Success", "Listening")]].concat();
    assert_eq!(Leader::new(Mode::Auto, strategies).decide(0), "probe");
}

#[test]
fn a_probe_that_is_signed_makes_the_strategy_ready_with_the_address_of_the_api_server() {
    let mut leader = Leader::new(Mode::Enabled, alone());
    assert_eq!(leader.decide(0), "probe");
    leader.probed(1, Ok(()));
    let Plan::Conclude(conclusion) = leader.plan(1) else { panic!("no second probe") };
    assert_eq!(conclusion.recheck_after, Some(600 * SECOND));
    let EntryChange::Set(entry) = conclusion.change else { panic!("an entry") };
    assert_eq!((entry.status.as_str(), entry.reason.as_str()), ("Success", "Listening"));
    assert_eq!(entry.message, "client certificates are signed through the cluster's certificate API");
    assert_eq!(
        serde_json::to_value(&entry.frontend).unwrap(),
        serde_json::json!({"type": "TokenCredentialRequestAPI", "tokenCredentialRequestInfo":
            {"server": "https://x", "certificateAuthorityData": "Y2E="}})
    );
    assert!(leader.decide(600).ends_with("Some(1s)"));
    assert_eq!(leader.decide(601), "probe");
}

#[test]
fn a_failed_probe_is_reported_and_repeated_every_30_seconds() {
    let mut leader = Leader::new(Mode::Enabled, vec![]);
    leader.probed(0, Err("the signer fails"));
    assert_eq!(leader.decide(0), "Error ErrorDuringSetup the signer fails Some(30s)");
    assert_eq!(leader.decide(29), "Error ErrorDuringSetup the signer fails Some(1s)");
    assert_eq!(leader.decide(30), "probe");
}

#[test]
fn in_mode_auto_a_failure_removes_the_entry_and_the_next_probe_comes_later_each_time() {
    let strategies = [alone(), vec![strategy(OWN, "Success", "Listening")]].concat();
    let mut leader = Leader::new(Mode::Auto, strategies);
    let mut second = 0;
    for interval in [30, 60, 120, 240, 480, 600, 600] {
        assert_eq!(leader.decide(second), "probe");
        leader.probed(second, Err("the signer fails"));
        assert_eq!(leader.decide(second), format!("off Some({interval}s)"));
        second += interval;
    }
    leader.probed(second, Ok(()));
    assert!(leader.decide(second).starts_with("Success Listening"));
    leader.probed(second, Err("the signer fails"));
    assert_eq!(leader.decide(second), "off Some(30s)");
    leader.address = Err(UnknownAddress(AddressError::Incomplete));
    assert_eq!(leader.decide(second), "off None");
}

#[test]
fn an_unknown_address_or_mode_is_reported_without_a_probe() {
    let mut leader = Leader::new(Mode::Enabled, vec![]);
    leader.address = Err(UnknownAddress(AddressError::Incomplete));
    let text = leader.decide(0);
    assert!(
        text.starts_with("Error CouldNotGetClusterInfo the address of the API server is not known"),
        "{text}"
    );
    let spec = serde_json::from_value(serde_json::json!({"certificateSigningRequests": {"mode": "x"}}));
    leader.mode = Mode::parse(Some(&spec.unwrap()));
    let text = leader.decide(0);
    assert!(text.starts_with("Error ErrorDuringSetup could not load CredentialIssuer spec.cert"), "{text}");
}

#[test]
fn every_replica_serves_while_the_entry_is_a_success() {
    let entry = |status| vec![strategy(OWN, status, "Listening")];
    let invalid = serde_json::from_value(serde_json::json!({"certificateSigningRequests": {"mode": "x"}}));
    let invalid = Mode::parse(Some(&invalid.unwrap()));
    for (mode, strategies, wanted) in [
        (Ok(Mode::Auto), entry("Success"), true),
        (Ok(Mode::Enabled), entry("Success"), true),
        (Ok(Mode::Disabled), entry("Success"), false),
        (invalid, entry("Success"), false),
        (Ok(Mode::Enabled), entry("Error"), false),
        (Ok(Mode::Enabled), alone(), false),
    ] {
        assert_eq!(is_in_use(&mode, &strategies), wanted, "{mode:?} {strategies:?}");
    }
}
