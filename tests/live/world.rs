//! The environment of a run: a namespace with cert-manager's objects, both webhooks, two gateways, and twenty clients.

use std::{
    collections::BTreeMap,
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
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use tokio::{net::TcpListener, runtime::Runtime, task::JoinHandle};
use trustspan::store::cluster::connect;

use crate::{
    client::{Client, ClusterSnapshot, Target, ca_crt, identity, visit},
    gateways::{Gateways, HOST, Sources},
    issuer::{Certificates, Data, MANAGED, Operator, PROMOTED, ROOT, SERVER},
    journal::Journal,
    objects,
    pace::Pace,
    shelf::{Loaded, Shelf},
    testbed::{Agents, Cluster, Istiod, Patience, Process, Registration, SOON, Scope, Server, Source, User, wait_for},
};

/// The settings that differ between runs.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) certificates: Certificates,
    pub(crate) sources: Sources,
    /// Whether the agent writes the managed Secret and the Issuer's Secret; otherwise the script does.
    pub(crate) by_agent: bool,
}

/// The environment of a run. Fields are dropped in this order.
pub(crate) struct World<'c> {
    clients: Vec<JoinHandle<Result<()>>>,
    // Declared first: its tasks end before the servers that they use.
    _runtime: Runtime,
    pub(crate) around: Arc<ClusterSnapshot>,
    pub(crate) gateways: Gateways,
    pub(crate) cluster: &'c Cluster,
    pub(crate) operator: Operator,
    pub(crate) certificates: Certificates,
    /// The leading agent, if agents run.
    pub(crate) agent: Option<Process>,
    pub(crate) agents: Agents<'c>,
    pub(crate) ns: String,
    /// `None` while the webhooks are unregistered.
    registration: Option<Registration<'c>>,
    pub(crate) istiod: &'c Istiod,
    /// The server of both webhooks.
    pub(crate) server: Server<'c>,
    /// Lines that a run reports in addition to its line of the table.
    pub(crate) notes: Vec<String>,
}

