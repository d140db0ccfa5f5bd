//! A proxy between the agent and the API server that can interrupt watches.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::Result;
use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    serve::ListenerExt,
};
use futures::{StreamExt, stream};
use kube::Client;
use tokio::{net::TcpListener, runtime::Runtime, sync::watch};
use trustspan::store::cluster::connect;

use crate::testbed::{Cluster, User};

/// What the proxy does with watches.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Watches {
    Pass,
    /// Connections stay open, but deliver no events: the worst outage, since neither side notices it.
    Mute,
    /// Watches end, and new ones get no response.
    Broken,
}

/// A running proxy. It ends when dropped.
pub(crate) struct Proxy {
    state: watch::Sender<Watches>,
    watches: Arc<AtomicUsize>,
    kubeconfig: PathBuf,
    // Dropped with the proxy, which ends its tasks.
    _runtime: Runtime,
}

#[derive(Clone)]
struct Line {
    client: Client,
    state: watch::Receiver<Watches>,
    watches: Arc<AtomicUsize>,
}

impl Proxy {
    /// Starts a proxy for the agent, which connects to it over plain HTTP.
    pub(crate) fn start(cluster: &Cluster) -> Result<Self> {
        let runtime = Runtime::new()?;
        let (state, of_line) = watch::channel(Watches::Pass);
        let watches = Arc::new(AtomicUsize::new(0));
        let direct = cluster.kubeconfig(User::Agent);
        let client = runtime.block_on(connect(Some(&direct)))?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let kubeconfig = cluster.kubeconfig_for(User::Agent, &format!("http://{}", listener.local_addr()?))?;
        let router =
            Router::new().fallback(forward).with_state(Line { client, state: of_line, watches: watches.clone() });
        // Without TCP_NODELAY each response waits up to 40 ms for a delayed acknowledgement.
        let prompt = listener.tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        runtime.spawn(async { axum::serve(prompt, router).await });
        Ok(Self { state, watches, kubeconfig, _runtime: runtime })
    }

    /// The kubeconfig of an agent that uses the proxy.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The number of open watches on Secrets.
    pub(crate) fn watches(&self) -> usize {
        self.watches.load(Ordering::SeqCst)
    }

    /// From now on watches stay open and deliver nothing.
    pub(crate) fn mute(&self) {
        self.state.send_replace(Watches::Mute);
    }

    /// Ends all watches, and answers no new ones.
    pub(crate) fn break_off(&self) {
        self.state.send_replace(Watches::Broken);
    }

    /// Forwards watches again.
    pub(crate) fn restore(&self) {
        self.state.send_replace(Watches::Pass);
    }
}

async fn until(mut state: watch::Receiver<Watches>, wanted: fn(&Watches) -> bool) {
    // On an error the proxy has ended, and so has the caller.
    let _ = state.wait_for(wanted).await;
}

async fn forward(State(line): State<Line>, request: Request) -> Response {
    let is_watch = request.uri().query().is_some_and(|query| query.split('&').any(|pair| pair == "watch=true"));
    let on_secrets = request.uri().path().ends_with("/secrets");
    if is_watch {
        until(line.state.clone(), |state| *state == Watches::Pass).await;
    }
    let answer = async {
        let (head, body) = request.into_parts();
        let body = to_bytes(body, usize::MAX).await.map_err(|error| error.to_string())?;
        line.client.send(Request::from_parts(head, body.into())).await.map_err(|error| error.to_string())
    };
    let (head, body) = match answer.await {
        Ok(answer) => answer.into_parts(),
        Err(error) => return (StatusCode::BAD_GATEWAY, error).into_response(),
    };
    let body = Body::new(body);
    if !is_watch {
        return Response::from_parts(head, body);
    }
    let open = on_secrets.then(|| Open::new(line.watches));
    let cut = until(line.state.clone(), |state| *state != Watches::Pass);
    let silence = stream::once(until(line.state, |state| *state != Watches::Mute)).filter_map(async |()| None);
    let events = body.into_data_stream().take_until(Box::pin(cut)).chain(silence);
    let counted = events.map(move |event| (event, &open).0);
    Response::from_parts(head, Body::from_stream(counted))
}

/// Counts a watch while it is open.
struct Open(Arc<AtomicUsize>);

impl Open {
    fn new(count: Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
