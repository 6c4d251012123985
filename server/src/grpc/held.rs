//! Bounds the messages that are under way on one connection: what of requests was read, until their answers were taken.
//! A client that uploads slowly on all its streams, or takes no answer, holds no more than this.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tonic::Status;

use super::status;

/// What one call holds of what its connection may.
#[derive(Debug)]
struct Call {
    held: Arc<AtomicUsize>,
    here: AtomicUsize,
}

impl Call {
    /// Counts what was read; answers what the whole connection holds now.
    fn take(&self, bytes: usize) -> usize {
        self.here.fetch_add(bytes, Ordering::Relaxed);
        self.held.fetch_add(bytes, Ordering::Relaxed) + bytes
    }

    fn give_back(&self) {
        self.held.fetch_sub(self.here.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// The two bodies of a call on a connection that holds `held` bytes and may hold `most`.
pub(super) fn bound<Q, A>(
    held: &Arc<AtomicUsize>,
    most: usize,
    asked: Q,
) -> (Asked<Q>, impl FnOnce(A) -> Answered<A> + use<Q, A>) {
    let call = Arc::new(Call { held: held.clone(), here: AtomicUsize::new(0) });
    let told = call.clone();
    (Asked { body: asked, call, most }, move |body| Answered { body, call: told, given: false })
}

/// A request's body. Fails when the connection would hold too much.
#[derive(Debug)]
pub(super) struct Asked<B> {
    body: B,
    call: Arc<Call>,
    most: usize,
}

impl<B> Body for Asked<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)) else { return Poll::Ready(None) };
        let frame = frame.map_err(Into::into)?;
        let read = frame.data_ref().map_or(0, Bytes::len);
        if read > 0 && self.call.take(read) > self.most {
            self.call.give_back();
            return Poll::Ready(Some(Err(status::too_much_under_way().into())));
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An answer's body.
#[derive(Debug)]
pub(super) struct Answered<B> {
    body: B,
    call: Arc<Call>,
    /// Some of it was given to the transport.
    given: bool,
}

impl<B: Body<Data = Bytes, Error = Status> + Unpin> Body for Answered<B> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        // The transport asks for more only when the client has room for it, so it has taken what was given before.
        if self.given {
            self.call.give_back();
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.given = true;
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use http_body_util::Full;
    use tonic::Code;

    use super::*;

    fn body(length: usize) -> Full<Bytes> {
        Full::new(vec![0; length].into())
    }

    async fn next<B: Body + Unpin>(body: &mut B) -> Option<Result<Frame<B::Data>, B::Error>> {
        poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await
    }

    fn answer(length: usize) -> tonic::body::Body {
        tonic::body::Body::new(body(length))
    }

    #[tokio::test]
    async fn what_is_read_counts_until_the_answer_was_taken() {
        let held = Arc::new(AtomicUsize::new(0));
        let now = || held.load(Ordering::Relaxed);
        let (mut asked, answered) = bound(&held, 100, body(60));
        next(&mut asked).await.unwrap().unwrap();
        drop(asked);
        let mut answered = answered(answer(5));
        assert_eq!(now(), 60);
        let (mut other, _) = bound::<_, ()>(&held, 100, body(41));
        let refusal = next(&mut other).await.unwrap().unwrap_err();
        assert_eq!(refusal.downcast_ref::<Status>().unwrap().code(), Code::ResourceExhausted);
        assert_eq!(now(), 60);
        next(&mut answered).await.unwrap().unwrap();
        assert_eq!(now(), 60, "given to the transport, which may keep it");
        assert!(next(&mut answered).await.is_none());
        assert_eq!(now(), 0);
    }

    #[tokio::test]
    async fn a_call_that_ends_early_holds_nothing() {
        let held = Arc::new(AtomicUsize::new(0));
        let (mut asked, answered) = bound::<_, ()>(&held, 100, body(60));
        next(&mut asked).await.unwrap().unwrap();
        drop((asked, answered));
        assert_eq!(held.load(Ordering::Relaxed), 0);
    }
}