impl<'c> World<'c> {
    /// Creates everything, and starts the clients. `log` gets a line for each failed handshake.
    pub(crate) fn new(
        cluster: &'c Cluster,
        istiod: &'c Istiod,
        ns: &str,
        shape: Shape,
        pace: Pace,
        log: File,
    ) -> Result<Self> {
        let Shape { certificates, sources, by_agent } = shape;
        cluster.apply(ns, &certificates.manifests(HOST))?;
        let mut agents = Agents::new(cluster, ns)?;
        agents.lease = Some("3s");
        let mut agent = None;
        if by_agent {
            cluster.apply(ns, &objects::rotation_policy().to_string())?;
            cluster.apply(ns, &objects::gateway_secret(ns).to_string())?;
            agents.grant()?;
            agent = Some(agents.start("first")?);
        }
        let server = Server::start_with(cluster, Source::Cluster(User::Webhook), &["--drain-delay=0s"])?;
        let registration = Some(registered(cluster, &server, ns)?);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let client = runtime.block_on(connect(Some(Path::new(&cluster.kubeconfig(User::Admin)))))?;
        let operator = Operator::new(runtime.handle().clone(), client, ns);
        let shelf = Arc::new(Shelf::default());
        runtime.spawn(Arc::clone(&shelf).follow(operator.secrets.clone()));

        let arrived = |name: &str| {
            let what = format!("Secret {name}");
            wait_for(&what, SOON, || Ok(shelf.newest(name).is_some_and(|one| one.secret.data.contains_key("tls.crt"))))
        };
        arrived(ROOT)?;
        if certificates.issuer == PROMOTED && !by_agent {
            operator.write(&[(PROMOTED, pair_of(&operator.read(ROOT)?)?)])?;
        }
        arrived(SERVER)?;
        for (name, _) in certificates.clients() {
            arrived(&name)?;
        }
        if by_agent {
            arrived(MANAGED)?;
        } else if sources.pair == MANAGED {
            let mut data = pair_of(&operator.read(SERVER)?)?;
            data.insert("ca.crt".to_owned(), ca_of(&operator.read(ROOT)?)?);
            operator.write(&[(MANAGED, data)])?;
            arrived(MANAGED)?;
        }

        let gateways = Gateways::start(cluster, istiod, ns)?;
        apply_gateway(cluster, ns, sources, by_agent)?;
        let pool = Arc::clone(gateways.pool());
        for number in 0..gateways.count() {
            runtime.spawn(Arc::clone(&pool).watch(number, Arc::clone(&shelf), sources));
        }
        let listener = runtime.block_on(TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))))?;
        let address = listener.local_addr()?;
        runtime.spawn(Arc::clone(&pool).serve(listener));
        wait_served(&runtime, &gateways, &shelf, &certificates.clients()[0].0)?;
        // A record starts with the traffic: a wait before it would count as seconds with too few handshakes.
        let journal = Arc::new(Journal::new(log));
        journal.step("steady");
        let (restarts, over) = (AtomicU32::new(0), AtomicBool::new(false));
        let served = Box::new(move |port| pool.story(port));
        let around = Arc::new(ClusterSnapshot { shelf, journal, served, pace, restarts, over });
        let targets: Arc<[_]> = [Target { host: HOST.to_owned(), address }].into();
        let start = |(name, load_once)| {
            let (targets, around) = (Arc::clone(&targets), Arc::clone(&around));
            runtime.spawn(Client { name, load_once, trust: ca_crt, targets, around }.run())
        };
        let clients = certificates.clients().into_iter().map(start).collect();
        Ok(Self {
            clients,
            _runtime: runtime,
            around,
            gateways,
            cluster,
            operator,
            certificates,
            agent,
            agents,
            ns: ns.to_owned(),
            registration,
            istiod,
            server,
            notes: Vec::new(),
        })
    }

    /// Records a step of the rotation, with which failures are printed.
    pub(crate) fn step(&self, step: &str) {
        self.around.journal.step(step);
    }

    /// Restarts the clients that load once, as a rollout does.
    pub(crate) fn restart_load_once(&self) {
        self.around.restarts.fetch_add(1, Ordering::SeqCst);
    }

    /// Waits until gateways and all clients that reload have loaded the newest versions of their Secrets.
    pub(crate) fn wait_followed(&self) -> Result<()> {
        self.wait_loaded("consumers to follow", |loaded| loaded.load_once)
    }

    /// The same, including clients that load once.
    pub(crate) fn wait_all_followed(&self) -> Result<()> {
        self.restart_load_once();
        self.wait_loaded("all consumers to follow", |_| false)
    }

    fn wait_loaded(&self, what: &str, excused: impl Fn(&Loaded) -> bool) -> Result<()> {
        // The versions are read once, so that a later change is not waited for.
        let wanted: BTreeMap<_, _> = self.operator.versions()?.into_iter().collect();
        let number = |version: &str| version.parse::<u64>().unwrap_or_default();
        wait_for(what, SOON, || {
            let consumers = self.around.shelf.consumers();
            Ok(consumers.iter().all(|((_, secret), loaded)| {
                let wanted = wanted.get(secret).map_or(0, |version| number(version));
                excused(loaded) || number(&loaded.version) >= wanted
            }))
        })
    }

    /// Waits until every client has loaded its Secret again.
    pub(crate) fn wait_reloaded(&self) -> Result<()> {
        let names: Vec<_> = self.certificates.clients().into_iter().map(|(name, _)| (name.clone(), name)).collect();
        let times = |consumers: &BTreeMap<_, Loaded>, client| consumers.get(client).map_or(0, |loaded| loaded.times);
        let before = self.around.shelf.consumers();
        wait_for("every client to load its Secret once more", SOON, || {
            let now = self.around.shelf.consumers();
            // The first load is that of its start.
            Ok(names.iter().all(|client| times(&now, client) > times(&before, client).max(1)))
        })
    }

    /// The number of loads of all clients.
    pub(crate) fn loads(&self) -> u32 {
        let consumers = self.around.shelf.consumers();
        consumers.iter().filter(|((consumer, secret), _)| consumer == secret).map(|(_, loaded)| loaded.times).sum()
    }

    /// Waits for this many further handshakes.
    pub(crate) fn wait_handshakes(&self, more: u32) -> Result<()> {
        let goal = self.around.journal.handshakes() + more;
        wait_for(&format!("{more} more handshakes"), SOON, || Ok(self.around.journal.handshakes() >= goal))
    }

    /// Drains and restarts one gateway after the other.
    pub(crate) fn roll_gateways(&mut self) -> Result<()> {
        for number in 0..self.gateways.count() {
            wait_for("a gateway's last connection to end", SOON, || Ok(self.gateways.drain(number)))?;
            self.gateways.restart(number)?;
        }
        Ok(())
    }

    /// Unregisters the webhooks, so that writes are neither judged nor changed.
    pub(crate) fn admission_off(&mut self) -> Result<()> {
        self.registration.take().context("admission is off")?.unregister()
    }

    /// Registers the webhooks again.
    pub(crate) fn admission_on(&mut self) -> Result<()> {
        self.registration = Some(registered(self.cluster, &self.server, &self.ns)?);
        Ok(())
    }

    /// A production delay in this run.
    pub(crate) fn scaled(&self, real: Duration) -> Duration {
        self.around.pace.scaled(real)
    }

    /// Ends the traffic.
    ///
    /// # Errors
    /// When a client ended before with an error.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.around.over.store(true, Ordering::SeqCst);
        for client in self.clients.drain(..) {
            self.operator.runtime.block_on(client).context("a client panicked")??;
        }
        Ok(())
    }
}

