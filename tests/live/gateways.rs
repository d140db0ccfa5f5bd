//! Two real Envoys behind one address. istiod sends them their configuration and Secrets.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::spawn_blocking,
    time::sleep,
};
use trustspan::trust::{bundle, credential};

use crate::{
    shelf::{Shelf, lock, names},
    testbed::{Active, Cluster, Ingress, Istiod, Scratch, Secrets},
};

/// The host that clients request, and the name in the serving certificate.
pub(crate) const HOST: &str = "gateway.example";
/// The number of gateways.
const GATEWAYS: u8 = 2;
/// Interval of probes of an Envoy that does not have the newest Secrets.
const LOOK: Duration = Duration::from_millis(50);

/// The Secrets from which istiod takes a gateway's pair and CAs.
#[derive(Clone, Copy)]
pub(crate) struct Sources {
    pub(crate) pair: &'static str,
    pub(crate) ca: &'static str,
}

impl Sources {
    /// The content of these Secrets in an Envoy, under the names that istiod uses for Secrets in the namespace of the
    /// Gateway.
    fn active(self, secrets: &Secrets) -> Result<Active> {
        secrets.active(&format!("kubernetes://{}", self.pair), &format!("kubernetes://{}-cacert", self.ca))
    }
}

/// The state of an Envoy, shared between tasks.
struct Member {
    name: String,
    address: SocketAddr,
    secrets: Secrets,
    drained: AtomicBool,
    open: AtomicUsize,
    /// The content that a probe has found last.
    active: Mutex<Active>,
}

/// The Envoys behind one address.
pub(crate) struct Gateways {
    ingress: Ingress,
    pool: Arc<Pool>,
    // Declared last, so that it is dropped last: the processes must end before their files are removed.
    scratch: Scratch,
}

/// Selects an Envoy for each connection.
pub(crate) struct Pool {
    members: Vec<Member>,
    next: AtomicUsize,
    /// The Envoy of each connection, by the client's port.
    taken: Mutex<HashMap<u16, usize>>,
}

impl Gateways {
    /// Starts the Envoys. Their listeners are created later, with the Gateways.
    pub(crate) fn start(cluster: &Cluster, istiod: &Istiod, ns: &str) -> Result<Self> {
        let scratch = Scratch::new()?;
        let ingress = Ingress::start(cluster, istiod, &scratch, ns, ns, GATEWAYS)?;
        let member = |((name, secrets), address): ((String, &Secrets), SocketAddr)| Member {
            name,
            address,
            secrets: secrets.clone(),
            drained: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            active: Mutex::default(),
        };
        let members = ingress.secrets().zip(ingress.addresses()).map(member).collect();
        let pool = Pool { members, next: AtomicUsize::new(0), taken: Mutex::default() };
        Ok(Self { ingress, pool: Arc::new(pool), scratch })
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    pub(crate) fn count(&self) -> usize {
        self.pool.members.len()
    }

    /// The last lines of each Envoy's log.
    pub(crate) fn log_tails(&self) -> String {
        self.ingress.log_tails()
    }

    /// Kills an Envoy, to which connections are still sent.
    pub(crate) fn kill(&mut self, number: usize) -> Result<()> {
        self.ingress.kill(number)
    }

    /// Starts a killed Envoy, and waits until istiod has configured it.
    pub(crate) fn start_again(&mut self, number: usize) -> Result<()> {
        self.ingress.start_again(&self.scratch, number)
    }

    /// Sends no new connections to an Envoy. Returns whether its last connection has ended.
    pub(crate) fn drain(&self, number: usize) -> bool {
        let member = &self.pool.members[number];
        member.drained.store(true, Ordering::SeqCst);
        member.open.load(Ordering::SeqCst) == 0
    }

    /// Restarts a drained Envoy, and sends connections to it again.
    pub(crate) fn restart(&mut self, number: usize) -> Result<()> {
        self.ingress.restart(&self.scratch, number)?;
        self.pool.members[number].drained.store(false, Ordering::SeqCst);
        Ok(())
    }
}

impl Member {
    /// Counts a new connection, unless the Envoy is drained. The count is increased before the check, so that a drain
    /// either sees the connection or is seen by it.
    fn enter(&self) -> bool {
        self.open.fetch_add(1, Ordering::SeqCst);
        let enters = !self.drained.load(Ordering::SeqCst);
        if !enters {
            self.open.fetch_sub(1, Ordering::SeqCst);
        }
        enters
    }
}

impl Pool {
    /// The address of each Envoy.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.members.iter().map(|member| member.address).collect()
    }

