//! One call with its message: what it says besides its request, and how it is answered.

use super::MESSAGE_BYTES_MAX;
use super::door::{Sent, Visit};
use crate::driver::{Engine, apart};
use crate::memory::Held;
use crate::reply::Timings;
use crate::request::{CallOptions, Origin, WriteOptions};
use crate::server::decode::values::{CallFields, invalid};
use crate::server::http::{Surface, stages};
use crate::server::json::{Refusal, Room};
use hopbine_proto::call::Wait;
use hopbine_proto::convert::v1;
use hopbine_proto::graph::IdKind;
use hopbine_proto::limits::{TIMEOUT_DEFAULT, TIMEOUT_MAX};
use hopbine_proto::status::{Code, Problem};
use prost::Message;
use std::sync::Arc;
use std::time::Duration;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

/// How many times its bytes a message takes while it is answered: as it was read, and as what the
/// engine makes of it. Rows of facts and keys are counted one by one besides.
const MESSAGE_COPIES: usize = 3;

/// A consistency token, and where it was given.
pub type Token = (Option<String>, Origin);

/// A call that has its place and its message.
pub struct Call {
    /// Everything that calls share.
    pub surface: Arc<Surface>,
    /// Its way through.
    pub visit: Visit,
    metadata: MetadataMap,
    /// Of its message.
    bytes: usize,
}

/// What a call answers.
#[derive(Debug)]
pub struct Answer<T> {
    /// The reply.
    pub message: T,
    /// Consistency token, as metadata too.
    pub token: Option<String>,
    /// Stages for `server-timing`.
    pub timings: Option<Timings>,
    /// Its bytes among those of all replies.
    pub held: Option<Held>,
}

impl<T> Answer<T> {
    /// A small reply.
    pub fn of(message: T) -> Self {
        Self { message, token: None, timings: None, held: None }
    }

    /// The same with a token.
    pub fn with_token(message: T, token: String) -> Self {
        Self { token: Some(token), ..Self::of(message) }
    }
}

impl Call {
    /// Takes a place for the call of `request`, and what it takes among all requests.
    pub fn begin<T: Message>(
        surface: &Arc<Surface>,
        request: Request<T>,
    ) -> Result<(Self, T, Room), Status> {
        let (mut call, message) = Self::open(surface, request)?;
        call.bytes = message.encoded_len();
        let ready = call.visit.enter().and_then(|()| call.room(call.bytes));
        match ready {
            Ok(room) => Ok((call, message, room)),
            Err(problem) => Err(call.visit.refused(&problem, None)),
        }
    }

    /// The same without a place yet, for a call that is made of many requests.
    pub fn open<T>(surface: &Arc<Surface>, request: Request<T>) -> Result<(Self, T), Status> {
        let (metadata, extensions, message) = request.into_parts();
        let visit = extensions.get::<Visit>().cloned();
        let visit = visit.ok_or_else(|| Status::internal("the call did not pass the door"))?;
        Ok((Self { surface: surface.clone(), visit, metadata, bytes: 0 }, message))
    }

    /// What a message of `bytes` takes among all requests.
    pub fn room(&self, bytes: usize) -> Result<Room, Problem> {
        let mut room = Room::new(self.surface.memory.hold());
        room.take(bytes.saturating_mul(MESSAGE_COPIES))?;
        Ok(room)
    }

    /// Who answers.
    pub fn engine(&self) -> &Engine {
        &self.surface.engine
    }

    /// How a graph writes its ids.
    pub fn ids(&self, graph: &str) -> Result<IdKind, Problem> {
        Ok(self.engine().graph(graph)?.config.ids)
    }

    /// The text of a piece of metadata; `invalid_request` when it is not visible ASCII.
    fn metadata(&self, name: &str) -> Result<Option<String>, Problem> {
        let Some(value) = self.metadata.get(name) else { return Ok(None) };
        match value.to_str() {
            Ok(text) => Ok(Some(text.to_owned())),
            Err(_) => {
                let detail = format!("the metadata {name} holds more than visible ASCII");
                Err(Problem::new(Code::InvalidRequest, detail))
            }
        }
    }

