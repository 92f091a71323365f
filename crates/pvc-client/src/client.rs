//! Client of one server.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use jiff::fmt::rfc2822::DateTimeParser;
use pvc_api_types::operation::{self, Method, Operation, ROOT, STALE, TRIED, TRIED_MARK};
use pvc_api_types::param::{Nothing, Parameters};
use pvc_api_types::{Message, TaskRef};
use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::http::header::AGE;
use ureq::http::request::Builder;
use ureq::http::{HeaderValue, Request, Response, StatusCode};
use ureq::{Agent, Body};

use crate::error::Error;
use crate::payload::Payload;
use crate::query::{encoded, escape};
use crate::{page, tls};

/// A host that does not answer within this time is down or filtered, not slow.
pub(crate) const CONNECT: Duration = Duration::from_millis(2050);
/// Some changes are answered only when the work is done: a disk export takes hours.
pub(crate) const WORK: Duration = Duration::from_secs(48 * 3600);
/// A read is answered from memory, so a server that takes longer does not answer at all.
const READ: Duration = Duration::from_secs(10);
/// A reading request is tried this often; a changing one once, because a lost answer does not
/// mean that nothing happened.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);
/// No answer of the API comes near this; whatever does is not the API.
const LARGEST_BODY: u64 = 1 << 30;

/// Check before each request; its error is the reason why the server is not asked.
pub type Gate = Arc<dyn Fn() -> io::Result<()> + Send + Sync>;

/// Address of the API and how to speak to it.
#[derive(Clone)]
pub struct Options {
    /// `scheme://host:port/api/v1`
    pub base: String,
    pub api_key: Option<String>,
    pub user_agent: String,
    /// Whether a certificate must be one that this machine trusts.
    pub verify: bool,
    /// Advice if nobody answers, where more is known than the general.
    pub advice: Option<String>,
    /// Time that the first byte of an answer may take. Without it 10 s for a read, and as long as
    /// the work takes for a change. A limit that a request has of its own wins. Also the time that
    /// may pass without a byte of a file; without it 120 s, or 25 h where the server works
    /// meanwhile.
    pub timeout: Option<Duration>,
    /// Whether changes are only tried: nothing is changed, and the answers say what would be.
    pub dry_run: bool,
    /// Called after each exchange, for `--debug`.
    pub observer: Option<fn(&Exchange<'_>)>,
    /// Called at the first answer that is as the server last saw the cluster, whose store it
    /// cannot reach, with the time since then, if the server says it.
    pub stale: Option<fn(Option<Duration>)>,
    /// Called before each request: a server may become another while somebody waits.
    pub gate: Option<Gate>,
}

/// Request and what came back, for an observer.
pub struct Exchange<'a> {
    pub method: &'a str,
    pub uri: &'a str,
    /// `None` if nothing came back.
    pub status: Option<u16>,
    pub headers: Vec<(String, String)>,
}

/// Time that a change may take before its answer is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// Without a limit.
    Forever,
    AtMost(Duration),
}

/// Limits of the time of one exchange.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// To the first byte of the answer.
    pub first: Duration,
    /// From there to its end.
    pub body: Duration,
    /// Meaning of a first byte that has not come.
    pub late: Late,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Late {
    /// Nothing has changed, and nothing was learned.
    Unread,
    /// The change may have been made.
    Unknown,
    /// The time has passed that the request itself names.
    AsAsked,
}

/// A server that can be asked. Cheap to make: nothing is connected before the first call.
pub struct Client {
    pub(crate) agent: Agent,
    pub(crate) options: Options,
    /// Number of times that a reading request is tried.
    attempts: u32,
    /// Whether the caller knows that answers are stale.
    said_stale: AtomicBool,
}

