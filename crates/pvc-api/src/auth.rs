//! Authentication: tokens, and sessions of browsers.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use pvc_model::role::Role;
use pvc_ports::Random;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;

use crate::error::{ApiError, Result};
#[cfg(feature = "server")]
use crate::link::Link;
use crate::settings::Token;
use crate::state::ApiState;
use crate::throttle::Held;

pub const API_KEY: &str = "x-api-key";
const COOKIE: &str = "session";

type Digest = [u8; 32];

fn digest(secret: &[u8]) -> Digest {
    Sha256::digest(secret).into()
}

/// Caller of a request. With every request that got past the door; its description goes into the
/// log and is recorded with jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub description: Arc<str>,
    pub role: Role,
}

impl Caller {
    /// Whoever it is, where nobody is asked: then everybody may do everything.
    pub fn anybody() -> Self {
        Caller { description: "anybody".into(), role: Role::Administrator }
    }

    /// Refuses what the caller's role does not include.
    ///
    /// # Errors
    /// A reply with status 403.
    pub fn check_may(&self, needed: Role) -> Result<()> {
        if self.role >= needed {
            return Ok(());
        }
        let (has, needed) = (self.role.as_str(), needed.as_str());
        let message = format!("the token has the role `{has}`, and this needs `{needed}`");
        Err(ApiError::new(StatusCode::FORBIDDEN, message)
            .hint(Some("the roles of tokens are in `pvc.conf`, `api.token`")))
    }
}

/// The tokens, as digests.
pub struct Tokens {
    /// `None` if the API is open to everybody.
    known: Option<Vec<(Caller, Digest)>>,
}

impl Tokens {
    pub fn new(tokens: Option<&[Token]>) -> Self {
        let known = |token: &Token| {
            let description = token.description.as_str().into();
            (Caller { description, role: token.role }, digest(token.secret.as_bytes()))
        };
        // An empty secret would let in whoever says nothing.
        let usable = |tokens: &[Token]| {
            tokens.iter().filter(|token| !token.secret.is_empty()).map(known).collect()
        };
        Tokens { known: tokens.map(usable) }
    }

    pub fn is_open(&self) -> bool {
        self.known.is_none()
    }

    /// Returns the caller with this secret. Takes the same time for every answer: digests have one
    /// length, all of them are compared to the end.
    pub fn check(&self, secret: &[u8]) -> Option<Caller> {
        let given = digest(secret);
        let mut found = None;
        for (caller, known) in self.known.iter().flatten() {
            if bool::from(known.ct_eq(&given)) {
                found = Some(caller.clone());
            }
        }
        found
    }
}

struct Session {
    caller: Caller,
    /// By the monotonic clock.
    expires: Duration,
}

/// The sessions of browsers: an identifier that only the browser and this process know, bound to
/// the token it was opened with. They end with the process.
pub struct Sessions {
    lifetime: Duration,
    open: Mutex<BTreeMap<Digest, Session>>,
}

/// More than any cluster has administrators; the one that expires first makes room.
const MAX_SESSIONS: usize = 1000;

impl Sessions {
    pub fn new(lifetime: Duration) -> Self {
        Sessions { lifetime, open: Mutex::default() }
    }

    /// Opens a session at `now` and returns its identifier.
    pub fn open(&self, caller: Caller, now: Duration, random: &dyn Random) -> String {
        let id: String = (0..4).map(|_| format!("{:016x}", random.next_u64())).collect();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, session| session.expires > now);
        if open.len() >= MAX_SESSIONS
            && let Some(first) =
                open.iter().min_by_key(|(_, session)| session.expires).map(|(id, _)| *id)
        {
            open.remove(&first);
        }
        open.insert(digest(id.as_bytes()), Session { caller, expires: now + self.lifetime });
        id
    }

    /// Returns the caller with this session at `now`; each use prolongs it.
    pub fn check(&self, id: &str, now: Duration) -> Option<Caller> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        // Found by the digest: how far a guess agrees with an identifier cannot be timed.
        let session =
            open.get_mut(&digest(id.as_bytes())).filter(|session| session.expires > now)?;
        session.expires = now + self.lifetime;
        Some(session.caller.clone())
    }

    pub fn close(&self, id: &str) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&digest(id.as_bytes()));
    }
}