    /// Records which versions of the Secrets an Envoy has loaded. Never returns.
    pub(crate) async fn watch(self: Arc<Self>, number: usize, shelf: Arc<Shelf>, sources: Sources) {
        let member = &self.members[number];
        let mut noted = Default::default();
        loop {
            sleep(LOOK).await;
            let Some(versions) = versions(&shelf, sources).filter(|versions| *versions != noted) else { continue };
            let secrets = member.secrets.clone();
            // An Envoy that is restarting does not respond.
            let Ok(Ok(active)) = spawn_blocking(move || sources.active(&secrets)).await else { continue };
            let is_newest = credential_of(&shelf, sources).is_some_and(|newest| newest == active);
            *lock(&member.active) = active;
            if is_newest {
                for (secret, version) in &versions {
                    shelf.loaded(&member.name, secret, version, false);
                }
                noted = versions;
            }
        }
    }

    /// Forwards every connection to an Envoy. Never returns.
    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener) {
        while let Ok((mut client, from)) = listener.accept().await {
            // If all Envoys are drained, the client sees a closed connection.
            let Some(number) = self.pick() else { continue };
            lock(&self.taken).insert(from.port(), number);
            let pool = Arc::clone(&self);
            tokio::spawn(async move {
                let member = &pool.members[number];
                let _ = client.set_nodelay(true);
                // The client reports errors of the connection.
                if let Ok(mut envoy) = TcpStream::connect(member.address).await {
                    let _ = envoy.set_nodelay(true);
                    let _ = copy_bidirectional(&mut client, &mut envoy).await;
                }
                member.open.fetch_sub(1, Ordering::SeqCst);
            });
        }
    }

    /// Selects the next Envoy that is not drained, and counts the connection.
    fn pick(&self) -> Option<usize> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let mut numbers = (first..).map(|number| number % self.members.len()).take(self.members.len());
        numbers.find(|&number| self.members[number].enter())
    }

    /// Which Envoy had the connection from a port, and which versions of its Secrets, for messages.
    pub(crate) fn story(&self, port: u16) -> String {
        let number = lock(&self.taken).get(&port).copied();
        let Some(member) = number.map(|number| &self.members[number]) else { return "no Envoy".to_owned() };
        let active = lock(&member.active).clone();
        let read = |pem: &[u8]| bundle::read(pem).into_certificates();
        let leaf: Vec<_> = read(&active.chain).into_iter().take(1).collect();
        format!("{} with {}, trusts {}", member.name, names(&leaf), names(&read(&active.ca)))
    }
}

/// The versions of the Secrets from which the pair and the CAs come.
fn versions(shelf: &Shelf, sources: Sources) -> Option<[(&'static str, String); 2]> {
    let version = |name| Some((name, shelf.newest(name)?.version.clone()));
    Some([version(sources.pair)?, version(sources.ca)?])
}

/// The content under the keys that istiod reads. `None` while a Secret is incomplete.
fn credential_of(shelf: &Shelf, sources: Sources) -> Option<Active> {
    let (pair, ca) = (shelf.newest(sources.pair)?, shelf.newest(sources.ca)?);
    let chain = credential::serving_pair(&pair.secret)?.chain.to_vec();
    Some(Active { chain, ca: credential::ca_bundle(&ca.secret)?.pem.to_vec() })
}
