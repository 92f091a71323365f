//! From where a request may come: what a web page of somebody else can have a browser do.
//!
//! A page from anywhere can send requests to this API through the browser of somebody who may reach
//! it. It cannot read the key, but it does not need one where the API is open, or where the browser
//! has a session. Two things betray it. The browser says which page asks (`Origin`,
//! `Sec-Fetch-Site`), and a page that had its own name point here (DNS rebinding) sends that name
//! as `Host`. Whoever shows a right key is no such page, whatever name they reach this server by.

use std::net::IpAddr;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use pvc_api_types::operation::{Operation, ROOT};
use pvc_api_types::operations::storage::GetStorageCephVolumePoolVolumeDownload as Download;

use crate::auth::{self, API_KEY};
use crate::error::ApiError;
use crate::state::ApiState;

/// Refuses what a foreign web page has sent, before anything else is looked at.
pub async fn check(State(api): State<ApiState>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    if let Err(why) = page(headers, may_be_linked(&request)) {
        return why.refusal();
    }
    // A certificate is for our names alone.
    if api.settings().tls.is_none() {
        // A name in the address of the request goes before the header.
        let host = request.uri().authority().map(|authority| authority.as_str());
        let host = host.or_else(|| headers.get(header::HOST)?.to_str().ok());
        if let Err(why) = name(host.unwrap_or_default(), |name| is_ours(&api, name)) {
            // A wrong key is refused here as slowly as under a name of ours.
            let refused = match headers.get(API_KEY).filter(|_| !api.tokens().is_open()) {
                Some(key) => {
                    auth::check_secret(&api, key.as_bytes(), auth::remote(&request)).await.err()
                }
                None => return why.refusal(),
            };
            if let Some(error) = refused {
                return error.into_response();
            }
        }
    }
    next.run(request).await
}

/// Reason why a request is taken for that of a foreign page.
#[derive(Debug, PartialEq, Eq)]
enum Foreign {
    Page,
    Name(String),
}

impl Foreign {
    fn refusal(self) -> Response {
        let (message, hint) = match self {
            Foreign::Page => (
                "the request was sent by a web page of another site".to_owned(),
                "pages of other sites cannot use this API; programs send no header `Origin`",
            ),
            Foreign::Name(name) => (
                format!("the name `{name}` is not one of this server"),
                "use its IP address or a node's name, send a key, or add the name to \
                 `api.listen.names`",
            ),
        };
        ApiError::new(StatusCode::FORBIDDEN, message).hint(Some(hint)).into_response()
    }
}

/// Whether a link to this may stand on a page of another site: following it changes nothing, and
/// costs little. A download costs room and hours of work.
fn may_be_linked(request: &Request) -> bool {
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let operation = path.and_then(|path| path.strip_prefix(ROOT));
    *request.method() == Method::GET && operation != Some(Download::PATH)
}

/// Checks what the browser says of the page that asks. Programs say nothing.
fn page(headers: &HeaderMap, may_be_linked: bool) -> Result<(), Foreign> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    if let Some(origin) = text("origin") {
        let host = text("host").unwrap_or_default();
        let site = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        if site != Some(host) || host.is_empty() {
            return Err(Foreign::Page);
        }
    }
    match text("sec-fetch-site") {
        None | Some("same-origin" | "none") => Ok(()),
        // Somebody follows a link to here; the page that it stands on does not see what is there.
        Some(_) if may_be_linked && text("sec-fetch-mode") == Some("navigate") => Ok(()),
        Some(_) => Err(Foreign::Page),
    }
}

/// Whether `host`, as the header has it, is an address, or a name of ours.
fn name(host: &str, is_ours: impl Fn(&str) -> bool) -> Result<(), Foreign> {
    let (name, _) = split(host);
    // An address cannot be made to point elsewhere. HTTP/1.0 names nobody, and no browser speaks
    // it.
    if name.is_empty() || name.parse::<IpAddr>().is_ok() {
        return Ok(());
    }
    let plain = name.trim_end_matches('.').to_ascii_lowercase();
    if plain == "localhost" || is_ours(&plain) {
        return Ok(());
    }
    Err(Foreign::Name(name.chars().filter(|c| !c.is_control()).take(80).collect()))
}

/// The name and the port of `host`; an IPv6 address without its brackets.
fn split(host: &str) -> (&str, &str) {
    if let Some((address, port)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return (address, port.trim_start_matches(':'));
    }
    host.split_once(':').unwrap_or((host, ""))
}

/// Whether `name` is set as one of ours, or is a node's: alone, or in one of the cluster's domains.
fn is_ours(api: &ApiState, name: &str) -> bool {
    let names = &api.settings().names;
    if names.own.iter().any(|own| own.eq_ignore_ascii_case(name)) {
        return true;
    }
    let node = names
        .domains
        .iter()
        .find_map(|domain| name.strip_suffix(&domain.to_ascii_lowercase())?.strip_suffix('.'));
    api.view().nodes.contains_key(node.unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_program_and_a_page_of_this_server_may_ask() {
        for own in [
            &[][..],
            &[("host", "hv1:7370")],
            &[("host", "hv1:7370"), ("origin", "http://hv1:7370")],
            &[("host", "10.0.0.1:7370"), ("sec-fetch-site", "same-origin")],
            &[("host", "10.0.0.1:7370"), ("sec-fetch-site", "none")],
        ] {
            assert_eq!(page(&headers(own), false), Ok(()), "{own:?}");
        }
    }

    #[test]
    fn a_page_of_another_site_may_not() {
        for foreign in [
            &[("host", "hv1:7370"), ("origin", "http://evil.example")][..],
            &[("host", "hv1:7370"), ("origin", "null")],
            &[("host", "hv1:7370"), ("origin", "http://hv1:80")],
            &[("host", "hv1:7370"), ("origin", "http://hv1:7370.evil.example")],
            &[("origin", "http://")],
            &[("host", "hv1:7370"), ("sec-fetch-site", "cross-site")],
            &[("host", "hv1:7370"), ("sec-fetch-site", "same-site")],
            &[
                ("host", "hv1:7370"),
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-mode", "no-cors"),
            ],
        ] {
            for may_be_linked in [true, false] {
                let found = page(&headers(foreign), may_be_linked);
                assert_eq!(found, Err(Foreign::Page), "{foreign:?}");
            }
        }
    }

    #[test]
    fn a_link_from_another_site_may_be_followed_and_changes_nothing() {
        let link = headers(&[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")]);
        assert_eq!(page(&link, true), Ok(()));
        assert_eq!(page(&link, false), Err(Foreign::Page), "a form that another site sends");
    }

    #[test]
    fn an_address_and_a_name_of_ours_are_taken_and_no_other() {
        let ours = |name: &str| name == "hv1";
        for host in [
            "",
            "127.0.0.1",
            "10.0.0.1:7370",
            "[::1]",
            "[2001:db8::1]:7370",
            "localhost:7370",
            "HV1:7370",
            "hv1.",
        ] {
            assert_eq!(name(host, ours), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "hv1.evil.example:7370",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "[x]:1",
        ] {
            assert!(name(host, ours).is_err(), "{host}");
        }
    }
}
