//! A causal convolution of each channel over a few tokens, gated or activated.

use super::CELL_CHANNELS;
use crate::elementwise::functions;
use crate::isa::Isa;
use crate::lanes::{LANES, Lanes, run_on};

/// Tokens that a convolution covers at most, the present one included.
pub const MOST_TAPS: usize = 8;

/// Sixteen channels of a convolution over tokens of one sequence. Pointers are to the first token's first channel.
#[derive(Clone, Copy, Debug)]
pub struct Convolution<'a> {
    /// Weights, [taps, 16], those of the oldest token first.
    pub weights: &'a [f32],
    /// One number for each channel.
    pub bias: Option<&'a [f32]>,
    /// What is convolved, [tokens, 16].
    pub input: *const f32,
    /// Numbers from a token's input to the next one's.
    pub input_stride: usize,
    /// What the input is multiplied by before, and the output afterwards, as far from token to token as the input.
    pub gates: Option<[*const f32; 2]>,
    /// Whether the output is activated: `x sigmoid(x)`.
    pub has_silu: bool,
    /// Where the output goes, [tokens, 16]; it may be the input.
    pub out: *mut f32,
    /// Numbers from a token's output to the next one's.
    pub out_stride: usize,
    /// How many tokens.
    pub num_tokens: usize,
    /// The inputs before the first token, [taps - 1, 16], the oldest first; afterwards, those before the token that
    /// follows.
    pub history: *mut f32,
}

/// Numbers of a cell of history.
pub fn history_len(taps: usize) -> usize {
    taps.saturating_sub(1) * CELL_CHANNELS
}

/// Computes sixteen channels' convolution.
///
/// # Safety
/// The pointers are to memory as described, which no other thread writes, nor reads where this writes.
///
/// # Panics
/// When the weights are not 1 to [`MOST_TAPS`] times sixteen, or the bias is not sixteen numbers.
pub unsafe fn convolve(isa: Isa, work: &Convolution<'_>) {
    let taps = work.weights.len() / LANES;
    assert!(
        (1..=MOST_TAPS).contains(&taps) && work.weights.len() == taps * LANES,
        "sixteen weights for each tap"
    );
    assert!(work.bias.is_none_or(|bias| bias.len() == LANES), "sixteen biases");
    run_on!(isa, kernel(work: &Convolution<'_>));
}

#[inline(always)]
unsafe fn kernel<L: Lanes>(work: &Convolution<'_>) {
    let taps = work.weights.len() / LANES;
    // SAFETY: the caller promises the set of `L`, and the memory.
    unsafe {
        let zero = L::splat(0.0);
        let (mut weights, mut before) = ([zero; MOST_TAPS], [zero; MOST_TAPS]);
        for (tap, weight) in weights[..taps].iter_mut().enumerate() {
            *weight = L::load(work.weights.as_ptr().add(tap * LANES));
        }
        for (tap, input) in before[..taps - 1].iter_mut().enumerate() {
            *input = L::load(work.history.add(tap * LANES));
        }
        let bias = work.bias.map_or(zero, |bias| L::load(bias.as_ptr()));
        for token in 0..work.num_tokens {
            let at = token * work.input_stride;
            let mut input = L::load(work.input.add(at));
            if let Some([gate, _]) = work.gates {
                input = L::load(gate.add(at)).mul(input);
            }
            before[taps - 1] = input;
            let mut sum = bias;
            for (input, weight) in before[..taps].iter().zip(&weights[..taps]) {
                sum = input.fma(*weight, sum);
            }
            before.copy_within(1..taps, 0);
            if work.has_silu {
                sum = functions::silu(sum);
            }
            if let Some([_, gate]) = work.gates {
                sum = L::load(gate.add(at)).mul(sum);
            }
            sum.store(work.out.add(token * work.out_stride));
        }
        for (tap, input) in before[..taps - 1].iter().enumerate() {
            input.store(work.history.add(tap * LANES));
        }
    }
}
