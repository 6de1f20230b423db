//! The algorithm for `E4M3`: numbers of 8 bits widened in registers, products in `f32`, a scale per 64 columns.
//!
//! What memory delivers is the limit for one token, so the numbers stay bytes up to the registers. Two chains per output
//! hide the latency of the sums.

#![allow(
    clippy::needless_range_loop,
    reason = "indexed loops of constant length unroll into registers"
)]

use super::Job;
use super::simd::Simd;
use super::tile::{TOKEN_PANEL_BYTES, for_each_tile, store};
use crate::pack::format::GROUP_ROWS;
use crate::pack::scaled::{SCALED_BYTES, SCALED_COLS, SCALES_BYTES};

/// What [`Simd::load_e4m3`] leaves out of each number.
const REBASE: f32 = 256.0;
/// Chains of sums per output, of even and of odd columns.
const CHAINS: usize = 2;

/// Runs a job whose weights are `E4M3`.
///
/// # Safety
/// As [`super::matmul`], inside a function compiled for `S`.
#[inline(always)]
pub(crate) unsafe fn scaled<S: Simd>(job: &Job) {
    let token_bytes = job.x.dense_stride() * size_of::<f32>();
    let panel_tokens = (TOKEN_PANEL_BYTES / token_bytes).max(S::MAX_TOKENS) / S::MAX_TOKENS * S::MAX_TOKENS;
    let mut start = job.tokens.start;
    while start < job.tokens.end {
        let panel = start..job.tokens.end.min(start + panel_tokens);
        let mut group = job.groups.start;
        while group < job.groups.end {
            // One token leaves registers for two groups, whose chains then hide each other's latency.
            let pair = panel.len() == 1 && group + 2 <= job.groups.end;
            let mut lane = 0;
            while lane < GROUP_ROWS {
                // SAFETY: by contract.
                unsafe {
                    if pair {
                        scaled_tile::<S, 2, 1>(job, group, lane, panel.start);
                    } else {
                        for_each_tile!(S, panel, first => scaled_one::<S>(job, group, lane, first));
                    }
                }
                lane += S::LANES;
            }
            group += 1 + usize::from(pair);
        }
        start = panel.end;
    }
}

/// # Safety
/// As [`scaled_tile`].
#[inline(always)]
unsafe fn scaled_one<S: Simd, const T: usize>(job: &Job, group: usize, lane: usize, first: usize) {
    // SAFETY: by contract.
    unsafe { scaled_tile::<S, 1, T>(job, group, lane, first) }
}

/// # Safety
/// As [`scaled`]; the groups `group..group + G` and the tokens `first..first + T` exist.
#[inline(always)]
unsafe fn scaled_tile<S: Simd, const G: usize, const T: usize>(job: &Job, group: usize, lane: usize, first: usize) {
    // SAFETY: a group has scales and numbers per block, a token 64 numbers.
    unsafe {
        let mut w = [std::ptr::null::<u8>(); G];
        for g in 0..G {
            w[g] = job.w.group_ptr(group + g);
        }
        let mut x = [std::ptr::null::<f32>(); T];
        for t in 0..T {
            x[t] = job.x.dense_row(job.vector(first + t));
        }
        let mut sums = [[S::zero(); T]; G];
        for _ in 0..job.w.cols() / SCALED_COLS {
            let parts = block_parts::<S, G, T>(&w, lane, &x);
            for g in 0..G {
                let scales = S::load_f32(w[g].add(size_of::<f32>() * lane).cast());
                let scale = S::mul(scales, S::splat(REBASE));
                for t in 0..T {
                    for chain in 0..CHAINS {
                        sums[g][t] = S::fma(parts[g][t][chain], scale, sums[g][t]);
                    }
                }
                w[g] = w[g].wrapping_add(SCALED_BYTES);
            }
            for t in 0..T {
                x[t] = x[t].wrapping_add(SCALED_COLS);
            }
        }
        for g in 0..G {
            store::<S>(job, (group + g) * GROUP_ROWS + lane, first, &sums[g]);
        }
    }
}

/// The products of a block's numbers with the tokens', less their scales.
///
/// # Safety
/// As [`scaled_tile`].
#[inline(always)]
unsafe fn block_parts<S: Simd, const G: usize, const T: usize>(
    w: &[*const u8; G],
    lane: usize,
    x: &[*const f32; T],
) -> [[[S::Floats; CHAINS]; T]; G] {
    // SAFETY: by contract.
    unsafe {
        let mut parts = [[[S::zero(); CHAINS]; T]; G];
        for pair in 0..SCALED_COLS / CHAINS {
            for chain in 0..CHAINS {
                let column = pair * CHAINS + chain;
                let mut weights = [S::zero(); G];
                for g in 0..G {
                    let numbers = w[g].add(SCALES_BYTES + column * GROUP_ROWS + lane);
                    S::prefetch(numbers.wrapping_add(super::tile::PREFETCH_BYTES));
                    weights[g] = S::load_e4m3(numbers);
                }
                for t in 0..T {
                    let number = S::splat(*x[t].add(column));
                    for g in 0..G {
                        parts[g][t][chain] = S::fma(weights[g], number, parts[g][t][chain]);
                    }
                }
            }
        }
        parts
    }
}
