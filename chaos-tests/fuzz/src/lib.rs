//! What the targets share: input read as numbers, and edits of a file's bytes.
//!
//! A target never fails on short input: what is missing reads as zero.

/// Most edits of one file: enough to combine faults, few enough to stay quick.
const EDITS_MAX: u8 = 8;

/// Fuzzer input, taken from the front.
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// All of `data`.
    pub fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All that is left.
    pub fn rest(self) -> &'a [u8] {
        self.0
    }

    /// The next `N` bytes.
    pub fn take<const N: usize>(&mut self) -> [u8; N] {
        let (now, later) = self.0.split_at(N.min(self.0.len()));
        self.0 = later;
        let mut bytes = [0; N];
        bytes[..now.len()].copy_from_slice(now);
        bytes
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let [byte] = self.take();
        byte
    }

    /// A number below `end`, or 0 when there is none.
    pub fn below(&mut self, end: usize) -> usize {
        let number = u32::from_le_bytes(self.take()) as usize;
        number.checked_rem(end).unwrap_or(0)
    }

    /// A number as it comes in nature or at the ends of its range.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..=199 => small.into(),
            near_end @ 200..=239 => u64::MAX - u64::from(near_end - 200),
            _ => u64::from_le_bytes(self.take()),
        }
    }
}

/// Edits `bytes` a few times, as long as there is input. Half of the places are counted from the end, where
/// tables and footers are.
pub fn edit(bytes: &mut Vec<u8>, input: &mut Input<'_>) {
    for _ in 0..=input.byte() % EDITS_MAX {
        if input.is_empty() {
            return;
        }
        let kind = input.byte();
        let place = match kind & 0x80 == 0 {
            true => input.below(bytes.len() + 1),
            false => bytes.len() - (usize::from(u16::from_le_bytes(input.take()))).min(bytes.len()),
        };
        let after = &mut bytes[place..];
        match kind % 8 {
            0 => overwrite(after, &input.take::<1>()),
            1 => overwrite(after, &input.take::<4>()),
            2 => overwrite(after, &input.take::<8>()),
            3 => overwrite(after, &input.number().to_le_bytes()),
            4 => bytes.truncate(place),
            5 => {
                let len = usize::from(input.byte()).min(after.len());
                bytes.drain(place..place + len);
            }
            6 => {
                let new = vec![input.byte(); input.byte().into()];
                bytes.splice(place..place, new);
            }
            _ => {
                let from = input.below(bytes.len() + 1);
                let copied = bytes[from..].iter().copied().take(input.byte().into());
                let copied: Vec<u8> = copied.collect();
                overwrite(&mut bytes[place..], &copied);
            }
        }
    }
}

fn overwrite(bytes: &mut [u8], new: &[u8]) {
    let len = bytes.len().min(new.len());
    bytes[..len].copy_from_slice(&new[..len]);
}
