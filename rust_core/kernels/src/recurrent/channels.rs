//! The selective state space of Mamba (Gu and Dao 2023, arXiv 2312.00752), token by token.
//!
//! Of each channel, the state `s` is a vector. A token gives the channel a step `t = softplus(step)`, leaves `exp(t a[n])` of
//! each of the state's numbers, adds the channel's `x` along `b`, and reads along `c`: `s[n] = exp(t a[n]) s[n] + b[n] t x`,
//! `y = (sum s[n] c[n] + d x) silu(gate)`.

use super::delta::SUMS;
use crate::elementwise::functions;
use crate::isa::Isa;
use crate::lanes::{LANES, Lanes, run_on};

/// Sixteen channels over tokens of one sequence. Pointers are to the first token's.
#[derive(Clone, Copy, Debug)]
pub struct ChannelScan<'a> {
    /// What a token writes along, [tokens, state size].
    pub b: *const f32,
    /// What it reads along, likewise.
    pub c: *const f32,
    /// Numbers from a token's `b` and `c` to the next one's.
    pub along_stride: usize,
    /// Numbers of a channel's state.
    pub state_size: usize,
    /// Sixteen channels a token.
    pub x: *const f32,
    /// What the output is gated by, likewise.
    pub gate: *const f32,
    /// Numbers from a token's `x` and `gate` to the next one's.
    pub stride: usize,
    /// Steps before their softplus, sixteen a token; the output takes their place.
    pub steps: *mut f32,
    /// Numbers from a token's steps to the next one's.
    pub step_stride: usize,
    /// What stays of the state in a step of 1 as a logarithm, [state size, 16]: below 0.
    pub log_decays: &'a [f32],
    /// How much of each channel is added to the output.
    pub skips: &'a [f32],
    /// How many tokens.
    pub num_tokens: usize,
    /// The state, [state size, 16].
    pub state: *mut f32,
}

/// Brings sixteen channels' states past some tokens.
///
/// # Safety
/// The pointers are to memory as described, which no other thread writes, nor reads where this writes.
///
/// # Panics
/// When there are not sixteen decays for each of the state's numbers, or not sixteen skips.
pub unsafe fn scan_channels(isa: Isa, work: &ChannelScan<'_>) {
    assert_eq!(
        work.log_decays.len(),
        work.state_size * LANES,
        "sixteen decays a number"
    );
    assert_eq!(work.skips.len(), LANES, "sixteen skips");
    run_on!(isa, kernel(work: &ChannelScan<'_>));
}

#[inline(always)]
unsafe fn kernel<L: Lanes>(work: &ChannelScan<'_>) {
    // SAFETY: the caller promises the set of `L`, and the memory.
    unsafe {
        let skips = L::load(work.skips.as_ptr());
        for token in 0..work.num_tokens {
            let along = token * work.along_stride;
            let (b, c) = (work.b.add(along), work.c.add(along));
            let place = work.steps.add(token * work.step_stride);
            let step = functions::softplus(L::load(place));
            let x = L::load(work.x.add(token * work.stride));
            let added = x.mul(step);
            let mut sums = [L::splat(0.0); SUMS];
            for number in 0..work.state_size {
                let decay = functions::exp(L::load(work.log_decays.as_ptr().add(number * LANES)).mul(step));
                let place = work.state.add(number * LANES);
                let state = L::splat(*b.add(number)).fma(added, L::load(place).mul(decay));
                state.store(place);
                let sum = &mut sums[number % SUMS];
                *sum = state.fma(L::splat(*c.add(number)), *sum);
            }
            let read = sums[0].add(sums[1]).add(sums[2].add(sums[3]));
            let gate = functions::silu(L::load(work.gate.add(token * work.stride)));
            x.fma(skips, read).mul(gate).store(place);
        }
    }
}

#[cfg(test)]
mod tests;