/// Applies a Gateway as its owner writes it. If the agent writes the managed Secret, the webhook rewrites the name.
fn apply_gateway(cluster: &Cluster, ns: &str, sources: Sources, by_agent: bool) -> Result<()> {
    let written = if by_agent { SERVER } else { sources.pair };
    let mut tls = json!({ "mode": "MUTUAL", "credentialName": written });
    if sources.ca != sources.pair {
        tls["caCertCredentialName"] = format!("{}-cacert", sources.ca).into();
    }
    cluster.apply(ns, &objects::route("shop", &[HOST]).to_string())?;
    let gateway = objects::gateway(ns, "shop", HOST, &tls).to_string();
    // Wait for the webhook first: a Gateway that was stored with the source Secret's name would count as using that
    // until `propagationDelays.gateways` after its rewrite.
    wait_for(&format!("the webhook to name {} in the Gateway", sources.pair), SOON, || {
        let dry_run = ["apply", "--dry-run=server", "-o", "json", "-f", "-"];
        let written: Value = serde_json::from_str(&cluster.kubectl(dry_run).ns(ns).stdin(gateway.clone()).ok()?)?;
        Ok(written["spec"]["servers"][0]["tls"]["credentialName"] == sources.pair)
    })?;
    cluster.apply(ns, &gateway).map(drop)
}

/// Waits until each gateway accepts a client.
fn wait_served(runtime: &Runtime, gateways: &Gateways, shelf: &Shelf, client: &str) -> Result<()> {
    let identity = identity(&*shelf.newest(client).context("no client's Secret")?, ca_crt)?;
    for address in gateways.pool().addresses() {
        let target = Target { host: HOST.to_owned(), address };
        let served = wait_for(&format!("{address} to let {client} in"), SOON, || {
            runtime.block_on(visit(&target, &identity.config)).1?;
            Ok(true)
        });
        served.with_context(|| gateways.log_tails())?;
    }
    Ok(())
}

fn registered<'c>(cluster: &'c Cluster, server: &Server<'_>, ns: &str) -> Result<Registration<'c>> {
    Registration::new(cluster, server, &Scope::Namespaces(vec![ns.to_owned()]), Patience::Shipped)
}

/// The keys `tls.crt` and `tls.key` of a Secret.
pub(crate) fn pair_of(data: &Data) -> Result<Data> {
    let value = |key: &str| Ok((key.to_owned(), data.get(key).cloned().with_context(|| format!("no {key}"))?));
    ["tls.crt", "tls.key"].into_iter().map(value).collect()
}

/// The certificate of the CA itself.
pub(crate) fn ca_of(data: &Data) -> Result<ByteString> {
    data.get("tls.crt").cloned().context("no tls.crt")
}
