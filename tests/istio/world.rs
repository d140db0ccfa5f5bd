//! A scenario's namespace: cert-manager's objects, the GatewaySecret with its agent, both webhooks, two gateways, and clients.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use tokio::{runtime::Runtime, task::JoinHandle};
use trustspan::{store::cluster::connect, trust::bundle};

use crate::{
    anonymous::anonymous,
    client::{Client, ClusterSnapshot, ReadTrust, Target, ca_crt, identity, visit},
    issuer::{Certificates, MANAGED, Operator, PROMOTED, ROOT, SERVER},
    issuers::External,
    java::reads_pkcs12,
    jdk::{self, Jdk},
    journal::Journal,
    objects,
    pace::Pace,
    requests::Requests,
    run::phase,
    scenarios::Scenario,
    shelf::Shelf,
    testbed::{
        Agents, Authority, Cluster, Ingress, Istiod, Patience, Process, Registration, SOON, Scope, Scratch, Server,
        Source, User, wait_for,
    },
};

/// Longer than a scenario, so that no certificate is renewed by time.
const LONG: Duration = Duration::from_secs(3600);

pub(crate) const CERTIFICATES: Certificates = Certificates {
    issuer: PROMOTED,
    life: LONG,
    server_life: LONG,
    // A gateway presents it to an upstream, as a client (DestinationRule).
    server_usages: "server auth, client auth",
    load_once_life: LONG,
    clients: 12,
    load_once: 0,
};

/// The certificates of scenarios that need few clients. They do not have the rate of the others.
pub(crate) const FEW: Certificates = Certificates { clients: 4, ..CERTIFICATES };

/// The Secret of the partner's client, which has another CA.
pub(crate) const PARTNER: &str = "partner";

/// The namespaces of cert-manager's objects and clients, and the GatewaySecret for them.
pub(crate) struct Layout {
    /// The namespace of the gateways.
    pub(crate) namespace: String,
    /// Namespace and name of the CA's Certificate and Secret.
    pub(crate) ca: (String, String),
    /// Namespace and name of each declared client.
    pub(crate) clients: Vec<(String, String)>,
    pub(crate) gateway_secret: Value,
    /// The issuer, if its key is not in the cluster.
    pub(crate) external: Option<Arc<External>>,
    /// From what each client takes the CAs that it trusts, by its name.
    pub(crate) trust: fn(&str) -> ReadTrust,
}

/// A function that creates a layout. Its last argument has the hosts of the serving certificate, separated by commas.
pub(crate) type LayoutOf = fn(&Cluster, &str, &str) -> Result<Layout>;

impl Layout {
    /// The layout in one namespace, with a CA Issuer whose Secret the agent writes.
    pub(crate) fn of_a_ca_issuer(cluster: &Cluster, ns: &str, hosts: &str) -> Result<Self> {
        cluster.apply(ns, &CERTIFICATES.manifests(hosts))?;
        Ok(Self::in_one_namespace(ns, objects::gateway_secret(ns)))
    }

    /// The layout in one namespace, with the names of [`CERTIFICATES`].
    pub(crate) fn in_one_namespace(ns: &str, gateway_secret: Value) -> Self {
        Self::with_clients_of(CERTIFICATES, ns, gateway_secret)
    }

    /// The layout in one namespace, with the clients of these certificates.
    pub(crate) fn with_clients_of(certificates: Certificates, ns: &str, gateway_secret: Value) -> Self {
        Self {
            namespace: ns.to_owned(),
            ca: (ns.to_owned(), ROOT.to_owned()),
            clients: certificates.clients().into_iter().map(|(name, _)| (ns.to_owned(), name)).collect(),
            gateway_secret,
            external: None,
            trust: |_| ca_crt,
        }
    }

    /// The layout of most scenarios, with few clients.
    pub(crate) fn of_few_clients(cluster: &Cluster, ns: &str, hosts: &str) -> Result<Self> {
        cluster.apply(ns, &FEW.manifests(hosts))?;
        Ok(Self::with_clients_of(FEW, ns, objects::gateway_secret(ns)))
    }

