//! What rows hold of one chunk, and how the chunks become a result.
//!
//! Of a chunk a row has the greatest score, the sum of its weights and the weighted sum of the values. Chunks are taken
//! in one by one, in ascending order: that order is part of the result's definition, so whoever computed them, and when,
//! makes no difference.

use super::AttentionArgs;
use crate::elementwise::{self, functions};
use crate::isa::Isa;
use crate::lanes::{LANES, Lanes, run_on};

/// Rows of `[outputs, padded to sixteen][sum of the weights, 16 times][greatest score, 16 times]`.
#[derive(Clone, Copy)]
pub(super) struct Partials {
    start: *mut f32,
    /// Outputs in a row, with the padding.
    padded: usize,
}

impl Partials {
    pub(super) const fn new(start: *mut f32, value_dim: usize) -> Self {
        Self {
            start,
            padded: value_dim.next_multiple_of(LANES),
        }
    }

    /// Numbers in a row.
    pub(super) const fn row_len(value_dim: usize) -> usize {
        value_dim.next_multiple_of(LANES) + 2 * LANES
    }

    /// The rows from `row` on.
    #[inline(always)]
    pub(super) unsafe fn from(self, row: usize) -> Self {
        // SAFETY: the caller promises that the rows exist.
        let start = unsafe { self.outputs(row) };
        Self { start, ..self }
    }

    #[inline(always)]
    pub(super) unsafe fn outputs(self, row: usize) -> *mut f32 {
        // SAFETY: the caller promises that the row exists.
        unsafe { self.start.add(row * (self.padded + 2 * LANES)) }
    }

    #[inline(always)]
    pub(super) unsafe fn sum(self, row: usize) -> *mut f32 {
        // SAFETY: the caller promises that the row exists.
        unsafe { self.outputs(row).add(self.padded) }
    }

    #[inline(always)]
    pub(super) unsafe fn greatest(self, row: usize) -> *mut f32 {
        // SAFETY: the caller promises that the row exists.
        unsafe { self.outputs(row).add(self.padded + LANES) }
    }

    #[inline(always)]
    pub(super) unsafe fn clear_outputs(self, row: usize) {
        // SAFETY: the caller promises that the row exists and is its own.
        unsafe { std::slice::from_raw_parts_mut(self.outputs(row), self.padded) }.fill(0.0);
    }

    /// Makes rows those that have seen nothing.
    pub(super) unsafe fn clear(self, num_rows: usize) {
        for row in 0..num_rows {
            // SAFETY: the caller promises that the rows exist and are its own.
            unsafe {
                self.clear_outputs(row);
                std::slice::from_raw_parts_mut(self.sum(row), LANES).fill(0.0);
                std::slice::from_raw_parts_mut(self.greatest(row), LANES).fill(f32::NEG_INFINITY);
            }
        }
    }

    /// Takes another chunk of `num_rows` rows in.
    ///
    /// # Safety
    /// All rows exist, have outputs of the same length and are nobody else's.
    pub(super) unsafe fn fold(self, isa: Isa, chunk: Self, num_rows: usize) {
        let whole = self;
        run_on!(isa, fold_rows(whole: Partials, chunk: Partials, num_rows: usize));
    }

    /// Divides the rows' outputs by their sums, which the heads' sinks are part of, into the result.
    ///
    /// # Safety
    /// There is a row for each of the query tokens and heads, and the result has room for them.
    pub(super) unsafe fn finish(self, isa: Isa, args: &AttentionArgs<'_>, value_dim: usize) {
        let heads = args.num_query_heads_per_kv;
        for row in 0..args.num_tokens * heads {
            // SAFETY: the caller promises the rows of the result, and that they are its own.
            let out = unsafe {
                let start = args.out.add(row / heads * args.out_stride + row % heads * value_dim);
                std::slice::from_raw_parts_mut(start, value_dim)
            };
            // SAFETY: the caller promises the row.
            unsafe {
                out.copy_from_slice(std::slice::from_raw_parts(self.outputs(row), value_dim));
                let sink = args.sinks.map_or(0.0, |sinks| {
                    elementwise::exp_sum(isa, &mut [sinks[row % heads]], *self.greatest(row), 1.0) as f32
                });
                elementwise::scale(isa, out, 1.0 / (*self.sum(row) + sink));
            }
        }
    }
}

#[inline(always)]
unsafe fn fold_rows<L: Lanes>(whole: Partials, chunk: Partials, num_rows: usize) {
    for row in 0..num_rows {
        // SAFETY: the caller promises the rows and the set of `L`.
        unsafe { fold_row::<L>(whole, chunk, row) };
    }
}

#[inline(always)]
unsafe fn fold_row<L: Lanes>(whole: Partials, chunk: Partials, row: usize) {
    // SAFETY: the caller promises the rows and the set of `L`.
    unsafe {
        let (before, here) = (L::load(whole.greatest(row)), L::load(chunk.greatest(row)));
        let greatest = here.max(before);
        let (keep, take) = (functions::exp(before.sub(greatest)), functions::exp(here.sub(greatest)));
        // The sum lies behind the outputs and is taken in as they are.
        for at in (0..=whole.padded).step_by(LANES) {
            let target = whole.outputs(row).add(at);
            let kept = L::load(target).mul(keep);
            L::load(chunk.outputs(row).add(at)).fma(take, kept).store(target);
        }
        greatest.store(whole.greatest(row));
    }
}