/// Address that the request comes from; unspecified outside of a server.
pub fn remote(request: &Request) -> IpAddr {
    let remote = request.extensions().get::<ConnectInfo<SocketAddr>>();
    remote.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |ConnectInfo(remote)| remote.ip())
}

/// Lets a request in that shows a token or a session, before anything else of it is looked at.
pub async fn guard(State(api): State<ApiState>, mut request: Request, next: Next) -> Response {
    // What an address offers is no secret; browsers ask before they have a key.
    if request.method() == Method::OPTIONS {
        return next.run(request).await;
    }
    match identify(&api, request.headers(), remote(&request)).await {
        Ok(caller) => {
            #[cfg(feature = "server")]
            if let Some(link) = request.extensions().get::<Arc<Link>>() {
                link.note_key();
            }
            request.extensions_mut().insert(caller.clone());
            let mut response = next.run(request).await;
            response.extensions_mut().insert(caller);
            response
        }
        Err(error) => error.into_response(),
    }
}

async fn identify(api: &ApiState, headers: &HeaderMap, remote: IpAddr) -> Result<Caller> {
    if api.tokens().is_open() {
        return Ok(Caller::anybody());
    }
    let now = api.clock().monotonic();
    if let Some(caller) = session_of(headers).and_then(|id| api.sessions().check(id, now)) {
        return Ok(caller);
    }
    let Some(key) = headers.get(API_KEY) else {
        return Err(unauthorised("no key was given")
            .hint(Some("send it in the header `X-Api-Key`, or log in with `POST /api/v1/login`")));
    };
    check_secret(api, key.as_bytes(), remote).await
}

/// Returns the caller with this secret. A wrong one is refused after a while, a right one never
/// waits.
pub async fn check_secret(api: &ApiState, secret: &[u8], remote: IpAddr) -> Result<Caller> {
    if let Some(caller) = api.tokens().check(secret) {
        return Ok(caller);
    }
    api.throttle().admit(remote)?;
    let delay = api.throttle().note(remote, api.clock().monotonic());
    if !delay.is_zero() {
        let _held = Held::new(api.throttle(), remote);
        api.clock().sleep(delay).await;
    }
    Err(unauthorised("the key is not one that this API knows"))
}

fn unauthorised(message: &str) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, message)
}

/// The session's identifier among the cookies.
pub fn session_of(headers: &HeaderMap) -> Option<&str> {
    let cookies =
        headers.get_all(header::COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    let mut pairs = cookies
        .flat_map(|cookies| cookies.split(';'))
        .filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, id)| id)
}

/// The header that gives a browser its session, or takes it away.
pub fn session_cookie(api: &ApiState, id: Option<&str>) -> HeaderValue {
    let secure = if api.settings().tls.is_some() { "; Secure" } else { "" };
    let (id, age) = match id {
        Some(id) => (id, api.settings().limits.session_time.as_secs()),
        None => ("", 0),
    };
    let cookie = format!("{COOKIE}={id}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age}{secure}");
    HeaderValue::from_str(&cookie).expect("hexadecimal digits and fixed words make a header value")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(description: &str, secret: &str) -> Token {
        Token { description: description.into(), secret: secret.into(), role: Role::Administrator }
    }

    #[test]
    fn q01_only_a_whole_token_opens() {
        let tokens = Tokens::new(Some(&[token("admin", "secret-1"), token("backup", "secret-2")]));
        let found = tokens.check(b"secret-2").map(|caller| caller.description);
        assert_eq!(found.as_deref(), Some("backup"));
        for wrong in ["", "s", "secret-", "secret-12", "Secret-1", &"x".repeat(100_000)] {
            assert_eq!(tokens.check(wrong.as_bytes()), None, "{wrong:.10}");
        }
    }

    #[test]
    fn an_empty_token_in_the_settings_opens_nothing() {
        assert_eq!(Tokens::new(Some(&[token("broken", "")])).check(b""), None);
    }

    #[test]
    fn the_session_is_found_among_other_cookies() {
        let mut headers = HeaderMap::new();
        headers.append(header::COOKIE, HeaderValue::from_static("a=b; session=abc; c=d"));
        assert_eq!(session_of(&headers), Some("abc"));
        assert_eq!(session_of(&HeaderMap::new()), None);
    }
}
