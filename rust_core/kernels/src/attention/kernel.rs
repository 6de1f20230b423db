//! The attention of a few rows (query token and head) over one chunk of the positions, written once for all
//! instruction sets.
//!
//! Three passes: scores of the keys into scratch; softmax per row; weighted sum of the values.
//! `ROWS`, and the tile widths `KEYS` (blocks of keys) and `DIMS` (registers of dimensions), only say what is
//! held in registers together: each number is computed by the same chain of operations for all of them.

use std::ops::Range;

use super::index::{self, Ratings};
use super::partial::Partials;
use super::stored::{Bf16Halves, Stored, factor_index, in_order, only_seen, takes_part};
use super::{AttentionArgs, BLOCK_TOKENS, KvLayout, KvType, dual, latent};
use crate::elementwise::functions;
use crate::lanes::{F16, LANES, Lanes};

/// Keys and values are fetched so many blocks before they are read: one is computed in less time than memory takes.
const BLOCKS_AHEAD: usize = 8;

/// The most rows of a group, on any set.
pub(super) const MAX_ROWS: usize = 8;

/// Rows computed together over one chunk, and all they need.
pub(super) struct Group<'a> {
    pub(super) layout: &'a KvLayout,
    pub(super) args: &'a AttentionArgs<'a>,
    /// The first of them among all of the call's.
    pub(super) first_row: usize,
    /// `ROWS`, as a number the compiler does not know: loops over it are not unrolled, which would only be code.
    pub(super) num_rows: usize,
    /// The positions of the chunk that each row sees; they move on with the row. A row may see none, but not all may.
    pub(super) visible: [Range<usize>; MAX_ROWS],
    /// The blocks that any of the rows sees in the chunk.
    pub(super) blocks: Range<usize>,
    /// The last block that any row of the call sees.
    pub(super) last_block: usize,
    /// Scratch on a cache-line border, `[block][row][16]`.
    pub(super) scores: *mut f32,
    /// `[head_dim][row]`.
    pub(super) queries: *const f32,
    /// Numbers from these to those that keys of the chunk before meet, in dual chunk attention.
    pub(super) queries_len: usize,
    /// Where the rows' results for the chunk go.
    pub(super) partials: Partials,
    /// Where the rows rate positions, and attend to none: what they add to.
    pub(super) ratings: Option<Ratings>,
}

impl Group<'_> {
    /// The bytes `offset` into a block of the sequence.
    #[inline(always)]
    pub(super) unsafe fn block<T>(&self, block: usize, offset: usize) -> *const T {
        // SAFETY: the caller promises that the blocks exist.
        unsafe { self.args.kv.block(block).add(offset).cast_const().cast() }
    }

    /// The scales of the keys, or values, that lie `offset` bytes into a block.
    #[inline(always)]
    unsafe fn scales(&self, block: usize, offset: usize) -> *const f32 {
        // SAFETY: the caller promises that the block exists and has scales.
        unsafe { self.block(block, offset + self.layout.scales_at()) }
    }
}

/// Computes a group of `ROWS` rows.
///
/// # Safety
/// What [`super::attend`] asks for holds, the scratch has room for the group, and the CPU has the set of `L`.
#[inline(always)]
pub(super) unsafe fn attend<L: Lanes, const ROWS: usize, const KEYS: usize, const DIMS: usize>(group: &Group<'_>) {
    // SAFETY: the caller's promise; the dtype says how the numbers lie.
    unsafe {
        match group.layout.dtype {
            KvType::F32 => attend_stored::<L, f32, ROWS, KEYS, DIMS>(group),
            KvType::F16 => attend_stored::<L, F16, ROWS, KEYS, DIMS>(group),
            KvType::Bf16 => attend_stored::<L, Bf16Halves, ROWS, KEYS, DIMS>(group),
            KvType::Int8 => attend_stored::<L, i8, ROWS, KEYS, DIMS>(group),
        }
    }
}

/// [`attend`], of numbers that are known to be `S`.
#[inline(always)]
pub(super) unsafe fn attend_stored<L: Lanes, S: Stored, const ROWS: usize, const KEYS: usize, const DIMS: usize>(
    group: &Group<'_>,
) {
    // SAFETY: the caller's promise, which is the same for each pass.
    unsafe {
        dual::score_chunks::<L, S, ROWS, KEYS>(group);
        if let Some(ratings) = group.ratings {
            index::add_ratings::<L, ROWS>(group, ratings);
            return;
        }
        for row in 0..group.num_rows {
            weigh::<L, S, ROWS>(group, row);
        }
        if group.layout.values_in_keys.is_some() {
            latent::sum_values::<L, S, ROWS, DIMS>(group);
        } else {
            sum_values::<L, S, ROWS, DIMS>(group);
        }
    }
}

