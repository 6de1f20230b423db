//! Attention of one query token over pages that hold keys and values as rows: `[page][token][kv_head][head_dim]`, f32.
//!
//! This is the layout of a runner that computes with another library, which writes the pages too. A result is the same
//! bit for bit on every instruction set: a score is the fixed tree's sum of sixteen lanes (lane = dimension mod 16) of
//! chains over the dimensions; a sum of weights runs in sixteen lanes, lane = position mod 16; an output is one chain over
//! the positions in order, multiplied by `1 / sum` at the end.

use std::ops::Range;

use super::BLOCK_TOKENS;
use super::kernel::prefetch;
use crate::elementwise::functions;
use crate::isa::Isa;
use crate::lanes::{LANES, Lanes, run_on};

/// Registers of dimensions whose outputs are summed together.
const DIMS: usize = 4;
/// Keys are fetched so many blocks before they are read.
const BLOCKS_AHEAD: usize = 3;
/// Numbers in a cache line.
const LINE: usize = 16;

/// A layer's keys and values.
#[derive(Clone, Copy, Debug)]
pub struct RowPages<'a> {
    keys: &'a [f32],
    values: &'a [f32],
    num_kv_heads: usize,
    head_dim: usize,
}

impl<'a> RowPages<'a> {
    /// Both `[page][token][kv_head][head_dim]`; None unless they are so many whole pages of heads of whole registers.
    pub fn new(keys: &'a [f32], values: &'a [f32], num_kv_heads: usize, head_dim: usize) -> Option<Self> {
        let page = BLOCK_TOKENS * num_kv_heads * head_dim;
        let fits = page > 0 && head_dim.is_multiple_of(LANES) && keys.len().is_multiple_of(page);
        (fits && keys.len() == values.len()).then_some(Self {
            keys,
            values,
            num_kv_heads,
            head_dim,
        })
    }

    /// Key-value heads.
    pub const fn num_kv_heads(&self) -> usize {
        self.num_kv_heads
    }

    /// How many there are.
    pub const fn num_pages(&self) -> usize {
        self.keys.len() / self.page_len()
    }

    const fn page_len(&self) -> usize {
        BLOCK_TOKENS * self.row_len()
    }

    /// Numbers from one token to the next.
    const fn row_len(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }
}

/// What a sequence's last token sees.
#[derive(Clone, Copy, Debug)]
pub struct RowSequence<'a> {
    pages: &'a [i32],
    visible: (usize, usize),
}

impl<'a> RowSequence<'a> {
    /// Of `length` tokens in `pages` the last `window`. None unless there are such pages; those that are not seen may be
    /// any number.
    pub fn new(cache: &RowPages<'_>, pages: &'a [i32], length: usize, window: Option<usize>) -> Option<Self> {
        let first = length - window.map_or(length, |window| window.min(length));
        let seen = pages.get(first / BLOCK_TOKENS..length.div_ceil(BLOCK_TOKENS))?;
        let exists = |page: &i32| usize::try_from(*page).is_ok_and(|page| page < cache.num_pages());
        (first < length && seen.iter().all(exists)).then_some(Self {
            pages,
            visible: (first, length),
        })
    }

    /// The positions that are seen.
    const fn positions(&self) -> Range<usize> {
        self.visible.0..self.visible.1
    }

    /// The blocks in which they lie.
    fn blocks(&self) -> Range<usize> {
        self.visible.0 / BLOCK_TOKENS..self.visible.1.div_ceil(BLOCK_TOKENS)
    }
}

