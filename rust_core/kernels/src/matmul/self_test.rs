//! Small products of every weight type: does this CPU compute what plain Rust does?
//!
//! Run once per process when the instruction set is chosen, so a kernel that a CPU, a virtual machine or an
//! emulator gets wrong is left out instead of giving wrong tokens.

use super::{Activations, Job, dispatch};
use crate::ggml::GgmlType;
use crate::isa::Isa;
use crate::pack::PackedMatrix;

const ROWS: usize = 19;
const COLS: usize = 256;
const TOKENS: usize = 17;

/// Whether `isa`, which the CPU must have, equals the plain kernels bit for bit.
pub(crate) fn agrees_with_scalar(isa: Isa) -> bool {
    let x = numbers(TOKENS * COLS);
    GgmlType::ALL.into_iter().all(|kind| {
        let bytes = weights(kind, ROWS * kind.row_bytes(COLS).expect("whole blocks"));
        let w = PackedMatrix::pack(kind, &bytes, ROWS, COLS).expect("a small matrix");
        product(isa, &w, &x) == product(Isa::Scalar, &w, &x)
    })
}

fn product(isa: Isa, w: &PackedMatrix, numbers: &[f32]) -> Vec<u32> {
    let mut x = Activations::new();
    x.resize(TOKENS, COLS, true, true);
    let mut out = vec![0.0_f32; TOKENS * ROWS];
    // SAFETY: the caller has checked the CPU; everything is packed and written before it is read, by us alone,
    // and `out` has a place per token and row.
    unsafe {
        for (token, numbers) in numbers.chunks_exact(COLS).enumerate() {
            x.write_row(isa, token, numbers);
        }
        dispatch(
            isa,
            &Job {
                w,
                groups: 0..w.num_groups(),
                x: &x,
                gathered: None,
                tokens: 0..TOKENS,
                out: out.as_mut_ptr(),
                out_stride: ROWS,
            },
        );
    }
    out.into_iter().map(f32::to_bits).collect()
}

/// Numbers of both signs and several magnitudes, with outliers.
fn numbers(count: usize) -> Vec<f32> {
    let mut state = 1;
    (0..count)
        .map(|_| {
            let magnitude = [1.0, 2.0, 4.0, 90.0][(next(&mut state) % 13).saturating_sub(9) as usize];
            (next(&mut state) as f32 / 65536.0 - 0.5) * magnitude
        })
        .collect()
}

/// Bytes that are finite as plain elements and as scales: the upper byte of every 16 bits is small, and exponents are of
/// powers near 1.
fn weights(kind: GgmlType, count: usize) -> Vec<u8> {
    let mut state = kind as u32;
    (0..count)
        .map(|at| {
            let byte = next(&mut state) as u8;
            // Scales are aligned to 2 bytes in every type; integers lose nothing that matters here.
            match at % 2 {
                _ if kind == GgmlType::MXFP4 && at % kind.block_bytes() == 0 => byte / 16 + 118,
                1 => byte & 0xbb,
                _ => byte,
            }
        })
        .collect()
}

/// A linear congruential generator's upper 16 bits.
fn next(state: &mut u32) -> u32 {
    *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    *state >> 16
}
