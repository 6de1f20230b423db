//! `Q2_K` to `Q6_K`: 256 elements, integer scales (and minima) per 16 or 32 of them.

use super::block::{Block, leading_f16};
use super::kind::GgmlType;

/// Reads a block whose length the caller has checked.
pub(super) fn read(block: &mut Block, kind: GgmlType, bytes: &[u8]) {
    read_scales(block, kind, bytes);
    match kind {
        GgmlType::Q2_K => read_q2(block, bytes),
        GgmlType::Q3_K => read_q3(block, bytes),
        GgmlType::Q4_K => read_q4(block, bytes),
        GgmlType::Q5_K => read_q5(block, bytes),
        _ => read_q6(block, bytes),
    }
}

/// Reads all of a block but its integers.
pub(super) fn read_scales(block: &mut Block, kind: GgmlType, bytes: &[u8]) {
    match kind {
        GgmlType::Q2_K => read_q2_scales(block, bytes),
        GgmlType::Q3_K => read_q3_scales(block, bytes),
        GgmlType::Q4_K | GgmlType::Q5_K => read_six_bit_scales(block, bytes),
        _ => read_q6_scales(block, bytes),
    }
}

/// `scales[16] quants[64] d dmin`: a scale in the low nibble, a minimum in the high one.
fn read_q2(block: &mut Block, bytes: &[u8]) {
    let quants = &bytes[16..80];
    for (i, quant) in block.quants.iter_mut().enumerate() {
        *quant = two_bits(quants, i).cast_signed();
    }
}

fn read_q2_scales(block: &mut Block, bytes: &[u8]) {
    block.d = leading_f16(&bytes[80..]);
    block.dmin = leading_f16(&bytes[82..]);
    for (g, packed) in bytes[..16].iter().enumerate() {
        block.sub_scales[g] = (packed & 0x0f).cast_signed();
        block.sub_mins[g] = packed >> 4;
    }
}

/// `high[32] quants[64] scales[12] d`: a clear bit in `high` takes 4 from the quant.
fn read_q3(block: &mut Block, bytes: &[u8]) {
    let (high, quants) = (&bytes[..32], &bytes[32..96]);
    for (i, quant) in block.quants.iter_mut().enumerate() {
        let third = (high[i % 32] >> (i / 32)) & 1;
        *quant = (two_bits(quants, i) | (third << 2)).cast_signed() - 4;
    }
}

fn read_q3_scales(block: &mut Block, bytes: &[u8]) {
    let scales = &bytes[96..108];
    block.d = leading_f16(&bytes[108..]);
    for (g, sub_scale) in block.sub_scales.iter_mut().enumerate() {
        let low = (scales[g % 8] >> (4 * (g / 8))) & 0x0f;
        let upper = (scales[8 + g % 4] >> (2 * (g / 4))) & 0x03;
        *sub_scale = (low | (upper << 4)).cast_signed() - 32;
    }
}

/// `d dmin scales[12] quants[128]`.
fn read_q4(block: &mut Block, bytes: &[u8]) {
    let quants = &bytes[16..144];
    for (i, quant) in block.quants.iter_mut().enumerate() {
        *quant = nibble(quants, i, 32).cast_signed();
    }
}

/// `d dmin scales[12] high[32] quants[128]`.
fn read_q5(block: &mut Block, bytes: &[u8]) {
    let (high, quants) = (&bytes[16..48], &bytes[48..176]);
    for (i, quant) in block.quants.iter_mut().enumerate() {
        let fifth = (high[i % 32] >> (i / 32)) & 1;
        *quant = (nibble(quants, i, 32) | (fifth << 4)).cast_signed();
    }
}

/// `low[128] high[64] scales[16] d`.
fn read_q6(block: &mut Block, bytes: &[u8]) {
    let (low, high) = (&bytes[..128], &bytes[128..192]);
    for (i, quant) in block.quants.iter_mut().enumerate() {
        *quant = (nibble(low, i, 64) | (two_bits(high, i) << 4)).cast_signed() - 32;
    }
}

fn read_q6_scales(block: &mut Block, bytes: &[u8]) {
    block.d = leading_f16(&bytes[208..]);
    for (sub_scale, byte) in block.sub_scales.iter_mut().zip(&bytes[192..208]) {
        *sub_scale = byte.cast_signed();
    }
}

/// Element `i` of 2-bit fields where each run of 32 bytes holds 128 elements, 32 to a bit position.
fn two_bits(bytes: &[u8], i: usize) -> u8 {
    (bytes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 0x03
}

/// Element `i` of nibbles where each run of `run` bytes holds `2 * run` elements, low nibbles first.
fn nibble(bytes: &[u8], i: usize, run: usize) -> u8 {
    (bytes[i / (2 * run) * run + i % run] >> (i % (2 * run) / run * 4)) & 0x0f
}

/// The header of `Q4_K` and `Q5_K`: groups 0..4 have their six bits in one byte of scales or of minima,
/// groups 4..8 have the lower four in the third word and the upper two in the top of those bytes.
fn read_six_bit_scales(block: &mut Block, bytes: &[u8]) {
    block.d = leading_f16(bytes);
    block.dmin = leading_f16(&bytes[2..]);
    let (scales, mins, mixed) = (&bytes[4..8], &bytes[8..12], &bytes[12..16]);
    for g in 0..4 {
        block.sub_scales[g] = (scales[g] & 0x3f).cast_signed();
        block.sub_mins[g] = mins[g] & 0x3f;
        block.sub_scales[4 + g] = ((mixed[g] & 0x0f) | ((scales[g] >> 2) & 0x30)).cast_signed();
        block.sub_mins[4 + g] = (mixed[g] >> 4) | ((mins[g] >> 2) & 0x30);
    }
}