/// Attention of the query heads that share a key-value head: `q` and `out` are `[head][head_dim]`. Scores are
/// `scale * q . k`, where `scale` is usually `1 / sqrt(head_dim)`.
///
/// `scratch` is memory to work in; reuse one for each thread.
///
/// # Panics
/// When there is no such key-value head, or `q` and `out` are not as many whole heads.
#[expect(clippy::too_many_arguments, reason = "pages, heads and memory, each its own")]
pub fn attend_rows(
    isa: Isa,
    cache: &RowPages<'_>,
    sequence: &RowSequence<'_>,
    kv_head: usize,
    scale: f32,
    q: &[f32],
    out: &mut [f32],
    scratch: &mut Vec<f32>,
) {
    assert!(
        kv_head < cache.num_kv_heads && q.len() == out.len() && q.len().is_multiple_of(cache.head_dim),
        "queries that do not fit the keys"
    );
    let num_heads = q.len() / cache.head_dim;
    let num_scores = num_heads * sequence.blocks().len() * BLOCK_TOKENS;
    if scratch.len() < num_scores + num_heads {
        scratch.resize(num_scores + num_heads, 0.0);
    }
    let (weights, sums) = scratch.split_at_mut(num_scores);
    let group = Group {
        cache,
        sequence,
        scale,
        offset: kv_head * cache.head_dim,
        num_heads,
    };
    let group = &group;
    run_on!(isa, attend(group: &Group<'_>, q: &[f32], out: &mut [f32], weights: &mut [f32], sums: &mut [f32]));
}

/// The heads that share a key-value head.
struct Group<'a> {
    cache: &'a RowPages<'a>,
    sequence: &'a RowSequence<'a>,
    /// Scores are `scale * q . k`.
    scale: f32,
    /// From a token's first number to its key-value head's.
    offset: usize,
    num_heads: usize,
}

impl Group<'_> {
    /// Where a block's first token has its head in `numbers`; a block after the last is the last.
    #[inline(always)]
    fn start(&self, block: usize) -> usize {
        let block = block.min(self.sequence.blocks().end - 1);
        self.sequence.pages[block] as usize * self.cache.page_len() + self.offset
    }

    /// Asks for a block of keys, or of values, that is read soon.
    #[inline(always)]
    fn expect(&self, numbers: &[f32], block: usize) {
        let start = self.start(block);
        for token in 0..BLOCK_TOKENS {
            for at in (0..self.cache.head_dim).step_by(LINE) {
                prefetch(numbers.as_ptr().wrapping_add(start + token * self.cache.row_len() + at));
            }
        }
    }
}

/// Scores, weights, outputs. `weights` are `[head][position of the blocks seen]`.
#[inline(always)]
unsafe fn attend<L: Lanes>(group: &Group<'_>, q: &[f32], out: &mut [f32], weights: &mut [f32], sums: &mut [f32]) {
    let blocks = group.sequence.blocks();
    let width = blocks.len() * BLOCK_TOKENS;
    for block in blocks.clone() {
        if block + BLOCKS_AHEAD < blocks.end {
            group.expect(group.cache.keys, block + BLOCKS_AHEAD);
        } else {
            group.expect(group.cache.values, block + BLOCKS_AHEAD - blocks.len());
        }
        for head in 0..group.num_heads {
            // SAFETY: the caller promises the set of `L`; the slices hold the head and the block.
            unsafe {
                let q = q[head * group.cache.head_dim..].as_ptr();
                let scores = score_block::<L>(group, block, q);
                scores.store(weights[head * width + (block - blocks.start) * BLOCK_TOKENS..][..LANES].as_mut_ptr());
            }
        }
    }
    let positions = group.sequence.positions();
    let first = blocks.start * BLOCK_TOKENS;
    let seen = positions.start - first..positions.end - first;
    for (weights, sum) in weights.chunks_exact_mut(width).zip(sums.iter_mut()) {
        // SAFETY: the caller promises the set of `L`.
        *sum = unsafe { weigh::<L>(group.scale, weights, &seen) };
    }
    let mut head = 0;
    while head < group.num_heads {
        let rows = head * width..group.num_heads * width;
        let (weights, sums) = (&weights[rows], &sums[head..]);
        let out = &mut out[head * group.cache.head_dim..];
        // SAFETY: the caller promises the set of `L`; there are so many heads left.
        unsafe {
            match group.num_heads - head {
                1 => sum_values::<L, 1>(group, weights, sums, out),
                2 => sum_values::<L, 2>(group, weights, sums, out),
                3 => sum_values::<L, 3>(group, weights, sums, out),
                _ => sum_values::<L, 4>(group, weights, sums, out),
            }
        }
        head += 4;
    }
}

/// The products of a query head and the sixteen keys of a block.
#[inline(always)]
unsafe fn score_block<L: Lanes>(group: &Group<'_>, block: usize, q: *const f32) -> L {
    let start = group.start(block);
    // SAFETY: the caller promises the set; the page was checked to exist, and each token's head lies in it.
    unsafe {
        let keys = group.cache.keys.as_ptr().add(start);
        let mut sums = [L::splat(0.0); BLOCK_TOKENS];
        for at in (0..group.cache.head_dim).step_by(LANES) {
            let q = L::load(q.add(at));
            for (token, sum) in sums.iter_mut().enumerate() {
                *sum = q.fma(L::load(keys.add(token * group.cache.row_len() + at)), *sum);
            }
        }
        L::sums(sums)
    }
}

