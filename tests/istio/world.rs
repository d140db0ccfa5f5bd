//! A scenario's namespace: cert-manager's objects, the GatewaySecret with its agent, both webhooks, two gateways, and clients.

use std::{
    fs::File,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use serde_json::Value;
use tokio::{runtime::Runtime, task::JoinHandle};
use trustspan::store::cluster::connect;

use crate::{
    client::{Client, Surroundings, Target, identity, visit},
    issuer::{Certificates, MANAGED, Operator, PROMOTED, SERVER},
    journal::Journal,
    objects,
    pace::Pace,
    shelf::Shelf,
    testbed::{
        Agents, Cluster, Ingress, Istiod, Patience, Process, Registration, SOON, Scope, Scratch, Server, Source, User,
        wait_for,
    },
};

/// Nothing renews by itself in a scenario.
const LONG: Duration = Duration::from_secs(3600);

const CERTIFICATES: Certificates = Certificates {
    issuer: PROMOTED,
    life: LONG,
    server_life: LONG,
    // A DestinationRule shows it to an upstream.
    server_usages: "server auth, client auth",
    load_once_life: LONG,
    clients: 12,
    load_once: 0,
};

/// See the module. Fields drop in this order.
pub(crate) struct World<'c> {
    clients: Vec<JoinHandle<Result<()>>>,
    runtime: Runtime,
    pub(crate) around: Arc<Surroundings>,
    ingress: Ingress,
    pub(crate) cluster: &'c Cluster,
    pub(crate) operator: Operator,
    pub(crate) agent: Process,
    pub(crate) agents: Agents<'c>,
    pub(crate) ns: String,
    /// None while admission is off.
    registration: Option<Registration<'c>>,
    pub(crate) server: Server<'c>,
    // Last: it waits for the processes before it removes their files.
    _scratch: Scratch,
}

impl<'c> World<'c> {
    /// Sets everything up but Gateways and traffic. `hosts` are what the source Secret's certificate is for; `log` gets a line for each
    /// handshake that fails.
    pub(crate) fn new(cluster: &'c Cluster, istiod: &Istiod, ns: &str, hosts: &[&str], log: File) -> Result<Self> {
        let scratch = Scratch::new()?;
        cluster.apply(ns, &CERTIFICATES.manifests(&hosts.join(", ")))?;
        let ingress = Ingress::start(cluster, istiod, &scratch, ns, 2)?;
        cluster.apply(ns, &objects::gateway_secret(ns).to_string())?;
        let agents = Agents::new(cluster, ns)?;
        agents.grant()?;
        let agent = agents.start("first")?;
        let server = Server::start_with(cluster, Source::Cluster(User::Webhook), &["--drain-delay=0s"])?;
        let registration = Some(registered(cluster, &server, ns)?);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let client = runtime.block_on(connect(Some(Path::new(&cluster.kubeconfig(User::Admin)))))?;
        let operator = Operator::new(runtime.handle().clone(), client, ns);
        let shelf = Arc::new(Shelf::default());
        runtime.spawn(Arc::clone(&shelf).follow(operator.secrets.clone()));
        let journal = Arc::new(Journal::new(log));
        journal.step("set up");
        let (restarts, over) = (AtomicU32::new(0), AtomicBool::new(false));
        let served = Box::new(|_| "a gateway".to_owned());
        let around = Arc::new(Surroundings { shelf, journal, served, pace: Pace::of_run()?, restarts, over });
        let clients = Vec::new();
        let (ns, _scratch) = (ns.to_owned(), scratch);
        let world = Self {
            clients,
            runtime,
            around,
            ingress,
            cluster,
            operator,
            agent,
            agents,
            ns,
            registration,
            server,
            _scratch,
        };
        for name in [SERVER, MANAGED].into_iter().map(str::to_owned).chain(world.client_names()) {
            wait_for(&format!("Secret {name}"), SOON, || Ok(world.has_certificate(&name)))?;
        }
        wait_for("the GatewaySecret to be Steady", SOON, || Ok(world.operator.status()?["phase"] == "Steady"))?;
        Ok(world)
    }

    fn client_names(&self) -> impl Iterator<Item = String> {
        CERTIFICATES.clients().into_iter().map(|(name, _)| name)
    }

    fn has_certificate(&self, name: &str) -> bool {
        self.around.shelf.newest(name).is_some_and(|one| one.secret.data.contains_key("tls.crt"))
    }

    /// `kubectl apply` into the namespace.
    pub(crate) fn apply(&self, objects: &[Value]) -> Result<()> {
        objects.iter().try_for_each(|object| self.cluster.apply(&self.ns, &object.to_string()).map(drop))
    }

    /// Waits until each gateway serves each host to a client, and starts the traffic.
    pub(crate) fn start_traffic(&mut self, hosts: &[&str]) -> Result<()> {
        let addresses = self.ingress.addresses();
        let target = |host: &str, address: SocketAddr| Target { host: host.to_owned(), address };
        let targets: Arc<[_]> =
            hosts.iter().flat_map(|host| addresses.iter().map(move |address| target(host, *address))).collect();
        let name = self.client_names().next().context("no client")?;
        let identity = identity(&*self.around.shelf.newest(&name).context("no client's Secret")?)?;
        for target in targets.iter() {
            let what = format!("{} to serve {}", target.address, target.host);
            wait_for(&what, SOON, || {
                self.runtime.block_on(visit(target, &identity.config)).1?;
                Ok(true)
            })
            .with_context(|| self.ingress.log_tails())?;
        }
        self.step("steady");
        let start = |name| {
            let (targets, around) = (Arc::clone(&targets), Arc::clone(&self.around));
            self.runtime.spawn(Client { name, load_once: false, targets, around }.run())
        };
        let clients = self.client_names().map(start).collect();
        self.clients = clients;
        Ok(())
    }

    /// The rotation takes a step, with which failures are reported.
    pub(crate) fn step(&self, step: &str) {
        self.around.journal.step(step);
    }

    /// Waits for that many handshakes more.
    pub(crate) fn wait_handshakes(&self, more: u32) -> Result<()> {
        let goal = self.around.journal.handshakes() + more;
        wait_for(&format!("{more} more handshakes"), SOON, || Ok(self.around.journal.handshakes() >= goal))
    }

    /// Removes the webhooks' registrations: nothing is judged or changed on its way into the cluster.
    pub(crate) fn admission_off(&mut self) -> Result<()> {
        self.registration.take().context("admission is off")?.unregister()
    }

    /// Registers the webhooks again.
    pub(crate) fn admission_on(&mut self) -> Result<()> {
        self.registration = Some(registered(self.cluster, &self.server, &self.ns)?);
        Ok(())
    }

    /// Ends the traffic.
    ///
    /// # Errors
    /// When a client has ended before.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.around.over.store(true, Ordering::SeqCst);
        for client in self.clients.drain(..) {
            self.runtime.block_on(client).context("a client panicked")??;
        }
        Ok(())
    }
}

fn registered<'c>(cluster: &'c Cluster, server: &Server<'_>, ns: &str) -> Result<Registration<'c>> {
    Registration::new(cluster, server, &Scope::Namespaces(vec![ns.to_owned()]), Patience::Longest)
}