    /// Whether there are too few clients for the rate that is expected of a run.
    pub(crate) fn has_few_clients(&self) -> bool {
        self.clients.len() < CERTIFICATES.clients
    }

    fn namespaces(&self) -> BTreeSet<&str> {
        let clients = self.clients.iter().map(|(namespace, _)| namespace.as_str());
        clients.chain([self.namespace.as_str(), &self.ca.0]).collect()
    }
}

/// The environment of one scenario. Fields are dropped in this order.
pub(crate) struct World<'c> {
    clients: Vec<JoinHandle<Result<()>>>,
    /// Real Java clients, if these connect instead.
    jdk: Option<Jdk>,
    runtime: Runtime,
    shelf: Arc<Shelf>,
    /// State that all clients share. `None` until the traffic starts.
    around: Option<Arc<ClusterSnapshot>>,
    pub(crate) ingress: Ingress,
    /// Gateways of a separate Service. `None` except in a scenario that starts them.
    pub(crate) second_ingress: Option<Ingress>,
    /// Another istiod, for some of the gateways. `None` except in a scenario that starts it.
    second_istiod: Option<Istiod>,
    /// `None` except in a scenario that pauses istiod: others share one.
    istiod: Option<Istiod>,
    stopped: Option<Instant>,
    pub(crate) cluster: &'c Cluster,
    /// Requests in the namespace of the gateways.
    pub(crate) operator: Operator,
    /// Requests in the namespaces of clients and of the CA.
    elsewhere: BTreeMap<String, Operator>,
    pub(crate) layout: Layout,
    _agent: Process,
    pub(crate) agents: Agents<'c>,
    pub(crate) ns: String,
    /// `None` while the webhooks are unregistered.
    registration: Option<Registration<'c>>,
    server: Server<'c>,
    /// The partner's CA.
    pub(crate) partners: Authority,
    /// Whether a client of that CA connects, too.
    has_partner: bool,
    /// What `kubectl apply` has printed on standard error in a scenario that reads it.
    pub(crate) warnings: String,
    // Declared last, so that it is dropped last: the processes must end before their files are removed.
    scratch: Scratch,
}

impl<'c> World<'c> {
    /// Creates everything except Gateways and traffic.
    pub(crate) fn new(cluster: &'c Cluster, istiod: &Istiod, ns: &str, scenario: &Scenario) -> Result<Self> {
        let scratch = Scratch::new()?;
        let own_istiod = scenario.stops_istiod.then(|| Istiod::start_another(cluster)).transpose()?;
        let istiod = own_istiod.as_ref().unwrap_or(istiod);
        let hosts = scenario.certificate_hosts.join(", ");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let client = runtime.block_on(connect(Some(Path::new(&cluster.kubeconfig(User::Admin)))))?;
        let layout = (scenario.layout)(cluster, ns, &hosts)?;
        if let Some(issuer) = &layout.external {
            runtime.spawn(Arc::clone(issuer).run(client.clone(), ns.to_owned()));
        }
        let ingress = Ingress::start(cluster, istiod, &scratch, ns, ns, 2)?;
        cluster.apply(ns, &objects::rotation_policy().to_string())?;
        cluster.apply(ns, &layout.gateway_secret.to_string())?;
        let agents = Agents::new(cluster, ns)?;
        let elsewhere = layout.namespaces().into_iter().filter(|namespace| *namespace != ns);
        let consent: Vec<_> = elsewhere.map(|namespace| format!("--allow-namespace={namespace}")).collect();
        agents.grant_with(&consent)?;
        let agent = agents.start("first")?;
        let server = Server::start_with(cluster, Source::Cluster(User::Webhook), &["--drain-delay=0s"])?;
        let registration = Some(registered(cluster, &server, &layout)?);
        let operator_of = |namespace: &str| Operator::new(runtime.handle().clone(), client.clone(), namespace);
        let operator = operator_of(ns);
        let shelf = Arc::new(Shelf::default());
        let elsewhere: BTreeMap<_, _> =
            layout.namespaces().into_iter().map(|namespace| (namespace.to_owned(), operator_of(namespace))).collect();
        for operator in elsewhere.values() {
            runtime.spawn(Arc::clone(&shelf).follow(operator.secrets.clone()));
        }
        let clients = Vec::new();
        let ns = ns.to_owned();
        let world = Self {
            clients,
            jdk: None,
            runtime,
            shelf,
            around: None,
            ingress,
            second_ingress: None,
            second_istiod: None,
            istiod: own_istiod,
            stopped: None,
            cluster,
            operator,
            elsewhere,
            layout,
            _agent: agent,
            agents,
            ns,
            registration,
            server,
            partners: Authority::new("partners")?,
            has_partner: false,
            warnings: String::new(),
            scratch,
        };
        for name in [SERVER, MANAGED].into_iter().map(str::to_owned).chain(world.client_names()) {
            world.wait_certificate(&name)?;
        }
        wait_for("the GatewaySecret to be Steady", SOON, || Ok(world.operator.status()?["phase"] == "Steady"))?;
        Ok(world)
    }

