//! Two real Envoys behind one address, fed with what Secrets hold as istiod would: chosen keys, no check, and each after a
//! delay of its own.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::spawn_blocking,
    time::{Instant, sleep},
};
use trustspan::trust::{anchors, certificates_under, credential};

use crate::{
    pace::{KUBELET, Pace},
    shelf::{Shelf, lock, names},
    testbed::{Content, Envoy, Gateway, Scratch, Secrets, Seed, Updates, wait_for},
};

/// The host that clients ask for; the server certificate's name.
pub(crate) const HOST: &str = "gateway.example";
/// Envoy's names of its secrets.
const PAIR: &str = "pair";
const TRUST: &str = "trust";
/// How often somebody looks who acts after a delay.
const LOOK: Duration = Duration::from_millis(10);

/// In that time Envoy has taken an update, unless it was restarted and needs another.
const TAKEN: Duration = Duration::from_secs(5);

/// The Secrets that a gateway's credential is made of.
#[derive(Clone, Copy)]
pub(crate) struct Sources {
    pub(crate) pair: &'static str,
    pub(crate) ca: &'static str,
}

/// An Envoy as the others see it.
struct Member {
    name: String,
    address: SocketAddr,
    secrets: Secrets,
    drained: AtomicBool,
    open: AtomicUsize,
    /// What it has taken.
    sent: Mutex<BTreeMap<String, Content>>,
    /// The same for people.
    serves: Mutex<String>,
}

/// What stands behind the one address.
pub(crate) struct Gateways {
    envoys: Vec<Envoy>,
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
    /// Starts the Envoys with what the Secrets hold now.
    pub(crate) fn start(shelf: &Shelf, sources: Sources) -> Result<Self> {
        let scratch = Scratch::new()?;
        let gateway = Gateway { host: HOST.to_owned(), pair: PAIR.to_owned(), trust: Some(TRUST.to_owned()) };
        let (contents, serves) = credential_of(shelf, sources).context("no credential to start Envoy with")?;
        let (mut envoys, mut members) = (Vec::new(), Vec::new());
        for name in ["envoy-0", "envoy-1"] {
            let envoy = Envoy::start(&scratch, name, std::slice::from_ref(&gateway), &contents)?;
            members.push(Member {
                name: name.to_owned(),
                address: envoy.address(),
                secrets: envoy.secrets().clone(),
                drained: AtomicBool::new(false),
                open: AtomicUsize::new(0),
                sent: Mutex::new(contents.clone()),
                serves: Mutex::new(serves.clone()),
            });
            envoys.push(envoy);
        }
        let pool = Pool { members, next: AtomicUsize::new(0), taken: Mutex::default() };
        Ok(Self { envoys, pool: Arc::new(pool), scratch })
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    pub(crate) fn count(&self) -> usize {
        self.envoys.len()
    }

    /// No new connection goes to an Envoy; true when its last one has ended.
    pub(crate) fn drain(&self, number: usize) -> bool {
        let member = &self.pool.members[number];
        member.drained.store(true, Ordering::SeqCst);
        member.open.load(Ordering::SeqCst) == 0
    }

    /// Restarts a drained Envoy and lets connections to it again.
    pub(crate) fn restart(&mut self, number: usize) -> Result<()> {
        self.envoys[number].restart(&self.scratch)?;
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

    /// Replaces what has changed, and waits until Envoy has taken or refused it.
    fn push(&self, contents: BTreeMap<String, Content>) -> Result<()> {
        let mut sent = lock(&self.sent);
        let changed: Vec<_> = contents.iter().filter(|(name, content)| sent.get(*name) != Some(*content)).collect();
        // An Envoy that is just restarting says nothing, and reads the files when it starts.
        let before = self.secrets.updates().unwrap_or_default();
        for (name, content) in &changed {
            self.secrets.replace(name, content)?;
        }
        let done = |updates: &BTreeMap<String, Updates>, name| updates.get(name).map(|updates| updates.done());
        wait_for("Envoy to take its secrets", TAKEN, || {
            let after = self.secrets.updates()?;
            Ok(changed.iter().all(|(name, _)| done(&after, *name) != done(&before, *name)))
        })?;
        *sent = contents;
        Ok(())
    }
}

impl Pool {
    /// Where each Envoy listens.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.members.iter().map(|member| member.address).collect()
    }

    /// Feeds an Envoy whenever its Secrets change, and never ends.
    pub(crate) async fn feed(self: Arc<Self>, number: usize, shelf: Arc<Shelf>, sources: Sources, pace: Pace) {
        let member = &self.members[number];
        let mut seed = Seed::of_run(&member.name);
        let (mut due, mut fed) = (None, Default::default());
        loop {
            sleep(LOOK).await;
            let Some(versions) = versions(&shelf, sources).filter(|versions| *versions != fed) else { continue };
            let at = *due.get_or_insert_with(|| Instant::now() + pace.delay(KUBELET, &mut seed));
            if Instant::now() < at {
                continue;
            }
            // istiod keeps what it has while a Secret is incomplete.
            let Some((contents, serves)) = credential_of(&shelf, sources) else { continue };
            let to = Arc::clone(&self);
            match spawn_blocking(move || to.members[number].push(contents)).await.map_err(anyhow::Error::from).flatten()
            {
                Ok(()) => {}
                Err(error) => {
                    eprintln!("{}: {error:#}", member.name);
                    continue;
                }
            }
            for (secret, version) in &versions {
                shelf.loaded(&member.name, secret, version, false);
            }
            *lock(&member.serves) = serves;
            (due, fed) = (None, versions);
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

    /// Which Envoy took the connection from a port, and what it serves.
    pub(crate) fn story(&self, port: u16) -> String {
        let number = lock(&self.taken).get(&port).copied();
        let Some(member) = number.map(|number| &self.members[number]) else { return "no Envoy".to_owned() };
        format!("{} with {}", member.name, lock(&member.serves))
    }
}

/// Which versions of its Secrets a credential is made of.
fn versions(shelf: &Shelf, sources: Sources) -> Option<[(&'static str, String); 2]> {
    let version = |name| Some((name, shelf.newest(name)?.version.clone()));
    Some([version(sources.pair)?, version(sources.ca)?])
}

/// The keys that istiod would choose, and what they hold. None while one is incomplete.
fn credential_of(shelf: &Shelf, sources: Sources) -> Option<(BTreeMap<String, Content>, String)> {
    let (pair, ca) = (shelf.newest(sources.pair)?, shelf.newest(sources.ca)?);
    let serving = credential::serving_pair(&pair.secret)?;
    let trusted = credential::ca_bundle(&ca.secret)?;
    let served = certificates_under(&pair.secret, serving.chain_key);
    let serves = format!("{}, trusts {}", names(&served[..served.len().min(1)]), names(&anchors(&ca.secret)));
    let contents = BTreeMap::from([
        (PAIR.to_owned(), Content::Pair { chain: serving.chain.to_vec(), key: serving.private_key.to_vec() }),
        (TRUST.to_owned(), Content::Trust { ca: trusted.pem.to_vec(), crl: None }),
    ]);
    Some((contents, serves))
}
