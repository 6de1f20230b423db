//! Attention of a whole text over itself, in `f32`: what encoders do. There is no cache and no paging; a token sees all
//! others, or those so far before and behind it.
//!
//! A token's result is the same bit for bit wherever the text lies in a batch, and on every instruction set: a score is
//! one chain of fused multiply-adds over the head's dimensions (lanes are sixteen keys), the sum of the weights
//! `e^(score - greatest)` runs in sixteen lanes, lane = position mod 16, and an output is one chain over the keys in order
//! (lanes are dimensions), divided by that sum.

#![allow(
    clippy::needless_range_loop,
    reason = "indexed loops of constant length unroll into registers"
)]

use super::{Line, reserve};
use crate::elementwise::functions::exp;
use crate::isa::Isa;
use crate::lanes::{LANES, Lanes, load_part, run_on, store_part};

/// Query rows computed together: with AVX2 as many as its sixteen registers allow.
const ROWS: usize = 6;
/// Vectors of an output that are summed at once.
const OUT_VECTORS: usize = 2;

/// One head of one text.
#[derive(Clone, Copy, Debug)]
pub struct WholeArgs {
    /// The text's tokens.
    pub num_tokens: usize,
    /// How many of them, from the first on, any token sees: at least one. Those behind see and are not seen.
    pub num_keys: usize,
    /// Width of the head: any number.
    pub head_dim: usize,
    /// How many tokens before itself a token sees; `usize::MAX` for all.
    pub before: usize,
    /// How many behind itself: 0 in a decoder.
    pub behind: usize,
    /// Factor of the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// What is added to a score by how far its key lies behind the query, from the number of distance 0; null for nothing.
    /// There are [`distance_row_len`] numbers, `num_tokens - 1` of them before it.
    pub bias: *const f32,
    /// The first token's queries of this head.
    pub query: *const f32,
    /// Likewise its keys.
    pub key: *const f32,
    /// Likewise its values.
    pub value: *const f32,
    /// Numbers from one token's queries, keys or values to the next's.
    pub stride: usize,
    /// Where the first token's result goes.
    pub out: *mut f32,
    /// Numbers from one token's result to the next.
    pub out_stride: usize,
}

impl WholeArgs {
    /// The tokens that a token sees; where its window has none, the last of those that are seen at all.
    fn seen(&self, token: usize) -> std::ops::Range<usize> {
        let end = token.saturating_add(self.behind).saturating_add(1);
        token.saturating_sub(self.before).min(self.num_keys - 1)..end.min(self.num_keys)
    }
}

/// Memory that [`attend_whole`] works in; reuse one per thread.
#[derive(Debug, Default)]
pub struct WholeScratch {
    /// Transposed keys: `[head_dim][padded tokens]`.
    keys: Vec<Line>,
    /// Scores, then weights: `[row][padded tokens]`.
    scores: Vec<Line>,
    /// Values: `[token][padded head_dim]`.
    values: Vec<Line>,
}

/// Numbers of the scratch for texts of so many tokens.
pub const fn whole_scratch_len(num_tokens: usize, head_dim: usize) -> usize {
    let padded = num_tokens.next_multiple_of(LANES);
    padded * (head_dim + ROWS) + num_tokens * head_dim.next_multiple_of(LANES)
}

/// Numbers of a row that tells by distance what is added to scores of texts of so many tokens: a vector of keys may end past
/// the last token.
pub const fn distance_row_len(num_tokens: usize) -> usize {
    2 * num_tokens + LANES
}

/// Writes each token's attention over the tokens of its text that it sees, of one head.
///
/// # Safety
/// The pointers reach `num_tokens` rows of `head_dim` numbers at their strides, and `bias` the numbers it names; nobody writes what is read, or uses what is
/// written, meanwhile.
pub unsafe fn attend_whole(isa: Isa, args: &WholeArgs, scratch: &mut WholeScratch) {
    #[inline(always)]
    unsafe fn kernel<L: Lanes>(args: &WholeArgs, scratch: &mut WholeScratch) {
        // SAFETY: the caller's promises.
        unsafe { attend::<L>(args, scratch) }
    }
    run_on!(isa, kernel(args: &WholeArgs, scratch: &mut WholeScratch))
}

