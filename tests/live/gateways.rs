//! Two real Envoys behind one address. istiod gives them their configuration and their Secrets.

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

/// The host that clients ask for; the server certificate's name.
pub(crate) const HOST: &str = "gateway.example";
/// How many there are.
const GATEWAYS: u8 = 2;
/// Interval of probes of an Envoy that does not have the newest Secrets.
const LOOK: Duration = Duration::from_millis(50);

/// The Secrets that a gateway's credential is made of.
#[derive(Clone, Copy)]
pub(crate) struct Sources {
    pub(crate) pair: &'static str,
    pub(crate) ca: &'static str,
}

impl Sources {
    /// What an Envoy has of them, under the names that istiod gives to the secrets of a Gateway in its own namespace.
    fn active(self, secrets: &Secrets) -> Result<Active> {
        secrets.active(&format!("kubernetes://{}", self.pair), &format!("kubernetes://{}-cacert", self.ca))
    }
}

/// An Envoy as the others see it.
struct Member {
    name: String,
    address: SocketAddr,
    secrets: Secrets,
    drained: AtomicBool,
    open: AtomicUsize,
    /// What it was seen to have last.
    active: Mutex<Active>,
}

/// The servers behind one address.
pub(crate) struct Gateways {
    ingress: Ingress,
    pool: Arc<Pool>,
    // Last: it waits for the processes before it removes their files.
    scratch: Scratch,
}

/// Picks an Envoy for each connection.
pub(crate) struct Pool {
    members: Vec<Member>,
    next: AtomicUsize,
    /// Which Envoy took the connection from a port of a client.
    taken: Mutex<HashMap<u16, usize>>,
}

impl Gateways {
    /// Starts the Envoys. Their listeners come with the Gateways.
    pub(crate) fn start(cluster: &Cluster, istiod: &Istiod, ns: &str) -> Result<Self> {
        let scratch = Scratch::new()?;
        let ingress = Ingress::start(cluster, istiod, &scratch, ns, GATEWAYS)?;
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

    /// The end of each Envoy's log.
    pub(crate) fn log_tails(&self) -> String {
        self.ingress.log_tails()
    }

    /// No new connection goes to an Envoy; true when its last one has ended.
    pub(crate) fn drain(&self, number: usize) -> bool {
        let member = &self.pool.members[number];
        member.drained.store(true, Ordering::SeqCst);
        member.open.load(Ordering::SeqCst) == 0
    }

    /// Restarts a drained Envoy and lets connections to it again.
    pub(crate) fn restart(&mut self, number: usize) -> Result<()> {
        self.ingress.restart(&self.scratch, number)?;
        self.pool.members[number].drained.store(false, Ordering::SeqCst);
        Ok(())
    }
}

impl Member {
    /// Counts one more connection, unless it is drained. Counted first: who drains it then either sees the connection or is seen.
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
    /// Where each Envoy listens.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.members.iter().map(|member| member.address).collect()
    }

    /// Notes which Secrets an Envoy has taken, and never ends.
    pub(crate) async fn watch(self: Arc<Self>, number: usize, shelf: Arc<Shelf>, sources: Sources) {
        let member = &self.members[number];
        let mut noted = Default::default();
        loop {
            sleep(LOOK).await;
            let Some(versions) = versions(&shelf, sources).filter(|versions| *versions != noted) else { continue };
            let secrets = member.secrets.clone();
            // An Envoy that is just restarting says nothing.
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

    /// Carries every connection on to an Envoy, and never ends.
    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener) {
        while let Ok((mut client, from)) = listener.accept().await {
            // With none left the client sees a connection that ends.
            let Some(number) = self.pick() else { continue };
            lock(&self.taken).insert(from.port(), number);
            let pool = Arc::clone(&self);
            tokio::spawn(async move {
                let member = &pool.members[number];
                let _ = client.set_nodelay(true);
                // What goes wrong here the client sees.
                if let Ok(mut envoy) = TcpStream::connect(member.address).await {
                    let _ = envoy.set_nodelay(true);
                    let _ = copy_bidirectional(&mut client, &mut envoy).await;
                }
                member.open.fetch_sub(1, Ordering::SeqCst);
            });
        }
    }

    /// The next Envoy that is not drained, with one more connection.
    fn pick(&self) -> Option<usize> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let mut numbers = (first..).map(|number| number % self.members.len()).take(self.members.len());
        numbers.find(|&number| self.members[number].enter())
    }

    /// Which Envoy took the connection from a port, and what it was seen to have.
    pub(crate) fn story(&self, port: u16) -> String {
        let number = lock(&self.taken).get(&port).copied();
        let Some(member) = number.map(|number| &self.members[number]) else { return "no Envoy".to_owned() };
        let active = lock(&member.active).clone();
        let read = |pem: &[u8]| bundle::read(pem).into_certificates();
        let leaf: Vec<_> = read(&active.chain).into_iter().take(1).collect();
        format!("{} with {}, trusts {}", member.name, names(&leaf), names(&read(&active.ca)))
    }
}

/// Which versions of its Secrets a credential is made of.
fn versions(shelf: &Shelf, sources: Sources) -> Option<[(&'static str, String); 2]> {
    let version = |name| Some((name, shelf.newest(name)?.version.clone()));
    Some([version(sources.pair)?, version(sources.ca)?])
}

/// What they hold under the keys that istiod reads. None while one is incomplete.
fn credential_of(shelf: &Shelf, sources: Sources) -> Option<Active> {
    let (pair, ca) = (shelf.newest(sources.pair)?, shelf.newest(sources.ca)?);
    let chain = credential::serving_pair(&pair.secret)?.chain.to_vec();
    Some(Active { chain, ca: credential::ca_bundle(&ca.secret)?.pem.to_vec() })
}
