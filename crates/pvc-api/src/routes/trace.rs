//! The way of a packet from a VM.

use std::net::IpAddr;

use axum::http::StatusCode;
use pvc_api_types::operations::vm::{GetVmVmTrace, TraceProtocol};
use pvc_model::guest_network::trace::{Protocol, Question, Surroundings, TraceRefusal, trace};
use pvc_model::with_causes;

use super::vm::find;
use crate::answer::Answer;
use crate::error::{ApiError, Result};
use crate::table::{Ask, Table};
use crate::view;

pub fn add(table: Table) -> Table {
    table.add(get_vm_vm_trace)
}

async fn get_vm_vm_trace(ask: Ask<GetVmVmTrace>) -> Result<Answer<GetVmVmTrace>> {
    let ([name], api, given) = (ask.at, ask.api, ask.params);
    let cluster = api.view();
    let vm = find(&cluster, &name)?.clone();
    let port = given.port.map(port).transpose()?;
    let protocol = given.protocol.map(|word| match word {
        TraceProtocol::Tcp => Protocol::Tcp,
        TraceProtocol::Udp => Protocol::Udp,
        TraceProtocol::Icmp => Protocol::Icmp,
    });
    let slot = api.traces().slot(&ask.caller.description)?;
    let mut own = api.settings().own_addresses.clone();
    if let Some(machine) = api.machine() {
        let links = machine.links().await.map_err(|error| {
            let why = with_causes(&error);
            let message = format!("the addresses of this machine are not known: {why}");
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
        })?;
        own.extend(
            links.values().flat_map(|link| &link.addresses).map(|net| -> IpAddr { net.addr() }),
        );
    }
    // Thousands of rules may be gone through.
    let traced = slot.aside(move || {
        let (settings, index) = (api.settings(), api.traces().index(&cluster));
        let around = Surroundings {
            neighbours: &settings.core_networks,
            nodes: &settings.nodes,
            node: &settings.node,
            own: &own,
            floating: &settings.floating_addresses,
        };
        let (target, network) = (&*given.target, given.network.as_deref());
        let question = Question { target, network, protocol, port };
        let traced = trace(&cluster, &index, around, &vm, question)?;
        Ok(view::network::trace(vm.name.clone(), given.target, &traced))
    });
    Ok(Answer::json(&traced.await.map_err(|refusal| refused(&refusal))?))
}

fn port(number: u32) -> Result<u16> {
    let port = u16::try_from(number).ok().filter(|port| *port > 0);
    port.ok_or_else(|| {
        ApiError::parameter("port", format!("is {number}, and ports are 1 to 65535"))
    })
}

fn refused(refusal: &TraceRefusal) -> ApiError {
    let error = match refusal.parameter() {
        _ if matches!(refusal, TraceRefusal::NoTarget { .. }) => {
            ApiError::not_found(refusal.to_string())
        }
        Some(name) => ApiError::parameter(name, refusal.to_string()),
        None => ApiError::refused(refusal.to_string()),
    };
    error.hint(refusal.hint())
}
