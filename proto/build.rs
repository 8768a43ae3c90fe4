//! Compiles `schema/*.proto` once the gRPC surface arrives; nothing to do before.

fn main() {}
