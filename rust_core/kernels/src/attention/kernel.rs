//! The attention of a few rows (query token and head) at once, written once for all instruction sets.
//!
//! Three passes: scores of all visible keys into scratch; softmax per row; weighted sum of the values.
//! `ROWS`, and the tile widths `KEYS` (blocks of keys) and `DIMS` (registers of dimensions), only say what is
//! held in registers together: each number is computed by the same chain of operations for all of them.

use std::ops::Range;

use super::{AttentionArgs, BLOCK_TOKENS, KvLayout, KvType};
use crate::elementwise::functions;
use crate::lanes::{Bf16, F16, LANES, Lanes};

/// Scratch of a group, all on cache-line borders.
pub(super) struct Work {
    /// `[block][row][16]`.
    pub(super) scores: *mut f32,
    /// `[head_dim][row]`.
    pub(super) queries: *mut f32,
    /// `[row][head_dim]`.
    pub(super) sums: *mut f32,
}

/// Rows computed together, and all they need.
pub(super) struct Group<'a> {
    pub(super) layout: &'a KvLayout,
    pub(super) args: &'a AttentionArgs<'a>,
    /// The first row; row `r` is query head `r % heads` of token `r / heads`.
    pub(super) first_row: usize,
    /// `ROWS`, as a number the compiler does not know: loops over it are not unrolled, which would only be code.
    pub(super) num_rows: usize,
    /// The blocks that any of the rows sees.
    pub(super) blocks: Range<usize>,
    pub(super) work: Work,
}

/// A number as it lies in key-value memory.
trait Stored: Copy {
    /// Whether each token's numbers are to be multiplied by a scale.
    const IS_SCALED: bool = false;
    unsafe fn load<L: Lanes>(source: *const Self) -> L;
    fn widen(self) -> f32;
}

/// How a type of [`KvType`] is read.
macro_rules! stored {
    ($number:ty, $load:ident, $widen:expr $(, $is_scaled:ident)?) => {
        impl Stored for $number {
            $(const IS_SCALED: bool = $is_scaled;)?
            #[inline(always)]
            unsafe fn load<L: Lanes>(source: *const Self) -> L {
                // SAFETY: the caller promises sixteen numbers and the set of `L`.
                unsafe { L::$load(source) }
            }
            #[inline(always)]
            fn widen(self) -> f32 {
                $widen(self)
            }
        }
    };
}

stored!(f32, load, std::convert::identity);
stored!(F16, load_f16, F16::to_f32);
stored!(Bf16, load_bf16, Bf16::to_f32);
stored!(i8, load_i8, f32::from, true);

impl Group<'_> {
    /// Query token and query head of a row.
    #[inline(always)]
    fn token_and_head(&self, row: usize) -> (usize, usize) {
        let row = self.first_row + row;
        (
            row / self.args.num_query_heads_per_kv,
            row % self.args.num_query_heads_per_kv,
        )
    }

    /// The positions that a row sees.
    #[inline(always)]
    fn visible(&self, row: usize) -> Range<usize> {
        self.args.visible(self.token_and_head(row).0)
    }

    /// The bytes `offset` into a block of the sequence.
    #[inline(always)]
    unsafe fn block<T>(&self, block: usize, offset: usize) -> *const T {
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
            KvType::Bf16 => attend_stored::<L, Bf16, ROWS, KEYS, DIMS>(group),
            KvType::Int8 => attend_stored::<L, i8, ROWS, KEYS, DIMS>(group),
        }
    }
}

#[inline(always)]
unsafe fn attend_stored<L: Lanes, S: Stored, const ROWS: usize, const KEYS: usize, const DIMS: usize>(
    group: &Group<'_>,
) {
    // SAFETY: the caller's promise, which is the same for each pass.
    unsafe {
        transpose_queries(group);
        score_blocks::<L, S, ROWS, KEYS>(group);
        let mut inverse_sums = [0.0; ROWS];
        for (row, inverse) in inverse_sums[..group.num_rows].iter_mut().enumerate() {
            *inverse = 1.0 / weigh::<L, S, ROWS>(group, row);
        }
        sum_values::<L, S, ROWS, DIMS>(group);
        write_out(group, &inverse_sums);
    }
}

/// Lays the queries out as `[head_dim][row]`, so that one pointer serves all rows of a dimension.
#[inline(never)]
unsafe fn transpose_queries(group: &Group<'_>) {
    for row in 0..group.num_rows {
        let (token, head) = group.token_and_head(row);
        for d in 0..group.layout.head_dim {
            // SAFETY: the caller promises the query rows and the scratch.
            unsafe {
                let number = *group
                    .args
                    .q
                    .add(token * group.args.q_stride + head * group.layout.head_dim + d);
                *group.work.queries.add(d * group.num_rows + row) = number;
            }
        }
    }
}

