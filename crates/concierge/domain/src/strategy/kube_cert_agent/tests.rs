use super::fixtures::{kubeadm, observed, rke2, settings, simple};
use super::update::Step;
use super::*;

const NONE: &str = "could not find a healthy kube-controller-manager pod (0 candidates): note that this error is the \
                    expected behavior for some cluster types, including most cloud provider clusters (e.g. GKE, AKS, EKS)";

fn message(observed: &Observed) -> (StrategyReason, String) {
    let error = decide(observed, &settings(), None).key.unwrap_err();
    (error.reason(), error.to_string())
}

/// Returns the node for which the Deployment would be created.
fn node(observed: &Observed) -> Result<String, String> {
    match decide(observed, &settings(), None) {
        Plan { deployment: Ok(Step::Create(deployment)), .. } => {
            Ok(deployment.spec["template"]["spec"]["nodeName"].as_str().unwrap_or_default().to_owned())
        }
        Plan { deployment: Ok(Step::Nothing), key: Err(error) } => Err(error.to_string()),
        plan => panic!("{plan:?}"),
    }
}

/// Name, phase, second of creation, node.
type Candidates<'a> = &'a [(&'a str, &'a str, i64, &'a str)];

fn managers(pods: Candidates<'_>, nodes: Nodes) -> Observed {
    let pods = pods.iter().map(|(name, phase, second, node)| simple(name, phase, *second, node)).collect();
    Observed { controller_managers: Ok(pods), nodes, ..observed() }
}

fn nodes(nodes: &[(&str, bool)]) -> Nodes {
    Nodes::Listed(nodes.iter().map(|(name, free)| ((*name).to_owned(), *free)).collect())
}

#[test]
fn nothing_is_created_without_a_healthy_controller_manager() {
    let cases: [(Candidates<'_>, &str); 5] = [
        (&[], NONE),
        (&[("a", "Pending", 1, "n")], "could not find a healthy kube-controller-manager pod (1 candidate)"),
        (
            &[("a", "Pending", 1, "n"), ("b", "Failed", 1, "n")],
            "could not find a healthy kube-controller-manager pod (2 candidates)",
        ),
        (&[("a", "Succeeded", 1, "n")], "could not find a healthy kube-controller-manager pod (1 candidate)"),
        (&[("a", "", 1, "n")], "could not find a healthy kube-controller-manager pod (1 candidate)"),
    ];
    for (pods, wanted) in cases {
        let observed = managers(pods, Nodes::NotListed);
        assert_eq!(message(&observed), (StrategyReason::CouldNotFetchKey, wanted.to_owned()));
        assert_eq!(decide(&observed, &settings(), None).deployment, Ok(Step::Nothing));
        assert!(!pods::needs_nodes(observed.controller_managers.as_ref().unwrap()));
    }
    let failed = Observed { controller_managers: Err("boom".into()), ..observed() };
    assert_eq!(message(&failed).1, "error while looking for controller manager pod: boom");
}

#[test]
fn the_agent_runs_on_the_node_of_the_newest_controller_manager() {
    let all_free = || nodes(&[("n1", true), ("n2", true), ("n3", true)]);
    let cases: [(Candidates<'_>, Nodes, &str); 9] = [
        (&[("a", "Running", 1, "n1")], Nodes::NotListed, "n1"),
        // A single pod is used on any node.
        (&[("a", "Running", 1, "n1"), ("b", "Pending", 2, "n2")], nodes(&[("n1", false)]), "n1"),
        (&[("a", "Running", 1, "n1"), ("b", "Running", 2, "n2")], all_free(), "n2"),
        (&[("b", "Running", 2, "n2"), ("a", "Running", 2, "n1")], all_free(), "n1"),
        // A cordoned node is avoided if there is another one.
        (
            &[("a", "Running", 1, "n1"), ("b", "Running", 2, "n2")],
            nodes(&[("n1", true), ("n2", false)]),
            "n1",
        ),
        (
            &[("a", "Running", 1, "n1"), ("b", "Running", 2, "n2")],
            nodes(&[("n1", false), ("n2", false)]),
            "n2",
        ),
        // A deleted node is treated like a cordoned one.
        (&[("a", "Running", 1, "n1"), ("b", "Running", 2, "n2")], nodes(&[("n1", true)]), "n1"),
        (&[("a", "Running", 1, "n1"), ("b", "Running", 2, "")], nodes(&[("n1", true)]), "n1"),
        (&[("a", "Running", 1, "n1"), ("b", "Running", 2, "n2")], nodes(&[]), "n2"),
    ];
    for (pods, nodes, wanted) in cases {
        assert_eq!(node(&managers(pods, nodes.clone())).as_deref(), Ok(wanted), "{pods:?} {nodes:?}");
    }
}

#[test]
fn unknown_nodes_are_an_error_if_the_selection_depends_on_them() {
    let two: Candidates<'_> = &[("a", "Running", 1, "n1"), ("b", "Running", 2, "n2")];
    let prefix = "error while looking for controller manager pod: ";
    for (nodes, wanted) in [
        (Nodes::Failed("nodes is forbidden".into()), "nodes is forbidden"),
        (nodes(&[("", true), ("n1", true)]), "a node from the list of all nodes has no name"),
    ] {
        assert_eq!(node(&managers(two, nodes)), Err(format!("{prefix}{wanted}")));
    }
    let observed = managers(two, Nodes::NotListed);
    let pods = observed.controller_managers.unwrap();
    assert!(pods::needs_nodes(&pods));
    assert_eq!(pods::node_names(&pods), ["n1", "n2"]);
}

#[test]
fn the_newest_running_agent_is_selected() {
    let with =
        |pods: Vec<Arc<Pod>>| decide(&Observed { agents: Ok(pods), ..observed() }, &settings(), None).key;
    let read = with(vec![
        simple("old", "Running", 1, "n"),
        simple("b", "Running", 5, "n"),
        simple("a", "Running", 5, "n"),
        simple("newest", "Pending", 9, "n"),
    ])
    .unwrap();
    assert_eq!(
        read.agent,
        AgentPod { namespace: "ns".to_owned(), name: "a".to_owned(), uid: "uid-a".to_owned() }
    );
    assert_eq!(read.info.server, "https://api");
    assert_eq!(read.info.certificate_authority_data, "Y2E=");
    for (pods, wanted) in [
        (vec![], "could not find a healthy agent pod (0 candidates)"),
        (vec![simple("a", "Pending", 1, "n")], "could not find a healthy agent pod (1 candidate)"),
        (
            vec![simple("a", "Failed", 1, "n"), simple("b", "Failed", 1, "n")],
            "could not find a healthy agent pod (2 candidates)",
        ),
    ] {
        let error = with(pods).unwrap_err();
        assert_eq!(
            (error.reason(), error.to_string()),
            (StrategyReason::CouldNotFetchKey, wanted.to_owned())
        );
    }
    let unlisted = Observed { agents: Err("no".into()), ..observed() };
    assert_eq!(
        message(&unlisted),
        (StrategyReason::CouldNotFetchKey, "could not list agent pods: no".to_owned())
    );
}

#[test]
fn the_deployment_is_created_even_if_a_later_action_fails() {
    let none = Observed { agents: Ok(Vec::new()), cluster_info: Ok(None), ..observed() };
    assert!(matches!(decide(&none, &settings(), None).deployment, Ok(Step::Create(_))));
    // An error about the agent takes precedence over one about the cluster's information.
    assert_eq!(message(&none).1, "could not find a healthy agent pod (0 candidates)");
    let unreadable = Observed { deployment: Err("no".into()), ..observed() };
    let plan = decide(&unreadable, &settings(), None);
    assert_eq!(plan.deployment.unwrap_err().to_string(), "could not get deployments: no");
    assert!(plan.key.is_ok(), "an agent that is there is used");
}

#[test]
fn missing_or_invalid_cluster_information_has_its_own_reason() {
    let missing = Observed { cluster_info: Ok(None), ..observed() };
    assert_eq!(
        message(&missing),
        (
            StrategyReason::CouldNotGetClusterInfo,
            "failed to get kube-public/cluster-info configmap: configmap \"cluster-info\" not found"
                .to_owned()
        )
    );
    let empty = Observed { cluster_info: Ok(Some(Arc::default())), ..observed() };
    assert_eq!(
        message(&empty),
        (
            StrategyReason::CouldNotGetClusterInfo,
            "could not extract Kubernetes API endpoint info from kube-public/cluster-info configmap: missing \
             \"kubeconfig\" key"
                .to_owned()
        )
    );
}

#[test]
fn a_configured_address_is_published() {
    let read = decide(&observed(), &settings(), Some("https://other")).key.unwrap();
    assert_eq!(
        (read.info.server.as_str(), read.info.certificate_authority_data.as_str()),
        ("https://other", "Y2E=")
    );
}

#[test]
fn each_layout_has_an_agent_beside_the_controller_manager() {
    for (pod, wanted) in [(kubeadm(), "kind-control-plane"), (rke2(), "rke2-server")] {
        let observed = Observed { controller_managers: Ok(vec![Arc::new(pod)]), ..observed() };
        assert_eq!(node(&observed).as_deref(), Ok(wanted));
    }
    // k0s runs kube-controller-manager as a process of the host: there is no pod.
    assert_eq!(node(&managers(&[], Nodes::NotListed)), Err(NONE.to_owned()));
}

#[test]
fn the_node_of_k3s_replaces_the_controller_manager_pod() {
    let spec = serde_json::json!({"nodeName": "k3s-server", "containers": [{"name": "c"}]});
    let pod: Pod = serde_json::from_value(serde_json::json!({"spec": spec})).unwrap();
    let info = TokenCredentialRequestApiInfo {
        server: "https://10.0.0.1:6443".to_owned(),
        certificate_authority_data: "Y2E=".to_owned(),
    };
    let k3s = |info| Some(Arc::new(k3s::K3s { controller_manager: pod.clone(), info }));
    let observed = |pods: Candidates<'_>, k3s| Observed { k3s, ..managers(pods, Nodes::NotListed) };

    assert_eq!(node(&observed(&[], k3s(Some(info.clone())))).as_deref(), Ok("k3s-server"));
    // An existing pod takes precedence over the constructed one.
    assert_eq!(node(&observed(&[("a", "Running", 1, "n1")], k3s(None))).as_deref(), Ok("n1"));
    let pending = observed(&[("a", "Pending", 1, "n1")], k3s(None));
    assert!(node(&pending).unwrap_err().ends_with("(1 candidate)"));

    // An existing `cluster-info` takes precedence.
    let published = |observed: &Observed, url: Option<&str>| {
        decide(observed, &settings(), url).key.map(|read| read.info.server).map_err(|error| error.to_string())
    };
    let made = observed(&[], k3s(Some(info)));
    assert_eq!(published(&made, None).as_deref(), Ok("https://api"));
    let none = Observed { cluster_info: Ok(None), ..made };
    assert_eq!(published(&none, None).as_deref(), Ok("https://10.0.0.1:6443"));
    assert_eq!(published(&none, Some("https://x")).as_deref(), Ok("https://x"));
    let unknown = Observed { cluster_info: Ok(None), ..observed(&[], k3s(None)) };
    assert!(
        published(&unknown, None)
            .unwrap_err()
            .starts_with("failed to get kube-public/cluster-info configmap")
    );
}

#[test]
fn an_error_of_the_deployment_takes_precedence() {
    let now = Timestamp::UNIX_EPOCH;
    let info = || TokenCredentialRequestApiInfo {
        server: "https://api".into(),
        certificate_authority_data: "Y2E=".into(),
    };
    let no_info = || KeyError::ClusterInfo(ClusterInfoError::Get("no info".into()));
    let no_key = || KeyError::Pod(PodError::Agents("no key".into()));
    let no_info_message = "failed to get kube-public/cluster-info configmap: no info";
    let failed = || AppliedDeployment::Failed("x".into());
    let not_ensured = "could not ensure agent deployment: x";
    let could_not_fetch = StrategyReason::CouldNotFetchKey;
    let no_cluster_info = StrategyReason::CouldNotGetClusterInfo;
    let fetched = (StrategyReason::FetchedKey, "key was fetched successfully");
    let cases = [
        (AppliedDeployment::Done, Ok(info()), fetched.clone()),
        (AppliedDeployment::LeftToLeader, Ok(info()), fetched.clone()),
        (AppliedDeployment::Conflict, Ok(info()), fetched),
        (
            AppliedDeployment::Done,
            Err(no_key()),
            (could_not_fetch.clone(), "could not list agent pods: no key"),
        ),
        (AppliedDeployment::Done, Err(no_info()), (no_cluster_info.clone(), no_info_message)),
        (failed(), Ok(info()), (could_not_fetch.clone(), not_ensured)),
        (failed(), Err(no_key()), (could_not_fetch, not_ensured)),
        (failed(), Err(no_info()), (no_cluster_info, not_ensured)),
    ];
    for (deployment, key, (reason, message)) in cases {
        let Conclusion { entry, recheck_after } = conclude(&deployment, key.as_ref().cloned(), now);
        assert_eq!(recheck_after.is_some(), deployment == AppliedDeployment::Conflict);
        assert_eq!((&entry.reason, entry.message.as_str()), (&reason, message));
        assert_eq!(entry.type_, StrategyType::KubeClusterSigningCertificate);
        let frontend = serde_json::to_value(&entry.frontend).unwrap();
        let success = reason == StrategyReason::FetchedKey;
        assert_eq!(entry.status.as_str(), if success { "Success" } else { "Error" });
        let wanted = serde_json::json!({
            "type": "TokenCredentialRequestAPI",
            "tokenCredentialRequestInfo": {"server": "https://api", "certificateAuthorityData": "Y2E="},
        });
        assert_eq!(frontend, if success { wanted } else { serde_json::Value::Null });
    }
}
