//! Low-rank additions to a product: what an adapter (`LoRA`, Hu et al. 2021, arXiv 2106.09685) adds to a projection.
//!
//! `y += B h` for a few numbers `h = A x` of each row. A lane is an output and the sum over the rank is sequential, so an
//! output depends on its row alone, and is the same bit for bit on every instruction set and however columns are cut.

use crate::isa::Isa;
use crate::lanes::{LANES, Lanes, load_part, run_on, store_part};

/// A matrix `B` of `rows` outputs and `rank` inputs, in groups of sixteen outputs: a group has the outputs' numbers of the
/// first input, then those of the second.
#[derive(Debug)]
pub struct UpMatrix {
    rank: usize,
    rows: usize,
    values: Vec<f32>,
}

/// Groups whose sums are computed side by side, as each of a sum's operations waits for the one before.
const SIDE_BY_SIDE: usize = 4;
/// Outputs of a group.
pub const GROUP_OUTPUTS: usize = LANES;

impl UpMatrix {
    /// Arranges the rows that `row` returns, each of `rank` numbers.
    ///
    /// # Panics
    /// If a row has another length.
    pub fn new<'a>(rank: usize, rows: usize, row: impl Fn(usize) -> &'a [f32]) -> Self {
        let mut values = vec![0.0; rows.div_ceil(LANES) * LANES * rank];
        for output in 0..rows {
            let source = row(output);
            assert_eq!(source.len(), rank, "numbers of a row");
            let group = &mut values[output / LANES * LANES * rank..];
            for (input, value) in source.iter().enumerate() {
                group[input * LANES + output % LANES] = *value;
            }
        }
        Self { rank, rows, values }
    }

    /// Bytes that a matrix of this size holds.
    pub fn bytes_of(rank: usize, rows: usize) -> usize {
        let padded = rows.div_ceil(LANES).saturating_mul(LANES);
        padded.saturating_mul(rank).saturating_mul(size_of::<f32>())
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        size_of_val(self.values.as_slice())
    }

    /// Inputs.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }
}

/// `y += B h` for the outputs from `first` on, a multiple of [`GROUP_OUTPUTS`].
///
/// # Panics
/// If `h` has not `rank` numbers, `first` begins no group, or `y` is longer than the outputs from there.
pub fn add_low_rank(isa: Isa, y: &mut [f32], h: &[f32], up: &UpMatrix, first: usize) {
    assert_eq!(h.len(), up.rank, "numbers of the rank");
    assert!(
        first.is_multiple_of(LANES) && first + y.len() <= up.rows,
        "outputs of the matrix"
    );
    let groups = &up.values[first * up.rank..];
    #[inline(always)]
    unsafe fn kernel<L: Lanes>(y: &mut [f32], h: &[f32], groups: &[f32]) {
        let group_len = LANES * h.len();
        let whole = y.len() / (SIDE_BY_SIDE * LANES) * (SIDE_BY_SIDE * LANES);
        let (wide, rest) = y.split_at_mut(whole);
        let (wide_groups, rest_groups) = groups.split_at(whole * h.len());
        let parts = wide.chunks_exact_mut(SIDE_BY_SIDE * LANES);
        for (y, groups) in parts.zip(wide_groups.chunks_exact((SIDE_BY_SIDE * group_len).max(1))) {
            // SAFETY: the caller promises the set of `L`; these are the groups of these outputs.
            unsafe { add_groups::<L, SIDE_BY_SIDE>(y, h, groups) };
        }
        for (y, groups) in rest.chunks_mut(LANES).zip(rest_groups.chunks_exact(group_len.max(1))) {
            // SAFETY: as above.
            unsafe { add_groups::<L, 1>(y, h, groups) };
        }
    }
    run_on!(isa, kernel(y: &mut [f32], h: &[f32], groups: &[f32]))
}

/// `y += B h` for the outputs of `N` groups, whose sums are chains of their own.
///
/// # Safety
/// The CPU has the instruction set; `groups` has `N` groups.
#[inline(always)]
unsafe fn add_groups<L: Lanes, const N: usize>(y: &mut [f32], h: &[f32], groups: &[f32]) {
    debug_assert_eq!(groups.len(), N * LANES * h.len());
    // SAFETY: the caller promises the set of `L`.
    let mut sums = unsafe { [L::splat(0.0); N] };
    for (group, sum) in sums.iter_mut().enumerate() {
        // SAFETY: as above.
        *sum = unsafe { load_part(y, group * LANES) };
    }
    for (place, input) in h.iter().enumerate() {
        // SAFETY: as above.
        let input = unsafe { L::splat(*input) };
        for (group, sum) in sums.iter_mut().enumerate() {
            // SAFETY: as above; the group has sixteen numbers for each input.
            let weights = unsafe { L::load(groups.as_ptr().add((group * h.len() + place) * LANES)) };
            *sum = weights.fma(input, *sum);
        }
    }
    for (group, sum) in sums.into_iter().enumerate() {
        store_part(sum, y, group * LANES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    /// The sum as it is defined: one fused operation for each number of the rank, in order.
    fn plain(y: &[f32], h: &[f32], matrix: &[f32], first: usize) -> Vec<f32> {
        let rank = h.len();
        let row = |output: usize| &matrix[(first + output) * rank..][..rank];
        let sum = |(output, y): (usize, &f32)| row(output).iter().zip(h).fold(*y, |sum, (w, h)| w.mul_add(*h, sum));
        y.iter().enumerate().map(sum).collect()
    }

    #[test]
    fn every_set_gives_the_plain_sum_bit_for_bit() {
        for (rank, rows) in [(1, 1), (3, 16), (8, 40), (16, 33), (65, 100)] {
            let matrix = numbers(rank * rows, 7);
            let up = UpMatrix::new(rank, rows, |row| &matrix[row * rank..][..rank]);
            let h = numbers(rank, 9);
            for first in (0..rows).step_by(LANES) {
                for len in [rows - first, (rows - first).min(LANES)] {
                    let y = numbers(len, 11);
                    let expected = plain(&y, &h, &matrix, first);
                    for isa in Isa::available() {
                        let mut got = y.clone();
                        add_low_rank(isa, &mut got, &h, &up, first);
                        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                        assert_eq!(
                            bits(&got),
                            bits(&expected),
                            "{isa:?}, rank {rank}, rows {rows}, from {first}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn the_bytes_are_those_that_were_foretold() {
        let row = [0.5; 5];
        let up = UpMatrix::new(5, 18, |_| &row);
        assert_eq!((up.bytes(), up.rank(), up.rows()), (UpMatrix::bytes_of(5, 18), 5, 18));
    }

    #[test]
    #[should_panic(expected = "outputs of the matrix")]
    fn columns_within_a_group_are_refused() {
        let row = [0.5; 2];
        let up = UpMatrix::new(2, 32, |_| &row);
        add_low_rank(Isa::Scalar, &mut [0.0; 4], &row, &up, 8);
    }
}
