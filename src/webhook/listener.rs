//! The number of connections, and the timeouts of each.
//!
//! The API server keeps idle connections for 90 s (Go's `IdleConnTimeout`) and does not repeat a POST that failed because the server closed the
//! connection. An idle connection is therefore kept for longer. A slow client gets less: the head of a request must arrive within `HEAD_TIMEOUT` from its
//! first byte, and that of the first request from the handshake.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::Router;
use axum::http::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep};
use tower::Service;

use super::connections::{Connection, Open, Phase};
use super::limits::{HEAD_LIMIT, HEAD_TIMEOUT, IDLE_TIMEOUT, WRITE_TIMEOUT};

/// Serves a connection until it ends or is evicted; once `draining`, until its request is answered.
pub(super) async fn serve_connection<S: AsyncRead + AsyncWrite + Unpin>(
    open: Open,
    handshake: impl Future<Output = io::Result<S>>,
    router: Router,
    mut draining: watch::Receiver<bool>,
) {
    let accepted = tokio::select! {
        accepted = handshake => accepted,
        () = open.evicted() => return,
    };
    let Ok(stream) = accepted else { return };
    open.enter(Phase::Head);
    let connection = open.clone();
    let service = service_fn(move |request| respond(router.clone(), connection.clone(), request));
    let stream = TokioIo::new(TimeoutStream::new(stream, open));
    let mut served = pin!(http1::Builder::new().max_buf_size(HEAD_LIMIT).serve_connection(stream, service));
    tokio::select! {
        biased;
        _ = served.as_mut() => return,
        _ = draining.wait_for(|is_draining| *is_draining) => served.as_mut().graceful_shutdown(),
    }
    // A client that ends the connection, or sends no HTTP, needs no answer.
    let _ = served.await;
}

/// The response to a request, which knows its connection. The connection knows when the request begins and ends.
fn respond(
    mut router: Router,
    connection: Arc<Connection>,
    mut request: Request<Incoming>,
) -> impl Future<Output = Result<Response, Infallible>> {
    connection.enter(Phase::Body);
    request.extensions_mut().insert(connection.clone());
    let end = EndGuard(connection);
    let response = router.call(request);
    async move {
        let _end = end;
        response.await
    }
}

/// Records the end of a request, also of one that is cancelled.
struct EndGuard(Arc<Connection>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.enter(Phase::Idle);
    }
}

/// A stream that fails if the client is too slow to send the head of a request, or to read a response, if it sends no request for long, and when
/// its connection is evicted.
#[derive(Debug)]
pub(super) struct TimeoutStream<IO> {
    io: IO,
    open: Open,
    /// Fires at the timeout of a read, or before it.
    read: Pin<Box<Sleep>>,
    write: Option<Pin<Box<Sleep>>>,
}

impl<IO> TimeoutStream<IO> {
    fn new(io: IO, open: Open) -> Self {
        Self { io, open, read: Box::pin(sleep(HEAD_TIMEOUT)), write: None }
    }