    fn client_names(&self) -> impl Iterator<Item = String> {
        self.layout.clients.iter().map(|(_, name)| name.clone())
    }

    /// Starts another istiod, for gateways that are started later.
    pub(crate) fn start_second_istiod(&mut self) -> Result<()> {
        self.second_istiod = Some(Istiod::start_another(self.cluster)?);
        Ok(())
    }

    /// The other istiod.
    pub(crate) fn second_istiod(&self) -> Result<&Istiod> {
        self.second_istiod.as_ref().context("a second istiod")
    }

    /// Starts gateways of a separate Service behind the other istiod. Their pods are labelled `istio: <label>`.
    pub(crate) fn start_second_ingress(&mut self, name: &'static str, label: &str, count: u8) -> Result<()> {
        let istiod = self.second_istiod.as_ref().context("a second istiod")?;
        let ingress = Ingress::start_named(self.cluster, istiod, &self.scratch, (&self.ns, name), label, count)?;
        self.second_ingress = Some(ingress);
        Ok(())
    }

    /// Starts one more gateway behind the other istiod. It is no endpoint of the Service yet. Returns its number.
    pub(crate) fn start_another_gateway(&mut self) -> Result<usize> {
        let istiod = self.second_istiod.as_ref().context("a second istiod")?;
        self.ingress.add(self.cluster, istiod, &self.scratch, (&self.ns, &self.ns))
    }

    /// Starts to count the CertificateRequests of the namespace from now on.
    pub(crate) fn count_requests(&self) -> Result<Arc<Requests>> {
        let client = self.runtime.block_on(connect(Some(Path::new(&self.cluster.kubeconfig(User::Admin)))))?;
        let requests = Arc::new(Requests::default());
        self.runtime.spawn(Arc::clone(&requests).count(client, self.ns.clone()));
        Ok(requests)
    }

    fn operator_of(&self, namespace: &str) -> Result<&Operator> {
        self.elsewhere.get(namespace).with_context(|| format!("no namespace {namespace} in this scenario"))
    }

    /// Requests in the namespace of the CA.
    fn issuer(&self) -> Result<&Operator> {
        self.operator_of(&self.layout.ca.0)
    }

    /// Requests a new issuance of the CA's Certificate.
    pub(crate) fn rotate_ca(&self) -> Result<()> {
        self.issuer()?.reissue(&[&self.layout.ca.1])
    }

    fn has_certificate(&self, name: &str) -> bool {
        self.shelf.newest(name).is_some_and(|one| one.secret.data.contains_key("tls.crt"))
    }

    /// `kubectl apply` into the namespace.
    pub(crate) fn apply(&self, objects: &[Value]) -> Result<()> {
        objects.iter().try_for_each(|object| self.cluster.apply(&self.ns, &object.to_string()).map(drop))
    }

