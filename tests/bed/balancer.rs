//! One address in front of several servers, as the address of a Service: each connection goes to the next server.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
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
    open: Arc<Mutex<Vec<Connection>>>,
}

impl Balancer {
    /// Starts one on loopback, in front of these ports.
    pub(crate) fn start(runtime: &Handle, servers: Vec<u16>) -> Result<Self> {
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        let balancer = Self { port: listener.local_addr()?.port(), open: Arc::default() };
        let open = balancer.open.clone();
        runtime.spawn(async move {
            let mut next = servers.iter().cycle();
            while let (Ok((client, _)), Some(server)) = (listener.accept().await, next.next()) {
                let (sender, end) = oneshot::channel();
                let server = (Ipv4Addr::LOCALHOST, *server).into();
                let task = tokio::spawn(async move {
                    // An error ends the connection at both ends.
                    drop(pass(client, server, end).await);
                });
                open.lock().unwrap_or_else(PoisonError::into_inner).push((sender, task));
            }
        });
        Ok(balancer)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Closes all connections, as a server does with idle ones, and waits until the client has closed them, too: none is used for another request.
    /// There must be no request in flight.
    pub(crate) async fn close_connections(&self) -> Result<()> {
        let open = std::mem::take(&mut *self.open.lock().unwrap_or_else(PoisonError::into_inner));
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

async fn pass(mut client: TcpStream, server: SocketAddr, end: oneshot::Receiver<()>) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut server = TcpStream::connect(server).await?;
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
