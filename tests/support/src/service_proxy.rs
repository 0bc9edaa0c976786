//! A stand-in for kube-proxy and cluster DNS that makes Services work inside the test world.
//!
//! For every port of every ClusterIP a TCP listener forwards connections to the ready endpoints in
//! turn. The names `NAME.NS`, `NAME.NS.svc` and `NAME.NS.svc.cluster.local` resolve to the
//! ClusterIP. The data comes from the API server (Services, and the EndpointSlices of the real
//! endpoint controller). Only TCP and IPv4 are supported.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::hosts::Hosts;

/// Maps ClusterIP and port to the addresses of ready endpoints.
type Routes = BTreeMap<SocketAddr, Vec<SocketAddr>>;

/// Forwards connections until `cancel`.
pub async fn run(client: kube::Client, hosts: Arc<Hosts>, cancel: CancellationToken) {
    let (services, service_writer) = reflector::store::<Service>();
    let (slices, slice_writer) = reflector::store::<EndpointSlice>();
    let service_events = watcher(Api::<Service>::all(client.clone()), watcher::Config::default())
        .default_backoff()
        .reflect(service_writer)
        .map_ok(drop);
    let slice_events = watcher(Api::<EndpointSlice>::all(client), watcher::Config::default())
        .default_backoff()
        .reflect(slice_writer)
        .map_ok(drop);
    let mut events = futures::stream::select(service_events.boxed(), slice_events.boxed());
    let routes = Arc::new(Mutex::new(Routes::new()));
    let mut listeners: HashMap<SocketAddr, CancellationToken> = HashMap::new();
    let mut tasks = JoinSet::new();
    loop {
        let event = tokio::select! {
            () = cancel.cancelled() => break,
            Some(_) = tasks.join_next() => continue,
            event = events.next() => event,
        };
        match event {
            Some(Ok(())) => {}
            Some(Err(_)) => continue,
            None => break,
        }
        let wanted = routes_of(&services, &slices);
        name_services(&services, &hosts);
        listeners.retain(|address, token| {
            let keep = wanted.contains_key(address);
            if !keep {
                token.cancel();
            }
            keep
        });
        for address in wanted.keys() {
            if listeners.contains_key(address) {
                continue;
            }
            match TcpListener::bind(address).await {
                Ok(listener) => {
                    let token = cancel.child_token();
                    tasks.spawn(accept(listener, *address, Arc::clone(&routes), token.clone()));
                    listeners.insert(*address, token);
                }
                Err(error) => eprintln!("service proxy: could not listen on {address}: {error}"),
            }
        }
        *routes.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = wanted;
    }
    tasks.shutdown().await;
}

fn routes_of(services: &Store<Service>, slices: &Store<EndpointSlice>) -> Routes {
    let mut routes = Routes::new();
    for service in services.state() {
        let Some(spec) = &service.spec else { continue };
        let Some(ip) = spec.cluster_ip.as_deref().and_then(|ip| ip.parse::<IpAddr>().ok()) else { continue };
        for port in spec.ports.iter().flatten() {
            if port.protocol.as_deref().unwrap_or("TCP") != "TCP" {
                continue;
            }
            let Ok(number) = u16::try_from(port.port) else { continue };
            let endpoints = slices
                .state()
                .iter()
                .filter(|slice| {
                    slice.namespace() == service.namespace()
                        && slice.labels().get("kubernetes.io/service-name") == Some(&service.name_any())
                })
                .flat_map(|slice| ready_endpoints(slice, port.name.as_deref().unwrap_or_default()))
                .collect();
            routes.insert(SocketAddr::new(ip, number), endpoints);
        }
    }
    routes
}

fn ready_endpoints(slice: &EndpointSlice, port_name: &str) -> Vec<SocketAddr> {
    let port = slice
        .ports
        .iter()
        .flatten()
        .find(|p| p.name.as_deref().unwrap_or_default() == port_name)
        .and_then(|p| p.port)
        .and_then(|p| u16::try_from(p).ok());
    let Some(port) = port else { return Vec::new() };
    slice
        .endpoints
        .iter()
        .flatten()
        .filter(|endpoint| endpoint.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true))
        .flat_map(|endpoint| &endpoint.addresses)
        .filter_map(|address| Some(SocketAddr::new(address.parse().ok()?, port)))
        .collect()
}

fn name_services(services: &Store<Service>, hosts: &Hosts) {
    let written = hosts.change(|names| {
        names.retain(|name, _| !is_service_name(name) || services.get(&reference(name)).is_some());
        for service in services.state() {
            let (Some(namespace), Some(spec)) = (service.namespace(), &service.spec) else { continue };
            let Some(ip) = spec.cluster_ip.as_deref().and_then(|ip| ip.parse().ok()) else { continue };
            let name = service.name_any();
            for suffix in ["", ".svc", ".svc.cluster.local"] {
                names.insert(format!("{name}.{namespace}{suffix}"), ip);
            }
        }
    });
    if let Err(error) = written {
        eprintln!("service proxy: {error:#}");
    }
}

/// Only names with `.svc` are removed again: a two-label name may belong to a test.
fn is_service_name(name: &str) -> bool {
    name.ends_with(".svc") || name.ends_with(".svc.cluster.local")
}

fn reference(name: &str) -> ObjectRef<Service> {
    let mut parts = name.split('.');
    let service = parts.next().unwrap_or_default();
    ObjectRef::new(service).within(parts.next().unwrap_or_default())
}

async fn accept(
    listener: TcpListener,
    address: SocketAddr,
    routes: Arc<Mutex<Routes>>,
    cancel: CancellationToken,
) {
    let turn = AtomicUsize::new(0);
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = cancel.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let Ok((client, _)) = accepted else { continue };
        let endpoints = routes
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .get(&address)
            .cloned()
            .unwrap_or_default();
        if endpoints.is_empty() {
            // The client's connection is reset, as with kube-proxy's REJECT rule.
            let _ = client.set_zero_linger();
            continue;
        }
        let endpoint = endpoints[turn.fetch_add(1, Ordering::Relaxed) % endpoints.len()];
        connections.spawn(forward(client, endpoint));
    }
    // Removing a Service does not close established connections (as with conntrack); the end of the
    // world does.
    while connections.join_next().await.is_some() {}
}

async fn forward(mut client: TcpStream, endpoint: SocketAddr) {
    if let Ok(mut server) = TcpStream::connect(endpoint).await {
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    } else {
        let _ = client.set_zero_linger();
    }
}
