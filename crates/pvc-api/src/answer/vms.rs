//! The list of VMs as the cache has it, in the place of one that is encoded anew each time.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use futures::stream;
use pvc_api_types::Vm;
use pvc_model::cluster::Cluster;
use pvc_model::vm::VmRecord;
use pvc_ports::aside;

use super::Encoded;
use crate::cache::Asked;
use crate::json;
use crate::state::ApiState;

/// Lists are sent in pieces of about this many bytes: thousands of VMs are tens of megabytes, which
/// nobody needs to hold at once.
const PIECE: usize = 256 << 10;

impl Encoded<Vec<Vm>> {
    /// The VMs as a JSON array, made of what the cache holds. What it does not hold yet is made
    /// where it keeps no other request, and no keepalive of the same process, from its turn.
    pub async fn vms(api: &ApiState, cluster: &Cluster, records: &[&Arc<VmRecord>]) -> Self {
        let mut vms = api.vms().ask(cluster, records.iter().copied());
        if !vms.iter().all(Asked::is_made) {
            vms = aside(move || {
                vms.iter().for_each(|vm| _ = vm.fragment());
                vms
            })
            .await;
        }
        let now = api.clock().wall().as_secs_f64();
        let hashes: Vec<u8> = vms.iter().flat_map(|vm| vm.fragment().hash.to_ne_bytes()).collect();
        let tag = json::weak_tag(json::hash(&hashes));
        let content: usize = vms.iter().map(|vm| vm.fragment().size(now)).sum();
        // Brackets, commas and the line end.
        let size = content + vms.len().max(1) + 2;
        let mut response =
            (StatusCode::OK, Body::from_stream(stream::iter(pieces(vms, now, size))))
                .into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(size));
        headers.insert(header::ETAG, tag);
        Encoded::new(response)
    }
}

/// The text of the array, piece by piece.
fn pieces(
    vms: Vec<Asked>,
    now: f64,
    size: usize,
) -> impl Iterator<Item = std::result::Result<Vec<u8>, Infallible>> {
    let mut rest = vms.into_iter().enumerate().peekable();
    let mut begun = false;
    std::iter::from_fn(move || {
        if begun && rest.peek().is_none() {
            return None;
        }
        let mut piece = Vec::with_capacity(size.min(PIECE + PIECE / 8));
        if !begun {
            piece.push(b'[');
            begun = true;
        }
        while piece.len() < PIECE
            && let Some((at, vm)) = rest.next()
        {
            if at > 0 {
                piece.push(b',');
            }
            vm.fragment().write(now, &mut piece);
        }
        if rest.peek().is_none() {
            piece.extend_from_slice(b"]\n");
        }
        Some(Ok(piece))
    })
}
