//! Connections: how many there may be, and how long each may take for a part of the conversation.
//!
//! The API server keeps idle connections for 90 s (Go's `IdleConnTimeout`) and does not send a POST again that failed
//! on one that we closed. So an idle connection is kept for longer than that, by hyper's header time-out, which runs
//! from the end of the former answer. That alone would give a slow client as long for its head; `TimeoutStream` therefore
//! gives a head [`HEAD`] from its first byte on, and the first one from the handshake on.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum_server::accept::Accept;
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};
use tower::Service;

/// Time for a TLS handshake.
pub const HANDSHAKE: Duration = Duration::from_secs(10);
/// Time for the head of a request, from its first byte.
pub const HEAD: Duration = Duration::from_secs(10);
/// Time that a connection may be idle: longer than the 90 s after which the API server closes its own.
pub const IDLE: Duration = Duration::from_secs(120);
/// Time in which a client must take a part of an answer.
const WRITE: Duration = Duration::from_secs(20);
/// Open connections; more are closed at once.
const CONNECTIONS: usize = 1024;

/// Accepts at most so many connections, and paces each. Wraps the acceptor that does the TLS, if any.
#[derive(Clone, Debug)]
pub(super) struct ConnectionLimiter<A> {
    inner: A,
    places: Arc<Semaphore>,
}

impl<A> ConnectionLimiter<A> {
    pub(super) fn new(inner: A) -> Self {
        Self { inner, places: Arc::new(Semaphore::new(CONNECTIONS)) }
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
        let place = self.places.clone().try_acquire_owned();
        // Nagle's algorithm would hold an answer's last segment back.
        let ready = stream.set_nodelay(true);
        let accepted = place.is_ok().then(|| self.inner.accept(stream, service));
        Box::pin(async move {
            ready?;
            let (Ok(place), Some(accepted)) = (place, accepted) else {
                return Err(io::Error::other("too many connections"));
            };
            let (stream, service) = accepted.await?;
            let turn = Arc::new(AtomicUsize::new(0));
            Ok((TimeoutStream::new(stream, turn.clone(), place), RequestTracker { inner: service, turn }))
        })
    }
}

/// A stream that fails when the head of a request, or the taking of an answer, takes too long.
#[derive(Debug)]
pub(super) struct TimeoutStream<IO> {
    io: IO,
    /// Even between requests, odd within one.
    turn: Arc<AtomicUsize>,
    /// The turn in which a head began, and when it must be complete.
    head: Option<(usize, Pin<Box<Sleep>>)>,
    write: Option<Pin<Box<Sleep>>>,
    _place: OwnedSemaphorePermit,
}

impl<IO> TimeoutStream<IO> {
    fn new(io: IO, turn: Arc<AtomicUsize>, place: OwnedSemaphorePermit) -> Self {
        // A connection that never asks anything holds its place no longer than a slow one.
        let head = Some((0, Box::pin(sleep(HEAD))));
        Self { io, turn, head, write: None, _place: place }
    }

    /// Bounds how long a write may be pending.
    fn written<T>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.write = None;
            return poll;
        }
        let clock = self.write.get_or_insert_with(|| Box::pin(sleep(WRITE)));
        ready!(clock.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for TimeoutStream<IO> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let poll = Pin::new(&mut self.io).poll_read(cx, buf);
        let turn = self.turn.load(Ordering::Acquire);
        if self.head.as_ref().is_some_and(|(began, _)| *began != turn) {
            self.head = None;
        }
        if turn.is_multiple_of(2) && buf.filled().len() > before && self.head.is_none() {
            self.head = Some((turn, Box::pin(sleep(HEAD))));
        }
        if let Some((_, clock)) = &mut self.head
            && clock.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        poll
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for TimeoutStream<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.io).poll_write(cx, buf);
        self.written(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.written(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.io).poll_flush(cx);
        self.written(cx, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.io).poll_shutdown(cx);
        self.written(cx, poll)
    }
}

/// A connection's service; tells its stream where a request begins and ends.
#[derive(Clone, Debug)]
pub(super) struct RequestTracker<S> {
    inner: S,
    turn: Arc<AtomicUsize>,
}

/// Ends the turn, also when the request is dropped halfway.
struct End(Arc<AtomicUsize>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

impl<S, R> Service<R> for RequestTracker<S>
where
    S: Service<R>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        self.turn.fetch_add(1, Ordering::Release);
        let end = End(self.turn.clone());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let _end = end;
            answer.await
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::{advance, timeout};

    use super::*;

    fn paced() -> (TimeoutStream<DuplexStream>, DuplexStream, Arc<AtomicUsize>) {
        let (near, far) = duplex(64);
        let turn = Arc::new(AtomicUsize::new(0));
        let place = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        (TimeoutStream::new(near, turn.clone(), place), far, turn)
    }

    async fn is_quiet(io: &mut TimeoutStream<DuplexStream>, time: Duration) -> bool {
        timeout(time, io.read_u8()).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_waits_and_a_head_does_not() {
        let (mut io, mut far, turn) = paced();
        // The first request, and its answer.
        turn.fetch_add(2, Ordering::Release);
        assert!(is_quiet(&mut io, HEAD * 20).await);
        far.write_all(b"a").await.unwrap();
        assert_eq!(io.read_u8().await.unwrap(), b'a');
        advance(HEAD / 2).await;
        // More bytes give no more time.
        far.write_all(b"b").await.unwrap();
        assert_eq!(io.read_u8().await.unwrap(), b'b');
        let error = timeout(HEAD, io.read_u8()).await.expect("ends within the time for a head").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_never_asks_is_left() {
        let (mut io, _far, _) = paced();
        let error = timeout(HEAD * 2, io.read_u8()).await.expect("ends").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_ends_the_time_for_its_head() {
        let (mut io, mut far, turn) = paced();
        far.write_all(b"a").await.unwrap();
        io.read_u8().await.unwrap();
        // A request that came in one piece, answered before the stream is read again.
        turn.fetch_add(2, Ordering::Release);
        assert!(is_quiet(&mut io, HEAD * 2).await);
        // A body is not a head.
        turn.fetch_add(1, Ordering::Release);
        far.write_all(b"b").await.unwrap();
        io.read_u8().await.unwrap();
        assert!(is_quiet(&mut io, HEAD * 2).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_no_answer_is_left() {
        let (mut io, _far, _) = paced();
        let error = timeout(WRITE * 2, io.write_all(&[0; 1000])).await.expect("ends").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
