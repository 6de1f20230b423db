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

use std::cell::UnsafeCell;
use std::ops::Range;

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

/// Some of a text's queries, of one head, over keys and values that are stored.
#[derive(Clone, Copy, Debug)]
pub struct PartArgs {
    /// The first query's place in its text.
    pub first: usize,
    /// Queries from there on: at least one.
    pub num_queries: usize,
    /// How many tokens, from the text's first on, any token sees: at least one. They are stored.
    pub num_keys: usize,
    /// As in [`WholeArgs`].
    pub head_dim: usize,
    /// As in [`WholeArgs`].
    pub before: usize,
    /// As in [`WholeArgs`].
    pub behind: usize,
    /// As in [`WholeArgs`].
    pub scale: f32,
    /// As in [`WholeArgs`].
    pub bias: *const f32,
    /// The first query.
    pub query: *const f32,
    /// Numbers from one query to the next.
    pub stride: usize,
    /// Where its result goes.
    pub out: *mut f32,
    /// Numbers from one result to the next.
    pub out_stride: usize,
}

impl PartArgs {
    /// The tokens that a token sees; where its window has none, the last of those that are seen at all.
    fn seen(&self, token: usize) -> Range<usize> {
        let end = token.saturating_add(self.behind).saturating_add(1);
        token.saturating_sub(self.before).min(self.num_keys - 1)..end.min(self.num_keys)
    }
}

/// Keys and values of one head as attention reads them: keys `[head_dim][room]`, values `[room][padded head_dim]`.
#[derive(Clone, Copy)]
struct Stored {
    keys: *mut f32,
    values: *mut f32,
    /// A multiple of the lanes.
    room: usize,
    head_dim: usize,
}

impl Stored {
    fn width(self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    /// Stores the keys and values of tokens, the first of which are at `key` and `value`.
    ///
    /// # Safety
    /// There are a row for each token, `stride` numbers apart, and room for them; nobody else uses it meanwhile.
    unsafe fn fill(self, tokens: Range<usize>, key: *const f32, value: *const f32, stride: usize) {
        let (dims, width) = (self.head_dim, self.width());
        for (row, token) in tokens.enumerate() {
            // SAFETY: by contract.
            unsafe {
                let key = std::slice::from_raw_parts(key.add(row * stride), dims);
                for (d, x) in key.iter().enumerate() {
                    *self.keys.add(d * self.room + token) = *x;
                }
                let value = std::slice::from_raw_parts(value.add(row * stride), dims);
                let row = std::slice::from_raw_parts_mut(self.values.add(token * width), width);
                row[..dims].copy_from_slice(value);
                row[dims..].fill(0.0);
            }
        }
    }
}

/// The keys and values of some heads of one text in one layer, for texts that are computed in parts.
pub struct StoredHeads {
    lines: UnsafeCell<Vec<Line>>,
    num_heads: usize,
    room: usize,
    head_dim: usize,
}

// SAFETY: whoever stores or reads a head promises that nobody else does what would disturb it.
unsafe impl Sync for StoredHeads {}

impl StoredHeads {
    /// Room for so many tokens.
    pub fn new(num_heads: usize, num_tokens: usize, head_dim: usize) -> Self {
        let numbers = Self::bytes(num_heads, num_tokens, head_dim) / size_of::<f32>();
        Self {
            lines: UnsafeCell::new(vec![Line([0.0; LANES]); numbers.div_ceil(LANES)]),
            num_heads,
            room: num_tokens.next_multiple_of(LANES),
            head_dim,
        }
    }

    /// Bytes that they take.
    pub const fn bytes(num_heads: usize, num_tokens: usize, head_dim: usize) -> usize {
        let of_token = head_dim + head_dim.next_multiple_of(LANES);
        num_heads * num_tokens.next_multiple_of(LANES) * of_token * size_of::<f32>()
    }

