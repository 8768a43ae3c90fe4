//! The plain kernels: what every other kernel must equal bit by bit.

use super::exact::LANES;
use super::table::{Kernels, SIGN_GROUP, SignPlanes, SignedCodes};

pub(super) const KERNELS: Kernels = Kernels {
    name: "scalar",
    dot,
    squared_difference,
    squared_norm,
    code_dots,
    code_dots_at,
    nibble_dots,
    nibble_dots_at,
    sign_sums,
};

fn dot(query: &[f64], row: &[f32]) -> f64 {
    let mut lanes = [0.0; LANES];
    for (i, (a, b)) in query.iter().zip(row).enumerate() {
        lanes[i % LANES] += a * f64::from(*b);
    }
    reduce(lanes)
}

fn squared_difference(query: &[f64], row: &[f32]) -> f64 {
    let mut lanes = [0.0; LANES];
    for (i, (a, b)) in query.iter().zip(row).enumerate() {
        let difference = a - f64::from(*b);
        lanes[i % LANES] += difference * difference;
    }
    reduce(lanes)
}

fn squared_norm(row: &[f32]) -> f64 {
    let mut lanes = [0.0; LANES];
    for (i, value) in row.iter().enumerate() {
        let value = f64::from(*value);
        lanes[i % LANES] += value * value;
    }
    reduce(lanes)
}

fn reduce(mut lanes: [f64; LANES]) -> f64 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
        half /= 2;
    }
    lanes[0]
}

fn code_dots(query: &SignedCodes, codes: &[u8], out: &mut [i32]) {
    for (row, out) in codes.chunks_exact(query.stride()).zip(out) {
        *out = code_dot(query, row);
    }
}

fn code_dots_at(query: &SignedCodes, codes: &[u8], rows: &[u32], out: &mut [i32]) {
    let stride = query.stride();
    for (row, out) in rows.iter().zip(out) {
        let start = *row as usize * stride;
        *out = code_dot(query, &codes[start..start + stride]);
    }
}

/// Sum of `query * (code - 128)`.
fn code_dot(query: &SignedCodes, row: &[u8]) -> i32 {
    let dot = |numbers: &[i8]| -> i32 {
        numbers.iter().zip(row).map(|(a, b)| i32::from(*a) * (i32::from(*b) - 128)).sum()
    };
    match query.low() {
        [] => dot(query.high()),
        low => 16 * dot(query.high()) + dot(low),
    }
}

fn nibble_dots(query: &SignedCodes, levels: &[u8], out: &mut [i32]) {
    for (row, out) in levels.chunks_exact(query.stride() / 2).zip(out) {
        *out = nibble_dot(query, row);
    }
}

fn nibble_dots_at(query: &SignedCodes, levels: &[u8], rows: &[u32], out: &mut [i32]) {
    let stride = query.stride() / 2;
    for (row, out) in rows.iter().zip(out) {
        *out = nibble_dot(query, &levels[*row as usize * stride..][..stride]);
    }
}

/// Sum of `query * (2 level - 15)`.
fn nibble_dot(query: &SignedCodes, row: &[u8]) -> i32 {
    let mut sum = 0;
    for (line, numbers) in row.chunks_exact(64).zip(query.high().chunks_exact(128)) {
        let (low, high) = numbers.split_at(64);
        for (byte, (low, high)) in line.iter().zip(low.iter().zip(high)) {
            sum += i32::from(*low) * i32::from(byte & 15);
            sum += i32::from(*high) * i32::from(byte >> 4);
        }
    }
    2 * sum - 15 * query.sum()
}

fn sign_sums(planes: &SignPlanes, words: &[u64], out: &mut [u32]) {
    let of_group = words.chunks_exact(SIGN_GROUP * planes.words());
    for (group, out) in of_group.zip(out.chunks_exact_mut(SIGN_GROUP)) {
        let mut sums = [0; SIGN_GROUP];
        for (signs, planes) in group.chunks_exact(SIGN_GROUP).zip(planes.planes()) {
            for (sum, signs) in sums.iter_mut().zip(signs) {
                for (plane, bits) in planes.iter().enumerate() {
                    *sum += (signs & bits).count_ones() << plane;
                }
            }
        }
        out.copy_from_slice(&sums);
    }
}
