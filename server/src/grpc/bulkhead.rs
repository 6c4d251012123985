//! `AdmissionService`: validate, ask, translate.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::{Stream, StreamExt, stream};
use tidegate_proto::v1;
use tidegate_proto::v1::admission_service_server::AdmissionService;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::convert::{self, Released, What};
use super::status;
use crate::admission::{Admission, Refused};
use crate::transport::Connection;

/// Serves applications.
#[derive(Clone, Debug)]
pub struct AdmissionApi {
    admission: Arc<Admission>,
    stopping: CancellationToken,
}

impl AdmissionApi {
    /// Serves that admission until `stopping` is cancelled: own streams end then.
    pub fn new(admission: Arc<Admission>, stopping: CancellationToken) -> Self {
        Self { admission, stopping }
    }

    fn refuse(&self, refused: &Refused) -> Status {
        status::refuse(self.admission.clock().now(), refused)
    }
}

#[tonic::async_trait]
impl AdmissionService for AdmissionApi {
    async fn acquire(&self, request: Request<v1::AcquireRequest>) -> Result<Response<v1::AcquireResponse>, Status> {
        let received = self.admission.clock().now();
        let name = request.get_ref().bulkhead.clone();
        let ask = convert::ask(received, request).map_err(|invalid| status::invalid_field(&name, invalid))?;
        match self.admission.acquire(ask).await {
            Ok(granted) => Ok(Response::new(granted.into())),
            Err(refused) => Err(self.refuse(&refused)),
        }
    }

    async fn release(&self, request: Request<v1::ReleaseRequest>) -> Result<Response<v1::ReleaseResponse>, Status> {
        let message = request.into_inner();
        let name = message.bulkhead.clone();
        let released = convert::released(message).map_err(|invalid| status::invalid_field(&name, invalid))?;
        let Released { what, retry_after } = released;
        if let Some((wait, partition)) = retry_after {
            // First, so that what is freed here does not go to a waiter of the same partition. A cap on partitions must
            // not keep anybody from giving a lease back.
            let of_lease = || match &what {
                What::Lease(lease_id) => self.admission.partition_of(lease_id),
                What::Request { .. } => None,
            };
            if let Some(partition) = partition.or_else(of_lease) {
                let _ = self.admission.report(&partition, wait, "");
            }
        }
        let release = match what {
            What::Lease(lease_id) => self.admission.release(&lease_id),
            What::Request { bulkhead, request_id } => {
                self.admission.release_request(&bulkhead, &request_id).map_err(|refused| self.refuse(&refused))?
            }
        };
        Ok(Response::new(v1::ReleaseResponse { state: convert::release_state(release).into() }))
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> Result<Response<v1::RenewResponse>, Status> {
        let v1::RenewRequest { seq, lease_ids } = request.into_inner();
        let renewals = renew(&self.admission, lease_ids)?;
        Ok(Response::new(v1::RenewResponse { seq, renewals, draining: false }))
    }

    type RenewLeasesStream = Pin<Box<dyn Stream<Item = Result<v1::RenewLeasesResponse, Status>> + Send>>;

    async fn renew_leases(
        &self,
        request: Request<Streaming<v1::RenewLeasesRequest>>,
    ) -> Result<Response<Self::RenewLeasesStream>, Status> {
        // One answer for each request, made when the one before was taken: an unread stream holds nothing back. The first
        // error ends it; what comes in is the same error for ever after.
        let closing = request.extensions().get::<Connection>().map(|on| on.closing.clone()).unwrap_or_default();
        let incoming = Some((request.into_inner(), self.admission.clone()));
        let answers = stream::unfold(incoming, async |incoming| {
            let (mut messages, admission) = incoming?;
            let answer = match messages.message().await.transpose()? {
                Ok(message) => renew_leases(&admission, message),
                Err(status) => Err(status),
            };
            let next = answer.is_ok().then_some((messages, admission));
            Some((answer, next))
        });
        let stopping = self.stopping.clone();
        let end = async move {
            tokio::select! {
                () = stopping.cancelled() => {}
                // The client renews on a new connection: this one is to end.
                () = closing.cancelled() => {}
            }
        };
        Ok(Response::new(Box::pin(answers.take_until(Box::pin(end)))))
    }

    async fn report_retry_after(
        &self,
        request: Request<v1::ReportRetryAfterRequest>,
    ) -> Result<Response<v1::ReportRetryAfterResponse>, Status> {
        let reported = convert::report(request.into_inner()).map_err(|invalid| status::invalid_field("", invalid))?;
        let (partition, wait, detail) = reported;
        let (remaining, extended) =
            self.admission.report(&partition, wait, &detail).map_err(|refused| self.refuse(&refused))?;
        Ok(Response::new(v1::ReportRetryAfterResponse { remaining: Some(convert::duration(remaining)), extended }))
    }
}

fn renew_leases(admission: &Admission, message: v1::RenewLeasesRequest) -> Result<v1::RenewLeasesResponse, Status> {
    let v1::RenewLeasesRequest { seq, lease_ids } = message;
    let renewals = renew(admission, lease_ids)?;
    Ok(v1::RenewLeasesResponse { seq, renewals, draining: false })
}

fn renew(admission: &Admission, lease_ids: Vec<String>) -> Result<Vec<v1::Renewal>, Status> {
    convert::lease_ids(&lease_ids).map_err(|invalid| status::invalid_field("", invalid))?;
    let renew = |lease_id: String| {
        let renewal = admission.renew(&lease_id);
        convert::renewal(lease_id, renewal)
    };
    Ok(lease_ids.into_iter().map(renew).collect())
}
