//! Arithmetic over vectors: the exact distance, the integer dot products of 8-bit codes, and the
//! sums over 1-bit codes.
//!
//! - `table.rs` the set of kernels, chosen once at run time
//! - `exact.rs` the one exact distance, `norm`, and a query prepared for it
//! - `scalar.rs` the plain twin that every other kernel must equal bit by bit
//! - `avx2.rs`, `avx512.rs` the fast twins
//! - `cast.rs` checked typed views of mapped bytes

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub mod cast;
pub mod exact;
mod scalar;
pub mod table;

pub use exact::{ExactQuery, norm};
pub use table::{FINE_MAX, Kernels, SIGN_GROUP, SIGN_PLANES, SignPlanes, SignedCodes, prefetch};