impl Client {
    pub fn new(options: Options) -> Self {
        let mut config = Agent::config_builder()
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(WORK))
            .timeout_recv_body(Some(WORK))
            .http_status_as_error(false)
            .allow_non_standard_methods(true)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(options.user_agent.clone());
        if options.base.starts_with("https:") {
            config = config.tls_config(tls::config(options.verify));
        }
        if is_loopback(&options.base) {
            config = config.proxy(None);
        }
        let (agent, said_stale) = (config.build().new_agent(), AtomicBool::new(false));
        Self { agent, options, attempts: ATTEMPTS, said_stale }
    }

    /// Gives up sooner than the API's longest answers need: for completions and overviews that
    /// would rather show nothing than make somebody wait.
    pub fn hurried(options: Options, within: Duration) -> Self {
        let mut client = Self::new(options);
        let config = client.agent.config().clone();
        client.agent = Agent::new_with_config(hurry(config, within));
        client.attempts = 1;
        client
    }

    pub fn base(&self) -> &str {
        &self.options.base
    }

    /// Reads something. Tried again where a second try may help.
    pub fn read<O, const N: usize>(
        &self,
        _: O,
        at: [&str; N],
        params: &O::Params,
    ) -> Result<Payload<O::Reply>, Error>
    where
        O: Operation<At = [String; N]>,
        O::Reply: DeserializeOwned,
    {
        if O::METHOD != Method::Get {
            let request = request::<O, N>(at, params);
            return Ok(Payload::new(self.send(request, None)?.expect(StatusCode::OK)?));
        }
        self.get(&request::<O, N>(at, params).path, WORK)
    }

    /// Reads something small: its end, too, must come within the time for the first byte.
    pub fn read_soon<O>(&self, _: O) -> Result<Payload<O::Reply>, Error>
    where
        O: Operation<At = [String; 0], Params = Nothing>,
        O::Reply: DeserializeOwned,
    {
        self.get(&request::<O, 0>([], &Nothing).path, self.time_limit())
    }

    /// The only element of a list: the API answers a question for one object with a list.
    ///
    /// # Errors
    /// Beside those of a read: the list has not one element. `what` is asked for, in words.
    pub fn read_only<O, T, const N: usize>(
        &self,
        operation: O,
        at: [&str; N],
        what: &str,
    ) -> Result<Payload<T>, Error>
    where
        O: Operation<At = [String; N], Params = Nothing, Reply = Vec<T>>,
        T: DeserializeOwned,
    {
        let name = at.last().copied().unwrap_or_default();
        self.read(operation, at, &Nothing)?
            .only()
            .ok_or_else(|| Error::NotFound { message: format!("no {what} `{name}`"), hint: None })
    }

    /// Changes something and returns the server's sentence about it; in a client that is
    /// [dry](Options::dry_run), what it would come to.
    pub fn change<O, const N: usize>(
        &self,
        operation: O,
        at: [&str; N],
        params: &O::Params,
    ) -> Result<String, Error>
    where
        O: Operation<At = [String; N], Reply = Message>,
    {
        self.change_waiting(operation, at, params, None)
    }

    /// Same as [`change`](Client::change), for a change whose answer comes when it is done: within
    /// `waiting`, if it says so.
    pub fn change_waiting<O, const N: usize>(
        &self,
        _: O,
        at: [&str; N],
        params: &O::Params,
        waiting: Option<Waiting>,
    ) -> Result<String, Error>
    where
        O: Operation<At = [String; N], Reply = Message>,
    {
        let answer = self.try_or_make::<O>(request::<O, N>(at, params), waiting)?;
        Ok(Payload::<Message>::new(answer).read()?.message)
    }

    /// Makes a [`change`](Client::change) whose reply is more than a sentence.
    pub fn change_to<O, const N: usize>(
        &self,
        _: O,
        at: [&str; N],
        params: &O::Params,
    ) -> Result<O::Reply, Error>
    where
        O: Operation<At = [String; N], DryRun = <O as Operation>::Reply>,
        O::Reply: DeserializeOwned,
    {
        Payload::new(self.try_or_make::<O>(request::<O, N>(at, params), None)?).read()
    }

    fn try_or_make<O: Operation>(
        &self,
        request: Outgoing,
        waiting: Option<Waiting>,
    ) -> Result<Vec<u8>, Error> {
        match self.options.dry_run {
            true => self.try_dry::<O>(request)?.ok_or_else(Error::too_old_to_tell),
            false => self.send(request, waiting)?.expect(StatusCode::OK),
        }
    }

    /// Starts a task; in a client that is [dry](Options::dry_run), says whether it would be
    /// refused.
    pub fn submit<O, const N: usize>(
        &self,
        _: O,
        at: [&str; N],
        params: &O::Params,
    ) -> Result<Submitted, Error>
    where
        O: Operation<At = [String; N], Reply = TaskRef>,
    {
        let request = request::<O, N>(at, params);
        if self.options.dry_run {
            let answer = self.try_dry::<O>(request)?.ok_or_else(Error::too_old_to_tell)?;
            return Ok(Submitted::WouldBe(Payload::<Message>::new(answer).read()?.message));
        }
        let answer = self.send(request, None)?.expect(StatusCode::ACCEPTED)?;
        Payload::new(answer).read().map(Submitted::Task)
    }

    /// Predicts a change; `None` if the server cannot tell.
    ///
    /// # Errors
    /// The refusal that the change would meet.
    pub fn dry_run<O, const N: usize>(
        &self,
        _: O,
        at: [&str; N],
        params: &O::Params,
    ) -> Result<Option<O::DryRun>, Error>
    where
        O: Operation<At = [String; N]>,
        O::DryRun: DeserializeOwned,
    {
        let answer = self.try_dry::<O>(request::<O, N>(at, params))?;
        answer.map(|answer| Payload::new(answer).read()).transpose()
    }

    /// Sends a change as a dry run. A server that does not know `dry_run` of just this operation
    /// would make the change: it is not asked. Another may have its address since then, so the
    /// path is one that such a server does not know either.
    fn try_dry<O: Operation>(&self, request: Outgoing) -> Result<Option<Vec<u8>>, Error> {
        if !self.takes_parameter::<O>("dry_run")? {
            return Ok(None);
        }
        let answer = self.send(request.tried(), None)?;
        match answer.status == StatusCode::NOT_FOUND && answer.header(TRIED_MARK).is_none() {
            true => Ok(None),
            false => answer.expect(StatusCode::OK).map(Some),
        }
    }

    /// Whether the server has the operation. PVC 1.0.3 does not say, and has none that is new.
    pub fn serves<O: Operation>(&self, _: O) -> Result<bool, Error> {
        Ok(self.described::<O>()?.is_some())
    }

    /// Whether the server's operation has the parameter. PVC 1.0.3 does not say, and has none that
    /// is new.
    pub fn takes<O: Operation>(&self, _: O, parameter: &str) -> Result<bool, Error> {
        self.takes_parameter::<O>(parameter)
    }

    fn takes_parameter<O: Operation>(&self, parameter: &str) -> Result<bool, Error> {
        Ok(self.described::<O>()?.is_some_and(|described| has_parameter(&described, parameter)))
    }

    /// The operation as the server's document describes it; `None` if it has none, or there is no
    /// such document.
    fn described<O: Operation>(&self) -> Result<Option<Value>, Error> {
        let document = self.get::<Value>("/openapi.json", WORK).and_then(|found| found.value());
        let document = match document {
            Err(error)
                if matches!(error.kind(), crate::Kind::NotFound | crate::Kind::BadAnswer) =>
            {
                return Ok(None);
            }
            document => document?,
        };
        let method = O::METHOD.as_str().to_ascii_lowercase();
        let described = &document["paths"][format!("{ROOT}{}", O::PATH)][method];
        Ok((!described.is_null()).then(|| described.clone()))
    }

    /// Reads what is at `path`. All tries together have the time that one answer may take.
    pub(crate) fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        body: Duration,
    ) -> Result<Payload<T>, Error> {
        let uri = format!("{}{path}", self.options.base);
        let begun = Instant::now();
        let left = || self.time_limit().saturating_sub(begun.elapsed());
        let (mut attempt, mut failed) = (1, None);
        loop {
            let limits = Limits { first: left(), body: body.min(WORK), late: Late::Unread };
            let again = attempt < self.attempts && PAUSE * attempt < left();
            match self.exchange(Method::Get, &uri, None, limits) {
                Ok(answer) if answer.is_passing() && again => failed = Some(answer),
                Err(error) if error.may_pass() && again => {}
                Ok(answer) => {
                    let served_at = answer.date();
                    let payload = Payload::new(answer.expect(StatusCode::OK)?);
                    return Ok(payload.dated(served_at));
                }
                Err(error) => {
                    // An answer says more than the silence in what it has left of the time.
                    let said = failed.filter(|_| matches!(error, Error::Silent { .. }));
                    return Err(said.map_or(error, Answer::refusal));
                }
            }
            std::thread::sleep(PAUSE * attempt);
            attempt += 1;
        }
    }

    /// An answer that goes on for as long as the server likes, in which something comes every so
    /// often.
    pub(crate) fn stream<O, const N: usize>(
        &self,
        _: O,
        at: [&str; N],
        params: &O::Params,
    ) -> Result<impl Read + use<O, N>, Error>
    where
        O: Operation<At = [String; N]>,
    {
        let uri = format!("{}{}", self.options.base, request::<O, N>(at, params).path);
        let limits = Limits { first: self.time_limit(), body: WORK, late: Late::Unread };
        let response = self.ask(Method::Get, &uri, None, limits)?;
        if response.status() == StatusCode::OK {
            return Ok(response.into_body().into_reader());
        }
        match Answer::read(response) {
            Ok(answer) => Err(answer.refusal()),
            Err(source) => Err(self.broken(source)),
        }
    }

    /// The failure that the end of a stream in its midst is.
    pub(crate) fn broken(&self, source: io::Error) -> Error {
        Error::Lost { base: self.options.base.clone(), source: source.into(), changing: false }
    }

    /// Time that a read may take.
    fn time_limit(&self) -> Duration {
        self.options.timeout.unwrap_or(READ)
    }

    /// Reads something once and tells the bare status, whatever it is.
    pub(crate) fn probe<O: Operation<At = [String; 0]>>(
        &self,
        params: &O::Params,
    ) -> Result<(u16, Value), Error> {
        let uri = format!("{}{}", self.options.base, request::<O, 0>([], params).path);
        let limits =
            Limits { first: self.time_limit(), body: self.time_limit(), late: Late::Unread };
        let answer = self.exchange(Method::Get, &uri, None, limits)?;
        Ok((answer.status.as_u16(), answer.json().unwrap_or(Value::Null)))
    }

    fn send(&self, request: Outgoing, waiting: Option<Waiting>) -> Result<Answer, Error> {
        let uri = format!("{}{}", self.options.base, request.path);
        let (first, late) = match waiting {
            Some(Waiting::AtMost(limit)) => (limit, Late::AsAsked),
            Some(Waiting::Forever) => (WORK, Late::Unknown),
            None => (self.options.timeout.unwrap_or(WORK), Late::Unknown),
        };
        self.exchange(request.method, &uri, request.form, Limits { first, body: WORK, late })
    }

    /// Sends one request and reads one answer.
    fn exchange(
        &self,
        method: Method,
        uri: &str,
        form: Option<String>,
        limits: Limits,
    ) -> Result<Answer, Error> {
        let name = method.as_str();
        let outcome = self.run(method, uri, form, limits);
        if let Some(observe) = self.options.observer {
            let (status, headers) = match &outcome {
                Ok(answer) => (Some(answer.status.as_u16()), answer.headers.clone()),
                Err(_) => (None, Vec::new()),
            };
            observe(&Exchange { method: name, uri, status, headers });
        }
        outcome
    }

    fn run(
        &self,
        method: Method,
        uri: &str,
        form: Option<String>,
        limits: Limits,
    ) -> Result<Answer, Error> {
        let response = self.ask(method, uri, form, limits)?;
        Answer::read(response).map_err(|source| Error::Lost {
            base: self.options.base.clone(),
            source: source.into(),
            changing: limits.late != Late::Unread,
        })
    }

    /// Sends one request and reads the beginning of its answer.
    fn ask(
        &self,
        method: Method,
        uri: &str,
        form: Option<String>,
        limits: Limits,
    ) -> Result<Response<Body>, Error> {
        let request = self.asked(method, uri)?;
        let response = match form {
            Some(form) => request
                .header("Content-Type", "application/x-www-form-urlencoded")
                .body(form)
                .map_err(ureq::Error::from)
                .and_then(|request| self.go(request, limits)),
            None => request
                .body(())
                .map_err(ureq::Error::from)
                .and_then(|request| self.go(request, limits)),
        };
        let response = response.map_err(|error| self.failed(error, limits))?;
        self.note_stale(&response);
        Ok(response)
    }

    /// A request with the key, if the server may be asked.
    pub(crate) fn asked(&self, method: Method, uri: &str) -> Result<Builder, Error> {
        if let Some(gate) = &self.options.gate {
            gate().map_err(|source| Error::Unreachable {
                base: self.options.base.clone(),
                advice: self.options.advice.clone(),
                source: source.into(),
            })?;
        }
        let asked = Request::builder().method(method.as_str()).uri(uri);
        Ok(match &self.options.api_key {
            Some(key) => {
                let value = HeaderValue::from_str(key).map_err(|_| unsendable_key())?;
                asked.header("X-Api-Key", value)
            }
            None => asked,
        })
    }

    /// Tells the caller, once, of an answer that is marked as stale. What failed says why itself.
    fn note_stale(&self, response: &Response<Body>) {
        let Some(report) = self.options.stale else { return };
        let headers = response.headers();
        if response.status().is_server_error()
            || !headers.contains_key(STALE)
            || self.said_stale.swap(true, Ordering::Relaxed)
        {
            return;
        }
        let age: Option<u64> = headers.get(AGE).and_then(|age| age.to_str().ok()?.parse().ok());
        report(age.map(Duration::from_secs));
    }

    fn go<B: ureq::AsSendBody>(
        &self,
        request: Request<B>,
        limits: Limits,
    ) -> Result<Response<Body>, ureq::Error> {
        let configured = self.agent.configure_request(request);
        // A connection is never given more time than the whole answer.
        let configured = configured
            .timeout_connect(Some(CONNECT.min(limits.first)))
            .timeout_recv_response(Some(limits.first))
            .timeout_recv_body(Some(limits.body));
        self.agent.run(configured.build())
    }

    pub(crate) fn failed(&self, error: ureq::Error, limits: Limits) -> Error {
        let base = self.options.base.clone();
        let after = limits.first;
        let is_silent = matches!(
            error,
            ureq::Error::Timeout(ureq::Timeout::RecvResponse | ureq::Timeout::PerRead)
        );
        if is_silent {
            match limits.late {
                Late::AsAsked => return Error::TimedOut { after },
                // What is left after failed tries says nothing to anybody.
                Late::Unread => {
                    return Error::Silent { base, after: self.time_limit().max(after) };
                }
                Late::Unknown => {}
            }
        }
        if tls::is_plain_answer(&error) {
            return Error::Protocol {
                base,
                spoken: "plain HTTP",
                used: "TLS",
                advice: "`--no-ssl`",
            };
        }
        let sent = was_sent(&error);
        if sent && !is_timeout(&error) && tls::is_spoken_at(&base) {
            return Error::Protocol { base, spoken: "TLS", used: "plain HTTP", advice: "`--ssl`" };
        }
        let (advice, changing) = (self.options.advice.clone(), limits.late != Late::Unread);
        match sent {
            true => Error::Lost { base, source: cause(error), changing },
            false => Error::Unreachable { base, advice, source: cause(error) },
        }
    }
}

