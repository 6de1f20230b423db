//! `Q4_0`, `Q4_1`, `Q5_0`, `Q5_1`, `Q8_0`: 32 elements, one scale, at most one offset.

use super::block::{Block, leading_f16};
use super::kind::GgmlType;

/// Reads a block whose length the caller has checked.
pub(super) fn read(kind: GgmlType, bytes: &[u8]) -> Block {
    let mut block = Block::empty(kind);
    block.d = leading_f16(bytes);
    block.sub_scales[0] = 1;
    match kind {
        GgmlType::Q4_0 => read_quants(&mut block, 0, &bytes[2..], 8),
        GgmlType::Q5_0 => read_quants(&mut block, high_bits(&bytes[2..]), &bytes[6..], 16),
        GgmlType::Q4_1 | GgmlType::Q5_1 => {
            // The stored offset is added, the block's minimum is subtracted.
            block.dmin = -leading_f16(&bytes[2..]);
            block.sub_mins[0] = 1;
            match kind {
                GgmlType::Q4_1 => read_quants(&mut block, 0, &bytes[4..], 0),
                _ => read_quants(&mut block, high_bits(&bytes[4..]), &bytes[8..], 0),
            }
        }
        _ => {
            for (quant, byte) in block.quants.iter_mut().zip(&bytes[2..]) {
                *quant = byte.cast_signed();
            }
        }
    }
    block
}

/// Bit `i` is the fifth bit of element `i`.
fn high_bits(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Elements 0..16 are the low nibbles of the 16 bytes, elements 16..32 the high ones.
fn read_quants(block: &mut Block, high_bits: u32, nibbles: &[u8], bias: i8) {
    let (low, high) = block.quants[..32].split_at_mut(16);
    for (i, byte) in nibbles.iter().enumerate() {
        let fifth = |i: usize| (((high_bits >> i) & 1) as u8) << 4;
        low[i] = ((byte & 0x0f) | fifth(i)).cast_signed() - bias;
        high[i] = ((byte >> 4) | fifth(i + 16)).cast_signed() - bias;
    }
}