/// # Safety
/// As [`attend_whole`], on a CPU that has the set of `L`.
#[inline(always)]
unsafe fn attend<L: Lanes>(args: &WholeArgs, scratch: &mut WholeScratch) {
    let (tokens, dims) = (args.num_tokens, args.head_dim);
    let padded = tokens.next_multiple_of(LANES);
    let width = dims.next_multiple_of(LANES);
    let keys = reserve(&mut scratch.keys, dims * padded);
    let values = reserve(&mut scratch.values, tokens * width);
    let scores = reserve(&mut scratch.scores, ROWS * padded);
    // SAFETY: the caller promises the rows; the scratch was reserved, and its slices do not overlap.
    unsafe {
        for token in 0..tokens {
            let key = std::slice::from_raw_parts(args.key.add(token * args.stride), dims);
            for (d, x) in key.iter().enumerate() {
                *keys.add(d * padded + token) = *x;
            }
            let value = std::slice::from_raw_parts(args.value.add(token * args.stride), dims);
            let row = std::slice::from_raw_parts_mut(values.add(token * width), width);
            row[..dims].copy_from_slice(value);
            row[dims..].fill(0.0);
        }
        for d in 0..dims {
            for token in tokens..padded {
                *keys.add(d * padded + token) = 0.0;
            }
        }
        let mut first = 0;
        while first < tokens {
            // Rows past the last token repeat it, and are not written.
            let query: [*const f32; ROWS] =
                std::array::from_fn(|row| args.query.add((first + row).min(tokens - 1) * args.stride));
            let num_rows = ROWS.min(tokens - first);
            let any = args.seen(first).start..args.seen(first + num_rows - 1).end;
            scores_of::<L>(args, &query, keys, scores, any.clone(), (first, padded));
            let mut factors = [0.0; ROWS];
            for (row, factor) in factors.iter_mut().enumerate() {
                let seen = args.seen((first + row).min(tokens - 1));
                let row = std::slice::from_raw_parts_mut(scores.add(row * padded), tokens);
                row[any.start..seen.start].fill(0.0);
                row[seen.end..any.end].fill(0.0);
                *factor = 1.0 / soft_weights::<L>(&mut row[seen]);
            }
            outputs_of::<L>(args, scores, values, any, (first, num_rows), (padded, width), &factors);
            first += ROWS;
        }
    }
}

/// Scores of some rows with the keys that any of them sees.
///
/// # Safety
/// As [`attend`].
#[inline(always)]
unsafe fn scores_of<L: Lanes>(
    args: &WholeArgs,
    query: &[*const f32; ROWS],
    keys: *const f32,
    scores: *mut f32,
    seen: std::ops::Range<usize>,
    (first, padded): (usize, usize),
) {
    // SAFETY: the caller's promises.
    unsafe {
        let scale = L::splat(args.scale);
        for start in (seen.start / LANES * LANES..seen.end).step_by(LANES) {
            let mut sums = [L::splat(0.0); ROWS];
            for d in 0..args.head_dim {
                let key = L::load(keys.add(d * padded + start));
                for row in 0..ROWS {
                    sums[row] = L::splat(*query[row].add(d)).fma(key, sums[row]);
                }
            }
            for (row, sum) in sums.into_iter().enumerate() {
                let mut score = sum.mul(scale);
                if !args.bias.is_null() {
                    let token = (first + row).min(args.num_tokens - 1);
                    score = score.add(L::load(args.bias.offset(start as isize - token as isize)));
                }
                score.store(scores.add(row * padded + start));
            }
        }
    }
}

/// Makes weights of a row of scores, and returns their sum.
///
/// # Safety
/// The CPU has the set of `L`.
#[inline(always)]
unsafe fn soft_weights<L: Lanes>(row: &mut [f32]) -> f32 {
    // SAFETY: the caller promises the set.
    let mut greatest = unsafe { L::splat(f32::NEG_INFINITY) };
    let whole = row.len() / LANES * LANES;
    for start in (0..whole).step_by(LANES) {
        // SAFETY: as above.
        greatest = unsafe { load_part::<L>(row, start) }.max(greatest);
    }
    let greatest = row[whole..]
        .iter()
        .fold(greatest.greatest(), |most, x| if *x > most { *x } else { most });
    // SAFETY: as above.
    let (shift, mut sums) = unsafe { (L::splat(greatest), L::splat(0.0)) };
    for start in (0..row.len()).step_by(LANES) {
        // SAFETY: as above.
        let weights = exp(unsafe { load_part::<L>(row, start) }.sub(shift));
        store_part(weights, row, start);
        // Places past the end are 0.
        // SAFETY: as above.
        sums = sums.add(unsafe { load_part::<L>(row, start) });
    }
    sums.sum()
}

