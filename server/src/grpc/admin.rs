//! `AdminService`: validate, ask, translate.

mod convert;
mod pages;
mod watch;

use std::pin::Pin;
use std::sync::Arc;

use futures_util::{Stream, StreamExt, stream};
use tidegate_core::{FencingToken, Invalid, Reason, Settings};
use tidegate_proto::v1;
use tidegate_proto::v1::admin_service_server::AdminService;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use self::convert::Patch;
use self::pages::{Page, Place};
use self::watch::Watch;
use super::convert::{duration, timestamp};
use super::{end_of_streams, status};
use crate::admission::{Admission, Change, Refused, View};
use crate::name;

/// Serves operators.
#[derive(Clone, Debug)]
pub struct AdminApi {
    admission: Arc<Admission>,
    stopping: CancellationToken,
}

impl AdminApi {
    /// Serves the operators of that admission until `stopping` is cancelled: own streams end then.
    pub fn new(admission: Arc<Admission>, stopping: CancellationToken) -> Self {
        Self { admission, stopping }
    }

    fn refuse(&self, refused: &Refused) -> Status {
        status::refuse(self.admission.clock().now(), refused)
    }

    fn answer<T>(&self, answer: Result<T, Refused>) -> Result<T, Status> {
        answer.map_err(|refused| self.refuse(&refused))
    }

    /// The same for a request whose own field with the bulkhead's name is `name`.
    fn answer_by_name<T>(&self, answer: Result<T, Refused>) -> Result<T, Status> {
        self.answer(answer.map_err(|mut refused| {
            if let Some(invalid) = refused.refusal.invalid.as_mut().filter(|invalid| invalid.field == "bulkhead") {
                invalid.field = "name";
            }
            refused
        }))
    }
}

type Answer<T> = Result<Response<T>, Status>;

/// A bad field of a request about that bulkhead.
fn checked<T>(name: &str, checked: Result<T, Invalid>) -> Result<T, Status> {
    checked.map_err(|invalid| status::invalid_field(name, invalid))
}

#[tonic::async_trait]
impl AdminService for AdminApi {
    async fn get_bulkhead(&self, request: Request<v1::GetBulkheadRequest>) -> Answer<v1::GetBulkheadResponse> {
        let view = self.answer_by_name(self.admission.bulkhead(&request.into_inner().name))?;
        Ok(Response::new(v1::GetBulkheadResponse { bulkhead: Some(view.into()) }))
    }

    async fn list_bulkheads(&self, request: Request<v1::ListBulkheadsRequest>) -> Answer<v1::ListBulkheadsResponse> {
        let v1::ListBulkheadsRequest { page_size, page_token } = request.into_inner();
        let page = Page::read("bulkheads", "", page_size, &page_token)?;
        let views = self.admission.bulkheads(page.after_name(), page.most());
        let (bulkheads, next_page_token) = page.cut(views, |view| Place::of(&view.name));
        Ok(Response::new(v1::ListBulkheadsResponse { bulkheads, next_page_token }))
    }

    async fn create_bulkhead(&self, request: Request<v1::CreateBulkheadRequest>) -> Answer<v1::CreateBulkheadResponse> {
        let actor = convert::actor(&request);
        let v1::CreateBulkheadRequest { name, settings, validate_only, detail } = request.into_inner();
        checked(&name, name::check("name", &name))?;
        checked(&name, convert::detail(&detail))?;
        let settings = convert::draft(settings.unwrap_or_default()).and_then(Settings::try_from);
        let settings = checked(&name, settings)?;
        let change = Change { action: "CreateBulkhead", actor: &actor, detail: &detail, ..Change::default() };
        let view = self.answer(if validate_only {
            self.admission.would_create(&name, settings)
        } else {
            self.admission.create(&change, &name, settings)
        })?;
        Ok(Response::new(v1::CreateBulkheadResponse { bulkhead: Some(view.into()) }))
    }

    async fn update_bulkhead(&self, request: Request<v1::UpdateBulkheadRequest>) -> Answer<v1::UpdateBulkheadResponse> {
        let actor = convert::actor(&request);
        let v1::UpdateBulkheadRequest { bulkhead, update_mask, allow_missing, validate_only, detail } =
            request.into_inner();
        let v1::Bulkhead { name, settings, etag, status: _ } = bulkhead.unwrap_or_default();
        checked(&name, name::check("bulkhead.name", &name))?;
        checked(&name, convert::detail(&detail))?;
        let patch = checked(&name, Patch::new(settings.unwrap_or_default(), update_mask))?;
        let change = Change { action: "UpdateBulkhead", actor: &actor, detail: &detail, etag: &etag };
        let view = self.answer(self.update(&change, &name, &patch, allow_missing, validate_only))?;
        Ok(Response::new(v1::UpdateBulkheadResponse { bulkhead: Some(view.into()) }))
    }

