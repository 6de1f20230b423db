//! The gated delta rule (Yang, Kautz and Hatamizadeh 2024, arXiv 2412.06464), token by token.
//!
//! Of a head, the state `S` is a matrix of keys by values. A token decays it by `g`, adds its value, and reads it:
//! `S = g S + k d^T`, `o = S^T q`, where `d = b (v - g S^T k)`: what is added is what the state does not yet say of the
//! key. Kimi Delta Attention (Kimi Team 2025, arXiv 2510.26692) has a decay for each number of the key: `g` is then a
//! diagonal matrix.

use crate::elementwise::functions;
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
    pub decays: Decays<'a>,
    /// How much of each token's value is added.
    pub rates: &'a [f32],
    /// Where the output goes, sixteen numbers a token; it may be the values.
    pub out: *mut f32,
    /// Numbers from a token's output to the next one's.
    pub out_stride: usize,
    /// The columns, [key size, 16].
    pub state: *mut f32,
}

/// What tokens leave of a state.
#[derive(Clone, Copy, Debug)]
pub enum Decays<'a> {
    /// One number a token, for all of the state.
    OfHead(&'a [f32]),
    /// A number for each of the state's rows, as far from token to token as keys.
    OfKeys(*const f32),
}

/// What a token leaves of a row of the state.
pub(super) trait Fading<L: Lanes>: Copy {
    /// The factor, in all lanes.
    ///
    /// # Safety
    /// The processor has the set of `L`, and there are so many rows.
    unsafe fn of(self, row: usize) -> L;
}

/// The same of all rows.
#[derive(Clone, Copy)]
pub(super) struct Same<L>(pub(super) L);

impl<L: Lanes> Fading<L> for Same<L> {
    #[inline(always)]
    unsafe fn of(self, _: usize) -> L {
        self.0
    }
}

/// One number of each row.
#[derive(Clone, Copy)]
struct Each(*const f32);

impl<L: Lanes> Fading<L> for Each {
    #[inline(always)]
    unsafe fn of(self, row: usize) -> L {
        // SAFETY: by contract.
        unsafe { L::splat(*self.0.add(row)) }
    }
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
    if let Decays::OfHead(decays) = work.decays {
        assert_eq!(decays.len(), work.rates.len(), "a rate for each token");
    }
    run_on!(isa, scan_kernel(work: &DeltaRule<'_>));
}

#[inline(always)]
unsafe fn scan_kernel<L: Lanes>(work: &DeltaRule<'_>) {
    for (token, &rate) in work.rates.iter().enumerate() {
        // SAFETY: the caller promises the set of `L`, and the memory.
        unsafe {
            let key = work.keys.add(token * work.key_stride);
            let query = work.queries.add(token * work.key_stride);
            let value = L::load(work.values.add(token * work.value_stride));
            let (state, rate) = ((work.state, work.key_size), L::splat(rate));
            let out = match work.decays {
                Decays::OfHead(decays) => {
                    let decay = L::splat(decays[token]);
                    let known = product::<L>(state, key).mul(decay);
                    update(state, Same(decay), value.sub(known).mul(rate), key, query)
                }
                Decays::OfKeys(decays) => {
                    let decays = decays.add(token * work.key_stride);
                    let known = faded_product::<L>(state, key, decays);
                    update(state, Each(decays), value.sub(known).mul(rate), key, query)
                }
            };
            out.store(work.out.add(token * work.out_stride));
        }
    }
}

/// `S^T k`.
#[inline(always)]
unsafe fn product<L: Lanes>((state, key_size): (*mut f32, usize), key: *const f32) -> L {
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

/// `(g S)^T k`: keys fade in place of the state, which has more numbers.
#[inline(always)]
unsafe fn faded_product<L: Lanes>((state, key_size): (*mut f32, usize), key: *const f32, decays: *const f32) -> L {
    // SAFETY: the caller promises the set of `L`, and the memory.
    unsafe {
        let mut sums = [L::splat(0.0); SUMS];
        for row in 0..key_size {
            let sum = &mut sums[row % SUMS];
            let key = L::splat(*key.add(row) * *decays.add(row));
            *sum = L::load(state.add(row * LANES)).fma(key, *sum);
        }
        sums[0].add(sums[1]).add(sums[2].add(sums[3]))
    }
}

/// `S = g S + k d^T`; returns `S^T q`.
#[inline(always)]
pub(super) unsafe fn update<L: Lanes, F: Fading<L>>(
    (state, key_size): (*mut f32, usize),
    fading: F,
    added: L,
    key: *const f32,
    query: *const f32,
) -> L {
    // SAFETY: the caller promises the set of `L`, and the memory.
    unsafe {
        let mut sums = [added.all(0.0); SUMS];
        for row in 0..key_size {
            let place = state.add(row * LANES);
            let state = L::splat(*key.add(row)).fma(added, L::load(place).mul(fading.of(row)));
            state.store(place);
            let sum = &mut sums[row % SUMS];
            *sum = state.fma(L::splat(*query.add(row)), *sum);
        }
        sums[0].add(sums[1]).add(sums[2].add(sums[3]))
    }
}

/// What a token leaves of each row of a state, of its steps: `x = exp(a softplus(x + bias))`, of an `a` below 0.
///
/// # Panics
/// When there is not one bias for each step.
pub fn fade(isa: Isa, steps: &mut [f32], biases: &[f32], log_decay: f32) {
    #[inline(always)]
    unsafe fn kernel<L: Lanes>(steps: &mut [f32], biases: &[f32], log_decay: f32) {
        for start in (0..steps.len()).step_by(LANES) {
            // SAFETY: the caller promises the set of `L`.
            let (step, bias): (L, L) = unsafe { (load_part(steps, start), load_part(biases, start)) };
            let step = functions::softplus(step.add(bias));
            store_part(functions::exp(step.mul(step.all(log_decay))), steps, start);
        }
    }
    assert_eq!(steps.len(), biases.len(), "a bias for each step");
    run_on!(isa, kernel(steps: &mut [f32], biases: &[f32], log_decay: f32))
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
