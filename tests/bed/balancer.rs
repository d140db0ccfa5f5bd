//! One address in front of several servers, as the address of a Service: each connection goes to the next server.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result};
use tokio::{
    io::{self, AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::Handle,
    sync::oneshot,
    task::JoinHandle,
    time::timeout,
};

/// Limit for the client to close a connection that the balancer has closed.
const CLOSED: Duration = Duration::from_secs(30);

/// An open connection: its end, and its task.
type Connection = (oneshot::Sender<()>, JoinHandle<()>);

/// A running balancer. Its tasks end with their runtime.
pub(crate) struct Balancer {
    port: u16,
    servers: Arc<Mutex<Vec<u16>>>,
    open: Arc<Mutex<Vec<Connection>>>,
}

impl Balancer {
    /// Starts one on loopback, in front of these ports.
    pub(crate) fn start(runtime: &Handle, servers: Vec<u16>) -> Result<Self> {
        Self::start_at(runtime, (Ipv4Addr::LOCALHOST, 0).into(), servers)
    }

    /// Starts one at another address.
    pub(crate) fn start_at(runtime: &Handle, address: SocketAddr, servers: Vec<u16>) -> Result<Self> {
        let listener = runtime.block_on(TcpListener::bind(address))?;
        let servers = Arc::new(Mutex::new(servers));
        let balancer = Self { port: listener.local_addr()?.port(), servers: servers.clone(), open: Arc::default() };
        let open = balancer.open.clone();
        runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let in_turn = {
                    let mut servers = lock(&servers);
                    servers.rotate_left(1);
                    servers.clone()
                };
                let (sender, end) = oneshot::channel();
                let task = tokio::spawn(async move {
                    // An error ends the connection at both ends.
                    drop(pass(client, &in_turn, end).await);
                });
                lock(&open).push((sender, task));
            }
        });
        Ok(balancer)
    }

    /// New connections go to these servers.
    pub(crate) fn set_servers(&self, servers: Vec<u16>) {
        *lock(&self.servers) = servers;
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Closes all connections, as a server does with idle ones, and waits until the client has closed them, too: none is used for another request.
    /// There must be no request in flight.
    pub(crate) async fn close_connections(&self) -> Result<()> {
        let open = std::mem::take(&mut *lock(&self.open));
        let mut ended = Vec::new();
        for (sender, task) in open {
            // The task of a connection that has ended does not receive it.
            let _ = sender.send(());
            ended.push(task);
        }
        for task in ended {
            timeout(CLOSED, task).await.context("the client does not close a connection")??;
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connects to the first server that accepts, and passes everything on.
async fn pass(mut client: TcpStream, servers: &[u16], end: oneshot::Receiver<()>) -> io::Result<()> {
    client.set_nodelay(true)?;
    let addresses: Vec<SocketAddr> = servers.iter().map(|port| (Ipv4Addr::LOCALHOST, *port).into()).collect();
    let mut server = TcpStream::connect(&*addresses).await?;
    server.set_nodelay(true)?;
    tokio::select! {
        passed = io::copy_bidirectional(&mut client, &mut server) => passed.map(drop),
        Ok(()) = end => {
            client.shutdown().await?;
            let mut rest = Vec::new();
            client.read_to_end(&mut rest).await.map(drop)
        }
    }
}
