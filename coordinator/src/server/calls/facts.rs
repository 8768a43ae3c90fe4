//! Writes and reads by key.

use super::{Call, Outcome, Reply, bad_parameter};
use crate::reply::WriteReply;
use crate::request::{Origin, WriteOptions};
use crate::server::body::{Media, media};
use crate::server::decode::facts::{self as decode, WriteFields};
use crate::server::encode::facts::{self as encode, Counts};
use hopbine_proto::call::Wait;
use hopbine_proto::status::Problem;

impl Call<'_> {
    /// Options of a write whose body gave `fields`, and whether its reply names versions.
    fn write_options(&self, fields: WriteFields) -> Result<(WriteOptions, bool), Problem> {
        let default = WriteOptions::default();
        let wait = match self.parameter("wait") {
            None | Some("committed") => Wait::Committed,
            Some("applied") => Wait::Applied,
            Some("indexed") => Wait::Indexed,
            Some(other) => {
                let detail = format!("expected committed, applied or indexed, found {other:?}");
                return Err(bad_parameter("wait", detail));
            }
        };
        let versions = match self.parameter("with") {
            None => fields.versions,
            Some("version") => true,
            Some(other) => {
                return Err(bad_parameter("with", format!("expected version, found {other:?}")));
            }
        };
        let timeout = fields.call.or(self.query_fields()?).timeout.unwrap_or(default.timeout);
        let idempotency_key = self.header("idempotency-key")?;
        let key_in = Origin::Beside("header Idempotency-Key");
        Ok((WriteOptions { wait, timeout, idempotency_key, key_in }, versions))
    }
}

/// What a write did. It is told whatever others hold, since it is done.
async fn told(call: &Call<'_>, mut reply: WriteReply, counts: Counts, versions: bool) -> Reply {
    let token = std::mem::take(&mut reply.consistency_token);
    let bytes = if versions { reply.text_bytes() } else { 0 };
    let write = move || encode::write(&reply, counts, versions);
    Reply { token: Some(token), ..call.written_at_any_rate(bytes, write).await }
}

/// `PUT .../facts`
pub async fn upsert(call: &Call<'_>) -> Outcome {
    let ids = call.ids()?;
    let (facts, fields) = match media(call.headers, true)? {
        Media::Json => call.read(decode::upsert).await?.into_inner(),
        Media::Lines => {
            let read = call.parse(move |room, body| decode::upsert_lines_within(room, body, ids));
            (read.await?.into_inner(), WriteFields::default())
        }
    };
    let (options, versions) = call.write_options(fields)?;
    let reply = call.engine.upsert(&call.graph, facts, &options).await?;
    Ok(told(call, reply, Counts::Upsert, versions).await)
}

/// `POST .../facts/write`
pub async fn write(call: &Call<'_>) -> Outcome {
    let (request, fields) = call.read(decode::write).await?.into_inner();
    let (options, versions) = call.write_options(fields)?;
    let reply = call.engine.write(&call.graph, request, &options).await?;
    Ok(told(call, reply, Counts::Write, versions).await)
}

/// `POST .../facts/delete`
pub async fn delete(call: &Call<'_>) -> Outcome {
    let body = call.read(decode::delete).await?;
    let (request, fields) = &*body;
    let (options, versions) = call.write_options(*fields)?;
    let reply = call.engine.delete(&call.graph, request, &options).await?;
    Ok(told(call, reply, Counts::Delete, versions).await)
}

/// `POST .../facts/get`
pub async fn get(call: &Call<'_>) -> Outcome {
    let body = call.read(decode::get).await?;
    let (request, fields) = &*body;
    let mut reply = call.engine.get(&call.graph, request, &call.options(*fields)?).await?;
    let token = std::mem::take(&mut reply.consistency_token);
    let written = call.written(reply.text_bytes(), move || encode::get(&reply)).await?;
    Ok(Reply { token: Some(token), ..written })
}

/// `POST .../facts/scan`
pub async fn scan(call: &Call<'_>) -> Outcome {
    let body = call.read(decode::scan).await?;
    let (request, fields) = &*body;
    let mut reply = call.engine.scan(&call.graph, request, &call.options(*fields)?).await?;
    let token = std::mem::take(&mut reply.consistency_token);
    let written = call.written(reply.text_bytes(), move || encode::scan(&reply)).await?;
    Ok(Reply { token: Some(token), ..written })
}

/// `POST .../facts/count`
pub async fn count(call: &Call<'_>) -> Outcome {
    let body = call.read(decode::count).await?;
    let (request, fields) = &*body;
    let reply = call.engine.count(&call.graph, request, &call.options(*fields)?).await?;
    Ok(Reply::with_token(encode::count(&reply), reply.consistency_token))
}