    /// Fails a write that is pending for too long.
    fn with_timeout<T>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.write = None;
            return poll;
        }
        let timeout = self.write.get_or_insert_with(|| Box::pin(sleep(WRITE_TIMEOUT)));
        ready!(timeout.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for TimeoutStream<IO> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.open.poll_evicted(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let before = buf.filled().len();
        let poll = Pin::new(&mut self.io).poll_read(cx, buf);
        if buf.filled().len() > before && self.open.phase().0 == Phase::Idle {
            self.open.enter(Phase::Head);
        }
        if poll.is_ready() {
            return poll;
        }
        let (phase, since) = self.open.phase();
        let timeout = match phase {
            Phase::Idle => since + IDLE_TIMEOUT,
            Phase::Head => since + HEAD_TIMEOUT,
            Phase::Handshake | Phase::Body | Phase::Queue | Phase::Response => return poll,
        };
        // To set the timer for each request would take longer than to let it fire too early from time to time.
        if timeout < self.read.deadline() {
            self.read.as_mut().reset(timeout);
        }
        while self.read.as_mut().poll(cx).is_ready() {
            if timeout <= Instant::now() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            self.read.as_mut().reset(timeout);
        }
        poll
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for TimeoutStream<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.io).poll_write(cx, buf);
        self.with_timeout(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.with_timeout(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.io).poll_flush(cx);
        self.with_timeout(cx, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.io).poll_shutdown(cx);
        self.with_timeout(cx, poll)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::{advance, timeout};

    use super::*;
    use crate::webhook::Limits;
    use crate::webhook::connections::Connections;

    /// A stream after its handshake.
    fn stream() -> (TimeoutStream<DuplexStream>, DuplexStream, Arc<Connection>) {
        let (near, far) = duplex(64);
        let open = Connections::new(Limits::default()).open(Ipv4Addr::LOCALHOST.into()).unwrap();
        open.enter(Phase::Head);
        let connection = open.clone();
        (TimeoutStream::new(near, open), far, connection)
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_when_its_handshake_fails() {
        let connections = Connections::new(Limits::default());
        let open = connections.open(Ipv4Addr::LOCALHOST.into()).unwrap();
        let handshake = async { Err::<DuplexStream, _>(io::ErrorKind::InvalidData.into()) };
        let (_draining, receiver) = watch::channel(false);
        let served = serve_connection(open, handshake, Router::new(), receiver);
        timeout(HEAD_TIMEOUT, served).await.expect("it ends");
    }

    async fn is_quiet(io: &mut TimeoutStream<DuplexStream>, time: Duration) -> bool {
        timeout(time, io.read_u8()).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn closes_on_a_slow_head_but_not_while_idle() {
        let (mut io, mut far, connection) = stream();
        // The first request, and its response.
        connection.enter(Phase::Body);
        connection.enter(Phase::Idle);
        assert!(is_quiet(&mut io, IDLE_TIMEOUT - HEAD_TIMEOUT).await);
        far.write_all(b"a").await.unwrap();
        assert_eq!(io.read_u8().await.unwrap(), b'a');
        advance(HEAD_TIMEOUT / 2).await;
        // More bytes do not extend the timeout.
        far.write_all(b"b").await.unwrap();
        assert_eq!(io.read_u8().await.unwrap(), b'b');
        let error = timeout(HEAD_TIMEOUT, io.read_u8()).await.expect("ends within the time for a head").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn closes_after_the_idle_timeout() {
        let (mut io, mut far, connection) = stream();
        for _ in 0..3 {
            far.write_all(b"a").await.unwrap();
            io.read_u8().await.unwrap();
            connection.enter(Phase::Body);
            connection.enter(Phase::Idle);
            assert!(is_quiet(&mut io, IDLE_TIMEOUT - Duration::from_millis(2)).await);
        }
        let error = timeout(Duration::from_millis(4), io.read_u8()).await.expect("ends").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn closes_without_a_request() {
        let (mut io, _far, _) = stream();
        let error = timeout(HEAD_TIMEOUT * 2, io.read_u8()).await.expect("ends").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_started_request_stops_the_head_timeout() {
        let (mut io, mut far, connection) = stream();
        far.write_all(b"a").await.unwrap();
        io.read_u8().await.unwrap();
        // A request whose bytes arrived at once was answered before the stream is read again.
        connection.enter(Phase::Body);
        connection.enter(Phase::Idle);
        assert!(is_quiet(&mut io, HEAD_TIMEOUT * 2).await);
        // The timeout of the head does not apply to a body.
        connection.enter(Phase::Body);
        far.write_all(b"b").await.unwrap();
        io.read_u8().await.unwrap();
        assert!(is_quiet(&mut io, HEAD_TIMEOUT * 2).await);
    }

    #[tokio::test(start_paused = true)]
    async fn closes_if_the_client_does_not_read_the_response() {
        let (mut io, _far, _) = stream();
        let error = timeout(WRITE_TIMEOUT * 2, io.write_all(&[0; 1000])).await.expect("ends").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
