//! Clients cannot make a gateway exceed the memory limit of its manifest, and another client is
//! served meanwhile. A real cgroup enforces the limit.

use std::net::TcpListener;

use pinniped_e2e::requests_under_attack::{Backend, Client};
use pinniped_test_support::attacks::Attack;
use pinniped_test_support::pods::NODE_IP;
use serde_json::json;

use super::environment::{self, APP, TLS_PORT};
use crate::memory_limit::AttackedDeployment;

const HOST: &str = "attacked.gateway-memory.example.com";

#[tokio::test]
async fn no_client_terminates_a_gateway_within_the_shipped_memory_limit() {
    let Some(environment) = environment::alone("memory").await else { return };
    let running = || environment.running();
    let gateway =
        AttackedDeployment { world: environment.world, app: APP, port: TLS_PORT, running: &running };
    let manifest = "deploy/install-pinniped-gateway.yaml";
    let test = "attacks on a gateway with a memory limit";
    let Some(cgroup) = gateway.cgroup_with_limit(test, manifest) else { return };
    let listener = TcpListener::bind((NODE_IP, 0)).unwrap();
    let mut objects = environment.service("backend", listener.local_addr().unwrap());
    objects.push(environment.secret("cert", &environment.serving("cert", HOST)));
    objects.push(environment.proxy(
        "attacked",
        json!({"virtualhost": {"fqdn": HOST, "tls": {"secretName": "cert"}},
            "routes": [{"services": [{"name": "backend", "port": 80}]}]}),
    ));
    environment.apply(&objects).await;
    let backend = Backend::start(listener).unwrap();
    gateway.survives(&cgroup, &Attack::ON_INGRESS, &Client::of_gateway(HOST)).await;
    backend.was_attacked().unwrap();
}