/// Scores of every key in the group's blocks, scaled and capped.
#[inline(always)]
pub(super) unsafe fn score_blocks<L: Lanes, S: Stored, const ROWS: usize, const KEYS: usize>(group: &Group<'_>) {
    let mut block = group.blocks.start;
    // SAFETY: the caller's promise; the tiles stay within the group's blocks.
    unsafe {
        while block + KEYS <= group.blocks.end {
            score_tile::<L, S, ROWS, KEYS>(group, block);
            block += KEYS;
        }
        while block < group.blocks.end {
            score_tile::<L, S, ROWS, 1>(group, block);
            block += 1;
        }
    }
}

/// Where the `index`th block that the group reads lies: its keys, its values, then the next chunk's keys.
#[inline(always)]
unsafe fn block_read<S: Stored>(group: &Group<'_>, index: usize) -> *const S {
    let count = group.blocks.len();
    let (layout, kv_head) = (group.layout, group.args.kv_head);
    // SAFETY: the caller promises the group's blocks, and those after them, of which these are.
    unsafe {
        if (count..2 * count).contains(&index) {
            return group.block(group.blocks.start + index - count, layout.values_at(kv_head));
        }
        let block = group.blocks.start + if index < count { index } else { index - count };
        group.block(block.min(group.last_block), layout.keys_at(kv_head))
    }
}

/// Asks for the cache line at `place`, which need not exist, to come to the second-level cache: the first level can wait
/// for few lines at a time, and would hold the others up.
#[inline(always)]
pub(super) fn prefetch<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch changes nothing and never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

#[inline(always)]
unsafe fn score_tile<L: Lanes, S: Stored, const ROWS: usize, const KEYS: usize>(group: &Group<'_>, block: usize) {
    // SAFETY: the caller promises blocks, queries, scratch and the set of `L`.
    unsafe {
        let keys_at = group.layout.keys_at(group.args.kv_head);
        let mut keys: [*const S; KEYS] = [std::ptr::null(); KEYS];
        for (i, pointer) in keys.iter_mut().enumerate() {
            *pointer = group.block(block + i, keys_at);
        }
        let mut next: [*const S; KEYS] = [std::ptr::null(); KEYS];
        for (i, pointer) in next.iter_mut().enumerate() {
            *pointer = block_read(group, block - group.blocks.start + BLOCKS_AHEAD + i);
        }
        let mut scores = [[L::splat(0.0); KEYS]; ROWS];
        let count = group.layout.head_dim.div_ceil(S::WIDTH);
        let whole = count / S::PER_LINE * S::PER_LINE;
        for start in (0..whole).step_by(S::PER_LINE) {
            for pointer in next {
                prefetch(pointer.wrapping_add(start * BLOCK_TOKENS));
            }
            for d in start..start + S::PER_LINE {
                add_products::<L, S, ROWS, KEYS>(group, d, &keys, &mut scores);
            }
        }
        for d in whole..count {
            add_products::<L, S, ROWS, KEYS>(group, d, &keys, &mut scores);
        }
        let scale = L::splat(group.args.scale);
        for i in 0..KEYS {
            let target = group.scores.add((block + i - group.blocks.start) * ROWS * LANES);
            let scales = S::IS_SCALED.then(|| L::load(group.scales(block + i, keys_at)));
            for (row, scores) in scores.iter().enumerate() {
                let score = scales.map_or(scores[i], |scales| scores[i].mul(scales));
                score.mul(scale).store(target.add(row * LANES));
            }
        }
    }
}

/// Adds the products of what lies at `d` to the scores of each row and block.
#[inline(always)]
unsafe fn add_products<L: Lanes, S: Stored, const ROWS: usize, const KEYS: usize>(
    group: &Group<'_>,
    d: usize,
    keys: &[*const S; KEYS],
    scores: &mut [[L; KEYS]; ROWS],
) {
    // SAFETY: the caller promises keys, queries and the set of `L`.
    unsafe {
        for part in 0..S::PARTS {
            let mut lines = [L::splat(0.0); KEYS];
            for (line, pointer) in lines.iter_mut().zip(keys) {
                *line = S::load(pointer.add(d * BLOCK_TOKENS), part);
            }
            let queries = group.queries.add(factor_index::<S>(d, part) * ROWS);
            for (row, scores) in scores.iter_mut().enumerate() {
                let query = L::splat(*queries.add(row));
                for (score, line) in scores.iter_mut().zip(&lines) {
                    *score = S::add(*score, query, *line);
                }
            }
        }
    }
}

