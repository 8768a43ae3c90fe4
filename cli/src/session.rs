//! What every verb that talks to the engine holds: where requests go, how results are written.

use crate::embedded::Embedded;
use crate::failure::Failure;
use crate::output::Output;
use crate::settings::{Origin, Resolved};
use crate::transport::{Call, Transport, graph_path};
use bytes::Bytes;
use hyper::Method;
use serde_json::{Map, Value};
use std::path::Path;
use std::sync::Arc;

/// One run of a verb.
pub struct Session {
    /// Where requests go.
    pub transport: Arc<Transport>,
    /// Where results go.
    pub output: Output,
    /// `timeout` of every request, when set, as it is sent.
    pub timeout: Option<String>,
}

/// What to do about a data folder that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folder {
    /// The verb makes it with `Session::found`, once it knows that what it brings is acceptable.
    MadeWhenMissing,
    /// Refuse, as one without data: there is nothing to be read, and the name may be mistyped.
    MustExist,
}

/// Fields of a request body.
pub type Body = Map<String, Value>;

impl Session {
    /// Opens the data folder, or points to the URL, whichever was said by the stronger source.
    /// Without either, the default URL.
    pub async fn open(resolved: &Resolved, folder: Folder) -> Result<Self, Failure> {
        let settings = &resolved.settings;
        let transport = match (resolved.origin("data"), resolved.origin("url")) {
            (Origin::Flag, Origin::Flag) => {
                let text =
                    "--data opens the engine here, --url talks to a server: give one of them";
                return Err(Failure::Usage(text.to_owned()));
            }
            (data, url) if data > url || (data == url && *data != Origin::Default) => {
                let dir = &settings.data;
                if folder == Folder::MustExist {
                    must_hold_data(dir)?;
                }
                let embedded = if folder == Folder::MadeWhenMissing && is_to_be_made(dir) {
                    Embedded::put_off(dir, &settings.node)
                } else {
                    Embedded::open(dir, &settings.node).await?
                };
                Transport::embedded(embedded, settings.timeout)
            }
            _ => Transport::remote(&settings.url, settings.timeout)?,
        };
        Ok(Self {
            transport: Arc::new(transport),
            output: Output::new(settings.output),
            timeout: settings.timeout.map(|timeout| timeout.to_string()),
        })
    }

    /// Whether the data folder is still to be made, with `found`: no graph is there, and nothing
    /// can be asked.
    pub fn is_new(&self) -> bool {
        self.transport.is_new()
    }

    /// Makes the data folder, if that was put off.
    pub async fn found(&self) -> Result<(), Failure> {
        self.transport.found().await
    }

    /// Sends one request.
    pub async fn send(&self, call: Call) -> Result<Bytes, Failure> {
        self.transport.send(call).await
    }

    /// Asks with a JSON body at `/v1/graphs/{graph}{rest}`, with the `timeout` of the settings.
    pub async fn post(&self, graph: &str, rest: &str, mut body: Body) -> Result<Bytes, Failure> {
        put(&mut body, "timeout", self.timeout.clone());
        self.send(Call::question(graph_path(graph, rest), &Value::Object(body))).await
    }

    /// The same for a call that changes something.
    pub async fn change(&self, graph: &str, rest: &str, mut body: Body) -> Result<Bytes, Failure> {
        put(&mut body, "timeout", self.timeout.clone());
        self.send(Call::json(Method::POST, graph_path(graph, rest), &Value::Object(body))).await
    }

    /// `path` with the `timeout` of the settings in its query string, for calls that take it there.
    pub fn timed(&self, path: String) -> String {
        let joint = if path.contains('?') { '&' } else { '?' };
        self.timeout.as_ref().map_or(path.clone(), |time| format!("{path}{joint}timeout={time}"))
    }

    /// Sends a request without body to `/v1/graphs/{graph}{rest}`.
    pub async fn bare(&self, method: Method, graph: &str, rest: &str) -> Result<Bytes, Failure> {
        self.send(Call::bare(method, graph_path(graph, rest))).await
    }

    /// Ends an engine in this process in order.
    pub async fn close(self) -> Result<(), Failure> {
        match Arc::into_inner(self.transport) {
            Some(transport) => transport.close().await,
            None => Ok(()),
        }
    }
}

/// Refuses a folder that is not there or holds nothing yet, so that looking makes no data folder.
/// What holds something else is for the opening to refuse.
pub fn must_hold_data(dir: &Path) -> Result<(), Failure> {
    let what = if !dir.is_dir() {
        format!("there is no data folder {}", dir.display())
    } else if is_new(dir) {
        format!("there is no data in the folder {}", dir.display())
    } else {
        return Ok(());
    };
    let hint = "import and graph create make a data folder; --url asks a server";
    Err(Failure::NotFound(format!("{what}\n  hint: {hint}")))
}

/// Whether a name stands for nothing, or for a folder that holds nothing yet. What is no folder is
/// for the opening to refuse.
fn is_to_be_made(dir: &Path) -> bool {
    !dir.exists() || (dir.is_dir() && is_new(dir))
}

/// Whether a folder holds nothing, or only what a start leaves that got no further.
fn is_new(dir: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(dir) else { return false };
    let mut names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
    names.all(|name| name == "LOCK" || name == "FORMAT.tmp")
}

/// Puts `value` under `name` unless it is `None`.
pub fn put(body: &mut Body, name: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        body.insert(name.to_owned(), value.into());
    }
}

/// Puts `true` under `name` when it holds; the engine's default is false.
pub fn put_flag(body: &mut Body, name: &str, value: bool) {
    put(body, name, value.then_some(true));
}
