//! Compiles `schema/**/*.proto` with a pure-Rust compiler, when the feature `rpc` asks for it.

use std::error::Error;

const SCHEMAS: &[&str] = &["hopbine/v1/fact.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=schema");
    if std::env::var_os("CARGO_FEATURE_RPC").is_none() {
        return Ok(());
    }
    let descriptors = protox::compile(SCHEMAS, ["schema"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
