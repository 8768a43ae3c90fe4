//! Wire to valid types and back: the only file here that knows prost and tonic.
//!
//! What comes off the wire is checked here and trusted inside.

use crate::status::{Code, Problem};

/// Messages of `schema/hopbine/v1`, as generated.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    tonic::include_proto!("hopbine.v1");
}

/// The components behind little-endian f32 bytes. `invalid_request` when the length is not a
/// multiple of four; whether they are finite and as many as the graph's is the caller's check.
pub fn embedding(bytes: &[u8]) -> Result<Vec<f32>, Problem> {
    let (components, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        let detail = format!("an embedding of {} bytes is no list of f32", bytes.len());
        return Err(Problem::new(Code::InvalidRequest, detail));
    }
    Ok(components.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

/// The bytes of `embedding`, in the wire's order.
pub fn embedding_bytes(components: &[f32]) -> Vec<u8> {
    components.iter().flat_map(|component| component.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embeddings_come_back_to_the_bit_and_broken_ones_are_refused() {
        let components = [0.0f32, -0.0, 1.5, f32::MIN_POSITIVE, f32::MAX];
        let back = embedding(&embedding_bytes(&components)).expect("whole");
        let bits = |components: &[f32]| components.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&back), bits(&components));
        let problem = embedding(&[1, 2, 3]).expect_err("cut short");
        assert_eq!(problem.code, Code::InvalidRequest);
    }
}