/// Turns a head's products into weights `e^(score - greatest)`, 0 for what it does not see; gives their sum.
#[inline(always)]
unsafe fn weigh<L: Lanes>(scale: f32, weights: &mut [f32], seen: &Range<usize>) -> f32 {
    // SAFETY: the caller promises the set; weights are whole blocks.
    unsafe {
        let scale = L::splat(scale);
        let mut greatest = L::splat(f32::NEG_INFINITY);
        for start in (0..weights.len()).step_by(LANES) {
            let line = weights[start..][..LANES].as_mut_ptr();
            L::load(line).mul(scale).store(line);
            if start < seen.start || start + LANES > seen.end {
                for (lane, weight) in weights[start..][..LANES].iter_mut().enumerate() {
                    if !seen.contains(&(start + lane)) {
                        *weight = f32::NEG_INFINITY;
                    }
                }
            }
            greatest = L::load(weights[start..][..LANES].as_ptr()).max(greatest);
        }
        let greatest = L::splat(greatest.greatest());
        let mut sum = L::splat(0.0);
        for start in (0..weights.len()).step_by(LANES) {
            let line = weights[start..][..LANES].as_mut_ptr();
            let weight = functions::exp(L::load(line).sub(greatest));
            weight.store(line);
            sum = sum.add(weight);
        }
        sum.sum()
    }
}

/// The outputs of `HEADS` heads. Only what is seen is read: even a weight of 0 would let a NaN through.
#[inline(always)]
unsafe fn sum_values<L: Lanes, const HEADS: usize>(group: &Group<'_>, weights: &[f32], sums: &[f32], out: &mut [f32]) {
    let head_dim = group.cache.head_dim;
    let mut at = 0;
    // SAFETY: the caller promises the set and so many heads; the tiles stay within a head.
    unsafe {
        while at + DIMS * LANES <= head_dim {
            sum_tile::<L, HEADS, DIMS>(group, weights, sums, out, at);
            at += DIMS * LANES;
        }
        while at < head_dim {
            sum_tile::<L, HEADS, 1>(group, weights, sums, out, at);
            at += LANES;
        }
    }
}

