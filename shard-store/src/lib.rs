//! Placeholder header while the crate is laid out.
