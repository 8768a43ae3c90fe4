//! Prints the description of the API: `cargo run --example openapi > docs/openapi.json`.

fn main() {
    print!("{}", hopbine_coordinator::server::openapi::document());
}
