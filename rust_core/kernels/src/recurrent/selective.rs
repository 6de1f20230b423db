//! The selective state space of Mamba-2 (Dao and Gu 2024, arXiv 2405.21060), token by token.
//!
//! Of a head, the state `S` is a matrix of state by channels. A token with a step `t` leaves `a = exp(-t A)` of it, adds its
//! channels `x` along `b`, and reads it along `c`: `S = a S + b (t x)^T`, `y = S^T c + d x`.

use super::delta::{Same, update};
use crate::isa::Isa;
use crate::lanes::{Lanes, run_on};

/// Sixteen channels of a head over tokens of one sequence. Lightning attention is one whose steps are 1, without a skip: keys are
/// `b`, queries `c`, values `x`. Pointers are to the first token's.
#[derive(Clone, Copy, Debug)]
pub struct SelectiveScan<'a> {
    /// What a token writes along, [tokens, state size].
    pub b: *const f32,
    /// What it reads along, likewise.
    pub c: *const f32,
    /// Rows of the state.
    pub state_size: usize,
    /// Sixteen channels a token, of which the output takes the place.
    pub x: *mut f32,
    /// Numbers from a token's `b`, `c` and `x` to the next one's.
    pub stride: usize,
    /// What each token leaves of the state.
    pub decays: &'a [f32],
    /// Each token's step.
    pub steps: &'a [f32],
    /// How much of the channels is added to the output.
    pub skip: f32,
    /// The columns, [state size, 16].
    pub state: *mut f32,
}

/// Brings sixteen columns of a state past some tokens.
///
/// # Safety
/// The pointers are to memory as described, which no other thread writes, nor reads where this writes.
///
/// # Panics
/// When there is not one step for each decay.
pub unsafe fn selective_scan(isa: Isa, work: &SelectiveScan<'_>) {
    assert_eq!(work.decays.len(), work.steps.len(), "a step for each token");
    run_on!(isa, kernel(work: &SelectiveScan<'_>));
}

#[inline(always)]
unsafe fn kernel<L: Lanes>(work: &SelectiveScan<'_>) {
    for (token, (&decay, &step)) in work.decays.iter().zip(work.steps).enumerate() {
        // SAFETY: the caller promises the set of `L`, and the memory.
        unsafe {
            let (b, c) = (work.b.add(token * work.stride), work.c.add(token * work.stride));
            let place = work.x.add(token * work.stride);
            let x = L::load(place);
            let added = x.mul(L::splat(step));
            let read = update((work.state, work.state_size), Same(L::splat(decay)), added, b, c);
            x.fma(L::splat(work.skip), read).store(place);
        }
    }
}
