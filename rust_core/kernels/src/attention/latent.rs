//! Weighted sums of values that are the first numbers of the keys themselves: latent attention (DeepSeek-V2, arXiv
//! 2405.04434), which caches one row for a token.
//!
//! Keys lie transposed, a register being one dimension of sixteen keys. So a register of weights goes with it, lanes are
//! positions, and what a dimension gathers over a chunk is added up at its end, by one fixed tree.

use std::ops::Range;

use super::BLOCK_TOKENS;
use super::kernel::Group;
use super::stored::Stored;
use crate::lanes::{LANES, Lanes};

/// The slots of a block, as numbers.
const SLOTS: [f32; LANES] = {
    let mut slots = [0.0; LANES];
    let mut slot = 0;
    while slot < LANES {
        slots[slot] = slot as f32;
        slot += 1;
    }
    slots
};

/// Weighted sums of the values into the rows' results. Weights are single numbers.
///
/// # Safety
/// What [`super::attend`] asks for holds, the rows are weighed, and the CPU has the set of `L`.
#[inline(always)]
pub(super) unsafe fn sum_values<L: Lanes, S: Stored, const ROWS: usize, const DIMS: usize>(group: &Group<'_>) {
    let (num_dims, common) = (group.layout.value_dim(), common_blocks::<ROWS>(group));
    let mut d = 0;
    // SAFETY: the caller's promise; the tiles stay within the values.
    unsafe {
        hide_unseen_weights::<ROWS>(group);
        (0..group.num_rows).for_each(|row| group.partials.clear_outputs(row));
        while d + DIMS <= num_dims {
            sum_tile::<L, S, ROWS, DIMS>(group, d, &common);
            d += DIMS;
        }
        while d < num_dims {
            sum_tile::<L, S, ROWS, 1>(group, d, &common);
            d += 1;
        }
    }
}

/// Of a block, the slots that a row sees.
#[inline(always)]
fn seen(group: &Group<'_>, row: usize, block: usize) -> Range<usize> {
    let (first, visible) = (block * BLOCK_TOKENS, &group.visible[row]);
    let (start, end) = (visible.start.max(first), visible.end.min(first + BLOCK_TOKENS));
    if start < end { start - first..end - first } else { 0..0 }
}

/// The blocks that all rows see whole.
fn common_blocks<const ROWS: usize>(group: &Group<'_>) -> Range<usize> {
    let rows = &group.visible[..ROWS];
    let start = rows
        .iter()
        .map(|row| row.start.div_ceil(BLOCK_TOKENS))
        .max()
        .unwrap_or(0);
    let end = rows.iter().map(|row| row.end / BLOCK_TOKENS).min().unwrap_or(0);
    if rows.iter().any(Range::is_empty) || start >= end {
        return group.blocks.end..group.blocks.end;
    }
    start..end
}

/// Makes the weights 0 of slots that a row does not see, in blocks that it sees in part: their scales may be anything.
unsafe fn hide_unseen_weights<const ROWS: usize>(group: &Group<'_>) {
    for row in 0..group.num_rows {
        for block in group.blocks.clone() {
            let seen = seen(group, row, block);
            if seen.is_empty() || seen.len() == BLOCK_TOKENS {
                continue;
            }
            for slot in (0..BLOCK_TOKENS).filter(|slot| !seen.contains(slot)) {
                // SAFETY: the caller promises the scratch.
                unsafe { *weights_at::<ROWS>(group, row, block).add(slot) = 0.0 };
            }
        }
    }
}

/// Where a row's weights of a block are.
#[inline(always)]
unsafe fn weights_at<const ROWS: usize>(group: &Group<'_>, row: usize, block: usize) -> *mut f32 {
    // SAFETY: the caller promises scratch for the group's blocks.
    unsafe { group.scores.add(((block - group.blocks.start) * ROWS + row) * LANES) }
}

/// The sums of `DIMS` dimensions from `d` on.
#[inline(always)]
unsafe fn sum_tile<L: Lanes, S: Stored, const ROWS: usize, const DIMS: usize>(
    group: &Group<'_>,
    d: usize,
    common: &Range<usize>,
) {
    // SAFETY: the caller's promise; the blocks are the group's.
    unsafe {
        let mut sums = [[L::splat(0.0); DIMS]; ROWS];
        for block in group.blocks.start..common.start {
            add_seen::<L, S, ROWS, DIMS>(group, d, block, &mut sums);
        }
        for block in common.clone() {
            let lines = lines::<L, S, DIMS>(group, d, block);
            for (row, sums) in sums.iter_mut().enumerate() {
                let weights = L::load(weights_at::<ROWS>(group, row, block));
                for (sum, line) in sums.iter_mut().zip(&lines) {
                    *sum = weights.fma(*line, *sum);
                }
            }
        }
        for block in common.end..group.blocks.end {
            add_seen::<L, S, ROWS, DIMS>(group, d, block, &mut sums);
        }
        store_sums(group, d, &sums);
    }
}

/// Dimensions of a block's values.
#[inline(always)]
unsafe fn lines<L: Lanes, S: Stored, const DIMS: usize>(group: &Group<'_>, d: usize, block: usize) -> [L; DIMS] {
    // SAFETY: the caller promises the block and the set of `L`; the dimensions are the key's.
    unsafe {
        let keys = group.block::<S>(block, group.layout.keys_at(group.args.kv_head));
        std::array::from_fn(|i| {
            let dim = d + i;
            S::load(keys.add(dim / S::WIDTH * BLOCK_TOKENS), S::WIDTH - 1 - dim % S::WIDTH)
        })
    }
}

/// Adds what each row sees of a block: memory that it does not see may hold anything.
#[inline(always)]
unsafe fn add_seen<L: Lanes, S: Stored, const ROWS: usize, const DIMS: usize>(
    group: &Group<'_>,
    d: usize,
    block: usize,
    sums: &mut [[L; DIMS]; ROWS],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let (lines, slots, zero) = (
            lines::<L, S, DIMS>(group, d, block),
            L::load(SLOTS.as_ptr()),
            L::splat(0.0),
        );
        for (row, sums) in sums.iter_mut().enumerate() {
            let seen = seen(group, row, block);
            if seen.is_empty() {
                continue;
            }
            let (start, end) = (L::splat(seen.start as f32), L::splat(seen.end as f32));
            let weights = L::load(weights_at::<ROWS>(group, row, block));
            for (sum, line) in sums.iter_mut().zip(&lines) {
                let line = slots.select_less(end, *line, zero);
                *sum = weights.fma(slots.select_less(start, zero, line), *sum);
            }
        }
    }
}

/// Adds lanes up, sixteen sums at a time, into the rows' results.
#[inline(always)]
unsafe fn store_sums<L: Lanes, const ROWS: usize, const DIMS: usize>(
    group: &Group<'_>,
    d: usize,
    sums: &[[L; DIMS]; ROWS],
) {
    for first in (0..ROWS * DIMS).step_by(LANES) {
        // SAFETY: the caller promises the rows' results and the set of `L`.
        unsafe {
            let zero = L::splat(0.0);
            let each = std::array::from_fn(|i| {
                let at = first + i;
                if at < ROWS * DIMS {
                    sums[at / DIMS][at % DIMS]
                } else {
                    zero
                }
            });
            let added = L::sums(each).to_array();
            for (i, sum) in added.into_iter().enumerate().take(ROWS * DIMS - first) {
                let at = first + i;
                *group.partials.outputs(at / DIMS).add(d + at % DIMS) = sum;
            }
        }
    }
}
