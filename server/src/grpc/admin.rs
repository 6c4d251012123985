//! `AdminService`: validate, ask, translate.

use std::sync::Arc;

use data_encoding::BASE64URL_NOPAD;
use tidegate_core::{FencingToken, Invalid};
use tidegate_proto::v1;
use tidegate_proto::v1::admin_service_server::AdminService;
use tonic::{Request, Response, Status};

use super::{convert, status};
use crate::admission::{Admission, Refused};

const PAGE: usize = 100;
const LARGEST_PAGE: usize = 1000;
const LONGEST_DETAIL: usize = 256;

/// Serves operators.
#[derive(Clone, Debug)]
pub struct AdminApi {
    admission: Arc<Admission>,
}

impl AdminApi {
    /// Serves the operators of that admission.
    pub fn new(admission: Arc<Admission>) -> Self {
        Self { admission }
    }

    fn refuse(&self, refused: &Refused) -> Status {
        status::refuse(self.admission.clock().now(), refused)
    }
}

#[tonic::async_trait]
impl AdminService for AdminApi {
    async fn get_bulkhead(
        &self,
        request: Request<v1::GetBulkheadRequest>,
    ) -> Result<Response<v1::GetBulkheadResponse>, Status> {
        let view = self.admission.bulkhead(&request.into_inner().name).map_err(|refused| self.refuse(&refused))?;
        Ok(Response::new(v1::GetBulkheadResponse { bulkhead: Some(view.into()) }))
    }

    async fn list_bulkheads(
        &self,
        request: Request<v1::ListBulkheadsRequest>,
    ) -> Result<Response<v1::ListBulkheadsResponse>, Status> {
        let v1::ListBulkheadsRequest { page_size, page_token } = request.into_inner();
        let size = page_size_of(page_size);
        let after = Place::read("bulkheads", "", &page_token)?;
        let mut views = self.admission.bulkheads(after.as_ref().map(|place| place.name.as_str()), size + 1);
        let next_page_token =
            cut(&mut views, size).map(|view| Place::new(&view.name, 0).write("bulkheads", "")).unwrap_or_default();
        let bulkheads = views.into_iter().map(Into::into).collect();
        Ok(Response::new(v1::ListBulkheadsResponse { bulkheads, next_page_token }))
    }

    async fn set_limit(&self, request: Request<v1::SetLimitRequest>) -> Result<Response<v1::SetLimitResponse>, Status> {
        let v1::SetLimitRequest { name, limit, detail } = request.into_inner();
        convert::text("detail", &detail, LONGEST_DETAIL).map_err(|invalid| status::invalid_field(&name, invalid))?;
        let view = self.admission.set_limit(&name, limit).map_err(|refused| self.refuse(&refused))?;
        tracing::info!(bulkhead = %view.name, limit, detail, "limit moved");
        Ok(Response::new(v1::SetLimitResponse { bulkhead: Some(view.into()) }))
    }

    async fn list_cooldowns(
        &self,
        request: Request<v1::ListCooldownsRequest>,
    ) -> Result<Response<v1::ListCooldownsResponse>, Status> {
        let v1::ListCooldownsRequest { page_size, page_token } = request.into_inner();
        let size = page_size_of(page_size);
        let after = Place::read("cooldowns", "", &page_token)?;
        let mut views = self.admission.cooldowns(after.as_ref().map(|place| place.name.as_str()), size + 1);
        let last = cut(&mut views, size).map(|view| Place::new(&view.partition, 0));
        let next_page_token = last.map(|place| place.write("cooldowns", "")).unwrap_or_default();
        let cooldowns = views.into_iter().map(Into::into).collect();
        Ok(Response::new(v1::ListCooldownsResponse { cooldowns, next_page_token }))
    }

    async fn clear_cooldown(
        &self,
        request: Request<v1::ClearCooldownRequest>,
    ) -> Result<Response<v1::ClearCooldownResponse>, Status> {
        let v1::ClearCooldownRequest { partition, detail } = request.into_inner();
        convert::operators_text(&partition, &detail).map_err(|invalid| status::invalid_field("", invalid))?;
        let cleared = self.admission.clear_cooldown(&partition);
        tracing::info!(partition, detail, cleared, "cooldown cleared");
        Ok(Response::new(v1::ClearCooldownResponse { cleared }))
    }

    async fn list_leases(
        &self,
        request: Request<v1::ListLeasesRequest>,
    ) -> Result<Response<v1::ListLeasesResponse>, Status> {
        let v1::ListLeasesRequest { bulkhead, page_size, page_token } = request.into_inner();
        let size = page_size_of(page_size);
        let only = bulkhead.as_deref();
        let filter = only.unwrap_or_default();
        let place = Place::read("leases", filter, &page_token)?;
        let from = place.as_ref().map_or(("", 0), |place| (place.name.as_str(), place.token + 1));
        let from = (from.0, FencingToken::from_u64(from.1));
        let mut leases = self.admission.leases(only, from, size + 1).map_err(|refused| self.refuse(&refused))?;
        let next_page_token = cut(&mut leases, size)
            .map(|lease| Place::new(&lease.bulkhead, lease.token.as_u64()).write("leases", filter))
            .unwrap_or_default();
        let leases = leases.into_iter().map(Into::into).collect();
        Ok(Response::new(v1::ListLeasesResponse { leases, next_page_token }))
    }
}

fn page_size_of(asked: u32) -> usize {
    if asked == 0 { PAGE } else { (asked as usize).min(LARGEST_PAGE) }
}

/// Cuts a list to a page; if more came, answers the last one on the page.
fn cut<T>(list: &mut Vec<T>, size: usize) -> Option<&T> {
    if list.len() <= size {
        return None;
    }
    list.truncate(size);
    list.last()
}

/// The last one on a page. As a token it carries its list and that one's filter, and does not fit another one.
struct Place {
    name: String,
    token: u64,
}

impl Place {
    fn new(name: &str, token: u64) -> Self {
        Self { name: name.into(), token }
    }

    fn write(&self, list: &str, filter: &str) -> String {
        // No name has a control character in it.
        BASE64URL_NOPAD.encode(format!("{list}\n{filter}\n{}\n{}", self.name, self.token).as_bytes())
    }

    fn read(list: &str, filter: &str, text: &str) -> Result<Option<Self>, Status> {
        if text.is_empty() {
            return Ok(None);
        }
        let parse = || {
            let text = String::from_utf8(BASE64URL_NOPAD.decode(text.as_bytes()).ok()?).ok()?;
            let text = text.strip_prefix(list)?.strip_prefix('\n')?.strip_prefix(filter)?.strip_prefix('\n')?;
            let (name, token) = text.split_once('\n')?;
            // One more is asked for, so the last number has no next.
            let token: u64 = token.parse().ok().filter(|&token| token < u64::MAX)?;
            Some(Self { name: name.into(), token })
        };
        parse().map(Some).ok_or_else(|| {
            let allowed = "the next_page_token of a list with the same arguments".into();
            status::invalid_field(filter, Invalid { field: "page_token", allowed })
        })
    }
}
