//! `hopbine config {show,check}`: what is set, and from where.

use crate::failure::Failure;
use crate::output::{Cell, Column, Output, plain};
use crate::serve;
use crate::settings::{self, Resolved, Settings};
use crate::transport::checked_url;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// What to do with settings.
#[derive(Subcommand, Debug)]
pub enum Config {
    /// The settings in force
    Show(Show),
    /// Whether a settings file is right
    Check(Check),
}

/// Flags of `config show`.
#[derive(Args, Debug)]
pub struct Show {
    /// Where each value comes from
    #[arg(long)]
    origin: bool,
}

/// Flags of `config check`.
#[derive(Args, Debug)]
pub struct Check {
    /// The file
    file: PathBuf,
}

/// Does what was asked.
pub async fn run(resolved: &Resolved, verb: &Config) -> Result<(), Failure> {
    let output = Output::new(resolved.settings.output);
    match verb {
        Config::Show(args) => show(resolved, &output, args.origin),
        Config::Check(args) => {
            let keys = check(&args.file).await?;
            let result = json!({"file": args.file.to_string_lossy(), "keys": keys, "ok": true});
            output.object(result.to_string().as_bytes())
        }
    }
}

/// The number of keys in a file with which every verb would start. What `serve` asks of the name
/// service is asked here too.
async fn check(file: &Path) -> Result<usize, Failure> {
    let (values, settings) = settings::read_file(file)?;
    let Settings { data, url, .. } = &settings;
    let mut faults = Vec::new();
    if data.exists() && !data.is_dir() {
        faults.push(format!("data {data:?} is no folder"));
    }
    let url = checked_url(url).map(|_| ());
    let log = serve::log_filter(&settings).map(|_| ());
    let http = serve::http_address(&settings).await.map(|_| ());
    let grpc = serve::grpc_address(&settings).await.map(|_| ());
    faults
        .extend([url, log, http, grpc].into_iter().filter_map(|one| Some(one.err()?.to_string())));
    if faults.is_empty() {
        return Ok(values.len());
    }
    Err(Failure::Usage(format!("{}: {}", file.display(), faults.join("; "))))
}

fn show(resolved: &Resolved, output: &Output, with_origin: bool) -> Result<(), Failure> {
    let row = |(key, value, origin): (&str, &Value, &settings::Origin)| {
        let mut row = Map::new();
        row.insert("key".to_owned(), Value::from(key));
        row.insert("value".to_owned(), value.clone());
        if with_origin {
            row.insert("origin".to_owned(), Value::from(origin.to_string()));
        }
        Value::Object(row)
    };
    let rows: Vec<Value> = resolved.rows().map(row).collect();
    let columns = [
        Column { title: "key", cell: |row| Cell::Text(plain(&row["key"])) },
        Column { title: "value", cell: |row| Cell::Text(plain(&row["value"])) },
        Column { title: "origin", cell: |row| Cell::Text(plain(&row["origin"])) },
    ];
    let shown = if with_origin { &columns[..] } else { &columns[..2] };
    output.rows(json!({"settings": rows}).to_string().as_bytes(), "settings", shown)
}
