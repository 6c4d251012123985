//! `AdmissionService`: validate, ask, translate.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::{Stream, StreamExt, stream};
use tidegate_core::Renewal;
use tidegate_proto::v1;
use tidegate_proto::v1::admission_service_server::AdmissionService;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::convert::{self, Released, What};
use super::{end_of_streams, status};
use crate::admission::{Admission, Ask, Refused};
use crate::streams::Push;

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

    /// Not in `acquire` itself: there the request would stay as long as the call waits.
    fn ask(&self, request: Request<v1::AcquireRequest>) -> Result<Ask, Status> {
        let received = self.admission.clock().now();
        let name = request.get_ref().bulkhead.clone();
        convert::ask(received, request).map_err(|invalid| status::invalid_field(&name, invalid))
    }

    fn refuse(&self, refused: &Refused) -> Status {
        status::refuse(self.admission.clock().now(), refused)
    }
}

#[tonic::async_trait]
impl AdmissionService for AdmissionApi {
    async fn acquire(&self, request: Request<v1::AcquireRequest>) -> Result<Response<v1::AcquireResponse>, Status> {
        let ask = self.ask(request)?;
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
                What::Request { bulkhead, request_id } => self.admission.partition_of_request(bulkhead, request_id),
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
        let renewals = renew(&self.admission, lease_ids, None)?;
        Ok(Response::new(v1::RenewResponse { seq, renewals, draining: self.admission.is_draining() }))
    }

    type RenewLeasesStream = Pin<Box<dyn Stream<Item = Result<v1::RenewLeasesResponse, Status>> + Send>>;

    async fn renew_leases(
        &self,
        request: Request<Streaming<v1::RenewLeasesRequest>>,
    ) -> Result<Response<Self::RenewLeasesStream>, Status> {
        // One answer for each request, made when the one before was taken: an unread stream holds nothing back. The first
        // error ends it; what comes in is the same error for ever after.
        let end = end_of_streams(&request, self.stopping.clone());
        let stream = RenewalStream::open(self.admission.clone(), request.into_inner());
        let answers = stream::unfold(Some(stream), async |stream| {
            let mut stream = stream?;
            let answer = stream.next().await?;
            let next = answer.is_ok().then_some(stream);
            Some((answer, next))
        });
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

/// A renewal stream that is open.
struct RenewalStream {
    admission: Arc<Admission>,
    messages: Streaming<v1::RenewLeasesRequest>,
    number: u64,
    pushes: mpsc::Receiver<Push>,
}

impl RenewalStream {
    fn open(admission: Arc<Admission>, messages: Streaming<v1::RenewLeasesRequest>) -> Self {
        let (number, pushes) = admission.streams.open();
        Self { admission, messages, number, pushes }
    }

    /// What it is told next; `None` when it has ended.
    async fn next(&mut self) -> Option<Result<v1::RenewLeasesResponse, Status>> {
        tokio::select! {
            biased;
            Some(push) = self.pushes.recv() => Some(Ok(self.told(push))),
            message = self.messages.message() => Some(message.transpose()?.and_then(|message| self.renew(message))),
        }
    }

    fn renew(&self, message: v1::RenewLeasesRequest) -> Result<v1::RenewLeasesResponse, Status> {
        let v1::RenewLeasesRequest { seq, lease_ids } = message;
        let renewals = renew(&self.admission, lease_ids, Some(self.number))?;
        Ok(v1::RenewLeasesResponse { seq, renewals, draining: self.admission.is_draining() })
    }

    fn told(&self, push: Push) -> v1::RenewLeasesResponse {
        let renewals = match push {
            Push::Revoked(lease_id) => vec![convert::renewal(lease_id, Some(Renewal::Revoked))],
            Push::Draining => Vec::new(),
        };
        v1::RenewLeasesResponse { seq: 0, renewals, draining: self.admission.is_draining() }
    }
}

impl Drop for RenewalStream {
    fn drop(&mut self) {
        self.admission.streams.close(self.number);
    }
}

fn renew(admission: &Admission, lease_ids: Vec<String>, stream: Option<u64>) -> Result<Vec<v1::Renewal>, Status> {
    convert::lease_ids(&lease_ids).map_err(|invalid| status::invalid_field("", invalid))?;
    let renew = |lease_id: String| {
        let renewal = admission.renew(&lease_id, stream);
        convert::renewal(lease_id, renewal)
    };
    Ok(lease_ids.into_iter().map(renew).collect())
}