/// Scores of every key in the group's blocks, scaled and capped.
#[inline(always)]
unsafe fn score_blocks<L: Lanes, S: Stored, const ROWS: usize, const KEYS: usize>(group: &Group<'_>) {
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

#[inline(always)]
unsafe fn score_tile<L: Lanes, S: Stored, const ROWS: usize, const KEYS: usize>(group: &Group<'_>, block: usize) {
    // SAFETY: the caller promises blocks, queries, scratch and the set of `L`.
    unsafe {
        let keys_at = group.layout.keys_at(group.args.kv_head);
        let mut keys: [*const S; KEYS] = [std::ptr::null(); KEYS];
        for (i, pointer) in keys.iter_mut().enumerate() {
            *pointer = group.block(block + i, keys_at);
        }
        let mut scores = [[L::splat(0.0); KEYS]; ROWS];
        for d in 0..group.layout.head_dim {
            let mut lines = [L::splat(0.0); KEYS];
            for (line, pointer) in lines.iter_mut().zip(&keys) {
                *line = S::load(pointer.add(d * BLOCK_TOKENS));
            }
            for (row, scores) in scores.iter_mut().enumerate() {
                let query = L::splat(*group.work.queries.add(d * ROWS + row));
                for (score, line) in scores.iter_mut().zip(&lines) {
                    *score = query.fma(*line, *score);
                }
            }
        }
        let scale = L::splat(group.args.scale);
        for i in 0..KEYS {
            let target = group.work.scores.add((block + i - group.blocks.start) * ROWS * LANES);
            let scales = S::IS_SCALED.then(|| L::load(group.scales(block + i, keys_at)));
            for (row, scores) in scores.iter().enumerate() {
                let score = scales.map_or(scores[i], |scales| scores[i].mul(scales));
                score.mul(scale).store(target.add(row * LANES));
            }
        }
    }
}

/// Turns a row's scores into weights `e^(score - greatest)`, 0 where it does not see, and gives their sum; then
/// multiplies the weights by the scales of the values, where these have any.
#[inline(always)]
unsafe fn weigh<L: Lanes, S: Stored, const ROWS: usize>(group: &Group<'_>, row: usize) -> f32 {
    let visible = group.visible(row);
    let first = visible.start / BLOCK_TOKENS;
    let last = (visible.end - 1) / BLOCK_TOKENS;
    let values_at = group.layout.values_at(group.args.kv_head);
    // SAFETY: the caller promises scratch for the group's blocks, which include these, and the set of `L`.
    unsafe {
        let scores = group.work.scores.add(row * LANES);
        let line = |block: usize| scores.add((block - group.blocks.start) * ROWS * LANES);
        if let Some(cap) = group.args.softcap {
            let cap = L::splat(cap);
            for block in first..=last {
                functions::soft_cap(L::load(line(block)), cap).store(line(block));
            }
        }
        for position in (first * BLOCK_TOKENS)..visible.start {
            *line(first).add(position % BLOCK_TOKENS) = f32::NEG_INFINITY;
        }
        for position in visible.end..(last + 1) * BLOCK_TOKENS {
            *line(last).add(position % BLOCK_TOKENS) = f32::NEG_INFINITY;
        }
        let mut greatest = L::splat(f32::NEG_INFINITY);
        for block in first..=last {
            greatest = L::load(line(block)).max(greatest);
        }
        let greatest = L::splat(greatest.greatest());
        let mut sum = L::splat(0.0);
        for block in first..=last {
            let weights = functions::exp(L::load(line(block)).sub(greatest));
            sum = sum.add(weights);
            if S::IS_SCALED {
                weights.mul(L::load(group.scales(block, values_at))).store(line(block));
            } else {
                weights.store(line(block));
            }
        }
        sum.sum()
    }
}

/// Weighted sums of the values into `work.sums`.
///
/// A row takes in exactly the keys it sees: memory it does not see may hold anything, even a NaN, and even a
/// weight of 0 would let that through. Where the rows' ranges differ, each goes alone.
#[inline(always)]
unsafe fn sum_values<L: Lanes, S: Stored, const ROWS: usize, const DIMS: usize>(group: &Group<'_>) {
    // Ranges move forward with the row, so the last begins last and the first ends first.
    let end = group.visible(ROWS - 1).end;
    let common = group.visible(ROWS - 1).start..group.visible(0).end;
    let common = if common.is_empty() { end..end } else { common };
    // SAFETY: the caller's promise; the ranges are what the rows see.
    unsafe {
        std::slice::from_raw_parts_mut(group.work.sums, ROWS * group.layout.head_dim).fill(0.0);
        for is_after in [false, true] {
            for row in 0..group.num_rows {
                let visible = group.visible(row);
                let own = if is_after {
                    common.end..visible.end
                } else {
                    visible.start..visible.end.min(common.start)
                };
                add_values::<L, S, 1, ROWS, DIMS>(group, row, own);
            }
            if !is_after {
                add_values::<L, S, ROWS, ROWS, DIMS>(group, 0, common.clone());
            }
        }
    }
}

/// Adds the weighted values at `positions` to `TAKEN` rows from `row` on, of a group of `ROWS`.
#[inline(always)]
unsafe fn add_values<L: Lanes, S: Stored, const TAKEN: usize, const ROWS: usize, const DIMS: usize>(
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
            add_tile::<L, S, TAKEN, ROWS, DIMS>(group, row, d, positions.clone());
            d += DIMS * LANES;
        }
        while d + LANES <= head_dim {
            add_tile::<L, S, TAKEN, ROWS, 1>(group, row, d, positions.clone());
            d += LANES;
        }
        if d < head_dim {
            add_rest::<S>(group, row..row + TAKEN, d, positions);
        }
    }
}