fn unsendable_key() -> Error {
    Error::Unauthorised {
        message: "the API key holds a character that cannot be sent, such as a line break"
            .to_owned(),
        hint: Some(
            "look at `PVC_API_KEY`, or at the stored key with `pvc connection list --show-keys`"
                .to_owned(),
        ),
    }
}

fn is_timeout(error: &ureq::Error) -> bool {
    matches!(error, ureq::Error::Timeout(_))
}

/// An error of the system is told in its own words, without those of the library around it.
fn cause(error: ureq::Error) -> Box<dyn std::error::Error + Send + Sync> {
    match error {
        ureq::Error::Io(error) => error.into(),
        ureq::Error::Timeout(ureq::Timeout::PerWrite) => "nothing more was taken".into(),
        ureq::Error::Timeout(_) => "no answer in time".into(),
        error => error.into(),
    }
}

/// Whether the request had left when this happened, so that it may have had its effect.
fn was_sent(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::Timeout(
            ureq::Timeout::RecvResponse
            | ureq::Timeout::RecvBody
            | ureq::Timeout::PerRead
            | ureq::Timeout::PerWrite,
        ) => true,
        ureq::Error::Protocol(_) => true,
        ureq::Error::Io(error) => matches!(
            error.kind(),
            io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::BrokenPipe
        ),
        _ => false,
    }
}

