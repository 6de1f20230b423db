//! How `E4M3` lies once packed: per block of 64 columns the scales of 16 rows, then the numbers as `[64 columns][16 rows]`.
//!
//! Scales lie beside their numbers, so that a product reads one run of memory. A weight is `scale * number`, rounded once.

use super::format::GROUP_ROWS;
use crate::ggml::GgmlType;
use crate::ggml::e4m3::{E4M3_NUMBERS, SCALE_BYTES};

/// Columns that share a scale.
pub(crate) const SCALED_COLS: usize = GgmlType::E4M3.block_elements();
/// Bytes of the scales of a group's block.
pub(crate) const SCALES_BYTES: usize = SCALE_BYTES * GROUP_ROWS;
/// Bytes of a group's block.
pub(crate) const SCALED_BYTES: usize = SCALES_BYTES + SCALED_COLS * GROUP_ROWS;

/// Packs a group; scales and numbers of rows that do not exist stay as they are, which is zero.
pub(super) fn pack(source: &[u8], row_bytes: usize, target: &mut [u8]) {
    for (r, row) in source.chunks_exact(row_bytes).enumerate() {
        let blocks = row.chunks_exact(GgmlType::E4M3.block_bytes());
        for (block, target) in blocks.zip(target.chunks_exact_mut(SCALED_BYTES)) {
            let (scale, numbers) = block.split_at(SCALE_BYTES);
            let (scales, columns) = target.split_at_mut(SCALES_BYTES);
            scales[SCALE_BYTES * r..][..SCALE_BYTES].copy_from_slice(scale);
            for (column, number) in columns.chunks_exact_mut(GROUP_ROWS).zip(numbers) {
                column[r] = *number;
            }
        }
    }
}

/// The number of row `r` of a group in a column.
pub(super) fn number(group: &[u8], r: usize, column: usize) -> f32 {
    let block = &group[column / SCALED_COLS * SCALED_BYTES..][..SCALED_BYTES];
    let (scales, columns) = block.split_at(SCALES_BYTES);
    let byte = columns[column % SCALED_COLS * GROUP_ROWS + r];
    f32::from_le_bytes(scales.as_chunks().0[r]) * E4M3_NUMBERS[usize::from(byte)]
}