/// Turns a row's scores into weights `e^(score - greatest)`, 0 where it does not see, and keeps the greatest and their
/// sum; then multiplies the weights by the scales of the values, where these have any.
#[inline(always)]
unsafe fn weigh<L: Lanes, S: Stored, const ROWS: usize>(group: &Group<'_>, row: usize) {
    let visible = group.visible[row].clone();
    if visible.is_empty() {
        return;
    }
    let first = visible.start / BLOCK_TOKENS;
    let last = (visible.end - 1) / BLOCK_TOKENS;
    let values_at = group.layout.values_at(group.args.kv_head);
    let are_in_keys = group.layout.values_in_keys.is_some();
    // SAFETY: the caller promises scratch for the group's blocks, which include these, and the set of `L`.
    unsafe {
        let scores = group.scores.add(row * LANES);
        let line = |block: usize| scores.add((block - group.blocks.start) * ROWS * LANES);
        if let Some(cap) = group.args.softcap {
            let cap = L::splat(cap);
            for block in first..=last {
                functions::soft_cap(L::load(line(block)), cap).store(line(block));
            }
        }
        // A row may see nothing of the chunk but keys that are masked: its greatest score must not be an infinity.
        let mut least = f32::NEG_INFINITY;
        if let Some(bias) = group.args.bias {
            let (heads, row) = (group.args.num_query_heads_per_kv, group.first_row + row);
            bias.add::<L>(row % heads, group.args.first_position + row / heads, first..=last, line);
            least = f32::MIN;
        }
        for position in (first * BLOCK_TOKENS)..visible.start {
            *line(first).add(position % BLOCK_TOKENS) = f32::NEG_INFINITY;
        }
        for position in visible.end..(last + 1) * BLOCK_TOKENS {
            *line(last).add(position % BLOCK_TOKENS) = f32::NEG_INFINITY;
        }
        let mut greatest = L::splat(least);
        for block in first..=last {
            greatest = L::load(line(block)).max(greatest);
        }
        let greatest = L::splat(greatest.greatest());
        let mut sum = L::splat(0.0);
        for block in first..=last {
            let weights = functions::exp(L::load(line(block)).sub(greatest));
            if S::IS_SCALED {
                sum = sum.add(weights);
                weights.mul(L::load(group.scales(block, values_at))).store(line(block));
            } else if are_in_keys {
                sum = sum.add(S::store_lanes(weights, line(block)));
            } else {
                sum = sum.add(S::store_weights(weights, line(block)));
            }
        }
        greatest.store(group.partials.greatest(row));
        L::splat(sum.sum()).store(group.partials.sum(row));
    }
}

/// Weighted sums of the values into the rows' results.
///
/// A row takes in exactly the keys it sees: memory it does not see may hold anything, even a NaN, and even a
/// weight of 0 would let that through. Where the rows' ranges differ, or end between two neighbours, each goes alone.
#[inline(always)]
unsafe fn sum_values<L: Lanes, S: Stored, const ROWS: usize, const DIMS: usize>(group: &Group<'_>) {
    // Ranges move forward with the row, so the last begins last and the first ends first.
    let end = group.visible[ROWS - 1].end;
    let common = group.visible[ROWS - 1].start.next_multiple_of(S::WIDTH)..group.visible[0].end / S::WIDTH * S::WIDTH;
    let common = if common.is_empty() { end..end } else { common };
    // SAFETY: the caller's promise; the ranges are what the rows see.
    unsafe {
        for row in 0..group.num_rows {
            group.partials.clear_outputs(row);
        }
        for is_after in [false, true] {
            for row in 0..group.num_rows {
                let visible = group.visible[row].clone();
                let own = if is_after {
                    common.end..visible.end
                } else {
                    visible.start..visible.end.min(common.start)
                };
                add_values::<L, S, 1, ROWS, DIMS, false>(group, row, own);
            }
            if !is_after {
                add_values::<L, S, ROWS, ROWS, DIMS, true>(group, 0, common.clone());
            }
        }
    }
}

/// Adds the weighted values at `positions`, which part no neighbours if they are `WHOLE`, to `TAKEN` rows from `row` on, of a
/// group of `ROWS`.
#[inline(always)]
unsafe fn add_values<
    L: Lanes,
    S: Stored,
    const TAKEN: usize,
    const ROWS: usize,
    const DIMS: usize,
    const WHOLE: bool,