fn is_loopback(base: &str) -> bool {
    let host = base.split_once("://").map_or(base, |(_, rest)| rest);
    host.starts_with("127.") || host.starts_with("localhost") || host.starts_with("[::1]")
}

fn hurry(config: ureq::config::Config, within: Duration) -> ureq::config::Config {
    Agent::config_builder()
        .timeout_global(Some(within))
        .http_status_as_error(false)
        .max_redirects(config.max_redirects())
        .max_redirects_will_error(config.max_redirects_will_error())
        .user_agent(config.user_agent().clone())
        .tls_config(config.tls_config().clone())
        .proxy(config.proxy().cloned())
        .build()
}

/// Whether an operation has the parameter, as the server's document describes it.
fn has_parameter(operation: &Value, name: &str) -> bool {
    operation["parameters"]
        .as_array()
        .is_some_and(|all| all.iter().any(|parameter| parameter["name"] == name))
}

/// Outcome of an ask for a task.
#[derive(Debug, Clone, PartialEq)]
pub enum Submitted {
    Task(TaskRef),
    /// Sentence of the server after a dry run.
    WouldBe(String),
}

/// A request as it goes out.
pub(crate) struct Outgoing {
    method: Method,
    /// Below the base, with the query.
    pub path: String,
    form: Option<String>,
}

