//! Moves one group of rows from the file's order into the packed one.

use super::format::{BLOCK_COLS, Format, GROUP_ROWS, QUAD_BYTES, QUADS, d_at, sc_at};
use crate::ggml::Block;

/// The unsigned integers of a group's block: `[8 quads][16 rows][4 columns]`.
pub(super) type Ints = [u8; QUADS * QUAD_BYTES];

/// Packs plain elements of `N` bytes as `[column][16 rows]`; rows that do not exist stay zero.
pub(super) fn pack_plain<const N: usize>(source: &[u8], row_bytes: usize, target: &mut [u8]) {
    let (target, _) = target.as_chunks_mut::<N>();
    for (r, row) in source.chunks_exact(row_bytes).enumerate() {
        let (elements, _) = row.as_chunks::<N>();
        for (column, element) in elements.iter().enumerate() {
            target[column * GROUP_ROWS + r] = *element;
        }
    }
}

/// Packs a quantised group; header and integers of rows that do not exist stay as they are, which is zero.
pub(super) fn pack_quantised<F: Format>(source: &[u8], row_bytes: usize, header: &mut [u8], ints: &mut [u8]) {
    let block_bytes = F::KIND.block_bytes();
    let source_ints = F::INT_BYTES * F::SOURCE_BLOCKS;
    let mut block = Block::empty(F::KIND);
    let mut unpacked = [[0; QUADS * QUAD_BYTES]; 8];
    for (index, ints) in ints.chunks_exact_mut(source_ints).enumerate() {
        for (r, row) in source.chunks_exact(row_bytes).enumerate() {
            let bytes = &row[index * block_bytes..(index + 1) * block_bytes];
            block.refill(F::KIND, bytes);
            write_header::<F>(bytes, &block, header, index * F::SOURCE_BLOCKS, r);
            scatter::<F>(&block, &mut unpacked, r);
        }
        for (unpacked, ints) in unpacked.iter().zip(ints.chunks_exact_mut(F::INT_BYTES)) {
            write_planes::<F>(unpacked, ints);
        }
    }
}

fn write_header<F: Format>(bytes: &[u8], block: &Block, header: &mut [u8], first: usize, r: usize) {
    let d = d_at::<F>(first) + F::D_BYTES * r;
    header[d..d + F::D_BYTES].copy_from_slice(&bytes[F::SOURCE_D..F::SOURCE_D + F::D_BYTES]);
    if F::MIN {
        let e = d + 2 * GROUP_ROWS;
        header[e..e + 2].copy_from_slice(&bytes[F::SOURCE_E..F::SOURCE_E + 2]);
        if F::SUPER {
            // The file's minimum is subtracted, the packed offset is added: turn the sign of binary16.
            header[e + 1] ^= 0x80;
        }
    }
    if F::SUPER {
        for index in 0..F::SOURCE_BLOCKS * F::SUBS {
            let sc = sc_at::<F>(first + index / F::SUBS, index % F::SUBS) + r;
            header[sc] = block.sub_scales[index].cast_unsigned();
            if F::MIN {
                header[sc + GROUP_ROWS] = block.sub_mins[index];
            }
        }
    }
}

fn scatter<F: Format>(block: &Block, unpacked: &mut [Ints; 8], r: usize) {
    let quants = block.quants.chunks_exact(BLOCK_COLS);
    for (quants, unpacked) in quants.zip(&mut unpacked[..F::SOURCE_BLOCKS]) {
        let (quads, _) = quants.as_chunks::<4>();
        for (quad, values) in quads.iter().enumerate() {
            let at = quad * QUAD_BYTES + 4 * r;
            unpacked[at..at + 4].copy_from_slice(&values.map(stored::<F>));
        }
    }
}

/// The unsigned integer that stands for a quant.
fn stored<F: Format>(quant: i8) -> u8 {
    if F::IS_CODEBOOK {
        F::CODEBOOK_INDEX[usize::from(quant.cast_unsigned())]
    } else {
        // OFFSET fits a byte, and the sum is in 0..256 for every quant of the format.
        quant.cast_unsigned().wrapping_add(F::OFFSET as u8)
    }
}

/// Stores the integers of one block as the bit planes described in [`super::format`].
fn write_planes<F: Format>(unpacked: &Ints, planes: &mut [u8]) {
    let (quads, _) = unpacked.as_chunks::<QUAD_BYTES>();
    let (lines, _) = planes.as_chunks_mut::<QUAD_BYTES>();
    let mut next = 0;
    let mut shift = 0;
    for width in [8, 4, 2, 1] {
        if F::BITS & width == 0 {
            continue;
        }
        let per_line = 8 / width;
        let mask = u8::MAX >> (8 - width);
        for (line, quads) in lines[next..next + width].iter_mut().zip(quads.chunks_exact(per_line)) {
            *line = [0; QUAD_BYTES];
            for (i, quad) in quads.iter().enumerate() {
                for (byte, integer) in line.iter_mut().zip(quad) {
                    *byte |= ((integer >> shift) & mask) << (i * width);
                }
            }
        }
        next += width;
        shift += width;
    }
}

/// The unsigned integer at row `r`, column `c` of a block: the planes put together, one element at a time.
pub(super) fn integer_at<F: Format>(planes: &[u8], r: usize, c: usize) -> u8 {
    let (quad, at) = (c / 4, 4 * r + c % 4);
    let (mut next, mut shift, mut value) = (0, 0, 0);
    for width in [8, 4, 2, 1] {
        if F::BITS & width == 0 {
            continue;
        }
        let per_line = 8 / width;
        let byte = planes[(next + quad / per_line) * QUAD_BYTES + at];
        let bits = u16::from(byte >> (quad % per_line * width)) & ((1 << width) - 1);
        value |= (bits << shift) as u8;
        next += width;
        shift += width;
    }
    value
}
