//! Request bodies: media types, size, and the time that a client may take to send one.

use super::gate::Pass;
use super::problem::Refused;
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::{Bytes, BytesMut};
use hopbine_proto::status::{Code, Problem};
use http_body_util::BodyExt;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Bodies that are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    /// One JSON value.
    Json,
    /// One JSON object a line.
    Lines,
}

/// How often a wait for a body looks whether the server is on its way out, and how long a body that
/// does not come holds it up.
const LEAVING_LOOK: Duration = Duration::from_millis(200);
const LEAVING_PATIENCE: Duration = Duration::from_secs(2);

/// Names of [`Media::Lines`]; none of them is registered, all are in use.
const LINES: [&str; 4] =
    ["application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines"];

/// The media type of a body; JSON when the header is missing. `lines`: whether NDJSON is taken.
pub fn media(headers: &HeaderMap, lines: bool) -> Result<Media, Refused> {
    let supported =
        if lines { "application/json and application/x-ndjson" } else { "application/json" };
    let unsupported = |detail: String| {
        let problem = Problem::new(Code::InvalidRequest, detail)
            .hint(format!("supported here: {supported}, UTF-8, without Content-Encoding"));
        Refused::with_status(problem, StatusCode::UNSUPPORTED_MEDIA_TYPE)
    };
    if let Some(coding) = headers.get(header::CONTENT_ENCODING)
        && coding != "identity"
    {
        return Err(unsupported("encoded bodies are not supported".into()));
    }
    let Some(value) = headers.get(header::CONTENT_TYPE) else {
        return Ok(Media::Json);
    };
    let text = value.to_str().unwrap_or("?").to_ascii_lowercase();
    let mut parts = text.split(';').map(str::trim);
    let kind = parts.next().unwrap_or_default();
    if let Some(charset) = parts.find_map(|part| part.strip_prefix("charset="))
        && charset.trim_matches('"') != "utf-8"
    {
        return Err(unsupported(format!("charset {charset} is not supported")));
    }
    match kind {
        "application/json" => Ok(Media::Json),
        kind if lines && LINES.contains(&kind) => Ok(Media::Lines),
        kind => Err(unsupported(format!("Content-Type {kind:?} is not supported"))),
    }
}

/// The whole body: at most `most` bytes, all of it within `wait` from now. A body that comes in
/// one piece is not copied.
pub async fn collect(
    headers: &HeaderMap,
    mut body: Body,
    most: usize,
    wait: Duration,
    pass: &mut Pass,
) -> Result<Bytes, Problem> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let announced: Option<usize> = announced.and_then(|text| text.parse().ok());
    if announced.is_some_and(|bytes| bytes > most) {
        return Err(too_large(most));
    }
    let (deadline, mut leaving) = (Instant::now() + wait, None);
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    loop {
        let look = deadline.min(Instant::now() + LEAVING_LOOK);
        let frame = match timeout_at(look, body.frame()).await {
            Err(_) if Instant::now() < deadline => {
                let since = *leaving.get_or_insert(Instant::now());
                if !pass.is_last() {
                    leaving = None;
                } else if since.elapsed() > LEAVING_PATIENCE {
                    let detail = "the server is on its way out and the body has not arrived";
                    return Err(Problem::new(Code::ShuttingDown, detail).retry_after_ms(1_000));
                }
                continue;
            }
            Err(_) => {
                let detail = format!("the body did not arrive within {} ms", wait.as_millis());
                return Err(Problem::new(Code::DeadlineExceeded, detail));
            }
            Ok(None) => break,
            Ok(Some(Err(_))) => {
                return Err(Problem::new(Code::InvalidRequest, "the body broke off"));
            }
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else { continue };
        pass.hold(data.len())?;
        if first.len() + rest.len() + data.len() > most {
            return Err(too_large(most));
        }
        if first.is_empty() && rest.is_empty() {
            first = data;
            continue;
        }
        if rest.is_empty() {
            // What is announced may never come: memory follows what is here.
            let room = 2 * (first.len() + data.len());
            rest = BytesMut::with_capacity(announced.map_or(room, |bytes| bytes.min(room)));
            rest.extend_from_slice(&first);
            first = Bytes::new();
        }
        rest.extend_from_slice(&data);
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

fn too_large(most: usize) -> Problem {
    Problem::new(Code::PayloadTooLarge, format!("the body is larger than {most} bytes"))
        .hint("send it in smaller batches")
}
