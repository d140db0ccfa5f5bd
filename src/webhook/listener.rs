//! The number of connections, and the timeouts of each.
//!
//! The API server keeps idle connections for 90 s (Go's `IdleConnTimeout`) and does not repeat a POST that failed because the server closed the
//! connection. An idle connection is therefore kept for longer, by hyper's header timeout, which starts at the end of the previous response. A
//! slow client would get as much time for the head of its request, so `TimeoutStream` limits that to `HEAD_TIMEOUT` from the first byte, and
//! for the first request from the handshake.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use axum_server::accept::Accept;
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};
use tower::Service;

use super::limits::{CONNECTIONS, HEAD_TIMEOUT, WRITE_TIMEOUT};

/// Limits the number of connections and adds timeouts to each. Wraps the acceptor that does the TLS, if any.
#[derive(Clone, Debug)]
pub(super) struct ConnectionLimiter<A> {
    inner: A,
    permits: Arc<Semaphore>,
}

impl<A> ConnectionLimiter<A> {
    pub(super) fn new(inner: A) -> Self {
        Self { inner, permits: Arc::new(Semaphore::new(CONNECTIONS)) }
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
        let permit = self.permits.clone().try_acquire_owned();
        // Nagle's algorithm would delay the last segment of a response.
        let ready = stream.set_nodelay(true);
        let accepted = permit.is_ok().then(|| self.inner.accept(stream, service));
        Box::pin(async move {
            ready?;
            let (Ok(permit), Some(accepted)) = (permit, accepted) else {
                return Err(io::Error::other("too many connections"));
            };
            let (stream, service) = accepted.await?;
            let boundaries = Arc::new(AtomicUsize::new(0));
            let stream = TimeoutStream::new(stream, boundaries.clone(), permit);
            Ok((stream, RequestTracker { inner: service, boundaries }))
        })
    }
}

/// A stream that fails if the client is too slow to send the head of a request, or to read a response.
#[derive(Debug)]
pub(super) struct TimeoutStream<IO> {
    io: IO,
    /// The number of starts and ends of requests: even between requests, odd within one.
    boundaries: Arc<AtomicUsize>,
    /// The value of `boundaries` when a head began, and its timeout.
    head: Option<(usize, Pin<Box<Sleep>>)>,
    write: Option<Pin<Box<Sleep>>>,
    _permit: OwnedSemaphorePermit,
}

impl<IO> TimeoutStream<IO> {
    fn new(io: IO, boundaries: Arc<AtomicUsize>, permit: OwnedSemaphorePermit) -> Self {
        // The timeout also ends a connection without a request.
        let head = Some((0, Box::pin(sleep(HEAD_TIMEOUT))));
        Self { io, boundaries, head, write: None, _permit: permit }
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
        let before = buf.filled().len();
        let poll = Pin::new(&mut self.io).poll_read(cx, buf);
        let boundaries = self.boundaries.load(Ordering::Acquire);
        if self.head.as_ref().is_some_and(|(began, _)| *began != boundaries) {
            self.head = None;
        }
        if boundaries.is_multiple_of(2) && buf.filled().len() > before && self.head.is_none() {
            self.head = Some((boundaries, Box::pin(sleep(HEAD_TIMEOUT))));
        }
        if let Some((_, timeout)) = &mut self.head
            && timeout.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
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

/// The service of a connection; counts the starts and ends of requests for its stream.
#[derive(Clone, Debug)]
pub(super) struct RequestTracker<S> {
    inner: S,
    boundaries: Arc<AtomicUsize>,
}

/// Counts the end of a request, also of one that is cancelled.
struct EndGuard(Arc<AtomicUsize>);

impl Drop for EndGuard {
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
        self.boundaries.fetch_add(1, Ordering::Release);
        let guard = EndGuard(self.boundaries.clone());
        let response = self.inner.call(request);
        Box::pin(async move {
            let _guard = guard;
            response.await
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::{advance, timeout};

    use super::*;

    fn stream() -> (TimeoutStream<DuplexStream>, DuplexStream, Arc<AtomicUsize>) {
        let (near, far) = duplex(64);
        let boundaries = Arc::new(AtomicUsize::new(0));
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        (TimeoutStream::new(near, boundaries.clone(), permit), far, boundaries)
    }

    async fn is_quiet(io: &mut TimeoutStream<DuplexStream>, time: Duration) -> bool {
        timeout(time, io.read_u8()).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn closes_on_a_slow_head_but_not_while_idle() {
        let (mut io, mut far, boundaries) = stream();
        // The first request, and its response.
        boundaries.fetch_add(2, Ordering::Release);
        assert!(is_quiet(&mut io, HEAD_TIMEOUT * 20).await);
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
    async fn closes_without_a_request() {
        let (mut io, _far, _) = stream();
        let error = timeout(HEAD_TIMEOUT * 2, io.read_u8()).await.expect("ends").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_started_request_stops_the_head_timeout() {
        let (mut io, mut far, boundaries) = stream();
        far.write_all(b"a").await.unwrap();
        io.read_u8().await.unwrap();
        // A request whose bytes arrived at once was answered before the stream is read again.
        boundaries.fetch_add(2, Ordering::Release);
        assert!(is_quiet(&mut io, HEAD_TIMEOUT * 2).await);
        // The timeout of the head does not apply to a body.
        boundaries.fetch_add(1, Ordering::Release);
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
