//! Moves one group of rows from the file's order into the packed one.

use super::columns::{Columns, EACH, columns};
use super::format::{Format, GROUP_ROWS, QUAD_BYTES, d_at, sc_at};
use crate::ggml::Block;

const PLAIN_COLS: usize = 16;

/// Packs plain elements of `N` bytes as `[column][16 rows]`; rows that do not exist stay zero.
pub(super) fn pack_plain<const N: usize>(source: &[u8], row_bytes: usize, target: &mut [u8]) {
    let (target, _) = target.as_chunks_mut::<N>();
    // Some columns of all rows at a time: what is written to stays in the nearest cache.
    for (index, target) in target.chunks_mut(PLAIN_COLS * GROUP_ROWS).enumerate() {
        for (r, row) in source.chunks_exact(row_bytes).enumerate() {
            let (elements, _) = row.as_chunks::<N>();
            let elements = &elements[elements.len().min(index * PLAIN_COLS)..];
            for (place, element) in target.chunks_exact_mut(GROUP_ROWS).zip(elements) {
                place[r] = *element;
            }
        }
    }
}

/// Packs a quantised group; header and integers of rows that do not exist stay as they are, which is zero.
pub(super) fn pack_quantised<F: Format>(source: &[u8], row_bytes: usize, header: &mut [u8], ints: &mut [u8]) {
    let block_bytes = F::KIND.block_bytes();
    let source_ints = F::INT_BYTES * F::SOURCE_BLOCKS;
    let mut scales = Block::empty(F::KIND);
    for (index, ints) in ints.chunks_exact_mut(source_ints).enumerate() {
        for (r, row) in source.chunks_exact(row_bytes).enumerate() {
            let bytes = &row[index * block_bytes..(index + 1) * block_bytes];
            assert!(bytes.len() == F::KIND.block_bytes(), "a whole block");
            scales.refill_scales(F::KIND, bytes);
            write_header::<F>(bytes, &scales, header, index * F::SOURCE_BLOCKS, r);
            for (block, planes) in ints.chunks_exact_mut(F::INT_BYTES).enumerate() {
                write_planes::<F>(&columns::<F>(bytes, block), planes, r);
            }
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

/// Stores the 32 integers of a row's block as the bit planes described in [`super::format`].
#[inline(always)]
fn write_planes<F: Format>(columns: &Columns, planes: &mut [u8], r: usize) {
    let (lines, _) = planes.as_chunks_mut::<QUAD_BYTES>();
    assert!(lines.len() == F::BITS && r < GROUP_ROWS, "a row of a group's block");
    let mut put = |line: usize, quad: u64| {
        lines[line][4 * r..4 * r + 4].copy_from_slice(&(quad as u32).to_le_bytes());
    };
    // Of eight integers the low four, and the high four above them.
    let pair = |word: u64, width: usize| word | (word >> (32 - width));
    if F::BITS == 8 {
        for (i, word) in columns.iter().enumerate() {
            put(2 * i, *word);
            put(2 * i + 1, word >> 32);
        }
        return;
    }
    let (mut next, mut shift) = (0, 0);
    if F::BITS & 4 != 0 {
        for (i, word) in columns.iter().enumerate() {
            put(i, pair(word & (0x0f * EACH), 4));
        }
        (next, shift) = (4, 4);
    }
    if F::BITS & 2 != 0 {
        let half = |word: u64| pair((word >> shift) & (0x03 * EACH), 2);
        for i in 0..2 {
            put(next + i, half(columns[2 * i]) | (half(columns[2 * i + 1]) << 4));
        }
        (next, shift) = (next + 2, shift + 2);
    }
    if F::BITS & 1 != 0 {
        let bits = |i: usize| pair((columns[i] >> shift) & EACH, 1) << (2 * i);
        put(next, bits(0) | bits(1) | bits(2) | bits(3));
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
