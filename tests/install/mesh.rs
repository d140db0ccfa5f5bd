//! What a cluster with Istio and cert-manager has before trustspan.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1;
use kube::Api;
use tokio::runtime::Handle;
use trustspan::store::cluster::connect;

use crate::{
    client::{Target, ca_crt, identity, visit},
    shelf::Shelf,
    testbed::{CertManager, Cluster, Ingress, Istiod, Process, SOON, Scratch, User, wait_for},
};

/// The namespace of the gateways, and of everything in [`BEFORE`].
pub(crate) const NAMESPACE: &str = "istio-system";
/// The host that the Gateway serves.
pub(crate) const HOST: &str = "shop.example.com";
/// The Secret of the client.
pub(crate) const CLIENT: &str = "payments";
const BEFORE: &str = include_str!("before.yaml");
/// Gateways that serve the Gateway.
const GATEWAYS: u8 = 2;

/// cert-manager, istiod and gateways, with a Gateway and a client that it accepts.
pub(crate) struct Mesh {
    // Fields drop in this order: proxies before istiod, so that they do not retry.
    ingress: Ingress,
    _istiod: Istiod,
    _cainjector: Process,
    _cert_manager: CertManager,
    /// Namespace `istio-system`, as it is now.
    pub(crate) shelf: Arc<Shelf>,
    // Declared last, so that it is dropped last: the processes must end before their files are removed.
    _scratch: Scratch,
}

impl Mesh {
    /// Starts everything, and waits until each gateway accepts the client.
    pub(crate) fn start(cluster: &Cluster, runtime: &Handle) -> Result<Self> {
        let scratch = Scratch::new()?;
        let cert_manager = CertManager::start(cluster)?;
        let cainjector = cert_manager.start_cainjector(cluster)?;
        let istiod = Istiod::start(cluster)?;
        let ingress = Ingress::start(cluster, &istiod, &scratch, NAMESPACE, "ingressgateway", GATEWAYS)?;
        cluster.kubectl(["apply", "-f", "-"]).stdin(BEFORE).ok()?;
        let client = runtime.block_on(connect(Some(&cluster.kubeconfig(User::Admin))))?;
        let shelf = Arc::new(Shelf::default());
        runtime.spawn(Arc::clone(&shelf).follow(Api::<v1::Secret>::namespaced(client, NAMESPACE)));
        let mesh = Self {
            ingress,
            _istiod: istiod,
            _cainjector: cainjector,
            _cert_manager: cert_manager,
            shelf,
            _scratch: scratch,
        };
        for target in mesh.targets() {
            let what = format!("{} to serve {HOST} to {CLIENT}", target.address);
            let served = wait_for(&what, SOON, || {
                let identity = identity(&*mesh.shelf.newest(CLIENT).context("no Secret of the client")?, ca_crt)?;
                runtime.block_on(visit(&target, &identity.config)).1?;
                Ok(true)
            });
            served.with_context(|| mesh.ingress.log_tails())?;
        }
        Ok(mesh)
    }

    /// The address of each gateway.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.ingress.addresses()
    }

    /// The host at each gateway.
    pub(crate) fn targets(&self) -> Vec<Target> {
        let target = |address| Target { host: HOST.to_owned(), address };
        self.addresses().into_iter().map(target).collect()
    }
}
