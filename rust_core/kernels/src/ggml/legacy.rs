//! `Q4_0`, `Q4_1`, `Q5_0`, `Q5_1`, `Q8_0`: 32 elements, one scale, at most one offset.

use super::block::{Block, leading_f16};
use super::kind::GgmlType;

/// Reads a block whose length the caller has checked.
pub(super) fn read(block: &mut Block, kind: GgmlType, bytes: &[u8]) {
    block.d = leading_f16(bytes);
    block.sub_scales[0] = 1;
    match kind {
        GgmlType::Q4_0 => read_nibbles(block, &bytes[2..18], 8),
        GgmlType::Q5_0 => {
            read_nibbles(block, &bytes[6..22], 16);
            add_fifth_bits(block, high_bits(&bytes[2..]));
        }
        GgmlType::Q4_1 | GgmlType::Q5_1 => {
            // The stored offset is added, the block's minimum is subtracted.
            block.dmin = -leading_f16(&bytes[2..]);
            block.sub_mins[0] = 1;
            if kind == GgmlType::Q4_1 {
                read_nibbles(block, &bytes[4..20], 0);
            } else {
                read_nibbles(block, &bytes[8..24], 0);
                add_fifth_bits(block, high_bits(&bytes[4..]));
            }
        }
        _ => {
            for (quant, byte) in block.quants.iter_mut().zip(&bytes[2..]) {
                *quant = byte.cast_signed();
            }
        }
    }
}

/// Bit `i` is the fifth bit of element `i`.
fn high_bits(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Elements 0..16 are the low nibbles of the 16 bytes, elements 16..32 the high ones.
fn read_nibbles(block: &mut Block, nibbles: &[u8], bias: i8) {
    let (low, high) = block.quants[..32].split_at_mut(16);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(nibbles) {
        *low = (byte & 0x0f).cast_signed() - bias;
        *high = (byte >> 4).cast_signed() - bias;
    }
}

/// Adds bit `i` of `high_bits` to element `i`, as its fifth.
fn add_fifth_bits(block: &mut Block, high_bits: u32) {
    for (i, quant) in block.quants[..32].iter_mut().enumerate() {
        *quant += ((high_bits >> i & 1) << 4) as i8;
    }
}
