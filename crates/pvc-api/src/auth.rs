//! Who may come in: tokens, sessions of browsers, and patience with those who guess.

#![allow(clippy::disallowed_types, reason = "looked up by key, never walked")]

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use pvc_ports::Random;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;

use crate::error::{ApiError, Result};
use crate::settings::Token;
use crate::state::ApiState;

pub const API_KEY: &str = "x-api-key";
const COOKIE: &str = "session";

type Digest = [u8; 32];

fn digest(secret: &[u8]) -> Digest {
    Sha256::digest(secret).into()
}

/// Who asks. With every request that got past the door; its description goes into the log and is
/// recorded with jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub description: Arc<str>,
}

/// The tokens, as digests.
pub struct Tokens {
    /// `None` if the API is open to everybody.
    known: Option<Vec<(Arc<str>, Digest)>>,
}

impl Tokens {
    pub fn new(tokens: Option<&[Token]>) -> Self {
        let known = |token: &Token| (Arc::from(token.description.as_str()), digest(token.secret.as_bytes()));
        // An empty secret would let in whoever says nothing.
        let usable =
            |tokens: &[Token]| tokens.iter().filter(|token| !token.secret.is_empty()).map(known).collect();
        Tokens { known: tokens.map(usable) }
    }

    pub fn is_open(&self) -> bool {
        self.known.is_none()
    }

    /// Whose secret this is. Takes the same time for every answer: digests have one length, all of
    /// them are compared to the end.
    pub fn check(&self, secret: &[u8]) -> Option<Arc<str>> {
        let given = digest(secret);
        let mut found = None;
        for (description, known) in self.known.iter().flatten() {
            if bool::from(known.ct_eq(&given)) {
                found = Some(description.clone());
            }
        }
        found
    }
}

struct Session {
    description: Arc<str>,
    /// By the monotonic clock.
    expires: Duration,
}

/// The sessions of browsers: an identifier that only the browser and this process know, bound to the
/// token it was opened with. They end with the process.
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
    pub fn open(&self, description: Arc<str>, now: Duration, random: &dyn Random) -> String {
        let id: String = (0..4).map(|_| format!("{:016x}", random.next_u64())).collect();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, session| session.expires > now);
        if open.len() >= MAX_SESSIONS
            && let Some(first) = open.iter().min_by_key(|(_, session)| session.expires).map(|(id, _)| *id)
        {
            open.remove(&first);
        }
        open.insert(digest(id.as_bytes()), Session { description, expires: now + self.lifetime });
        id
    }

    /// Whose session this is at `now`; each use prolongs it.
    pub fn check(&self, id: &str, now: Duration) -> Option<Arc<str>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        // Found by the digest: how far a guess agrees with an identifier cannot be timed.
        let session = open.get_mut(&digest(id.as_bytes())).filter(|session| session.expires > now)?;
        session.expires = now + self.lifetime;
        Some(session.description.clone())
    }

    pub fn close(&self, id: &str) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&digest(id.as_bytes()));
    }
}

/// Failures of one address.
#[derive(Default)]
struct Failures {
    count: u32,
    last: Duration,
    /// Refusals that are being held back now.
    held: u32,
}

/// Slows down those who guess. A refusal is held back longer the more there were lately, and an
/// address that lets many be held at once is not listened to until they are through. A client with the
/// right token never waits unless somebody at its own address floods.
#[derive(Default)]
pub struct Throttle {
    failures: Mutex<HashMap<IpAddr, Failures>>,
}

/// Failures are forgotten after this time without another.
const MEMORY: Duration = Duration::from_secs(60);
/// The first failures are answered at once: somebody is setting up a client.
const FREE: u32 = 3;
const FIRST_DELAY: Duration = Duration::from_millis(250);
const LONGEST_DELAY: Duration = Duration::from_secs(4);
const MAX_HELD: u32 = 16;
const MAX_ADDRESSES: usize = 10_000;

impl Throttle {
    /// Refuses to listen to an address that has too many refusals outstanding.
    fn admit(&self, address: IpAddr) -> Result<()> {
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        match failures.get(&group(address)) {
            Some(failures) if failures.held >= MAX_HELD => {
                let message = "too many requests with a wrong key came from this address";
                Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, message)
                    .retry_after(LONGEST_DELAY.as_secs()))
            }
            _ => Ok(()),
        }
    }

    /// Notes a failure at `now` and says for how long the refusal is to be held back.
    fn note(&self, address: IpAddr, now: Duration) -> Duration {
        let mut all = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_ADDRESSES {
            all.retain(|_, failures| failures.held > 0 || failures.last + MEMORY > now);
        }
        if all.len() >= MAX_ADDRESSES {
            // A flood from everywhere: remembering more helps nobody.
            return FIRST_DELAY;
        }
        let failures = all.entry(group(address)).or_default();
        if failures.last + MEMORY <= now {
            failures.count = 0;
        }
        failures.count += 1;
        failures.last = now;
        match failures.count.checked_sub(FREE + 1) {
            None => Duration::ZERO,
            Some(over) => FIRST_DELAY.saturating_mul(1 << over.min(8)).min(LONGEST_DELAY),
        }
    }

    fn hold(&self, address: IpAddr, change: i32) {
        let mut all = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(failures) = all.get_mut(&group(address)) {
            failures.held = failures.held.saturating_add_signed(change);
        }
    }
}