    /// Waits until each gateway serves each host to a client, and starts the traffic: declared clients connect to all
    /// hosts, and a partner's client to those that accept it. `log` gets a line for each failed handshake.
    pub(crate) fn start_traffic(&mut self, scenario: &Scenario, log: File) -> Result<()> {
        let names: Vec<_> = self.client_names().collect();
        self.wait_served(&names[0], scenario.hosts)?;
        if !scenario.partner_hosts.is_empty() {
            self.has_partner = true;
            self.update_partner()?;
            self.wait_certificate(PARTNER)?;
            self.wait_served(PARTNER, scenario.partner_hosts)?;
        }
        let around = Arc::new(ClusterSnapshot {
            shelf: Arc::clone(&self.shelf),
            journal: Arc::new(Journal::new(log)),
            served: Box::new(|_| "a gateway".to_owned()),
            pace: Pace::of_run()?,
            restarts: AtomicU32::new(0),
            over: AtomicBool::new(false),
        });
        around.journal.step("steady");
        if jdk::is_wanted() {
            let clients: Vec<_> =
                names.into_iter().map(|name| (name.clone(), reads_pkcs12((self.layout.trust)(&name)))).collect();
            let (handle, journal) = (self.runtime.handle(), Arc::clone(&around.journal));
            let (secrets, targets) = (&self.operator.secrets, self.targets(scenario.hosts));
            self.jdk = Some(Jdk::start(handle, self.scratch.path(), secrets, &clients, &targets, journal)?);
            self.around = Some(around);
            return Ok(());
        }
        self.around = Some(around);
        self.start_clients(names, self.targets(scenario.hosts))?;
        if !scenario.partner_hosts.is_empty() {
            self.start_clients(vec![PARTNER.to_owned()], self.targets(scenario.partner_hosts))?;
        }
        Ok(())
    }

    fn start_clients(&mut self, names: Vec<String>, targets: Vec<Target>) -> Result<()> {
        let (around, targets): (_, Arc<[_]>) = (self.around.as_ref().context("no traffic yet")?, targets.into());
        for name in names {
            let (targets, around) = (Arc::clone(&targets), Arc::clone(around));
            let trust = if name == PARTNER { ca_crt } else { (self.layout.trust)(&name) };
            self.clients.push(self.runtime.spawn(Client { name, load_once: false, trust, targets, around }.run()));
        }
        Ok(())
    }

    /// Waits until further gateways serve a host, and lets all declared clients connect to them, too.
    pub(crate) fn visit_also(&mut self, host: &str, addresses: &[SocketAddr]) -> Result<()> {
        let names: Vec<_> = self.client_names().collect();
        let targets = || addresses.iter().map(|address| Target { host: host.to_owned(), address: *address }).collect();
        self.wait_targets(&names[0], targets())?;
        self.start_clients(names, targets())
    }

    /// Waits until a gateway serves a host.
    pub(crate) fn wait_gateway(&self, host: &str, address: SocketAddr) -> Result<()> {
        let client = self.client_names().next().context("no client")?;
        self.wait_targets(&client, vec![Target { host: host.to_owned(), address }])
    }

    /// Connects once to each gateway with the certificate of a Secret. Returns the errors.
    pub(crate) fn visit_once(&self, client: &str, host: &str) -> Result<Vec<std::io::Error>> {
        let identity = identity(&*self.shelf.newest(client).context("no client's Secret")?, ca_crt)?;
        let visits =
            self.targets(&[host]).into_iter().map(|target| self.runtime.block_on(visit(&target, &identity.config)).1);
        Ok(visits.filter_map(Result::err).collect())
    }

    fn targets(&self, hosts: &[&str]) -> Vec<Target> {
        let addresses = &self.ingress.addresses();
        let target = |host: &str, address: SocketAddr| Target { host: host.to_owned(), address };
        hosts.iter().flat_map(|host| addresses.iter().map(move |address| target(host, *address))).collect()
    }

    /// Waits until each gateway serves each host to a client.
    fn wait_served(&self, client: &str, hosts: &[&str]) -> Result<()> {
        self.wait_targets(client, self.targets(hosts))
    }

