//! How a verb reaches the engine: the same HTTP request either over a socket or, with a data
//! folder, handed to the same router in this process. So both give the same replies and errors.

use crate::embedded::Embedded;
use crate::failure::{Failure, Refusal};
use crate::patience::{ANSWER, CHANGE, Patience, Timeout};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Method, Request, Uri, header};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use std::error::Error;

/// One request.
#[derive(Clone, Debug)]
pub struct Call {
    /// HTTP method.
    pub method: Method,
    /// Path and query, from `/`.
    pub path: String,
    /// `Content-Type`, when there is a body.
    pub content_type: &'static str,
    /// Further headers.
    pub headers: Vec<(&'static str, String)>,
    /// The body; empty for none.
    pub body: Bytes,
    /// Whether it is to change something.
    pub changes: bool,
    /// How long its answer is waited for.
    pub patience: Patience,
}

/// Where requests go, and how long each may take.
pub struct Transport {
    way: Way,
    timeout: Option<Timeout>,
}

enum Way {
    Remote(Box<Remote>),
    Embedded(Embedded),
}

/// A server by its URL.
struct Remote {
    url: String,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// The media type of a batch of facts, one a line.
pub const NDJSON: &str = "application/x-ndjson";
const JSON: &str = "application/json";

impl Call {
    /// A request without body. Any method but GET changes something.
    pub fn bare(method: Method, path: String) -> Self {
        let changes = method != Method::GET;
        let patience = Patience::Usual(if changes { CHANGE } else { ANSWER });
        let (headers, body) = (Vec::new(), Bytes::new());
        Self { method, path, content_type: JSON, headers, body, changes, patience }
    }

    /// A request with a JSON body.
    pub fn json(method: Method, path: String, body: &serde_json::Value) -> Self {
        Self { body: Bytes::from(body.to_string()), ..Self::bare(method, path) }
    }

    /// A question with a JSON body.
    pub fn question(path: String, body: &serde_json::Value) -> Self {
        let patience = Patience::Usual(ANSWER);
        Self { changes: false, patience, ..Self::json(Method::POST, path, body) }
    }
}

/// `/v1/graphs/{graph}` and what follows, with the graph's name escaped.
pub fn graph_path(graph: &str, rest: &str) -> String {
    format!("/v1/graphs/{}{rest}", escape(graph))
}

/// `text` as one segment of a path or one value of a query string.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

impl Transport {
    /// A server at `url`, `http://HOST:PORT`. Nothing is sent yet.
    pub fn remote(url: &str, timeout: Option<Timeout>) -> Result<Self, Failure> {
        Ok(Self { way: Way::Remote(Box::new(Remote::new(url)?)), timeout })
    }

    /// Whether it leads to a data folder that is still to be made.
    pub fn is_new(&self) -> bool {
        matches!(&self.way, Way::Embedded(embedded) if !embedded.is_open())
    }

    /// Makes the data folder, if that was put off.
    pub async fn found(&self) -> Result<(), Failure> {
        match &self.way {
            Way::Remote(_) => Ok(()),
            Way::Embedded(embedded) => embedded.found().await,
        }
    }

    /// The engine in this process.
    pub fn embedded(engine: Embedded, timeout: Option<Timeout>) -> Self {
        Self { way: Way::Embedded(engine), timeout }
    }

    /// `timeout` of every request, when set.
    pub fn timeout(&self) -> Option<Timeout> {
        self.timeout
    }

    /// Sends `call` and returns the whole body of a good answer. Fails with `Refused` when the
    /// status is not 200 to 299, with `Late` when the answer is not whole in time.
    pub async fn send(&self, call: Call) -> Result<Bytes, Failure> {
        Ok(self.exchange(call).await?.1)
    }

    /// The same with the headers of the answer.
    pub async fn exchange(&self, call: Call) -> Result<(HeaderMap, Bytes), Failure> {
        let (waited, changes) = (call.patience.bound(self.timeout), call.changes);
        let answer = tokio::time::timeout(waited, self.answer(call)).await;
        let late = |_| Failure::Late { place: self.place(), waited, changes };
        let (status, headers, body) = answer.map_err(late)??;
        if (200..300).contains(&status) {
            return Ok((headers, body));
        }
        match serde_json::from_slice::<Refusal>(&body) {
            Ok(refusal) if !refusal.code.is_empty() => Err(Failure::Refused(Box::new(refusal))),
            _ => {
                let text = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
                Err(Failure::Failed(format!("HTTP status {status}, which is no answer: {text}")))
            }
        }
    }

    async fn answer(&self, call: Call) -> Result<(u16, HeaderMap, Bytes), Failure> {
        match &self.way {
            Way::Remote(remote) => remote.send(call).await,
            Way::Embedded(embedded) => embedded.send(request("", call)?).await,
        }
    }

    fn place(&self) -> String {
        match &self.way {
            Way::Remote(remote) => remote.url.clone(),
            Way::Embedded(_) => "the engine in this process".to_owned(),
        }
    }