/// Outputs of some rows, by their weights.
///
/// # Safety
/// As [`attend`].
#[inline(always)]
unsafe fn outputs_of<L: Lanes>(
    args: &WholeArgs,
    weights: *const f32,
    values: *const f32,
    seen: std::ops::Range<usize>,
    (first, num_rows): (usize, usize),
    (padded, width): (usize, usize),
    factors: &[f32; ROWS],
) {
    for start in (0..width).step_by(OUT_VECTORS * LANES) {
        let is_single = start + LANES == width;
        // SAFETY: the caller's promises; a vector that does not exist repeats the first and is not written.
        unsafe {
            let second = if is_single { start } else { start + LANES };
            let mut sums = [[L::splat(0.0); OUT_VECTORS]; ROWS];
            for key in seen.clone() {
                let value = values.add(key * width);
                let value = [L::load(value.add(start)), L::load(value.add(second))];
                for row in 0..ROWS {
                    let weight = L::splat(*weights.add(row * padded + key));
                    for vector in 0..OUT_VECTORS {
                        sums[row][vector] = weight.fma(value[vector], sums[row][vector]);
                    }
                }
            }
            for row in 0..num_rows {
                let out = args.out.add((first + row) * args.out_stride);
                let out = std::slice::from_raw_parts_mut(out, args.head_dim);
                let factor = L::splat(factors[row]);
                store_part(sums[row][0].mul(factor), out, start);
                if !is_single {
                    store_part(sums[row][1].mul(factor), out, second);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count)
            .map(|i| ((i * 7919 + seed * 104_729) % 1009) as f32 / 252.0 - 2.0)
            .collect()
    }

    fn attended(
        isa: Isa,
        tokens: usize,
        dims: usize,
        (num_heads, head): (usize, usize),
        (before, behind, num_keys): (usize, usize, usize),
        bias: Option<&[f32]>,
    ) -> Vec<f32> {
        let width = num_heads * dims;
        let [query, key, value] = [1, 2, 3].map(|seed| numbers(tokens * width, seed));
        let mut out = vec![f32::NAN; tokens * dims];
        let args = WholeArgs {
            num_tokens: tokens,
            num_keys,
            head_dim: dims,
            before,
            behind,
            scale: (dims as f32).powf(-0.5),
            bias: bias.map_or(std::ptr::null(), |row| row[tokens - 1..].as_ptr()),
            query: query[head * dims..].as_ptr(),
            key: key[head * dims..].as_ptr(),
            value: value[head * dims..].as_ptr(),
            stride: width,
            out: out.as_mut_ptr(),
            out_stride: dims,
        };
        // SAFETY: the rows are there.
        unsafe { attend_whole(isa, &args, &mut WholeScratch::default()) };
        out
    }

    /// Equal to the formula in double precision, over lengths and widths that fill registers and those that do not, whole,
    /// causal, in windows, with tokens behind that are not seen and with numbers added by distance, and the same bits on every
    /// instruction set.
    #[test]
    fn whole_attention_equals_its_formula_on_every_set() {
        const ALL: usize = usize::MAX;
        let num_heads = 3;
        // Tokens before and behind that are seen, and how many of ten are not seen at all.
        let masks = [
            (ALL, ALL, 0),
            (ALL, 0, 0),
            (2, 3, 0),
            (19, 0, 0),
            (ALL, ALL, 4),
            (2, 3, 7),
        ];
        for (((tokens, dims), mask), is_biased) in [
            (1, 32),
            (2, 16),
            (5, 64),
            (16, 32),
            (17, 48),
            (33, 8),
            (130, 32),
            (7, 24),
            (40, 96),
        ]
        .into_iter()
        .flat_map(|shape| masks.map(|mask| (shape, mask)))
        .flat_map(|shape| [false, true].map(|is_biased| (shape, is_biased)))
        {
            let row = numbers(distance_row_len(tokens), 4);
            let bias = is_biased.then_some(&row[..]);
            let num_keys = tokens - tokens * mask.2 / 10;
            let mask = (mask.0, mask.1, num_keys);
            for head in [0, 2] {
                let width = num_heads * dims;
                let [query, key, value] = [1, 2, 3].map(|seed| numbers(tokens * width, seed));
                let got = attended(Isa::best(), tokens, dims, (num_heads, head), mask, bias);
                for isa in Isa::available() {
                    let other = attended(isa, tokens, dims, (num_heads, head), mask, bias);
                    assert!(
                        got.iter().zip(&other).all(|(a, b)| a.to_bits() == b.to_bits()),
                        "{}",
                        isa.name()
                    );
                }
                for token in 0..tokens {
                    let at = |row: &[f32], token: usize, d: usize| f64::from(row[token * width + head * dims + d]);
                    let mut seen: Vec<usize> = (0..num_keys)
                        .filter(|other| *other + mask.0.min(tokens) >= token && *other <= token + mask.1.min(tokens))
                        .collect();
                    if seen.is_empty() {
                        seen.push(num_keys - 1);
                    }
                    let scores: Vec<f64> = seen
                        .iter()
                        .map(|&other| {
                            let dot: f64 = (0..dims).map(|d| at(&query, token, d) * at(&key, other, d)).sum();
                            let added = if is_biased {
                                row[tokens - 1 + other - token]
                            } else {
                                0.0
                            };
                            dot / (dims as f64).sqrt() + f64::from(added)
                        })
                        .collect();
                    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
                    let sum: f64 = weights.iter().sum();
                    for d in 0..dims {
                        let expected: f64 = seen
                            .iter()
                            .zip(&weights)
                            .map(|(&other, weight)| weight / sum * at(&value, other, d))
                            .sum();
                        let error = (f64::from(got[token * dims + d]) - expected).abs();
                        assert!(error < 2e-5, "{tokens} x {dims}: {error}");
                    }
                }
            }
        }
    }
}
