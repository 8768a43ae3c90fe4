//! `hopbine config {show,check}`: what is set, and from where.

use crate::failure::Failure;
use crate::output::{Cell, Column, Output, plain};
use crate::settings::{self, Resolved};
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use std::path::PathBuf;

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
pub fn run(resolved: &Resolved, verb: &Config) -> Result<(), Failure> {
    let output = Output::new(resolved.settings.output);
    match verb {
        Config::Show(args) => show(resolved, &output, args.origin),
        Config::Check(args) => {
            let keys = settings::read_file(&args.file)?.len();
            let result = json!({"file": args.file.to_string_lossy(), "keys": keys, "ok": true});
            output.object(result.to_string().as_bytes())
        }
    }
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