#[inline(always)]
unsafe fn sum_tile<L: Lanes, const HEADS: usize, const DIMS: usize>(
    group: &Group<'_>,
    weights: &[f32],
    sums: &[f32],
    out: &mut [f32],
    at: usize,
) {
    let (blocks, positions) = (group.sequence.blocks(), group.sequence.positions());
    let width = blocks.len() * BLOCK_TOKENS;
    // SAFETY: the caller promises the set; pages were checked, and positions lie in them.
    unsafe {
        let mut outputs = [[L::splat(0.0); DIMS]; HEADS];
        for block in blocks.clone() {
            if block + BLOCKS_AHEAD < blocks.end {
                group.expect(group.cache.values, block + BLOCKS_AHEAD);
            }
            let values = group.cache.values.as_ptr().add(group.start(block) + at);
            let first = block * BLOCK_TOKENS;
            let seen = positions.start.max(first) - first..positions.end.min(first + BLOCK_TOKENS) - first;
            for token in seen {
                let row = values.add(token * group.cache.row_len());
                let place = (block - blocks.start) * BLOCK_TOKENS + token;
                let mut lines = [L::splat(0.0); DIMS];
                for (i, line) in lines.iter_mut().enumerate() {
                    *line = L::load(row.add(i * LANES));
                }
                for (head, outputs) in outputs.iter_mut().enumerate() {
                    let weight = L::splat(*weights.get_unchecked(head * width + place));
                    for (output, line) in outputs.iter_mut().zip(&lines) {
                        *output = weight.fma(*line, *output);
                    }
                }
            }
        }
        for (head, outputs) in outputs.iter().enumerate() {
            let factor = L::splat(1.0 / sums[head]);
            for (i, output) in outputs.iter().enumerate() {
                let target = out[head * group.cache.head_dim + at + i * LANES..][..LANES].as_mut_ptr();
                output.mul(factor).store(target);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NUM_PAGES: usize = 24;

    fn number(i: usize) -> f32 {
        let mixed = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed >> 40) as f32 / (1_u32 << 23) as f32) - 1.0
    }

    fn numbers(len: usize, seed: usize) -> Vec<f32> {
        (0..len).map(|i| 2.0 * number(i + seed)).collect()
    }

    /// Pages in an order of their own; those of blocks that are not seen do not exist.
    fn table(length: usize, window: Option<usize>) -> Vec<i32> {
        let first = length.saturating_sub(window.unwrap_or(length)) / BLOCK_TOKENS;
        (0..length.div_ceil(BLOCK_TOKENS) + 2)
            .map(|block| match (first..length.div_ceil(BLOCK_TOKENS)).contains(&block) {
                true => (block * 7 % NUM_PAGES) as i32,
                false => i32::MAX,
            })
            .collect()
    }

    /// The formula, in double precision.
    fn exact(cache: &RowPages<'_>, pages: &[i32], seen: Range<usize>, kv_head: usize, q: &[f32]) -> Vec<f64> {
        let row = |numbers: &[f32], position: usize| -> Vec<f64> {
            let page = pages[position / BLOCK_TOKENS] as usize;
            let start = page * cache.page_len() + position % BLOCK_TOKENS * cache.row_len() + kv_head * cache.head_dim;
            numbers[start..start + cache.head_dim]
                .iter()
                .map(|x| f64::from(*x))
                .collect()
        };
        let weights: Vec<f64> = seen
            .clone()
            .map(|position| {
                let products = row(cache.keys, position).into_iter().zip(q);
                (0.125 * products.map(|(k, q)| k * f64::from(*q)).sum::<f64>()).exp()
            })
            .collect();
        let mut out = vec![0.0; cache.head_dim];
        for (position, weight) in seen.zip(&weights) {
            for (out, value) in out.iter_mut().zip(row(cache.values, position)) {
                *out += weight * value / weights.iter().sum::<f64>();
            }
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// Each set gives the formula's result, all of them the same bits, whatever lies where it must not look.
        #[test]
        fn attention_is_the_formulas(
            length in 1_usize..=NUM_PAGES * BLOCK_TOKENS,
            window in proptest::option::of(1_usize..200),
            registers in 1_usize..=9,
            num_heads in 1_usize..=6,
        ) {
            let (num_kv_heads, head_dim) = (2, registers * LANES);
            let len = NUM_PAGES * BLOCK_TOKENS * num_kv_heads * head_dim;
            let (mut keys, mut values) = (numbers(len, 1), numbers(len, 2_000_000));
            let pages = table(length, window);
            let seen = length - window.unwrap_or(length).min(length)..length;
            let row_len = num_kv_heads * head_dim;
            let blocks = seen.start / BLOCK_TOKENS..length.div_ceil(BLOCK_TOKENS);
            for (block, page) in blocks.clone().zip(&pages[blocks]) {
                for token in 0..BLOCK_TOKENS {
                    if !seen.contains(&(block * BLOCK_TOKENS + token)) {
                        let start = (*page as usize * BLOCK_TOKENS + token) * row_len;
                        keys[start..start + row_len].fill(f32::NAN);
                        values[start..start + row_len].fill(f32::NAN);
                    }
                }
            }
            let cache = RowPages::new(&keys, &values, num_kv_heads, head_dim).expect("whole pages");
            let sequence = RowSequence::new(&cache, &pages, length, window).expect("pages that exist");
            let (q, mut scratch) = (numbers(num_heads * head_dim, 77), Vec::new());
            let results: Vec<Vec<f32>> = Isa::available().into_iter().map(|isa| {
                let mut out = vec![f32::NAN; q.len()];
                attend_rows(isa, &cache, &sequence, 1, 0.125, &q, &mut out, &mut scratch);
                out
            }).collect();
            for (got, q) in results[0].chunks_exact(head_dim).zip(q.chunks_exact(head_dim)) {
                for (got, exact) in got.iter().zip(exact(&cache, &pages, seen.clone(), 1, q)) {
                    prop_assert!((f64::from(*got) - exact).abs() < 1e-5, "{got} for {exact}");
                }
            }
            for other in &results[1..] {
                prop_assert!(other.iter().zip(&results[0]).all(|(a, b)| a.to_bits() == b.to_bits()));
            }
        }
    }

    /// Pages that do not exist, and no pages for a length, are refused before any is read.
    #[test]
    fn pages_that_do_not_exist_are_refused() {
        let numbers = numbers(2 * BLOCK_TOKENS * LANES, 1);
        let cache = RowPages::new(&numbers, &numbers, 1, LANES).expect("two pages");
        assert_eq!(cache.num_pages(), 2);
        assert!(RowSequence::new(&cache, &[0, 1], 32, None).is_some());
        for (pages, length) in [(&[0, 2][..], 32), (&[-1], 1), (&[0, 1], 33), (&[0], 0)] {
            assert!(RowSequence::new(&cache, pages, length, None).is_none(), "{pages:?}");
        }
        assert!(
            RowSequence::new(&cache, &[9, 1], 32, Some(16)).is_some(),
            "the first is not seen"
        );
        assert!(RowPages::new(&numbers, &numbers[1..], 1, LANES).is_none());
        assert!(RowPages::new(&numbers, &numbers, 1, LANES - 1).is_none());
    }
}