/// The addresses that are one client: an IPv6 host has its whole /64 to choose from.
fn group(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(address) => IpAddr::V4(address),
            None => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        },
    }
}

/// Counts a refusal as held until it is dropped, also if its client goes away meanwhile.
struct Held<'a>(&'a Throttle, IpAddr);

impl<'a> Held<'a> {
    fn new(throttle: &'a Throttle, address: IpAddr) -> Self {
        throttle.hold(address, 1);
        Held(throttle, address)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.hold(self.1, -1);
    }
}

/// Where the request comes from; unspecified outside of a server.
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
        return Ok(Caller { description: "anybody".into() });
    }
    let now = api.clock().monotonic();
    if let Some(description) = session_of(headers).and_then(|id| api.sessions().check(id, now)) {
        return Ok(Caller { description });
    }
    let Some(key) = headers.get(API_KEY) else {
        return Err(unauthorised("no key was given")
            .hint(Some("send it in the header `X-Api-Key`, or log in with `POST /api/v1/login`")));
    };
    check_secret(api, key.as_bytes(), remote).await.map(|description| Caller { description })
}

/// Whose secret this is. A wrong one is refused after a while.
pub async fn check_secret(api: &ApiState, secret: &[u8], remote: IpAddr) -> Result<Arc<str>> {
    api.throttle().admit(remote)?;
    if let Some(description) = api.tokens().check(secret) {
        return Ok(description);
    }
    let delay = api.throttle().note(remote, api.clock().monotonic());
    if !delay.is_zero() {
        let _held = Held::new(api.throttle(), remote);
        api.clock().sleep(delay).await;
    }
    tracing::warn!(%remote, "a request was refused: its key is not one of ours");
    Err(unauthorised("the key is not one that this API knows"))
}

fn unauthorised(message: &str) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, message)
}

/// The session's identifier among the cookies.
pub fn session_of(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    let mut pairs =
        cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
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
        Token { description: description.into(), secret: secret.into() }
    }

    #[test]
    fn q01_only_a_whole_token_opens() {
        let tokens = Tokens::new(Some(&[token("admin", "secret-1"), token("backup", "secret-2")]));
        assert_eq!(tokens.check(b"secret-2").as_deref(), Some("backup"));
        for wrong in ["", "s", "secret-", "secret-12", "Secret-1", &"x".repeat(100_000)] {
            assert_eq!(tokens.check(wrong.as_bytes()), None, "{wrong:.10}");
        }
    }

    #[test]
    fn an_empty_token_in_the_settings_opens_nothing() {
        assert_eq!(Tokens::new(Some(&[token("broken", "")])).check(b""), None);
    }

    #[test]
    fn refusals_are_held_back_longer_each_time_and_forgotten_after_a_minute() {
        let throttle = Throttle::default();
        let address = "192.0.2.1".parse().unwrap();
        let mut now = Duration::from_secs(1000);
        let delays: Vec<u128> = (0..10).map(|_| throttle.note(address, now).as_millis()).collect();
        assert_eq!(delays, [0, 0, 0, 250, 500, 1000, 2000, 4000, 4000, 4000]);
        assert_eq!(throttle.note("192.0.2.2".parse().unwrap(), now), Duration::ZERO);
        now += MEMORY;
        assert_eq!(throttle.note(address, now), Duration::ZERO);
    }

    #[test]
    fn an_address_that_floods_is_not_listened_to_until_its_refusals_are_through() {
        let throttle = Throttle::default();
        let address: IpAddr = "2001:db8::1".parse().unwrap();
        let neighbour: IpAddr = "2001:db8::2".parse().unwrap();
        throttle.note(address, Duration::from_secs(1));
        let held: Vec<_> = (0..MAX_HELD).map(|_| Held::new(&throttle, address)).collect();
        assert_eq!(throttle.admit(neighbour).unwrap_err().status, StatusCode::TOO_MANY_REQUESTS);
        assert!(throttle.admit("2001:db8:0:1::1".parse().unwrap()).is_ok());
        drop(held);
        assert!(throttle.admit(address).is_ok());
    }

    #[test]
    fn the_session_is_found_among_other_cookies() {
        let mut headers = HeaderMap::new();
        headers.append(header::COOKIE, HeaderValue::from_static("a=b; session=abc; c=d"));
        assert_eq!(session_of(&headers), Some("abc"));
        assert_eq!(session_of(&HeaderMap::new()), None);
    }
}