    fn wait_targets(&self, client: &str, targets: Vec<Target>) -> Result<()> {
        let identity = identity(&*self.shelf.newest(client).context("no client's Secret")?, ca_crt)?;
        for target in targets {
            let what = format!("{} to serve {} to {client}", target.address, target.host);
            let served = wait_for(&what, SOON, || {
                self.runtime.block_on(visit(&target, &identity.config)).1?;
                Ok(true)
            });
            served.with_context(|| self.ingress.log_tails())?;
        }
        Ok(())
    }

    /// Waits until each gateway accepts a client without a certificate.
    pub(crate) fn wait_admitted_without_certificate(&self, host: &str) -> Result<()> {
        let client = self.client_names().next().context("no client")?;
        let identity = identity(&*self.shelf.newest(&client).context("no client's Secret")?, ca_crt)?;
        let config = anonymous(&identity.config);
        for target in self.targets(&[host]) {
            let what = format!("{} to let anybody in to {host}", target.address);
            wait_for(&what, SOON, || {
                self.runtime.block_on(visit(&target, &config)).1?;
                Ok(true)
            })?;
        }
        Ok(())
    }

    /// The record of the traffic.
    pub(crate) fn journal(&self) -> Result<&Journal> {
        Ok(&self.around.as_ref().context("no traffic yet")?.journal)
    }

    /// Requests new issuances of all clients' Certificates.
    pub(crate) fn renew_clients(&self) -> Result<()> {
        let mut by_namespace: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (namespace, name) in &self.layout.clients {
            by_namespace.entry(namespace).or_default().push(name);
        }
        by_namespace.into_iter().try_for_each(|(namespace, names)| self.operator_of(namespace)?.reissue(&names))
    }

    /// Reads the status, and records its phase as a step of the rotation. The partner adds each new CA that it sees:
    /// cert-manager can issue a CA twice for one request (cert-manager#3665), so a partner that adds it once may lack the second.
    pub(crate) fn observe(&self) -> Result<Value> {
        let status = self.operator.status()?;
        self.step(phase(&status))?;
        self.update_partner()?;
        Ok(status)
    }

    /// Adds the newest CA to those that the partner trusts, if there is a partner.
    fn update_partner(&self) -> Result<()> {
        if !self.has_partner {
            return Ok(());
        }
        let newest = self.newest_ca()?;
        let data = match self.shelf.newest(PARTNER) {
            Some(_) => {
                let mut known = self.operator.read(PARTNER)?;
                let trusted = &mut known.entry("ca.crt".to_owned()).or_default().0;
                if std::str::from_utf8(trusted)?.contains(&newest) {
                    return Ok(());
                }
                trusted.splice(0..0, newest.into_bytes());
                known
            }
            None => {
                let (chain, key) = self.partners.issue_client(PARTNER)?;
                let values = [("tls.crt", chain), ("tls.key", key), ("ca.crt", newest)];
                values.map(|(name, pem)| (name.to_owned(), ByteString(pem.into_bytes()))).into()
            }
        };
        self.operator.write(&[(PARTNER, data)])
    }

    /// SHA-256 of the clients' certificates, in hex.
    pub(crate) fn client_hashes(&self) -> Result<Vec<String>> {
        let hash = |(namespace, name): &(String, String)| {
            let chain =
                bundle::read_chain(&self.operator_of(namespace)?.read(name)?.get("tls.crt").context("tls.crt")?.0);
            Ok(chain.into_certificates().first().context("a leaf")?.fingerprint.clone())
        };
        self.layout.clients.iter().map(hash).collect()
    }

    /// The newest CA of the clients, in PEM.
    pub(crate) fn newest_ca(&self) -> Result<String> {
        if let Some(issuer) = &self.layout.external {
            return Ok(issuer.ca());
        }
        let secret = self.issuer()?.read(&self.layout.ca.1)?;
        Ok(String::from_utf8(secret.get("tls.crt").context("no tls.crt")?.0.clone())?)
    }

