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
        "processor": processor(),
    });
    Output::new(resolved.settings.output).object(about.to_string().as_bytes())
}

/// The vector instructions that distances could be computed with here.
fn processor() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    {
        let all = [
            ("avx2", std::is_x86_feature_detected!("avx2")),
            ("fma", std::is_x86_feature_detected!("fma")),
            ("avx512f", std::is_x86_feature_detected!("avx512f")),
            ("avx512vnni", std::is_x86_feature_detected!("avx512vnni")),
        ];
        all.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect()
    }
    #[cfg(not(target_arch = "x86_64"))]
    Vec::new()
}
