//! Writes facts as JSON lines, for measuring an import:
//!
//! `cargo run --release -p hopbine-bench --example jsonl -- --rows 200000 > facts.jsonl`
//!
//! The facts of the `clustered` workload, ids as numbers, each with a short payload; the same
//! lines on every machine. `--dim` sets the number of components, 384 unless said otherwise.

use hopbine_bench::workload::clustered;
use hopbine_proto::Fact;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

const USAGE: &str = "usage: jsonl [--rows N] [--dim N]";

fn main() -> ExitCode {
    let Some((rows, dim)) = arguments() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    // As many clusters as the `filters` workload makes.
    let workload = clustered::generate(rows, dim as usize, (rows / 200).max(1), 0);
    match write_all(&workload.facts) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has what it wanted.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Rows and components, both at least 1.
fn arguments() -> Option<(u32, u32)> {
    let (mut rows, mut dim) = (200_000, 384);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let place = match word.as_str() {
            "--rows" => &mut rows,
            "--dim" => &mut dim,
            _ => return None,
        };
        *place = words.next()?.parse().ok().filter(|number| *number > 0)?;
    }
    Some((rows, dim))
}

fn write_all(facts: &[Fact]) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, io::stdout().lock());
    for fact in facts {
        let key = fact.key;
        let (entity, relation, target) = (key.entity.0, key.relation.0, key.target.0);
        write!(out, "{{\"entity\":{entity},\"relation\":{relation},\"target\":{target}")?;
        if let Some(embedding) = &fact.embedding {
            write!(out, ",\"embedding\":")?;
            serde_json::to_writer(&mut out, &embedding[..])?;
        }
        writeln!(out, ",\"payload\":{{\"text\":\"point {entity}\"}}}}")?;
    }
    out.flush()
}
