//! A link to the API server that can stop to pass anything, in either direction: as a network does that loses every packet.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::{Builder, Runtime},
    sync::watch,
};

use super::{cluster::Cluster, users::User};

/// A running link. It ends when dropped.
pub(crate) struct Link {
    passes: watch::Sender<bool>,
    kubeconfig: PathBuf,
    // Dropped with the link, which ends its tasks.
    _runtime: Runtime,
}

impl Link {
    pub(crate) fn start(cluster: &Cluster, user: User) -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (passes, state) = watch::channel(true);
        let port = cluster.server()?.0.rsplit_once(':').context("a URL without a port")?.1.parse()?;
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        let kubeconfig = cluster.kubeconfig_for(user, &format!("https://{}", listener.local_addr()?))?;
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // An error ends the connection at both ends.
                tokio::spawn(join(stream, (Ipv4Addr::LOCALHOST, port).into(), state.clone()));
            }
        });
        Ok(Self { passes, kubeconfig, _runtime: runtime })
    }

    /// The kubeconfig of a client that uses the link.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// From now on connections stay open, and nothing passes.
    pub(crate) fn cut(&self) {
        self.passes.send_replace(false);
    }

    /// Everything passes again, also what was sent in between.
    pub(crate) fn restore(&self) {
        self.passes.send_replace(true);
    }
}

async fn join(near: TcpStream, server: SocketAddr, passes: watch::Receiver<bool>) -> io::Result<()> {
    near.set_nodelay(true)?;
    let far = TcpStream::connect(server).await?;
    far.set_nodelay(true)?;
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    tokio::try_join!(pass(near_in, far_out, passes.clone()), pass(far_in, near_out, passes)).map(drop)
}

async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut passes: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut block = vec![0; 16 * 1024];
    loop {
        let count = from.read(&mut block).await?;
        // On an error the link has ended.
        let _ = passes.wait_for(|passes| *passes).await;
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(&block[..count]).await?;
    }
}