    /// The time that a call has: what its options say, and its own deadline.
    fn timeout(&self, given: Option<u64>, default: Duration) -> Result<Duration, Problem> {
        let own = self.metadata("grpc-timeout")?.as_deref().and_then(parse_timeout);
        // Zero and too long are refused where they were written; a deadline is what it is.
        let own = own.map(|own| own.clamp(Duration::from_millis(1), TIMEOUT_MAX));
        let given = given.map(Duration::from_millis);
        Ok(match (given, own) {
            (Some(given), Some(own)) if !given.is_zero() => given.min(own),
            (Some(given), _) => given,
            (None, own) => own.unwrap_or(default),
        })
    }

    /// Options of a read, in the form that requests of a batch share.
    pub fn fields(&self, options: Option<&v1::ReadOptions>) -> Result<CallFields, Problem> {
        let given = options.cloned().unwrap_or_default();
        let consistency = match given.consistency {
            0 => None,
            1 => Some("strong"),
            2 => Some("bounded"),
            3 => Some("eventual"),
            other => return Err(unknown_word("consistency", other).into()),
        };
        Ok(CallFields {
            consistency,
            max_staleness: given.max_staleness_ms.map(Duration::from_millis),
            timeout: given.timeout_ms.map(Duration::from_millis),
            allow_partial: given.allow_partial.then_some(true),
            explain: None,
        })
    }

    /// The token that a read brings along.
    pub fn token(&self, options: Option<&v1::ReadOptions>) -> Result<Token, Problem> {
        match options.and_then(|options| options.consistency_token.clone()) {
            Some(token) if !token.is_empty() => Ok((Some(token), Origin::Body)),
            _ => {
                let given = self.metadata("consistency-token")?;
                Ok((given, Origin::Beside("metadata consistency-token")))
            }
        }
    }

    /// Options of a read.
    pub fn options(&self, given: Option<v1::ReadOptions>) -> Result<CallOptions, Problem> {
        let fields = self.fields(given.as_ref())?;
        let (token, token_in) = self.token(given.as_ref())?;
        let mut options = CallOptions { token_in, ..fields.options(token)? };
        let given = given.and_then(|given| given.timeout_ms);
        options.timeout = self.timeout(given, TIMEOUT_DEFAULT)?;
        options.request_id = Some(self.visit.request_id().into());
        options.request_bytes = self.bytes;
        Ok(options)
    }

    /// Options of a write, and whether its reply names versions.
    pub fn write_options(
        &self,
        given: Option<v1::WriteOptions>,
    ) -> Result<(WriteOptions, bool), Problem> {
        let given = given.unwrap_or_default();
        let (idempotency_key, key_in) = match given.idempotency_key {
            Some(key) => (Some(key), Origin::Body),
            None => {
                let key = self.metadata("idempotency-key")?;
                (key, Origin::Beside("metadata idempotency-key"))
            }
        };
        let timeout = self.timeout(given.timeout_ms, WriteOptions::default().timeout)?;
        let wait = wait(given.wait)?;
        Ok((WriteOptions { wait, timeout, idempotency_key, key_in }, given.version))
    }

    /// The reply that `write` makes of about `bytes`; `memory_limit` when there is no room for it
    /// beside what it is made of.
    pub async fn written<T: Message + 'static>(
        &self,
        bytes: usize,
        write: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Answer<T>, Problem> {
        let mut held = self.engine().reply_memory().hold();
        held.grow(bytes)?;
        let (answer, bytes) = shaped(bytes, held, write).await;
        self.fits(bytes)?;
        Ok(answer)
    }

