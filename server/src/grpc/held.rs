//! Bounds the messages that are under way: what of requests was read, and what of answers was made, until the answers were
//! taken. A connection has some room of its own; beyond it, it shares some with all the others. So a client that uploads
//! slowly on all its streams, or takes no answer, holds no more than this, and what it holds keeps nobody else from their
//! own.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Sleep;
use tonic::Status;

use super::status;
use crate::transport::Connection;

/// How long a request may take to arrive whole. A renewal stream goes on for ever.
const ARRIVAL: Duration = Duration::from_secs(5);

/// The bytes that messages under way may hold. Clones share what is shared.
#[derive(Clone, Debug)]
pub(super) struct Room {
    /// What each connection has for itself.
    own: usize,
    /// What they share beyond that,
    shared: isize,
    /// and how much of it is taken. Calls of one connection that add and subtract at once may pass each other between its
    /// own count and this one, so for a moment this can be below zero; what it comes to is exact.
    taken: Arc<AtomicIsize>,
}

/// What is known of a call before it is answered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kind {
    /// What its answer holds outside of what is counted, until it ends.
    pub(super) beside: usize,
    /// Its request is a stream, which may take any time.
    pub(super) streams: bool,
}

impl Room {
    pub(super) fn new(own: usize, shared: usize) -> Self {
        Self { own, shared: shared.cast_signed(), taken: Arc::default() }
    }

    /// The request of a call on that connection, counted; and its answer, which goes on to count. `answer` is told whether
    /// there is no room for it at all.
    pub(super) fn call<B, F>(
        &self,
        on: &Arc<Connection>,
        kind: Kind,
        asked: B,
        answer: impl FnOnce(Asked<B>, bool) -> F,
    ) -> Answering<F> {
        let call = Arc::new(Call { room: self.clone(), on: on.clone(), here: AtomicUsize::new(0), kind });
        let is_full = kind.beside > 0 && !call.count(kind.beside);
        let late = (!kind.streams).then_some(Late::NotYet);
        Answering { answer: answer(Asked { body: asked, late, call: call.clone() }, is_full), call }
    }
}

/// What one call holds.
#[derive(Debug)]
struct Call {
    room: Room,
    on: Arc<Connection>,
    here: AtomicUsize,
    kind: Kind,
}

impl Call {
    /// Counts bytes of a message. Fails when there is no room for them: then no message of this call counts any more.
    fn take(&self, bytes: usize) -> Result<(), Status> {
        self.here.fetch_add(bytes, Ordering::Relaxed);
        if !self.count(bytes) {
            self.give_back();
            return Err(status::too_much_under_way());
        }
        Ok(())
    }

    fn give_back(&self) {
        self.discount(self.here.swap(0, Ordering::Relaxed));
    }

    /// Whether there was room.
    fn count(&self, bytes: usize) -> bool {
        let before = self.on.held.fetch_add(bytes, Ordering::Relaxed);
        let beyond = self.beyond(before + bytes) - self.beyond(before);
        beyond == 0 || self.room.taken.fetch_add(beyond, Ordering::Relaxed) + beyond <= self.room.shared
    }

    fn discount(&self, bytes: usize) {
        let before = self.on.held.fetch_sub(bytes, Ordering::Relaxed);
        let beyond = self.beyond(before) - self.beyond(before - bytes);
        self.room.taken.fetch_sub(beyond, Ordering::Relaxed);
    }

    fn beyond(&self, held: usize) -> isize {
        held.saturating_sub(self.room.own).cast_signed()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.give_back();
        self.discount(self.kind.beside);
    }
}

/// A request's body. Fails when there is no room for it, or when it does not arrive.
#[derive(Debug)]
pub(super) struct Asked<B> {
    body: B,
    late: Option<Late>,
    call: Arc<Call>,
}

/// When a request is late. Most are there at once, and need no timer.
#[derive(Debug)]
enum Late {
    NotYet,
    At(Pin<Box<Sleep>>),
}