    /// Ends the engine in order, when it is in this process.
    pub async fn close(self) -> Result<(), Failure> {
        match self.way {
            Way::Remote(_) => Ok(()),
            Way::Embedded(embedded) => embedded.close().await,
        }
    }
}

/// `url` without its last slash. Fails unless it is `http://HOST:PORT`, perhaps with a path;
/// `HOST:PORT` alone is taken for that.
pub fn checked_url(given: &str) -> Result<String, Failure> {
    let url = if is_host_and_port(given) { format!("http://{given}") } else { given.to_owned() };
    let parsed: Option<Uri> = url.parse().ok();
    let plain = |uri: &Uri| {
        let Some(authority) = uri.authority() else { return false };
        // What follows the host is a port or nothing: without one that can be read, 80 would do.
        let port = authority.as_str().strip_prefix(authority.host());
        let port = port.map(|rest| rest.is_empty() || authority.port_u16().is_some());
        uri.scheme_str() == Some("http")
            && !authority.host().is_empty()
            && port == Some(true)
            && !url.contains(['?', '#'])
    };
    if !parsed.as_ref().is_some_and(plain) {
        let text = format!("url {given:?} must be http://HOST:PORT, as in http://127.0.0.1:7640");
        return Err(Failure::Usage(text));
    }
    Ok(url.trim_end_matches('/').to_owned())
}

/// Whether `text` begins with a host and the number of a port, without a scheme.
fn is_host_and_port(text: &str) -> bool {
    let authority = text.split('/').next().unwrap_or_default();
    let parts = authority.rsplit_once(':');
    parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

impl Remote {
    fn new(url: &str) -> Result<Self, Failure> {
        let client = Client::builder(TokioExecutor::new()).build_http();
        Ok(Self { url: checked_url(url)?, client })
    }

    async fn send(&self, call: Call) -> Result<(u16, HeaderMap, Bytes), Failure> {
        let (url, changes) = (|| self.url.clone(), call.changes);
        let lost = |error: &dyn Error| {
            let reason = innermost(error).to_string();
            Failure::Lost { url: url(), reason, changes }
        };
        let request = request(&self.url, call)?;
        let response = self.client.request(request).await.map_err(|error| {
            if !error.is_connect() {
                return lost(&error);
            }
            Failure::Connect { url: url(), reason: innermost(&error).to_string() }
        })?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.map_err(|error| lost(&error))?.to_bytes();
        Ok((parts.status.as_u16(), parts.headers, body))
    }
}

fn request(base: &str, call: Call) -> Result<Request<Full<Bytes>>, Failure> {
    let mut builder = Request::builder().method(call.method).uri(format!("{base}{}", call.path));
    if !call.body.is_empty() {
        builder = builder.header(header::CONTENT_TYPE, call.content_type);
    }
    for (name, value) in &call.headers {
        builder = builder.header(*name, value);
    }
    builder.body(Full::new(call.body)).map_err(|error| Failure::Usage(error.to_string()))
}

/// The cause at the bottom: what the system said.
fn innermost(error: &dyn Error) -> &dyn Error {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_graph_name_is_one_segment_of_the_path() {
        assert_eq!(graph_path("a/b ?ä", "/facts"), "/v1/graphs/a%2Fb%20%3F%C3%A4/facts");
        assert_eq!(graph_path("papers-1.2_x~", ""), "/v1/graphs/papers-1.2_x~");
    }

    #[test]
    fn only_plain_http_urls_are_taken() {
        for url in ["http://localhost:7640/", "http://h", "http://[::1]:1", "http://h:1/a/b"] {
            assert_eq!(checked_url(url).expect(url), url.trim_end_matches('/'));
        }
        for url in ["localhost:7640", "127.0.0.1:1/", "[::1]:1", "h:1/a/b"] {
            let whole = format!("http://{}", url.trim_end_matches('/'));
            assert_eq!(checked_url(url).expect(url), whole);
        }
        for url in [
            "localhost",
            "https://x:1",
            "me@h:1",
            "h:1?a=b",
            ":7640",
            "https://x",
            "http://",
            "",
            "x",
            "http://:7640",
            "http://h:99999",
            "http://h:",
            "http://h:x",
            "http://me@h:1",
            "http://a b",
            "http://h:1?a=b",
            "http://h:1/#a",
        ] {
            let refused = checked_url(url).expect_err(url);
            assert_eq!(refused.exit_code(), 2, "{url}");
        }
    }

    /// Time is made to pass as soon as everything waits.
    #[tokio::test(start_paused = true)]
    async fn a_silent_server_holds_no_call_for_ever() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", silent.local_addr().expect("bound"));
        let path = || "/v1/graphs/g".to_owned();
        let own = Call { patience: Patience::Own(ANSWER), ..Call::bare(Method::PUT, path()) };
        let five = Timeout::parse("5s").ok();
        let six = Duration::from_secs(6);
        for (call, timeout, bound, changes) in [
            (Call::bare(Method::GET, path()), None, ANSWER, false),
            (Call::question(path(), &serde_json::json!({})), None, ANSWER, false),
            (Call::bare(Method::DELETE, path()), None, CHANGE, true),
            (Call::json(Method::PUT, path(), &serde_json::json!({})), None, CHANGE, true),
            (Call::json(Method::POST, path(), &serde_json::json!({})), None, CHANGE, true),
            (Call::bare(Method::GET, path()), five, six, false),
            (Call::bare(Method::PUT, path()), five, six, true),
            (own, five, ANSWER + CHANGE, true),
        ] {
            let transport = Transport::remote(&url, timeout).expect("a URL");
            let began = tokio::time::Instant::now();
            let failure = transport.send(call).await.expect_err("nobody answers");
            assert!(began.elapsed() >= bound, "{:?} {bound:?}", began.elapsed());
            match failure {
                Failure::Late { waited, changes: told, .. } => {
                    assert_eq!((waited, told), (bound, changes));
                }
                other => panic!("{other}"),
            }
        }
    }
}
