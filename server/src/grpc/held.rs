//! Bounds the messages that are under way: what of requests was read, until their answers were taken. A connection has some
//! room of its own; beyond it, it shares some with all the others. So a client that uploads slowly on all its streams, or
//! takes no answer, holds no more than this, and what it holds keeps nobody else from their own.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tonic::Status;

use super::status;
use crate::transport::Connection;

/// The bytes that messages under way may hold. Clones share what is shared.
#[derive(Clone, Debug)]
pub(super) struct Room {
    /// What each connection has for itself.
    own: usize,
    /// What they share beyond that, and how much of it is taken.
    shared: usize,
    taken: Arc<AtomicUsize>,
}

impl Room {
    pub(super) fn new(own: usize, shared: usize) -> Self {
        Self { own, shared, taken: Arc::default() }
    }

    /// The request of a call on that connection, counted; and its answer, which goes on to count.
    pub(super) fn call<B, F>(
        &self,
        on: &Arc<Connection>,
        asked: B,
        answer: impl FnOnce(Asked<B>) -> F,
    ) -> Answering<F> {
        let call = Arc::new(Call { room: self.clone(), on: on.clone(), here: AtomicUsize::new(0) });
        Answering { answer: answer(Asked { body: asked, call: call.clone() }), call }
    }
}

/// What one call holds.
#[derive(Debug)]
struct Call {
    room: Room,
    on: Arc<Connection>,
    here: AtomicUsize,
}

impl Call {
    /// Counts what was read. Fails when there is no room for it: then nothing of this call counts any more.
    fn take(&self, bytes: usize) -> Result<(), Status> {
        self.here.fetch_add(bytes, Ordering::Relaxed);
        let before = self.on.held.fetch_add(bytes, Ordering::Relaxed);
        let beyond = self.beyond(before + bytes) - self.beyond(before);
        if self.room.taken.fetch_add(beyond, Ordering::Relaxed) + beyond > self.room.shared && beyond > 0 {
            self.give_back();
            return Err(status::too_much_under_way());
        }
        Ok(())
    }

    fn give_back(&self) {
        let here = self.here.swap(0, Ordering::Relaxed);
        let before = self.on.held.fetch_sub(here, Ordering::Relaxed);
        let beyond = self.beyond(before) - self.beyond(before - here);
        self.room.taken.fetch_sub(beyond, Ordering::Relaxed);
    }

    fn beyond(&self, held: usize) -> usize {
        held.saturating_sub(self.room.own)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// A request's body. Fails when there is no room for it.
#[derive(Debug)]
pub(super) struct Asked<B> {
    body: B,
    call: Arc<Call>,
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
        self.call.take(frame.data_ref().map_or(0, Bytes::len))?;
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A call that is being answered.
#[derive(Debug)]
pub(super) struct Answering<F> {
    answer: F,
    call: Arc<Call>,
}

impl<F, B> Future for Answering<F>
where
    F: Future<Output = Result<http::Response<B>, Infallible>> + Unpin,
{
    type Output = Result<http::Response<Answered<B>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Ok(response) = ready!(Pin::new(&mut self.answer).poll(cx));
        Poll::Ready(Ok(response.map(|body| Answered { body, call: self.call.clone(), given: false })))
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
    use std::future::{Ready, poll_fn, ready};

    use http_body_util::Full;
    use tonic::Code;

    use super::*;

    type Made = (Asked<Full<Bytes>>, Answering<Ready<Result<http::Response<tonic::body::Body>, Infallible>>>);

    /// A call that asks with so many bytes and is answered with 5.
    fn call(room: &Room, on: &Arc<Connection>, length: usize) -> Made {
        let mut asked = None;
        let answering = room.call(on, Full::new(vec![0; length].into()), |body| {
            asked = Some(body);
            ready(Ok(http::Response::new(tonic::body::Body::new(Full::new(Bytes::from_static(b"12345"))))))
        });
        (asked.unwrap(), answering)
    }

    async fn next<B: Body + Unpin>(body: &mut B) -> Option<Result<Frame<B::Data>, B::Error>> {
        poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await
    }

    /// What a connection holds, and how much is taken of what all share.
    fn now(room: &Room, on: &Connection) -> (usize, usize) {
        (on.held.load(Ordering::Relaxed), room.taken.load(Ordering::Relaxed))
    }

    #[tokio::test]
    async fn what_is_read_counts_until_the_answer_was_taken() {
        let (room, on) = (Room::new(100, 0), Connection::of_test(1));
        let (mut asked, answering) = call(&room, &on, 60);
        next(&mut asked).await.unwrap().unwrap();
        drop(asked);
        let mut answered = answering.await.unwrap().into_body();
        assert_eq!(now(&room, &on), (60, 0));
        next(&mut answered).await.unwrap().unwrap();
        assert_eq!(now(&room, &on), (60, 0), "given to the transport, which may keep it");
        assert!(next(&mut answered).await.is_none());
        assert_eq!(now(&room, &on), (0, 0));
    }

    #[tokio::test]
    async fn beyond_its_own_room_a_connection_shares_some_and_leaves_others_theirs() {
        let (room, greedy, other) = (Room::new(100, 50), Connection::of_test(1), Connection::of_test(1));
        let [(mut first, _), (mut second, _), (mut third, _)] = [60, 90, 1].map(|length| call(&room, &greedy, length));
        next(&mut first).await.unwrap().unwrap();
        next(&mut second).await.unwrap().unwrap();
        assert_eq!(now(&room, &greedy), (150, 50));
        let refusal = next(&mut third).await.unwrap().unwrap_err();
        assert_eq!(refusal.downcast_ref::<Status>().unwrap().code(), Code::ResourceExhausted);
        assert_eq!(now(&room, &greedy), (150, 50), "what is refused does not count");
        let (mut own, _) = call(&room, &other, 100);
        next(&mut own).await.unwrap().unwrap();
        drop(first);
        assert_eq!(now(&room, &greedy), (90, 0));
        drop((second, third, own));
        assert_eq!((now(&room, &greedy), now(&room, &other)), ((0, 0), (0, 0)));
    }

    #[tokio::test]
    async fn a_call_that_ends_early_holds_nothing() {
        let (room, on) = (Room::new(100, 0), Connection::of_test(1));
        let (mut asked, answering) = call(&room, &on, 60);
        next(&mut asked).await.unwrap().unwrap();
        drop((asked, answering));
        assert_eq!(now(&room, &on), (0, 0));
    }
}