impl Outgoing {
    /// The same as a dry run.
    fn tried(self) -> Self {
        let mark = if self.path.contains('?') { '&' } else { '?' };
        Self { path: format!("{TRIED}{}{mark}dry_run=True", self.path), ..self }
    }
}

pub(crate) fn request<O, const N: usize>(at: [&str; N], params: &O::Params) -> Outgoing
where
    O: Operation<At = [String; N]>,
{
    let written = params.write();
    let mut path = operation::path::<O>(&at.map(str::to_owned), escape);
    if !written.query.is_empty() {
        path = format!("{path}?{}", encoded(&written.query));
    }
    let form = O::Params::form().map(|_| encoded(&written.form));
    Outgoing { method: O::METHOD, path, form }
}

/// Answer, read to its end.
pub(crate) struct Answer {
    status: StatusCode,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Answer {
    pub fn read(mut response: Response<Body>) -> Result<Self, io::Error> {
        let headers = response
            .headers()
            .iter()
            .map(|(name, value)| {
                (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())
            })
            .collect();
        let announced = response.body().content_length().unwrap_or(0).min(LARGEST_BODY);
        let mut body = Vec::with_capacity(usize::try_from(announced).unwrap_or(0));
        response.body_mut().as_reader().take(LARGEST_BODY).read_to_end(&mut body)?;
        Ok(Self { status: response.status(), headers, body })
    }

    /// Whether a second try may help: what a server says while it moves, restarts or is busy.
    fn is_passing(&self) -> bool {
        matches!(self.status.as_u16(), 429 | 500 | 502 | 503 | 504)
    }

    fn header(&self, wanted: &str) -> Option<&str> {
        let is_it = |(name, _): &&(String, String)| name.eq_ignore_ascii_case(wanted);
        self.headers.iter().find(is_it).map(|(_, value)| value.as_str())
    }

    /// The moment that the server says it is.
    fn date(&self) -> Option<u64> {
        let at = DateTimeParser::new().parse_timestamp(self.header("date")?).ok()?;
        u64::try_from(at.as_second()).ok()
    }

    fn json(&self) -> Result<Value, serde_json::Error> {
        serde_json::from_slice(&self.body)
    }

    /// The body if the status is the hoped-for one, else why not.
    pub fn expect(self, wanted: StatusCode) -> Result<Vec<u8>, Error> {
        if self.status == wanted { Ok(self.body) } else { Err(self.refusal()) }
    }

    pub fn refusal(self) -> Error {
        let status = self.status.as_u16();
        let Ok(body) = self.json() else {
            let what = match page::title(&self.body) {
                Some(title) => format!("is a web page{title} with status {status}, not JSON"),
                None => format!("is no JSON and has status {status}"),
            };
            return Error::BadAnswer { what, source: None };
        };
        let hint = body.get("hint").and_then(Value::as_str).map(str::to_owned);
        let message = complaint(&body).unwrap_or_else(|| self.reason());
        match status {
            401 | 403 => Error::Unauthorised { message, hint },
            404 => Error::NotFound { message, hint },
            400..=499 => Error::Refused { status, message, hint },
            501 => Error::NotYet { message, hint },
            500..=599 => Error::Server { status, message, hint },
            _ => Error::BadAnswer {
                what: format!("has the unexpected status {status}"),
                source: None,
            },
        }
    }

    fn reason(&self) -> String {
        self.status.canonical_reason().unwrap_or("no reason given").to_lowercase()
    }
}

/// Complaint of the server. PVC 1.0.3 puts parameter errors into an object.
fn complaint(body: &Value) -> Option<String> {
    match body.get("message")? {
        Value::String(message) => Some(message.clone()),
        Value::Object(errors) => {
            let sentence = |(name, text): (&String, &Value)| {
                format!("{name}: {}", text.as_str().unwrap_or_default())
            };
            let errors: Vec<String> = errors.iter().map(sentence).collect();
            Some(errors.join("; "))
        }
        _ => None,
    }
}