    async fn delete_bulkhead(&self, request: Request<v1::DeleteBulkheadRequest>) -> Answer<v1::DeleteBulkheadResponse> {
        let actor = convert::actor(&request);
        let v1::DeleteBulkheadRequest { name, etag, drain, detail } = request.into_inner();
        checked(&name, convert::detail(&detail))?;
        let change = Change { action: "DeleteBulkhead", actor: &actor, detail: &detail, etag: &etag };
        let to_drain = self.answer_by_name(self.admission.delete(&change, &name, drain))?;
        Ok(Response::new(v1::DeleteBulkheadResponse { deleted: to_drain == 0, to_drain }))
    }

    async fn set_limit(&self, request: Request<v1::SetLimitRequest>) -> Answer<v1::SetLimitResponse> {
        let actor = convert::actor(&request);
        let v1::SetLimitRequest { name, limit, detail, revert_after, etag } = request.into_inner();
        checked(&name, convert::detail(&detail))?;
        let revert_after = checked(&name, convert::revert_after(revert_after))?;
        let change = Change { action: "SetLimit", actor: &actor, detail: &detail, etag: &etag };
        let view = self.answer_by_name(self.admission.set_limit(&change, &name, limit, revert_after))?;
        let to_drain = view.status.running.saturating_sub(view.status.limit);
        Ok(Response::new(v1::SetLimitResponse { bulkhead: Some(view.into()), to_drain }))
    }

    async fn set_mode(&self, request: Request<v1::SetModeRequest>) -> Answer<v1::SetModeResponse> {
        let actor = convert::actor(&request);
        let v1::SetModeRequest { name, mode, detail, etag } = request.into_inner();
        checked(&name, convert::detail(&detail))?;
        let mode = checked(&name, convert::new_mode(mode))?;
        let change = Change { action: "SetMode", actor: &actor, detail: &detail, etag: &etag };
        let view = self.answer_by_name(self.admission.set_mode(&change, &name, mode))?;
        Ok(Response::new(v1::SetModeResponse { bulkhead: Some(view.into()) }))
    }

    async fn list_leases(&self, request: Request<v1::ListLeasesRequest>) -> Answer<v1::ListLeasesResponse> {
        let v1::ListLeasesRequest { bulkhead, page_size, page_token } = request.into_inner();
        let only = bulkhead.as_deref();
        let page = Page::read("leases", only.unwrap_or_default(), page_size, &page_token)?;
        let from = page.after.as_ref().map_or(("", 0), |place| (place.name.as_str(), place.first + 1));
        let from = (from.0, FencingToken::from_u64(from.1));
        let leases = self.answer(self.admission.leases(only, from, page.most()).await)?;
        let place = |name: &str, first| Place { first, ..Place::of(name) };
        let (leases, next_page_token) = page.cut(leases, |lease| place(&lease.bulkhead, lease.token.as_u64()));
        Ok(Response::new(v1::ListLeasesResponse { leases, next_page_token }))
    }

    async fn list_waiters(&self, request: Request<v1::ListWaitersRequest>) -> Answer<v1::ListWaitersResponse> {
        let v1::ListWaitersRequest { bulkhead, page_size, page_token } = request.into_inner();
        let only = bulkhead.as_deref();
        let page = Page::read("waiters", only.unwrap_or_default(), page_size, &page_token)?;
        let after = page.after.as_ref().map_or(("", None), |Place { name, first, second }| {
            (name.as_str(), Some(tidegate_core::Place { nanos: *first, arrival: *second }))
        });
        let waiters = self.answer(self.admission.waiters(only, after, page.most()).await)?;
        let (waiters, next_page_token) = page.cut(waiters, |waiter| {
            let tidegate_core::Place { nanos, arrival } = waiter.place;
            Place { name: waiter.bulkhead.as_ref().into(), first: nanos, second: arrival }
        });
        Ok(Response::new(v1::ListWaitersResponse { waiters, next_page_token }))
    }

    async fn revoke_lease(&self, request: Request<v1::RevokeLeaseRequest>) -> Answer<v1::RevokeLeaseResponse> {
        let actor = convert::actor(&request);
        let v1::RevokeLeaseRequest { bulkhead, fencing_token, detail, immediate } = request.into_inner();
        checked(&bulkhead, convert::detail(&detail))?;
        let change = Change { action: "RevokeLease", actor: &actor, detail: &detail, ..Change::default() };
        let token = FencingToken::from_u64(fencing_token);
        let (view, told) = self.answer(self.admission.revoke(&change, &bulkhead, token, immediate))?;
        Ok(Response::new(v1::RevokeLeaseResponse { bulkhead: Some(view.into()), told }))
    }