impl Late {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Self::NotYet = self {
            *self = Self::At(Box::pin(tokio::time::sleep(ARRIVAL)));
        }
        match self {
            Self::At(sleep) => sleep.as_mut().poll(cx),
            Self::NotYet => Poll::Pending,
        }
    }
}

impl<B> Body for Asked<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(Some(frame)) => {
                let frame = frame.map_err(Into::into)?;
                this.call.take(frame.data_ref().map_or(0, Bytes::len))?;
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                let Some(late) = &mut this.late else { return Poll::Pending };
                ready!(late.poll(cx));
                this.call.give_back();
                Poll::Ready(Some(Err(status::too_slow(ARRIVAL).into())))
            }
        }
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
        if std::mem::take(&mut self.given) {
            self.call.give_back();
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.given = true;
        if let Some(Ok(frame)) = &frame {
            self.call.take(frame.data_ref().map_or(0, Bytes::len))?;
        }
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
        let answering = room.call(on, Kind::default(), Full::new(vec![0; length].into()), |body, is_full| {
            assert!(!is_full);
            asked = Some(body);
            ready(Ok(http::Response::new(tonic::body::Body::new(Full::new(Bytes::from_static(b"12345"))))))
        });
        (asked.unwrap(), answering)
    }

    async fn next<B: Body + Unpin>(body: &mut B) -> Option<Result<Frame<B::Data>, B::Error>> {
        poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await
    }

    /// What a connection holds, and how much is taken of what all share.
    fn now(room: &Room, on: &Connection) -> (usize, isize) {
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
        assert_eq!(now(&room, &on), (65, 0), "given to the transport, which may keep it");
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

    #[tokio::test]
    async fn an_answer_there_is_no_room_for_is_an_error() {
        let (room, on) = (Room::new(64, 0), Connection::of_test(1));
        let (mut asked, answering) = call(&room, &on, 60);
        next(&mut asked).await.unwrap().unwrap();
        let mut answered = answering.await.unwrap().into_body();
        assert_eq!(next(&mut answered).await.unwrap().unwrap_err().code(), Code::ResourceExhausted);
        assert_eq!(now(&room, &on), (0, 0));
    }

    #[test]
    fn what_an_answer_holds_beside_counts_until_the_call_ends() {
        let (room, on) = (Room::new(100, 0), Connection::of_test(1));
        let kind = Kind { beside: 60, streams: true };
        let made = |on| room.call(on, kind, Full::<Bytes>::default(), |body, is_full| (body, is_full));
        let first = made(&on);
        assert!(!first.answer.1 && made(&on).answer.1);
        assert_eq!(now(&room, &on), (60, 0));
        drop(first);
        assert_eq!(now(&room, &on), (0, 0));
    }

    /// A body that never comes.
    struct Never;

    impl Body for Never {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Pending
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_does_not_arrive_is_refused_and_a_stream_may_take_its_time() {
        let (room, on) = (Room::new(100, 0), Connection::of_test(1));
        let asked = |streams| {
            let kind = Kind { beside: 0, streams };
            room.call(&on, kind, Never, |body, _| body).answer
        };
        let start = tokio::time::Instant::now();
        let refusal = next(&mut asked(false)).await.unwrap().unwrap_err();
        assert_eq!(refusal.downcast_ref::<Status>().unwrap().code(), Code::ResourceExhausted);
        assert_eq!(start.elapsed().as_secs(), ARRIVAL.as_secs());
        assert!(tokio::time::timeout(ARRIVAL * 10, next(&mut asked(true))).await.is_err());
    }

    #[test]
    fn calls_of_one_connection_that_come_and_go_at_once_count_exactly() {
        let (room, on) = (Room::new(100, 1_000_000), Connection::of_test(1));
        let rounds = if cfg!(debug_assertions) { 20_000 } else { 1_000_000 };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let call =
                        Call { room: room.clone(), on: on.clone(), here: AtomicUsize::new(0), kind: Kind::default() };
                    for _ in 0..rounds {
                        call.take(90).unwrap();
                        call.give_back();
                    }
                });
            }
        });
        assert_eq!(now(&room, &on), (0, 0));
    }
}
