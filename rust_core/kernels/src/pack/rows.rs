//! Reads rows and columns of a packed matrix back as numbers: embedding look-ups, what a neuron writes, and the oracle of
//! the tests.

use super::PackedMatrix;
use super::format::{BLOCK_COLS, Format, GROUP_ROWS, d_at, sc_at, with_format};
use super::planes::integer_at;
use super::scaled;
use crate::ggml::{GgmlType, bf16_to_f32, f16_to_f32, half_power};

impl PackedMatrix {
    /// Writes the numbers of `row` to `out`, equal to the dequantised source bit for bit.
    ///
    /// # Panics
    /// If there is no such row, or `out` does not have one place per column.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows(), "row {row} of {}", self.rows());
        assert_eq!(out.len(), self.cols(), "places for the columns");
        let (group, r) = (self.group(row / GROUP_ROWS), row % GROUP_ROWS);
        match self.kind() {
            GgmlType::F32 => plain(group, r, out, f32::from_le_bytes),
            GgmlType::F16 => plain(group, r, out, |b| f16_to_f32(u16::from_le_bytes(b))),
            GgmlType::BF16 => plain(group, r, out, |b| bf16_to_f32(u16::from_le_bytes(b))),
            GgmlType::E4M3 => {
                for (column, value) in out.iter_mut().enumerate() {
                    *value = scaled::number(group, r, column);
                }
            }
            kind => with_format!(kind, F => {
                let (header, ints) = group.split_at(self.header_bytes());
                quantised::<F>(header, ints, r, out);
            }),
        }
    }

    /// Writes the numbers of column `column` to `out`: those that [`Self::row`] gives of each row.
    ///
    /// # Panics
    /// If there is no such column, or `out` does not have one place per row.
    pub fn column(&self, column: usize, out: &mut [f32]) {
        assert!(column < self.cols(), "column {column} of {}", self.cols());
        assert_eq!(out.len(), self.rows(), "places for the rows");
        for (row, value) in out.iter_mut().enumerate() {
            let (group, r) = (self.group(row / GROUP_ROWS), row % GROUP_ROWS);
            let at = column * GROUP_ROWS + r;
            *value = match self.kind() {
                GgmlType::F32 => f32::from_le_bytes(group.as_chunks().0[at]),
                GgmlType::F16 => f16_to_f32(u16::from_le_bytes(group.as_chunks().0[at])),
                GgmlType::BF16 => bf16_to_f32(u16::from_le_bytes(group.as_chunks().0[at])),
                GgmlType::E4M3 => scaled::number(group, r, column),
                kind => with_format!(kind, F => {
                    let (header, ints) = group.split_at(self.header_bytes());
                    let (block, c) = (column / BLOCK_COLS, column % BLOCK_COLS);
                    let planes = &ints[block * <F as Format>::INT_BYTES..][..<F as Format>::INT_BYTES];
                    let scaling = scale_and_offset::<F>(header, block, c / (4 * <F as Format>::SUB_QUADS), r);
                    number::<F>(planes, scaling, r, c)
                }),
            };
        }
    }
}

fn plain<const N: usize>(group: &[u8], r: usize, out: &mut [f32], read: impl Fn([u8; N]) -> f32) {
    let (elements, _) = group.as_chunks::<N>();
    for (column, value) in out.iter_mut().enumerate() {
        *value = read(elements[column * GROUP_ROWS + r]);
    }
}

fn quantised<F: Format>(header: &[u8], ints: &[u8], r: usize, out: &mut [f32]) {
    let blocks = ints.chunks_exact(F::INT_BYTES);
    for (block, (planes, out)) in blocks.zip(out.chunks_exact_mut(BLOCK_COLS)).enumerate() {
        for (sub, out) in out.chunks_exact_mut(4 * F::SUB_QUADS).enumerate() {
            let scaling = scale_and_offset::<F>(header, block, sub, r);
            for (c, value) in out.iter_mut().enumerate() {
                *value = number::<F>(planes, scaling, r, sub * 4 * F::SUB_QUADS + c);
            }
        }
    }
}

/// The number of row `r` of a group in column `c` of a block.
fn number<F: Format>(planes: &[u8], (scale, offset): (f32, f32), r: usize, c: usize) -> f32 {
    let integer = integer_at::<F>(planes, r, c);
    let number = match F::CODEBOOK {
        Some(codebook) => f32::from(codebook[usize::from(integer)]),
        None => (i32::from(integer) - F::OFFSET) as f32,
    };
    if F::MIN {
        scale * number + offset
    } else {
        scale * number
    }
}

fn scale_and_offset<F: Format>(header: &[u8], block: usize, sub: usize, r: usize) -> (f32, f32) {
    let half = |at: usize| f16_to_f32(u16::from_le_bytes([header[at], header[at + 1]]));
    let d = d_at::<F>(block) + F::D_BYTES * r;
    let scale = if F::D_BYTES == 1 {
        half_power(header[d])
    } else {
        half(d)
    };
    let (mut scale, mut offset) = (scale, 0.0);
    if F::MIN {
        offset = half(d + 2 * GROUP_ROWS);
    }
    if F::SUPER {
        let sc = sc_at::<F>(block, sub) + r;
        scale *= f32::from(header[sc].cast_signed());
        if F::MIN {
            offset *= f32::from(header[sc + GROUP_ROWS]);
        }
    }
    (scale, offset)
}
