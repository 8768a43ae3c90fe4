//! How a verb reaches the engine: the same HTTP request either over a socket or, with a data
//! folder, handed to the same router in this process. So both give the same replies and errors.

use crate::embedded::Embedded;
use crate::failure::{Failure, Refusal};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Method, Request, header};
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
}

/// Where requests go.
pub enum Transport {
    /// A server.
    Remote(Box<Remote>),
    /// The engine in this process.
    Embedded(Embedded),
}

/// A server by its URL.
pub struct Remote {
    url: String,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// The media type of a batch of facts, one a line.
pub const NDJSON: &str = "application/x-ndjson";
const JSON: &str = "application/json";

impl Call {
    /// A request without body.
    pub fn bare(method: Method, path: String) -> Self {
        Self { method, path, content_type: JSON, headers: Vec::new(), body: Bytes::new() }
    }

    /// A request with a JSON body.
    pub fn json(method: Method, path: String, body: &serde_json::Value) -> Self {
        Self { body: Bytes::from(body.to_string()), ..Self::bare(method, path) }
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
    /// Sends `call` and returns the whole body of a good answer. Fails with `Refused` when the
    /// status is not 200 to 299.
    pub async fn send(&self, call: Call) -> Result<Bytes, Failure> {
        Ok(self.exchange(call).await?.1)
    }

    /// The same with the headers of the answer.
    pub async fn exchange(&self, call: Call) -> Result<(HeaderMap, Bytes), Failure> {
        let (status, headers, body) = match self {
            Self::Remote(remote) => remote.send(call).await?,
            Self::Embedded(embedded) => embedded.send(request("", call)?).await?,
        };
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

    /// Ends the engine in order, when it is in this process.
    pub async fn close(self) -> Result<(), Failure> {
        match self {
            Self::Remote(_) => Ok(()),
            Self::Embedded(embedded) => embedded.close().await,
        }
    }
}

impl Remote {
    /// A server at `url`, `http://host:port`. Nothing is sent yet.
    pub fn new(url: &str) -> Result<Self, Failure> {
        let url = url.trim_end_matches('/').to_owned();
        let rest = url.strip_prefix("http://").filter(|rest| !rest.is_empty());
        if rest.is_none() {
            return Err(Failure::Usage(format!("url {url:?} must be http://HOST:PORT")));
        }
        Ok(Self { url, client: Client::builder(TokioExecutor::new()).build_http() })
    }

    async fn send(&self, call: Call) -> Result<(u16, HeaderMap, Bytes), Failure> {
        let lost = |error: &dyn Error| Failure::Connect {
            url: self.url.clone(),
            reason: innermost(error).to_string(),
        };
        let request = request(&self.url, call)?;
        let response = self.client.request(request).await.map_err(|error| lost(&error))?;
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

    #[test]
    fn a_graph_name_is_one_segment_of_the_path() {
        assert_eq!(graph_path("a/b ?ä", "/facts"), "/v1/graphs/a%2Fb%20%3F%C3%A4/facts");
        assert_eq!(graph_path("papers-1.2_x~", ""), "/v1/graphs/papers-1.2_x~");
    }

    #[test]
    fn only_plain_http_urls_are_taken() {
        assert!(Remote::new("http://localhost:7640/").is_ok());
        for url in ["localhost:7640", "https://x", "http://", ""] {
            assert_eq!(Remote::new(url).map(|_| ()).expect_err("refused").exit_code(), 2, "{url}");
        }
    }
}
