//! A body that holds a permit until it has ended.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::{BoxError, report_grpc, status};
use crate::error::Error;
use crate::permit::Permit;

pin_project! {
    /// The body of a response whose permit is given back when the body ends, fails or is dropped; empty for a refusal. If
    /// the lease is lost, it is dropped and fails with [`Error::Lost`].
    pub struct PermitBody<B> {
        // In this order: the body is gone before the permit goes.
        #[pin]
        body: Option<B>,
        loss: Option<Pin<Box<dyn Future<Output = Error> + Send + Sync>>>,
        permit: Option<Permit>,
        // Trailers tell how a call of gRPC's has ended.
        reports: bool,
    }
}

impl<B: fmt::Debug> fmt::Debug for PermitBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermitBody").field("body", &self.body).field("permit", &self.permit).finish_non_exhaustive()
    }
}

impl<B> PermitBody<B> {
    pub(super) fn new(body: B, permit: Permit, reports: bool) -> Self {
        let loss = permit.loss().map(|loss| Box::pin(loss) as Pin<Box<dyn Future<Output = Error> + Send + Sync>>);
        Self { body: Some(body), loss, permit: Some(permit), reports }
    }
}

impl<B> Default for PermitBody<B> {
    fn default() -> Self {
        Self { body: None, loss: None, permit: None, reports: false }
    }
}

impl<B: Body<Error: Into<BoxError>>> Body for PermitBody<B> {
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let mut this = self.project();
        let Some(body) = this.body.as_mut().as_pin_mut() else { return Poll::Ready(None) };
        if let Some(loss) = this.loss.as_mut()
            && let Poll::Ready(error) = loss.as_mut().poll(cx)
        {
            this.body.set(None);
            this.loss.take();
            this.permit.take();
            // tonic's clients take a status out of the error.
            return Poll::Ready(Some(Err(if *this.reports { Box::new(status(&error)) } else { error.into() })));
        }
        let frame = std::task::ready!(body.poll_frame(cx)).map(|frame| frame.map_err(Into::into));
        if let (true, Some(Ok(frame)), Some(permit)) = (*this.reports, &frame, this.permit.as_mut())
            && let Some(trailers) = frame.trailers_ref()
        {
            report_grpc(permit, trailers);
        }
        let has_ended = !matches!(&frame, Some(Ok(frame)) if !frame.is_trailers());
        if has_ended {
            this.body.set(None);
            this.loss.take();
            this.permit.take();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}