    /// Whether the certificate in a Secret is of the newest CA.
    pub(crate) fn is_of_newest_ca(&self, name: &str) -> Result<bool> {
        let newest = bundle::read(self.newest_ca()?.as_bytes()).into_certificates();
        let chain = bundle::read_chain(&self.operator.read(name)?.get("tls.crt").context("tls.crt")?.0);
        let issuer = &chain.into_certificates().into_iter().next().context("a leaf")?.authority_key_id;
        Ok(newest.first().context("a CA")?.subject_key_id == *issuer)
    }

    /// Changes an object of the namespace by a merge patch.
    pub(crate) fn patch(&self, object: &str, patch: &Value) -> Result<()> {
        let args = ["patch", object, "--type=merge", "--patch", &patch.to_string()];
        self.cluster.kubectl(args).ns(&self.ns).ok().map(drop)
    }

    /// Lets another Issuer sign the certificates of a Certificate.
    pub(crate) fn use_issuer(&self, certificate: &str, issuer: &str) -> Result<()> {
        let patch = json!({ "spec": { "issuerRef": { "name": issuer } } });
        self.patch(&format!("certificates.cert-manager.io/{certificate}"), &patch)
    }

    /// Waits until a Secret has a certificate.
    pub(crate) fn wait_certificate(&self, name: &str) -> Result<()> {
        wait_for(&format!("Secret {name}"), SOON, || Ok(self.has_certificate(name)))
    }

    /// Pauses the istiod of this scenario: gateways get no updates.
    pub(crate) fn stop_istiod(&mut self) -> Result<()> {
        self.stopped = Some(Instant::now());
        self.istiod.as_ref().context("an istiod of this scenario")?.pause()
    }

    /// When istiod was paused.
    pub(crate) fn since_stop(&self) -> Result<Instant> {
        self.stopped.context("istiod was not stopped")
    }

    /// Resumes istiod.
    pub(crate) fn continue_istiod(&self) -> Result<()> {
        self.istiod.as_ref().context("an istiod of this scenario")?.resume()
    }

    /// The number of writes that the webhook has rejected because they would break connections.
    pub(crate) fn refusals(&self) -> Result<u64> {
        let metrics = self.server.metrics()?;
        let counts = metrics.lines().filter(|line| line.contains("rule=\"connectivity\"") && line.contains("\"deny\""));
        Ok(counts.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum())
    }

    /// Records a step of the rotation, with which failures are reported.
    pub(crate) fn step(&self, step: &str) -> Result<()> {
        self.journal()?.step(step);
        Ok(())
    }

    /// Waits for this many further handshakes.
    pub(crate) fn wait_handshakes(&self, more: u32) -> Result<()> {
        let journal = self.journal()?;
        let goal = journal.handshakes() + more;
        wait_for(&format!("{more} more handshakes"), SOON, || Ok(journal.handshakes() >= goal))
    }

    /// Unregisters the webhooks, so that writes are neither judged nor changed.
    pub(crate) fn admission_off(&mut self) -> Result<()> {
        self.registration.take().context("admission is off")?.unregister()
    }

    /// Registers the webhooks again.
    pub(crate) fn admission_on(&mut self) -> Result<()> {
        self.registration = Some(registered(self.cluster, &self.server, &self.layout)?);
        Ok(())
    }

    /// Ends the traffic.
    ///
    /// # Errors
    /// When a client ended before with an error.
    pub(crate) fn finish(&mut self) -> Result<()> {
        if let Some(around) = &self.around {
            around.over.store(true, Ordering::SeqCst);
        }
        if let Some(mut jdk) = self.jdk.take() {
            jdk.finish()?;
        }
        for client in self.clients.drain(..) {
            self.runtime.block_on(client).context("a client panicked")??;
        }
        Ok(())
    }
}

fn registered<'c>(cluster: &'c Cluster, server: &Server<'_>, layout: &Layout) -> Result<Registration<'c>> {
    let namespaces = layout.namespaces().into_iter().map(str::to_owned).collect();
    Registration::new(cluster, server, &Scope::Namespaces(namespaces), Patience::Longest)
}
