//! Checked typed views of bytes: `None` when the place or the length does not fit the type.

// Integers and floats are stored little-endian and read in place.
const _: () = assert!(cfg!(target_endian = "little"), "mapped sections are little-endian");

/// `bytes` as little-endian `u32`s, if they start at a multiple of 4 and hold a whole number.
pub fn u32s(bytes: &[u8]) -> Option<&[u32]> {
    // SAFETY: every bit pattern is a valid u32, and `align_to` only puts aligned, whole elements
    // into the middle part; the outer parts must be empty for the view to be returned.
    let (head, middle, tail) = unsafe { bytes.align_to::<u32>() };
    (head.is_empty() && tail.is_empty()).then_some(middle)
}

/// `bytes` as little-endian `u64`s, if they start at a multiple of 8 and hold a whole number.
pub fn u64s(bytes: &[u8]) -> Option<&[u64]> {
    // SAFETY: every bit pattern is a valid u64; see `u32s` for the parts.
    let (head, middle, tail) = unsafe { bytes.align_to::<u64>() };
    (head.is_empty() && tail.is_empty()).then_some(middle)
}

/// `bytes` as little-endian `f32`s, if they start at a multiple of 4 and hold a whole number.
pub fn f32s(bytes: &[u8]) -> Option<&[f32]> {
    // SAFETY: every bit pattern is a valid f32; see `u32s` for the parts.
    let (head, middle, tail) = unsafe { bytes.align_to::<f32>() };
    (head.is_empty() && tail.is_empty()).then_some(middle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hopbine_proto::disk::FileBytes;

    #[test]
    fn a_view_needs_alignment_and_whole_elements() {
        let bytes = FileBytes::copied_from(&[1, 0, 0, 0, 0, 0, 128, 63, 9]);
        assert_eq!(u32s(&bytes[..4]), Some(&[1][..]));
        assert_eq!(u64s(&bytes[..8]), Some(&[127 << 55 | 1][..]));
        assert_eq!(u64s(&bytes[..4]), None);
        assert_eq!(f32s(&bytes[4..8]), Some(&[1.0][..]));
        assert_eq!(u32s(&bytes[1..5]), None);
        assert_eq!(f32s(&bytes[4..9]), None);
        assert_eq!(u32s(&[]), Some(&[][..]));
    }
}
