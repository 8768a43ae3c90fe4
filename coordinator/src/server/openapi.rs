//! The published description of the API (OpenAPI 3.1).

/// The document as JSON text.
pub fn document() -> String {
    String::from("{}")
}
