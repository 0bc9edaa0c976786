//! Tests of the product's programs, installed from our manifests, with a real control plane.

#![expect(clippy::unwrap_used, reason = "a failed step of a test should end it")]

mod admission;
mod api_group_suffix;
mod apis;
mod audit_policy;
mod audit_webhook;
mod authenticators;
mod bad_input;
mod cel;
mod cert_agent;
mod certificate_signing_requests;
mod certificates;
mod cli;
mod cli_tour;
mod configuration;
mod core_dumps;
mod crds;
mod debug_state;
mod demo;
mod doctor_causes;
mod faulty_webhook;
mod flood;
mod gateway;
mod gateway_delegation;
mod helm;
mod howto_page;
mod impersonation;
mod informer;
mod installed;
mod jwt_authenticators;
mod kubectl_plugin;
mod memory_limit;
mod metrics;
mod oidc;
mod request_info;
mod reviews;
mod separate_concierge;
mod service_account_tokens;
mod shutdown;
mod sites;
mod walkthrough;
