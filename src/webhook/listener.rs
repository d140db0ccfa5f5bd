//! The number of connections, and the timeouts of each.
//!
//! The API server keeps idle connections for 90 s (Go's `IdleConnTimeout`) and does not repeat a POST that failed because the server closed the
//! connection. An idle connection is therefore kept for longer. A slow client gets less: the head of a request must arrive within `HEAD_TIMEOUT` from its
//! first byte, and that of the first request from the handshake.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::http::Request;
use axum_server::accept::Accept;
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};
use tower::Service;

use super::connections::{Connection, Connections, Open, Phase};
use super::limits::{HEAD_TIMEOUT, IDLE_TIMEOUT, WRITE_TIMEOUT};

/// Limits the number of connections and adds timeouts to each. Wraps the acceptor that does the TLS, if any.
#[derive(Clone, Debug)]
pub(super) struct ConnectionLimiter<A> {
    inner: A,
    connections: Arc<Connections>,
}

impl<A> ConnectionLimiter<A> {
    pub(super) fn new(inner: A, connections: Arc<Connections>) -> Self {
        Self { inner, connections }
    }
}

impl<A, S> Accept<TcpStream, S> for ConnectionLimiter<A>
where
    A: Accept<TcpStream, S>,
    A::Future: Send + 'static,
    A::Stream: Send,
    A::Service: Send,
{
    type Stream = TimeoutStream<A::Stream>;
    type Service = RequestTracker<A::Service>;
    type Future = BoxFuture<'static, io::Result<(Self::Stream, Self::Service)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        // Nagle's algorithm would delay the last segment of a response.
        let peer = stream.set_nodelay(true).and_then(|()| stream.peer_addr());
        let open = peer.map(|peer| self.connections.open(peer.ip().to_canonical()));
        let accepted = matches!(open, Ok(Some(_))).then(|| self.inner.accept(stream, service));
        Box::pin(async move {
            let (Some(open), Some(accepted)) = (open?, accepted) else {
                return Err(io::Error::other("too many connections"));
            };
            let (stream, service) = tokio::select! {
                accepted = accepted => accepted?,
                () = open.evicted() => return Err(io::ErrorKind::ConnectionAborted.into()),
            };
            open.enter(Phase::Head);
            let service = RequestTracker { inner: service, connection: open.clone() };
            Ok((TimeoutStream::new(stream, open), service))
        })
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

/// The service of a connection: its requests know the connection, and the connection knows when a request begins and ends.
#[derive(Clone, Debug)]
pub(super) struct RequestTracker<S> {
    inner: S,
    connection: Arc<Connection>,
}

/// Records the end of a request, also of one that is cancelled.
struct EndGuard(Arc<Connection>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.enter(Phase::Idle);
    }
}

impl<S, B> Service<Request<B>> for RequestTracker<S>
where
    S: Service<Request<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        self.connection.enter(Phase::Body);
        let guard = EndGuard(self.connection.clone());
        request.extensions_mut().insert(self.connection.clone());
        let response = self.inner.call(request);
        Box::pin(async move {
            let _guard = guard;
            response.await
        })
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

    /// A stream after its handshake.
    fn stream() -> (TimeoutStream<DuplexStream>, DuplexStream, Arc<Connection>) {
        let (near, far) = duplex(64);
        let open = Connections::new(Limits::default()).open(Ipv4Addr::LOCALHOST.into()).unwrap();
        open.enter(Phase::Head);
        let connection = open.clone();
        (TimeoutStream::new(near, open), far, connection)
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