#[inline(always)]
unsafe fn add_tile<L: Lanes, S: Stored, const TAKEN: usize, const ROWS: usize, const DIMS: usize>(
    group: &Group<'_>,
    row: usize,
    d: usize,
    positions: Range<usize>,
) {
    let head_dim = group.layout.head_dim;
    let values_at = group.layout.values_at(group.args.kv_head);
    // SAFETY: the caller promises blocks, scratch and the set of `L`; the tile is within the head.
    unsafe {
        let target = group.work.sums.add(row * head_dim + d);
        let mut sums = [[L::splat(0.0); DIMS]; TAKEN];
        for (r, sums) in sums.iter_mut().enumerate() {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = L::load(target.add(r * head_dim + i * LANES));
            }
        }
        let mut position = positions.start;
        while position < positions.end {
            let block = position / BLOCK_TOKENS;
            let end = positions.end.min((block + 1) * BLOCK_TOKENS);
            let mut slot = position % BLOCK_TOKENS;
            let mut values = group.block::<S>(block, values_at).add(slot * head_dim + d);
            let weights = group
                .work
                .scores
                .add(((block - group.blocks.start) * ROWS + row) * LANES);
            while position < end {
                let mut lines = [L::splat(0.0); DIMS];
                for (i, line) in lines.iter_mut().enumerate() {
                    *line = S::load(values.add(i * LANES));
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let weight = L::splat(*weights.add(r * LANES + slot));
                    for (sum, line) in sums.iter_mut().zip(&lines) {
                        *sum = weight.fma(*line, *sum);
                    }
                }
                values = values.add(head_dim);
                slot += 1;
                position += 1;
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (i, sum) in sums.iter().enumerate() {
                sum.store(target.add(r * head_dim + i * LANES));
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
        for position in positions {
            let (block, slot) = (position / BLOCK_TOKENS, position % BLOCK_TOKENS);
            let values = group.block::<S>(block, values_at).add(slot * head_dim);
            let weights = group
                .work
                .scores
                .add((block - group.blocks.start) * group.num_rows * LANES + slot);
            for row in rows.clone() {
                for d in d..head_dim {
                    let sum = group.work.sums.add(row * head_dim + d);
                    *sum = (*weights.add(row * LANES)).mul_add((*values.add(d)).widen(), *sum);
                }
            }
        }
    }
}

/// Multiplies the sums by each row's factor, into the result.
#[inline(never)]
unsafe fn write_out(group: &Group<'_>, factors: &[f32]) {
    let head_dim = group.layout.head_dim;
    for (row, factor) in factors.iter().enumerate() {
        let (token, head) = group.token_and_head(row);
        // SAFETY: the caller promises the rows of the result and the scratch.
        unsafe {
            let sums = group.work.sums.add(row * head_dim);
            let out = group.args.out.add(token * group.args.out_stride + head * head_dim);
            for d in 0..head_dim {
                *out.add(d) = *sums.add(d) * factor;
            }
        }
    }
}