>(
    group: &Group<'_>,
    row: usize,
    positions: Range<usize>,
) {
    if positions.is_empty() {
        return;
    }
    let head_dim = group.layout.head_dim;
    let mut d = 0;
    // SAFETY: the caller's promise; the tiles stay within the head.
    unsafe {
        while d + DIMS * LANES <= head_dim {
            add_tile::<L, S, TAKEN, ROWS, DIMS, WHOLE>(group, row, d, positions.clone());
            d += DIMS * LANES;
        }
        while d + LANES <= head_dim {
            add_tile::<L, S, TAKEN, ROWS, 1, WHOLE>(group, row, d, positions.clone());
            d += LANES;
        }
        if d < head_dim {
            add_rest::<S>(group, row..row + TAKEN, d, positions);
        }
    }
}

#[inline(always)]
unsafe fn add_tile<L: Lanes, S: Stored, const TAKEN: usize, const ROWS: usize, const DIMS: usize, const WHOLE: bool>(
    group: &Group<'_>,
    row: usize,
    d: usize,
    positions: Range<usize>,
) {
    let head_dim = group.layout.head_dim;
    let values_at = group.layout.values_at(group.args.kv_head);
    // SAFETY: the caller promises blocks, scratch and the set of `L`; the tile is within the head.
    unsafe {
        let target = |row_in_tile: usize| group.partials.outputs(row + row_in_tile).add(d);
        let mut sums = [[L::splat(0.0); DIMS]; TAKEN];
        for (r, sums) in sums.iter_mut().enumerate() {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = L::load(target(r).add(i * LANES));
            }
        }
        let mut position = positions.start;
        while position < positions.end {
            let block = position / BLOCK_TOKENS;
            let end = positions.end.min((block + 1) * BLOCK_TOKENS);
            let mut index = position % BLOCK_TOKENS / S::WIDTH;
            let mut values = group.block::<S>(block, values_at).add(index * head_dim + d);
            let ahead = group.blocks.len() + block - group.blocks.start + BLOCKS_AHEAD;
            let mut ahead = block_read::<S>(group, ahead).wrapping_add(index * head_dim + d);
            let weights = group.scores.add(((block - group.blocks.start) * ROWS + row) * LANES);
            while position < end {
                let next = (position / S::WIDTH + 1) * S::WIDTH;
                let seen = position..next.min(end);
                for part in 0..S::PARTS {
                    if !WHOLE && !takes_part::<S>(&seen, part) {
                        continue;
                    }
                    let mut lines = [L::splat(0.0); DIMS];
                    for (i, line) in lines.iter_mut().enumerate() {
                        *line = S::load(values.add(i * LANES), part);
                        if !WHOLE {
                            *line = only_seen::<S, L>(*line, &seen);
                        }
                        if part == 0 && i % S::PER_LINE == 0 {
                            prefetch(ahead.wrapping_add(i * LANES));
                        }
                    }
                    let weights = weights.add(factor_index::<S>(index, part));
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let weight = L::splat(*weights.add(r * LANES));
                        for (sum, line) in sums.iter_mut().zip(&lines) {
                            *sum = S::add(*sum, weight, *line);
                        }
                    }
                }
                values = values.add(head_dim);
                ahead = ahead.wrapping_add(head_dim);
                index += 1;
                position = next;
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (i, sum) in sums.iter().enumerate() {
                sum.store(target(r).add(i * LANES));
            }
        }
    }
}

/// The dimensions from `d` on that do not fill a register, one by one: right, not fast, and once for all sets.
#[inline(never)]
unsafe fn add_rest<S: Stored>(group: &Group<'_>, rows: Range<usize>, d: usize, positions: Range<usize>) {
    let head_dim = group.layout.head_dim;
    let values_at = group.layout.values_at(group.args.kv_head);
    // SAFETY: the caller promises blocks and scratch; rows and dimensions are within them.
    unsafe {
        for position in in_order::<S>(positions) {
            let (block, slot) = (position / BLOCK_TOKENS, position % BLOCK_TOKENS);
            let values = group.block::<S>(block, values_at);
            let weights = group.scores.add((block - group.blocks.start) * group.num_rows * LANES);
            for row in rows.clone() {
                let weight = S::weight(weights.add(row * LANES), slot);
                for d in d..head_dim {
                    let sum = group.partials.outputs(row).add(d);
                    let value = *values.add(slot / S::WIDTH * head_dim + d);
                    *sum = weight.mul_add(value.widen(slot % S::WIDTH), *sum);
                }
            }
        }
    }
}
