//! Serves both ports until they are drained.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener as AsyncListener, TcpStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::Webhook;
use super::connections::Connections;
use super::limits::{ACCEPT_RETRY, HANDSHAKE_TIMEOUT, Limits, METRICS_CONNECTIONS};
use super::listener::serve_connection;

/// The shutdown of the server.
#[derive(Clone, Copy, Debug)]
pub struct Drain {
    /// Time to keep serving, but not ready: this pod is not removed from the Service's endpoints immediately.
    pub delay: Duration,
    /// Time for requests in flight after that.
    pub timeout: Duration,
}

/// How the server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All requests were answered, or the drain timeout expired.
    Drained,
    /// A second signal arrived.
    Cut,
}

/// SIGTERM and SIGINT.
#[derive(Debug)]
pub struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    /// Replaces the default handlers, which end the process.
    ///
    /// # Errors
    /// If the operating system rejects a handler.
    pub fn new() -> io::Result<Self> {
        Ok(Self { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }
}

/// Serves until a signal arrives, then drains.
///
/// # Errors
/// If a listener cannot be used.
pub async fn run(
    webhook: &Arc<Webhook>,
    https: (TcpListener, ServerConfig),
    metrics: TcpListener,
    drain: Drain,
    mut signals: Signals,
) -> io::Result<End> {
    let (listener, config) = https;
    let tls = TlsAcceptor::from(Arc::new(config));
    let handshake = move |stream| {
        let handshake = tls.accept(stream);
        async { timeout(HANDSHAKE_TIMEOUT, handshake).await? }
    };
    let mut https = Port::open(listener, handshake, webhook.router(), webhook.connections().clone())?;
    let mut metrics = Port::open(metrics, no_handshake, webhook.metrics_router(), metrics_connections())?;

    tokio::select! {
        () = signals.next() => {}
        end = &mut https.task => return Err(ended(end)),
        end = &mut metrics.task => return Err(ended(end)),
    }
    tracing::info!("shutting down: not ready, still serving for {:?}", drain.delay);
    webhook.drain();
    let drained = async {
        sleep(drain.delay).await;
        tracing::info!("no new connections are accepted; requests in flight have up to {:?}", drain.timeout);
        https.drain(drain.timeout).await;
        // The metrics port is closed last, so that probes and scrapes work during the whole drain.
        metrics.drain(Duration::ZERO).await;
    };
    tokio::select! {
        () = drained => Ok(End::Drained),
        () = signals.next() => Ok(End::Cut),
    }
}

/// Serves a router over plain HTTP. Returns only if the listener cannot be used.
pub async fn plain(listener: TcpListener, router: Router) -> io::Error {
    match Port::open(listener, no_handshake, router, metrics_connections()) {
        Ok(port) => ended(port.task.await),
        Err(error) => error,
    }
}

async fn no_handshake(stream: TcpStream) -> io::Result<TcpStream> {
    Ok(stream)
}

/// A port whose connections are served.
struct Port {
    is_draining: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Port {
    fn open<S, F>(
        listener: TcpListener,
        handshake: impl Fn(TcpStream) -> F + Send + 'static,
        router: Router,
        connections: Arc<Connections>,
    ) -> io::Result<Self>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        F: Future<Output = io::Result<S>> + Send + 'static,
    {
        listener.set_nonblocking(true)?;
        let listener = AsyncListener::from_std(listener)?;
        let (is_draining, mut draining) = watch::channel(false);
        let task = tokio::spawn(async move {
            let mut served = JoinSet::new();
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    Some(_) = served.join_next() => continue,
                    _ = draining.changed() => break,
                };
                let Ok((stream, peer)) = accepted else {
                    // For example, no file descriptor is left.
                    sleep(ACCEPT_RETRY).await;
                    continue;
                };
                // Nagle's algorithm would delay the last segment of a response.
                if stream.set_nodelay(true).is_ok()
                    && let Some(open) = connections.open(peer.ip().to_canonical())
                {
                    served.spawn(serve_connection(open, handshake(stream), router.clone(), draining.clone()));
                }
            }
            drop(listener);
            while served.join_next().await.is_some() {}
        });
        Ok(Self { is_draining, task })
    }

    /// Accepts no more connections, waits for requests in flight, and then closes what is still open.
    async fn drain(&mut self, limit: Duration) {
        self.is_draining.send_replace(true);
        if timeout(limit, &mut self.task).await.is_err() {
            self.task.abort();
            let _ = (&mut self.task).await;
        }
    }
}

/// The connections of a port without admission requests.
fn metrics_connections() -> Arc<Connections> {
    Connections::new(Limits { connections: METRICS_CONNECTIONS, ..Limits::default() })
}

fn ended(end: Result<(), JoinError>) -> io::Error {
    end.map_or_else(io::Error::other, |()| io::Error::other("a listener stopped"))
}
