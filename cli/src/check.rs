//! `hopbine check`: verifies a data folder that no process has open, changing nothing.

use crate::failure::Failure;
use crate::output::Output;
use crate::session::must_hold_data;
use crate::settings::Settings;
use hopbine_node::Finding;
use hopbine_proto::disk::{Disk, OsDisk};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// Reads every file and writes what was found. Fails with `Damaged` when anything is.
pub async fn run(settings: &Settings) -> Result<(), Failure> {
    let dir = &settings.data;
    must_hold_data(dir)?;
    let lock = hopbine_node::lock_to_read(dir)?;
    let disk: Arc<dyn Disk> = Arc::new(OsDisk);
    let report = hopbine_node::check_folder(&disk, dir)?;
    drop(lock);
    let findings: Vec<Value> = report.findings.iter().map(|found| finding(dir, found)).collect();
    let result = json!({
        "data": dir.to_string_lossy(), "ok": findings.is_empty(), "graphs": report.graphs,
        "shards": report.shards, "segments": report.segments, "rows": report.rows,
        "log_records": report.log_records, "bytes": report.bytes, "remarks": report.remarks,
        "findings": findings,
    });
    let output = Output::new(settings.output);
    let written = output.object(result.to_string().as_bytes());
    if report.findings.is_empty() {
        return written;
    }
    // Damage is told also to who does not read the report.
    let places = report.findings.iter().map(|found| {
        let at = found.offset.map_or_else(String::new, |offset| format!(" at byte {offset}"));
        format!("\n  {}{at}: {}", found.file.display(), found.what)
    });
    let places: String = places.collect();
    Err(Failure::Damaged(format!("{} is damaged{places}", dir.display())))
}

fn finding(dir: &Path, found: &Finding) -> Value {
    let file = found.file.strip_prefix(dir).unwrap_or(&found.file);
    json!({"file": file.to_string_lossy(), "offset": found.offset, "what": found.what})
}