    async fn end_recovery(&self, request: Request<v1::EndRecoveryRequest>) -> Answer<v1::EndRecoveryResponse> {
        let actor = convert::actor(&request);
        let v1::EndRecoveryRequest { name, detail } = request.into_inner();
        checked(&name, convert::detail(&detail))?;
        let change = Change { action: "EndRecovery", actor: &actor, detail: &detail, ..Change::default() };
        let view = self.answer_by_name(self.admission.end_recovery(&change, &name))?;
        Ok(Response::new(v1::EndRecoveryResponse { bulkhead: Some(view.into()) }))
    }

    async fn list_cooldowns(&self, request: Request<v1::ListCooldownsRequest>) -> Answer<v1::ListCooldownsResponse> {
        let v1::ListCooldownsRequest { page_size, page_token } = request.into_inner();
        let page = Page::read("cooldowns", "", page_size, &page_token)?;
        let views = self.admission.cooldowns(page.after_name(), page.most());
        let (cooldowns, next_page_token) = page.cut(views, |view| Place::of(&view.partition));
        Ok(Response::new(v1::ListCooldownsResponse { cooldowns, next_page_token }))
    }

    async fn clear_cooldown(&self, request: Request<v1::ClearCooldownRequest>) -> Answer<v1::ClearCooldownResponse> {
        let actor = convert::actor(&request);
        let v1::ClearCooldownRequest { partition, detail } = request.into_inner();
        checked("", convert::partition(&partition, &detail))?;
        let change = Change { action: "ClearCooldown", actor: &actor, detail: &detail, ..Change::default() };
        let cleared = self.admission.clear_cooldown(&change, &partition);
        Ok(Response::new(v1::ClearCooldownResponse { cleared }))
    }

    type WatchBulkheadsStream = Pin<Box<dyn Stream<Item = Result<v1::WatchBulkheadsResponse, Status>> + Send>>;

    async fn watch_bulkheads(&self, request: Request<v1::WatchBulkheadsRequest>) -> Answer<Self::WatchBulkheadsStream> {
        let end = end_of_streams(&request, self.stopping.clone());
        let (names, interval) = checked("", convert::watch(request.into_inner()))?;
        let watch = Watch::new(self.admission.clone(), names, interval);
        let messages = stream::unfold(watch, async |mut watch| Some((Ok(watch.next().await), watch)));
        Ok(Response::new(Box::pin(messages.take_until(Box::pin(end)))))
    }

    async fn list_audit_events(
        &self,
        request: Request<v1::ListAuditEventsRequest>,
    ) -> Answer<v1::ListAuditEventsResponse> {
        let v1::ListAuditEventsRequest { bulkhead, page_size, page_token } = request.into_inner();
        let only = bulkhead.as_deref();
        let page = Page::read("audit", only.unwrap_or_default(), page_size, &page_token)?;
        let before = page.after.as_ref().map(|place| place.first);
        let events = self.admission.audit_events(only, before, page.most());
        let (events, next_page_token) = page.cut(events, |event| Place { first: event.id, ..Place::default() });
        Ok(Response::new(v1::ListAuditEventsResponse { events, next_page_token }))
    }

    async fn get_server_info(&self, _: Request<v1::GetServerInfoRequest>) -> Answer<v1::GetServerInfoResponse> {
        let server = self.admission.server();
        Ok(Response::new(v1::GetServerInfoResponse {
            version: env!("CARGO_PKG_VERSION").into(),
            epoch: server.epoch,
            start_time: Some(timestamp(server.started)),
            store: "memory".into(),
            draining: server.draining,
            stalled: Some(duration(server.stalled)),
            caps: server.caps.into_iter().map(Into::into).collect(),
        }))
    }
}

impl AdminApi {
    /// Changes a bulkhead, or makes it if it may be missing.
    fn update(
        &self,
        change: &Change<'_>,
        name: &str,
        patch: &Patch,
        allow_missing: bool,
        validate_only: bool,
    ) -> Result<View, Refused> {
        let merge = |present: &Settings| patch.merge(present, allow_missing);
        let updated = if validate_only {
            self.admission.would_configure(change, name, merge)
        } else {
            self.admission.configure(change, name, merge)
        };
        match updated {
            Err(refused) if allow_missing && refused.refusal.reason == Reason::BulkheadNotFound => {}
            updated => return updated,
        }
        if !change.etag.is_empty() {
            return Err(Refused::early(Reason::EtagMismatch, name, None));
        }
        let settings = patch.whole().map_err(|invalid| Refused::invalid(name, invalid))?;
        let made = if validate_only {
            self.admission.would_create(name, settings)
        } else {
            self.admission.create(change, name, settings)
        };
        match made {
            // Somebody else made it meanwhile.
            Err(refused) if refused.refusal.reason == Reason::BulkheadExists => {
                self.update(change, name, patch, allow_missing, validate_only)
            }
            made => made,
        }
    }
}