    fn head(&self, head: usize) -> Stored {
        assert!(head < self.num_heads, "a head that there is");
        let width = self.head_dim.next_multiple_of(LANES);
        // SAFETY: only the pointer is taken; the memory never moves.
        let base: *mut f32 = unsafe { (*self.lines.get()).as_mut_ptr().cast() };
        let keys = base.wrapping_add(head * self.room * (self.head_dim + width));
        Stored {
            keys,
            values: keys.wrapping_add(self.room * self.head_dim),
            room: self.room,
            head_dim: self.head_dim,
        }
    }

    /// Stores a head's keys and values of tokens, the first of which are at `key` and `value`.
    ///
    /// # Panics
    /// When there is no room for the tokens, or no such head.
    ///
    /// # Safety
    /// There is a row for each token, `stride` numbers apart. Nobody else uses the head meanwhile.
    pub unsafe fn store(&self, head: usize, tokens: Range<usize>, key: *const f32, value: *const f32, stride: usize) {
        assert!(tokens.end <= self.room, "room for the tokens");
        // SAFETY: by contract; there is room.
        unsafe { self.head(head).fill(tokens, key, value, stride) };
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

/// Numbers of the scratch where keys and values of so many tokens are stored.
pub const fn part_scratch_len(num_tokens: usize) -> usize {
    num_tokens.next_multiple_of(LANES) * ROWS
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

/// Writes the attention of some queries of a text over stored keys and values of one head: the same bits as
/// [`attend_whole`] writes for them.
///
/// # Panics
/// When fewer keys are stored than are seen, or there is no such head.
///
/// # Safety
/// `args.query` and `args.out` reach `num_queries` rows of `head_dim` numbers at their strides, and `args.bias` the numbers
/// it names; nobody writes what is read, or uses what is written, meanwhile.
pub unsafe fn attend_part(isa: Isa, args: &PartArgs, stored: &StoredHeads, head: usize, scratch: &mut WholeScratch) {
    #[inline(always)]
    unsafe fn kernel<L: Lanes>(args: &PartArgs, stored: Stored, scores: *mut f32) {
        // SAFETY: the caller's promises.
        unsafe { attend_stored::<L>(args, stored, scores) }
    }
    assert!(args.num_keys <= stored.room, "keys that there are");
    assert_eq!(args.head_dim, stored.head_dim, "heads of one width");
    let scores = reserve(&mut scratch.scores, ROWS * stored.room);
    let stored = stored.head(head);
    run_on!(isa, kernel(args: &PartArgs, stored: Stored, scores: *mut f32))
}

/// # Safety
/// As [`attend_whole`], on a CPU that has the set of `L`.
#[inline(always)]
unsafe fn attend<L: Lanes>(args: &WholeArgs, scratch: &mut WholeScratch) {
    let (tokens, dims) = (args.num_tokens, args.head_dim);
    let padded = tokens.next_multiple_of(LANES);
    let stored = Stored {
        keys: reserve(&mut scratch.keys, dims * padded),
        values: reserve(&mut scratch.values, tokens * dims.next_multiple_of(LANES)),
        room: padded,
        head_dim: dims,
    };
    let scores = reserve(&mut scratch.scores, ROWS * padded);
    let part = PartArgs {
        first: 0,
        num_queries: tokens,
        num_keys: args.num_keys,
        head_dim: dims,
        before: args.before,
        behind: args.behind,
        scale: args.scale,
        bias: args.bias,
        query: args.query,
        stride: args.stride,
        out: args.out,
        out_stride: args.out_stride,
    };
    // SAFETY: the caller promises the rows; the scratch was reserved, and its slices do not overlap.
    unsafe {
        stored.fill(0..tokens, args.key, args.value, args.stride);
        for d in 0..dims {
            for token in tokens..padded {
                *stored.keys.add(d * padded + token) = 0.0;
            }
        }
        attend_stored::<L>(&part, stored, scores);
    }
}

/// # Safety
/// As [`attend_part`], on a CPU that has the set of `L`; `scores` has room for a row of stored tokens each.
#[inline(always)]
unsafe fn attend_stored<L: Lanes>(args: &PartArgs, stored: Stored, scores: *mut f32) {
    let Stored { keys, values, room, .. } = stored;
    let mut done = 0;
    while done < args.num_queries {
        let num_rows = ROWS.min(args.num_queries - done);
        let first = args.first + done;
        // SAFETY: the caller's promises.
        unsafe {
            // Rows past the last query repeat it, and are not written.
            let query: [*const f32; ROWS] =
                std::array::from_fn(|row| args.query.add((done + row.min(num_rows - 1)) * args.stride));
            let any = args.seen(first).start..args.seen(first + num_rows - 1).end;
            scores_of::<L>(args, &query, keys, scores, any.clone(), (first, num_rows), room);
            let mut factors = [0.0; ROWS];
            for (row, factor) in factors.iter_mut().enumerate() {
                let seen = args.seen(first + row.min(num_rows - 1));
                let row = std::slice::from_raw_parts_mut(scores.add(row * room), args.num_keys);
                row[any.start..seen.start].fill(0.0);
                row[seen.end..any.end].fill(0.0);
                *factor = 1.0 / soft_weights::<L>(&mut row[seen]);
            }
            outputs_of::<L>(
                args,
                scores,
                values,
                any,
                (done, num_rows),
                (room, stored.width()),
                &factors,
            );
        }
        done += ROWS;
    }
}

/// Scores of some rows with the keys that any of them sees.
///
/// # Safety
/// As [`attend`].
#[inline(always)]
unsafe fn scores_of<L: Lanes>(
    args: &PartArgs,
    query: &[*const f32; ROWS],
    keys: *const f32,
    scores: *mut f32,
    seen: Range<usize>,
    (first, num_rows): (usize, usize),
    padded: usize,
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
                    let token = first + row.min(num_rows - 1);
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
    args: &PartArgs,
    weights: *const f32,
    values: *const f32,
    seen: Range<usize>,
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

    /// The same over keys and values that are stored, seven queries at a time; the memory had another text before.
    fn attended_in_parts(
        tokens: usize,
        dims: usize,
        (num_heads, head): (usize, usize),
        (before, behind, num_keys): (usize, usize, usize),
        bias: Option<&[f32]>,
    ) -> Vec<f32> {
        let width = num_heads * dims;
        let [query, key, value, stale] = [1, 2, 3, 9].map(|seed| numbers(tokens * width, seed));
        let stored = StoredHeads::new(2, tokens, dims);
        let mut out = vec![f32::NAN; tokens * dims];
        let mut scratch = WholeScratch::default();
        // SAFETY: the rows are there.
        unsafe { stored.store(1, 0..tokens, stale.as_ptr(), stale.as_ptr(), width) };
        for first in (0..tokens).step_by(7) {
            let num_queries = 7.min(tokens - first);
            // What a token sees is stored by then: in a causal layer the rest is not.
            let end = if behind == 0 { first + num_queries } else { tokens };
            let new = if behind == 0 || first == 0 { first..end } else { 0..0 };
            let at = |rows: &[f32], token: usize| rows[token * width + head * dims..].as_ptr();
            let args = PartArgs {
                first,
                num_queries,
                num_keys: num_keys.min(end),
                head_dim: dims,
                before,
                behind,
                scale: (dims as f32).powf(-0.5),
                bias: bias.map_or(std::ptr::null(), |row| row[tokens - 1..].as_ptr()),
                query: at(&query, first),
                stride: width,
                out: out[first * dims..].as_mut_ptr(),
                out_stride: dims,
            };
            // SAFETY: the rows are there.
            unsafe {
                stored.store(1, new, at(&key, first), at(&value, first), width);
                attend_part(Isa::best(), &args, &stored, 1, &mut scratch);
            }
        }
        out
    }

    /// Equal to the formula in double precision, over lengths and widths that fill registers and those that do not, whole,
    /// causal, in windows, with tokens behind that are not seen and with numbers added by distance, and the same bits on every
    /// instruction set and in parts.
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
                let parts = attended_in_parts(tokens, dims, (num_heads, head), mask, bias);
                assert!(
                    got.iter().zip(&parts).all(|(a, b)| a.to_bits() == b.to_bits()),
                    "in parts"
                );
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
