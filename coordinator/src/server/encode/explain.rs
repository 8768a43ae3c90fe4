//! Explanations and slow queries.

use super::Json;
use crate::explain::Explanation;
use crate::slow::SlowQuery;

/// The reply of `explain`.
pub fn explanation(explanation: &Explanation) -> Json {
    let mut json = Json::default();
    json.value(explanation);
    json
}

/// The reply of `slow_queries`.
pub fn slow_queries(queries: &[SlowQuery]) -> Json {
    let mut json = Json::default();
    json.object(|json| json.field("slow_queries", queries));
    json
}
