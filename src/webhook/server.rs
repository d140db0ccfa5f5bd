//! Serves both ports until they are drained.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum_server::Handle;
use axum_server::accept::{Accept, DefaultAcceptor};
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;

use super::Webhook;
use super::connections::Connections;
use super::limits::{HANDSHAKE_TIMEOUT, HEAD_LIMIT, Limits, METRICS_CONNECTIONS};
use super::listener::ConnectionLimiter;

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
/// If a listener fails permanently.
pub async fn run(
    webhook: &Arc<Webhook>,
    https: (TcpListener, ServerConfig),
    metrics: TcpListener,
    drain: Drain,
    mut signals: Signals,
) -> io::Result<End> {
    let (listener, config) = https;
    let tls = RustlsAcceptor::new(RustlsConfig::from_config(Arc::new(config))).handshake_timeout(HANDSHAKE_TIMEOUT);
    let mut https = Port::open(listener, tls, webhook.router(), webhook.connections().clone())?;
    let mut metrics = Port::open(metrics, DefaultAcceptor, webhook.metrics_router(), metrics_connections())?;

    tokio::select! {
        () = signals.next() => {}
        end = &mut https.task => return Err(ended(end)),
        end = &mut metrics.task => return Err(ended(end)),
    }
    tracing::info!("shutting down: not ready, still serving for {:?}", drain.delay);
    webhook.drain();
    let drained = async {
        tokio::time::sleep(drain.delay).await;
        tracing::info!("no new connections are accepted; requests in flight have up to {:?}", drain.timeout);
        https.handle.graceful_shutdown(Some(drain.timeout));
        let _ = (&mut https.task).await;
        // The metrics port is closed last, so that probes and scrapes work during the whole drain.
        metrics.handle.shutdown();
        let _ = (&mut metrics.task).await;
    };
    tokio::select! {
        () = drained => Ok(End::Drained),
        () = signals.next() => Ok(End::Cut),
    }
}

/// Serves a router over plain HTTP. Returns only if the listener fails.
pub async fn plain(listener: TcpListener, router: Router) -> io::Error {
    match Port::open(listener, DefaultAcceptor, router, metrics_connections()) {
        Ok(port) => ended(port.task.await),
        Err(error) => error,
    }
}

struct Port {
    handle: Handle<SocketAddr>,
    task: JoinHandle<io::Result<()>>,
}

impl Port {
    fn open<A>(listener: TcpListener, acceptor: A, router: Router, connections: Arc<Connections>) -> io::Result<Self>
    where
        A: Accept<TcpStream, Router, Service = Router> + Clone + Send + Sync + 'static,
        A::Stream: AsyncRead + AsyncWrite + Unpin + Send,
        A::Future: Send + 'static,
    {
        listener.set_nonblocking(true)?;
        let handle = Handle::new();
        let mut server = axum_server::from_tcp(listener)?.handle(handle.clone()).http1_only();
        server.http_builder().http1().max_buf_size(HEAD_LIMIT);
        let acceptor = ConnectionLimiter::new(acceptor, connections);
        let task = tokio::spawn(server.acceptor(acceptor).serve(router.into_make_service()));
        Ok(Self { handle, task })
    }
}

/// The connections of a port without admission requests.
fn metrics_connections() -> Arc<Connections> {
    Connections::new(Limits { connections: METRICS_CONNECTIONS, ..Limits::default() })
}

fn ended(end: Result<io::Result<()>, tokio::task::JoinError>) -> io::Error {
    match end {
        Ok(Err(error)) => error,
        Err(error) => io::Error::other(error),
        Ok(Ok(())) => io::Error::other("a listener stopped"),
    }
}