    /// The same for what has happened already and must be told.
    pub async fn written_at_any_rate<T: Message + 'static>(
        &self,
        bytes: usize,
        write: impl FnOnce() -> T + Send + 'static,
    ) -> Answer<T> {
        let mut held = self.engine().reply_memory().hold();
        held.settle(bytes);
        shaped(bytes, held, write).await.0
    }

    /// `payload_too_large` for a reply that the client would not take.
    fn fits(&self, bytes: usize) -> Result<(), Problem> {
        let name = "hopbine-max-reply-bytes";
        let most = match self.metadata(name)? {
            None => MESSAGE_BYTES_MAX,
            Some(text) => text.parse().map_err(|_| {
                let detail = format!("the metadata {name} is no number of bytes: {text:?}");
                Problem::new(Code::InvalidRequest, detail)
            })?,
        };
        if bytes <= most {
            return Ok(());
        }
        let detail = format!("the reply takes {bytes} bytes, a message has at most {most}");
        Err(Problem::new(Code::PayloadTooLarge, detail).hint(format!(
            "ask for fewer results or parts, or let the client take more and say so in the \
             metadata {name}"
        )))
    }

    /// The response of a call.
    pub fn respond<T>(&self, outcome: Result<Answer<T>, Problem>) -> Result<Response<T>, Status> {
        let answer = outcome.map_err(|problem| self.visit.refused(&problem, None))?;
        let mut response = Response::new(answer.message);
        if let Some(held) = answer.held {
            response.extensions_mut().insert(Sent(Arc::new(held)));
        }
        let metadata = response.metadata_mut();
        if let Some(Ok(token)) = answer.token.map(|token| token.parse()) {
            metadata.insert("consistency-token", token);
        }
        if let Some(Ok(text)) = answer.timings.map(|timings| stages(&timings).parse()) {
            metadata.insert("server-timing", text);
        }
        Ok(response)
    }
}

/// What `write` makes, and its bytes as a message.
async fn shaped<T: Message + 'static>(
    bytes: usize,
    mut held: Held,
    write: impl FnOnce() -> T + Send + 'static,
) -> (Answer<T>, usize) {
    apart(bytes, move || {
        let message = write();
        let bytes = message.encoded_len();
        // As it stands here, and as it is sent.
        held.settle(2 * bytes);
        (Answer { held: Some(held), ..Answer::of(message) }, bytes)
    })
    .await
}

/// What a write waits for.
pub fn wait(given: i32) -> Result<Wait, Problem> {
    match given {
        0 | 1 => Ok(Wait::Committed),
        2 => Ok(Wait::Applied),
        3 => Ok(Wait::Indexed),
        other => Err(unknown_word("wait", other).into()),
    }
}

/// A number that stands for no word of the field's enumeration.
pub fn unknown_word(field: &str, number: i32) -> Refusal {
    invalid(format!("{number} is no value of {field}")).within(field)
}

/// A `grpc-timeout`: up to eight digits and a unit.
fn parse_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3_600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_read_as_the_protocol_writes_them() {
        for (text, time) in [
            ("1H", Duration::from_secs(3_600)),
            ("2M", Duration::from_secs(120)),
            ("3S", Duration::from_secs(3)),
            ("99999999m", Duration::from_millis(99_999_999)),
            ("5u", Duration::from_micros(5)),
            ("6n", Duration::from_nanos(6)),
        ] {
            assert_eq!(parse_timeout(text), Some(time), "{text}");
        }
        for text in ["", "S", "1", "1s", "-1S", "999999999S", "1.5S", "1\u{20ac}"] {
            assert_eq!(parse_timeout(text), None, "{text}");
        }
    }

    #[test]
    fn waits_have_names_and_no_others() {
        assert_eq!(wait(0), Ok(Wait::Committed));
        assert_eq!(wait(3), Ok(Wait::Indexed));
        let problem = wait(9).expect_err("no wait");
        assert_eq!(problem.code, Code::InvalidRequest);
        assert_eq!(problem.errors[0].pointer, "/wait");
    }
}
