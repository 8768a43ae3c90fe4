//! Why a body is refused, and at which JSON pointer.
//!
//! A refusal travels outwards through the shapes it sits in, and each adds its own step, so that
//! the pointer costs nothing until something is wrong.

use hopbine_proto::status::{Code, Problem};

/// Why a body is refused, and where.
#[derive(Debug)]
pub struct Refusal(Box<Inner>);

#[derive(Debug)]
struct Inner {
    code: Code,
    detail: String,
    hint: Option<String>,
    /// For a body with which nothing is wrong.
    retry_after_ms: Option<u64>,
    /// Innermost step first.
    path: Vec<String>,
}

/// A value read from a body, or the reason why not.
pub type Read<T> = Result<T, Refusal>;

impl Refusal {
    /// A fault of `code` at the place where reading stands.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let (detail, path) = (detail.into(), Vec::new());
        Self(Box::new(Inner { code, detail, hint: None, retry_after_ms: None, path }))
    }

    /// The same with advice.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// The same, seen from the object or array around it.
    pub fn within(mut self, step: impl ToString) -> Self {
        self.0.path.push(step.to_string());
        self
    }

    /// JSON pointer (RFC 6901) to the fault.
    pub fn pointer(&self) -> String {
        let steps = self.0.path.iter().rev();
        steps.map(|step| format!("/{}", step.replace('~', "~0").replace('/', "~1"))).collect()
    }
}

/// A fault of the moment, which has no place in the body.
impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        let Problem { code, detail, hint, retry_after_ms, .. } = problem;
        Self(Box::new(Inner { code, detail, hint, retry_after_ms, path: Vec::new() }))
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let pointer = refusal.pointer();
        let Inner { code, detail, hint, retry_after_ms, .. } = *refusal.0;
        let problem = Self { hint, retry_after_ms, ..Self::new(code, detail) };
        if code == Code::MemoryLimit {
            return problem;
        }
        let detail = problem.detail.clone();
        problem.at(pointer, detail)
    }
}

/// A field that is not among `fields`.
pub(super) fn unknown_field(name: &str, fields: &[&str]) -> Refusal {
    let refusal = Refusal::new(Code::UnknownField, format!("unknown field {name:?}"));
    match nearest(name, fields) {
        Some(near) => refusal.hint(format!("did you mean {near:?}?")),
        None if fields.is_empty() => refusal.hint("no field is known here"),
        None => refusal.hint(format!("known here: {}", fields.join(", "))),
    }
}

/// The name of `known` that is fewest edits away from `name`, when that is at most a third.
pub fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    if name.len() > 64 {
        return None;
    }
    let distances = known.iter().map(|candidate| (edits(name, candidate), *candidate));
    let (distance, candidate) = distances.min()?;
    (distance <= name.len().max(candidate.len()).div_ceil(3)).then_some(candidate)
}

/// Levenshtein distance in bytes.
fn edits(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let substitution = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substitution.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
