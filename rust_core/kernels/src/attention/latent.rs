//! Weighted sums of values that are the first numbers of the keys themselves: latent attention (DeepSeek-V2, arXiv
//! 2405.04434), which caches one row for a token.
//!
//! Keys lie transposed, a register being one dimension of sixteen keys. So a register of weights goes with it, lanes are
//! positions, and what a dimension gathers over a chunk is added up at its end, by one fixed tree. Of bfloat16, a register
//! is two dimensions of sixteen keys: it is brought into the order of eight pairs of positions for each dimension, which
//! go with eight pairs of weights, twice.

#![allow(
    clippy::needless_range_loop,
    reason = "indexed loops of constant length unroll into registers"
)]

use std::ops::Range;

use super::BLOCK_TOKENS;
use super::kernel::Group;
use super::stored::Stored;
use crate::lanes::{LANES, Lanes};

/// Registers of sixteen sums that a tile fills at most.
const MOST_SUMS: usize = 2;

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

/// Weighted sums of the values into the rows' results.
///
/// # Safety
/// What [`super::attend`] asks for holds, the rows are weighed, and the CPU has the set of `L`.
#[inline(always)]
pub(super) unsafe fn sum_values<L: Lanes, S: Stored, const ROWS: usize, const REGISTERS: usize>(group: &Group<'_>) {
    let num_registers = group.layout.value_dim().div_ceil(S::WIDTH);
    let common = common_blocks::<ROWS>(group);
    let mut first = 0;
    // SAFETY: the caller's promise; the tiles stay within the values.
    unsafe {
        if S::IS_SCALED {
            hide_unseen_weights::<ROWS>(group);
        }
        (0..group.num_rows).for_each(|row| group.partials.clear_outputs(row));
        while first + REGISTERS <= num_registers {
            sum_tile::<L, S, ROWS, REGISTERS>(group, first, &common);
            first += REGISTERS;
        }
        while first < num_registers {
            sum_tile::<L, S, ROWS, 1>(group, first, &common);
            first += 1;
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

/// The sums of the dimensions of `REGISTERS` from register `first` on.
#[inline(always)]
unsafe fn sum_tile<L: Lanes, S: Stored, const ROWS: usize, const REGISTERS: usize>(
    group: &Group<'_>,
    first: usize,
    common: &Range<usize>,
) {
    // SAFETY: the caller's promise; the blocks are the group's.
    unsafe {
        let mut sums = [[L::splat(0.0); REGISTERS]; ROWS];
        for block in group.blocks.start..common.start {
            add_seen::<L, S, ROWS, REGISTERS>(group, first, block, &mut sums);
        }
        for block in common.clone() {
            let mut lines = load_lines::<L, S, REGISTERS>(group, first, block);
            for i in 0..REGISTERS {
                lines[i] = S::by_position(lines[i]);
            }
            for row in 0..ROWS {
                let weights = L::load(weights_at::<ROWS>(group, row, block));
                for i in 0..REGISTERS {
                    sums[row][i] = S::add_lanes(sums[row][i], weights, lines[i]);
                }
            }
        }
        for block in common.end..group.blocks.end {
            add_seen::<L, S, ROWS, REGISTERS>(group, first, block, &mut sums);
        }
        store_sums::<L, S, ROWS, REGISTERS>(group, first, &sums);
    }
}

/// Registers of a block's keys, as they lie.
#[inline(always)]
unsafe fn load_lines<L: Lanes, S: Stored, const REGISTERS: usize>(
    group: &Group<'_>,
    first: usize,
    block: usize,
) -> [L; REGISTERS] {
    // SAFETY: the caller promises the block and the set of `L`; the registers are the key's.
    unsafe {
        let keys = group.block::<S>(block, group.layout.keys_at(group.args.kv_head));
        let mut lines = [L::splat(0.0); REGISTERS];
        for i in 0..REGISTERS {
            lines[i] = S::load_dims(keys.add((first + i) * BLOCK_TOKENS));
        }
        lines
    }
}

/// Adds what each row sees of a block: memory that it does not see may hold anything.
#[inline(always)]
unsafe fn add_seen<L: Lanes, S: Stored, const ROWS: usize, const REGISTERS: usize>(
    group: &Group<'_>,
    first: usize,
    block: usize,
    sums: &mut [[L; REGISTERS]; ROWS],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let lines = load_lines::<L, S, REGISTERS>(group, first, block);
        let (slots, zero) = (L::load(SLOTS.as_ptr()), L::splat(0.0));
        for row in 0..ROWS {
            let seen = seen(group, row, block);
            if seen.is_empty() {
                continue;
            }
            let (start, end) = (L::splat(seen.start as f32), L::splat(seen.end as f32));
            let weights = L::load(weights_at::<ROWS>(group, row, block));
            for i in 0..REGISTERS {
                let line = slots.select_less(end, lines[i], zero);
                let line = S::by_position(slots.select_less(start, zero, line));
                sums[row][i] = S::add_lanes(sums[row][i], weights, line);
            }
        }
    }
}

/// Adds lanes up, sixteen registers at a time, into the rows' results.
#[inline(always)]
unsafe fn store_sums<L: Lanes, S: Stored, const ROWS: usize, const REGISTERS: usize>(
    group: &Group<'_>,
    first: usize,
    sums: &[[L; REGISTERS]; ROWS],
) {
    const { assert!(ROWS * REGISTERS <= MOST_SUMS * LANES) };
    let mut added = [0.0; 2 * MOST_SUMS * LANES];
    for start in (0..ROWS * REGISTERS).step_by(LANES) {
        // SAFETY: the caller promises the set of `L`; there is room for two numbers of each register.
        unsafe {
            let mut each = [L::splat(0.0); LANES];
            for i in 0..LANES {
                if start + i < ROWS * REGISTERS {
                    each[i] = sums[(start + i) / REGISTERS][(start + i) % REGISTERS];
                }
            }
            let [lower, upper] = S::sums(each);
            lower.store(added[start * S::WIDTH..].as_mut_ptr());
            if S::WIDTH == 2 {
                upper.store(added[start * S::WIDTH + LANES..].as_mut_ptr());
            }
        }
    }
    let dims = first * S::WIDTH..group.layout.value_dim().min((first + REGISTERS) * S::WIDTH);
    for row in 0..ROWS {
        let row_sums = &added[row * REGISTERS * S::WIDTH..][..REGISTERS * S::WIDTH];
        // SAFETY: the caller promises the rows' results.
        let out = unsafe { std::slice::from_raw_parts_mut(group.partials.outputs(row).add(dims.start), dims.len()) };
        if dims.len() == row_sums.len() {
            out.copy_from_slice(row_sums);
        } else {
            out.copy_from_slice(&row_sums[..dims.len()]);
        }
    }
}
