//! A body that holds a permit until it has ended.

use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::report_grpc;
use crate::permit::Permit;

pin_project! {
    /// The body of a response whose permit is given back when the body ends, fails or is dropped; empty for a refusal.
    #[derive(Debug)]
    pub struct PermitBody<B> {
        // In this order: the body is gone before the permit goes.
        #[pin]
        body: Option<B>,
        permit: Option<Permit>,
        // Trailers tell how a call of gRPC's has ended.
        reports: bool,
    }
}

impl<B> PermitBody<B> {
    pub(super) fn new(body: B, permit: Permit, reports: bool) -> Self {
        Self { body: Some(body), permit: Some(permit), reports }
    }
}

impl<B> Default for PermitBody<B> {
    fn default() -> Self {
        Self { body: None, permit: None, reports: false }
    }
}

impl<B: Body> Body for PermitBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let Some(body) = this.body.as_mut().as_pin_mut() else { return Poll::Ready(None) };
        let frame = std::task::ready!(body.poll_frame(cx));
        if let (true, Some(Ok(frame)), Some(permit)) = (*this.reports, &frame, this.permit.as_mut())
            && let Some(trailers) = frame.trailers_ref()
        {
            report_grpc(permit, trailers);
        }
        let has_ended = !matches!(&frame, Some(Ok(frame)) if !frame.is_trailers());
        if has_ended {
            this.body.set(None);
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
