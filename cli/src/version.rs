//! `hopbine version`: which build this is, and what it found in the processor.

use crate::failure::Failure;
use crate::output::Output;
use crate::settings::Resolved;
use serde_json::json;

/// Writes the version.
pub fn run(resolved: &Resolved) -> Result<(), Failure> {
    let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
    let about = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "profile": profile,
        "data_format": hopbine_node::FORMAT,
    });
    Output::new(resolved.settings.output).object(about.to_string().as_bytes())
}
