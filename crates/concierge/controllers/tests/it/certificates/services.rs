//! Fields of the Service, as the API server accepts them.

use k8s_openapi::api::core::v1::ServiceSpec;
use kube::ResourceExt as _;

use super::*;

const FIELDS: &str = "credentialissuer.pinniped.dev/service-fields";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_served_behind_a_service_whose_fields_can_be_set_and_released() -> anyhow::Result<()>
{
    let mut proxy = enabled("LoadBalancer", HOST);
    let ranges = json!(["10.0.0.0/8", "192.168.0.0/16"]);
    proxy["service"]["loadBalancerClass"] = json!("example.com/internal");
    proxy["service"]["loadBalancerSourceRanges"] = ranges.clone();
    proxy["service"]["externalTrafficPolicy"] = json!("Local");
    proxy["service"]["ipFamilyPolicy"] = json!("PreferDualStack");
    let mut scenario = Scenario::new("fields", proxy).await?;
    let ready = format!("https://{HOST}");
    scenario.ready("all of them", &["create LB", "create CA", "create TLS"], &ready).await?;
    let service = scenario.install.services().get("concierge-lb").await?;
    let spec = service.spec.clone().unwrap_or_default();
    assert_eq!(spec.load_balancer_class.as_deref(), Some("example.com/internal"));
    assert_eq!(json!(spec.load_balancer_source_ranges), ranges);
    assert_eq!(spec.external_traffic_policy.as_deref(), Some("Local"));
    assert_eq!(spec.ip_family_policy.as_deref(), Some("PreferDualStack"));
    assert!(service.annotations().contains_key(FIELDS));

    // Changed and removed, except for the class, which is immutable.
    let service_is = async |what: &str, is_so: &dyn Fn(&ServiceSpec) -> bool| {
        wait::until_ok(PATIENCE, what.to_owned(), async || {
            let service = scenario.install.services().get("concierge-lb").await?;
            let spec = service.spec.unwrap_or_default();
            anyhow::ensure!(is_so(&spec), "{spec:?}");
            Ok(())
        })
        .await
    };
    scenario.install.configure(json!({"service": {"loadBalancerSourceRanges": ["10.0.0.0/8"]}})).await?;
    service_is("one range", &|spec| {
        json!(spec.load_balancer_source_ranges) == json!(["10.0.0.0/8"])
            && spec.external_traffic_policy.as_deref() == Some("Local")
    })
    .await?;
    let none =
        json!({"loadBalancerSourceRanges": null, "externalTrafficPolicy": null, "ipFamilyPolicy": null});
    scenario.install.configure(json!({"service": none})).await?;
    service_is("none of them", &|spec| {
        spec.load_balancer_source_ranges.as_ref().is_none_or(Vec::is_empty)
            && spec.external_traffic_policy.as_deref() == Some("Cluster")
            && spec.ip_family_policy.as_deref() == Some("SingleStack")
    })
    .await?;
    let fixed = "could not change the loadBalancerClass of service \"concierge-lb\", which is fixed once it was \
                 created: delete the Service to have it created anew";
    scenario.install.configure(json!({"service": {"loadBalancerClass": "example.com/other"}})).await?;
    scenario.error("another class", &["patch LB", "patch LB"], fixed).await?;
    scenario.install.services().delete("concierge-lb", &DeleteParams::default()).await?;
    scenario.ready("a new Service", &["create LB"], &ready).await?;

    // Values that the schema and the API server reject.
    for (service, text) in [
        (json!({"externalTrafficPolicy": "Near"}), "Unsupported value: \"Near\""),
        (json!({"ipFamilyPolicy": "x"}), "Unsupported value: \"x\""),
        (json!({"loadBalancerClass": ""}), "should be at least 1 chars long"),
        (json!({"loadBalancerSourceRanges": "10.0.0.0/8"}), "must be of type array"),
    ] {
        let refused = scenario.install.configure(json!({ "service": service })).await.expect_err(text);
        assert!(refused.to_string().contains(text), "{refused}");
    }
    scenario.install.configure(json!({"service": {"loadBalancerSourceRanges": ["10.0.0.0"]}})).await?;
    let text = "could not load CredentialIssuer spec.impersonationProxy: invalid LoadBalancerSourceRanges \"10.0.0.0\"";
    scenario.error("no range", &[], text).await?;
    let dual = json!({"loadBalancerSourceRanges": null, "ipFamilyPolicy": "RequireDualStack"});
    scenario.install.configure(json!({ "service": dual })).await?;
    scenario
        .install
        .strategy("no second address family here", |entry| {
            entry.reason == StrategyReason::ErrorDuringSetup && entry.message.contains("ipFamilyPolicy")
        })
        .await?;
    scenario.end().await;
    Ok(())
}
