//! Compiles `schema/**/*.proto` with a pure-Rust compiler, when the feature `rpc` asks for it.

use std::error::Error;
use std::path::PathBuf;

const SCHEMAS: &[&str] =
    &["hopbine/v1/fact.proto", "hopbine/v1/graph.proto", "hopbine/v1/retrieval.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=schema");
    if std::env::var_os("CARGO_FEATURE_RPC").is_none() {
        return Ok(());
    }
    let descriptors = protox::compile(SCHEMAS, ["schema"])?;
    let folder = PathBuf::from(std::env::var("OUT_DIR")?);
    // For clients that ask the server what it offers.
    let set = folder.join("hopbine.bin");
    std::fs::write(&set, protox::prost::Message::encode_to_vec(&descriptors))?;
    let configured = tonic_prost_build::configure().build_transport(false);
    configured.bytes(".hopbine.v1").compile_fds(descriptors)?;
    Ok(())
}
