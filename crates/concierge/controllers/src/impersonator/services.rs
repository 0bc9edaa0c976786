//! The Services in front of the proxy: creates, patches and deletes them.

use k8s_openapi::api::core::v1::Service;
use kube::Api;
use pinniped_concierge_domain::strategy::impersonator::ObjectId;
use pinniped_concierge_domain::strategy::service::ServiceType;
use serde_json::Value;

use super::ImpersonatorController;
use super::apply::{ExpectedState, StepError};
use super::log::LOGGER;
use super::observe::id_of;

impl ImpersonatorController {
    fn services_api(&self) -> Api<Service> {
        Api::namespaced(self.context.client.clone(), &self.settings.namespace)
    }

    fn service_name(&self, kind: ServiceType) -> &str {
        match kind {
            ServiceType::LoadBalancer => &self.settings.load_balancer_service,
            ServiceType::ClusterIp => &self.settings.cluster_ip_service,
        }
    }

    pub(super) async fn create_service(
        &mut self,
        kind: ServiceType,
        mut service: Service,
    ) -> Result<(), StepError> {
        let writer = self.context.writer();
        writer.guard()?;
        let name = self.service_name(kind).to_owned();
        tracing::info!(
            logger = LOGGER,
            serviceType = kind.as_str(),
            service = self.reference(&name),
            "creating service for impersonation proxy"
        );
        service.metadata.owner_references = self.context.new_namespaced(&name).owner_references;
        let created = writer.create(&self.services_api(), &service).await?;
        self.await_service(&name, ExpectedState::Present(id_of(&created).uid)).await;
        Ok(())
    }

    pub(super) async fn update_service(&mut self, kind: ServiceType, patch: &Value) -> Result<(), StepError> {
        let writer = self.context.writer();
        writer.guard()?;
        let name = self.service_name(kind).to_owned();
        tracing::info!(logger = LOGGER, "updating service for impersonation proxy");
        let old =
            patch.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default().to_owned();
        let patched = writer.merge_patch(&self.services_api(), &name, patch).await?;
        if id_of(&patched).resource_version != old {
            self.await_service(&name, ExpectedState::Changed(old)).await;
        }
        Ok(())
    }

    pub(super) async fn delete_service(&mut self, kind: ServiceType, id: &ObjectId) -> Result<(), StepError> {
        let writer = self.context.writer();
        writer.guard()?;
        let name = self.service_name(kind).to_owned();
        let service = self.reference(&name);
        match kind {
            ServiceType::LoadBalancer => {
                tracing::info!(logger = LOGGER, service, "deleting load balancer for impersonation proxy");
            }
            ServiceType::ClusterIp => {
                tracing::info!(logger = LOGGER, service, "deleting cluster ip for impersonation proxy");
            }
        }
        writer.delete_exactly(&self.services_api(), &name, Some(&id.uid), Some(&id.resource_version)).await?;
        // A load balancer may remain for a while, until its cloud provider has released it.
        self.await_service(&name, ExpectedState::Changed(id.resource_version.clone())).await;
        Ok(())
    }
}
