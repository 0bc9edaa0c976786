//! Runs the walk-through in a process world that the demo starts and terminates.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use pinniped_e2e::narrator::{Narrator, seconds};
use pinniped_e2e::walkthrough::{CONCIERGE, Delivery, GATEWAY, Ingress, LOCAL_USER_AUTHENTICATOR, Walk};
use pinniped_test_support::control_plane::ControlPlaneParams;
use pinniped_test_support::world::{World, WorldParams, in_namespace, pods_reach_pods};

use crate::{DemoResult, Scenario, StopSignals, interrupted, observe};

pub(crate) async fn demo(
    keep: bool,
    scenario: Scenario,
    observer: Option<observe::Params>,
    stop: &mut StopSignals,
) -> anyhow::Result<ExitCode> {
    if let Err(why) = in_namespace() {
        anyhow::bail!(
            "the demo needs a network namespace of its own, which this machine refuses: {why}\n\
             Run it as root, or allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1, \
             kernel.apparmor_restrict_unprivileged_userns=0, user.max_user_namespaces above 0); in a container, \
             give it the capability SYS_ADMIN"
        );
    }
    if let Scenario::ReleasePost { ingress: Ingress::Gateway, .. } = &scenario {
        pods_reach_pods().map_err(|why| anyhow::anyhow!("the gateway would not reach the proxy: {why}"))?;
    }
    let start = Instant::now();
    println!("== Start etcd, kube-apiserver and kube-controller-manager");
    let params = WorldParams {
        control_plane: ControlPlaneParams {
            cluster_name: "demo".to_owned(),
            ..ControlPlaneParams::default()
        },
        ..WorldParams::default()
    };
    // A separate thread keeps Ctrl-C responsive; the guardian terminates the started processes.
    let starting = tokio::task::spawn_blocking(|| World::start(params));
    let world = tokio::select! {
        world = starting => world.context("starting the world panicked")??,
        () = stop.requested() => return Ok(interrupted()),
    };
    println!("   ready ({})", seconds(start.elapsed()));
    let walk = Walk::new(&world, Narrator::Loud, start)?;
    // The provider and the browser, and Prometheus, which run until the demo ends.
    let login = tokio::sync::Mutex::new(None);
    let prometheus = tokio::sync::OnceCell::new();
    let walking = async {
        match &scenario {
            Scenario::Proxy { cert_manager } => walk.everything(cert_manager.as_deref()).await?,
            // The programs that it starts terminate with the world.
            Scenario::ReleasePost { cert_manager, ingress } => {
                walk.release_post(cert_manager, ingress, false).await.map(drop)?;
            }
            Scenario::Tokens => walk.everything_with_tokens().await?,
            Scenario::Oidc(params) => *login.lock().await = Some(params.walk(&walk).await?),
        }
        if let Some(observer) = &observer {
            let prometheus = prometheus.get_or_try_init(|| observer.start(&walk)).await?;
            observer.report(&walk, prometheus, &kubeconfig(&walk, &scenario)).await?;
        }
        anyhow::Ok(())
    };
    let end = tokio::select! {
        result = walking => result.map_or_else(DemoResult::Failed, |()| DemoResult::Done),
        () = stop.requested() => DemoResult::Interrupted,
    };
    let code = match &end {
        DemoResult::Interrupted => return Ok(interrupted()),
        DemoResult::Done => {
            println!("\n== Done in {}", seconds(start.elapsed()));
            ExitCode::SUCCESS
        }
        DemoResult::Failed(error) => {
            explain(&world, error, keep);
            ExitCode::FAILURE
        }
    };
    if keep {
        println!("{}", how_to_enter(&world, &walk, &scenario));
        if let Scenario::Oidc(params) = &scenario {
            println!("{}", params.hint());
        }
        if let (Some(observer), Some(prometheus)) = (&observer, prometheus.get()) {
            println!("\n{}", observer.address(prometheus));
        }
        println!("Everything stays until Ctrl-C.");
        stop.requested().await;
        println!("\ncleaning up");
    } else if matches!(end, DemoResult::Done) {
        println!(
            "\nEverything is being removed. To continue manually: `cargo xtask demo --keep` leaves it running and prints \
             how to use it.\nOn a cluster of your own the same commands work; see docs/howto for details."
        );
    }
    Ok(code)
}

/// Prints the failure, the last lines of the programs' logs, and the next steps.
fn explain(world: &World, error: &anyhow::Error, keep: bool) {
    eprintln!("\nerror: {error:#}");
    if let Some(pods) = world.pods("demo") {
        for namespace in [CONCIERGE, LOCAL_USER_AUTHENTICATOR, GATEWAY] {
            eprint!("\n{}", pods.log_tails(namespace, 15));
        }
    }
    if let Err(dead) = world.control_plane().check_alive() {
        eprintln!("\n{dead:#}");
    }
    if !keep {
        eprintln!("\nTo look around after the failure, run `cargo xtask demo --keep`.");
    }
}

/// Returns the command that opens a shell in the world.
fn how_to_enter(world: &World, walk: &Walk<'_>, scenario: &Scenario) -> String {
    let pid = std::process::id();
    // A user namespace maps one user; the machine's own namespace maps all of them.
    let mapped = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let whole = mapped.split_whitespace().nth(2) == Some("4294967295");
    let user = if whole { "" } else { " --user --preserve-credentials" };
    let bins =
        pinniped_test_support::tools::bin_dir().map(|dir| dir.display().to_string()).unwrap_or_default();
    let shell = std::env::var("SHELL").unwrap_or_else(|_| "sh".to_owned());
    format!(
        "\nTo continue manually, from another terminal:\n\n  \
         nsenter --target {pid}{user} --net --mount env HOME={home} KUBECONFIG={admin} PATH={tools}:{bins}:$PATH {shell}\n\n\
         There, `kubectl` is the administrator's, and\n\n  \
         kubectl --kubeconfig {kubeconfig} get pods -A\n\n\
         is the user's. Logs: {logs}",
        home = walk.home().display(),
        admin = world.admin_kubeconfig().display(),
        tools = world.control_plane().tools().display(),
        kubeconfig = kubeconfig(walk, scenario).display(),
        logs = world.dir().join("logs").display(),
    )
}

/// Returns the kubeconfig of the user.
fn kubeconfig(walk: &Walk<'_>, scenario: &Scenario) -> PathBuf {
    match scenario {
        Scenario::Proxy { .. } | Scenario::ReleasePost { .. } => walk.user_kubeconfig(),
        Scenario::Tokens => walk.tokens_kubeconfig(Delivery::Kubeconfig),
        Scenario::Oidc(params) => walk.oidc_kubeconfig(params.kind()),
    }
}
