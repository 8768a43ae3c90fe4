//! Does it hold when things break? The oracle, the simulator and the process suite arrive with
//! the chaos issue; until then this crate holds `tests/tidy.rs`, which keeps the code readable.
