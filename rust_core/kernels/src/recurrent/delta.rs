//! The gated delta rule (Yang, Kautz and Hatamizadeh 2024, arXiv 2412.06464), token by token.
//!
//! Of a head, the state `S` is a matrix of keys by values. A token decays it by `g`, adds its value, and reads it:
//! `S = g S + k d^T`, `o = S^T q`, where `d = b (v - g S^T k)`: what is added is what the state does not yet say of the
//! key.

use crate::isa::Isa;
use crate::lanes::{LANES, Lanes, load_part, run_on, store_part};

/// Sums of a reduction over keys that are added up apart: dimension `i` belongs to sum `i % 4`.
pub(super) const SUMS: usize = 4;

/// Sixteen columns of a head's state over tokens of one sequence. Pointers are to the first token's.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRule<'a> {
    /// Keys, [tokens, key size].
    pub keys: *const f32,
    /// Queries likewise.
    pub queries: *const f32,
    /// Numbers from a token's keys, or queries, to the next one's.
    pub key_stride: usize,
    /// Rows of the state.
    pub key_size: usize,
    /// Sixteen values a token.
    pub values: *const f32,
    /// Numbers from a token's values to the next one's.
    pub value_stride: usize,
    /// What each token leaves of the state.
    pub decays: &'a [f32],
    /// How much of each token's value is added.
    pub rates: &'a [f32],
    /// Where the output goes, sixteen numbers a token; it may be the values.
    pub out: *mut f32,
    /// Numbers from a token's output to the next one's.
    pub out_stride: usize,
    /// The columns, [key size, 16].
    pub state: *mut f32,
}

/// Numbers of a cell of a matrix.
pub fn matrix_len(key_size: usize) -> usize {
    key_size * LANES
}

/// Brings sixteen columns of a state past some tokens.
///
/// # Safety
/// The pointers are to memory as described, which no other thread writes, nor reads where this writes.
///
/// # Panics
/// When there is not one rate for each decay.
pub unsafe fn scan(isa: Isa, work: &DeltaRule<'_>) {
    assert_eq!(work.decays.len(), work.rates.len(), "a rate for each token");
    run_on!(isa, scan_kernel(work: &DeltaRule<'_>));
}

#[inline(always)]
unsafe fn scan_kernel<L: Lanes>(work: &DeltaRule<'_>) {
    for (token, (&decay, &rate)) in work.decays.iter().zip(work.rates).enumerate() {
        // SAFETY: the caller promises the set of `L`, and the memory.
        unsafe {
            let key = work.keys.add(token * work.key_stride);
            let query = work.queries.add(token * work.key_stride);
            let decay = L::splat(decay);
            let known = product::<L>(work.state, key, work.key_size).mul(decay);
            let value = L::load(work.values.add(token * work.value_stride)).sub(known);
            let state = (work.state, work.key_size);
            let out = update(state, decay, value.mul(L::splat(rate)), key, query);
            out.store(work.out.add(token * work.out_stride));
        }
    }
}

/// `S^T k`.
#[inline(always)]
unsafe fn product<L: Lanes>(state: *const f32, key: *const f32, key_size: usize) -> L {
    // SAFETY: the caller promises the set of `L`, and the memory.
    unsafe {
        let mut sums = [L::splat(0.0); SUMS];
        for row in 0..key_size {
            let sum = &mut sums[row % SUMS];
            *sum = L::load(state.add(row * LANES)).fma(L::splat(*key.add(row)), *sum);
        }
        sums[0].add(sums[1]).add(sums[2].add(sums[3]))
    }
}

/// `S = g S + k d^T`; returns `S^T q`.
#[inline(always)]
pub(super) unsafe fn update<L: Lanes>(
    (state, key_size): (*mut f32, usize),
    decay: L,
    added: L,
    key: *const f32,
    query: *const f32,
) -> L {
    // SAFETY: the caller promises the set of `L`, and the memory.
    unsafe {
        let mut sums = [decay.all(0.0); SUMS];
        for row in 0..key_size {
            let place = state.add(row * LANES);
            let state = L::splat(*key.add(row)).fma(added, L::load(place).mul(decay));
            state.store(place);
            let sum = &mut sums[row % SUMS];
            *sum = state.fma(L::splat(*query.add(row)), *sum);
        }
        sums[0].add(sums[1]).add(sums[2].add(sums[3]))
    }
}

/// `x = x / sqrt(sum(x^2) + eps) * factor`.
pub fn l2_normalise(isa: Isa, x: &mut [f32], eps: f32, factor: f32) {
    #[inline(always)]
    unsafe fn kernel<L: Lanes>(x: &mut [f32], eps: f32, factor: f32) {
        // SAFETY: the caller promises the set of `L`.
        let mut squares = unsafe { L::splat(0.0) };
        for start in (0..x.len()).step_by(LANES) {
            // SAFETY: as above.
            let part: L = unsafe { load_part(x, start) };
            squares = part.fma(part, squares);
        }
        let scale = squares.all(1.0 / (squares.sum() + eps).sqrt() * factor);
        for start in (0..x.len()).step_by(LANES) {
            // SAFETY: as above.
            let part: L = unsafe { load_part(x, start) };
            store_part(part.mul(scale), x, start);
        }
    }
    run_on!(isa, kernel(x: &mut [f32], eps: f32, factor: f32))
}
