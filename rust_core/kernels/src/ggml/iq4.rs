//! `IQ4_NL` and `IQ4_XS`: nibbles that index a table of 16 integers, denser around zero.

use super::block::{Block, leading_f16};
use super::kind::GgmlType;

/// What the 16 nibbles stand for, before the scale.
const NIBBLE_TO_VALUE: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Reads a block whose length the caller has checked.
pub(super) fn read(block: &mut Block, kind: GgmlType, bytes: &[u8]) {
    block.d = leading_f16(bytes);
    let nibbles = match kind {
        GgmlType::IQ4_NL => {
            block.sub_scales[0] = 1;
            &bytes[2..]
        }
        _ => {
            read_scales(block, bytes);
            &bytes[8..]
        }
    };
    for (group, packed) in block.quants.chunks_exact_mut(32).zip(nibbles.chunks_exact(16)) {
        let (low, high) = group.split_at_mut(16);
        for (i, byte) in packed.iter().enumerate() {
            low[i] = NIBBLE_TO_VALUE[usize::from(byte & 0x0f)];
            high[i] = NIBBLE_TO_VALUE[usize::from(byte >> 4)];
        }
    }
}

/// `d high(u16) low[4]`: six bits per group less 32, the lower four in a nibble of `low`, the rest in `high`.
pub(super) fn read_scales(block: &mut Block, bytes: &[u8]) {
    let (high, low) = (u16::from_le_bytes([bytes[2], bytes[3]]), &bytes[4..8]);
    for (g, sub_scale) in block.sub_scales[..8].iter_mut().enumerate() {
        let lower = (low[g / 2] >> (4 * (g % 2))) & 0x0f;
        let upper = ((high >> (2 * g)) & 0x03) as u8;
        *sub_scale = (lower | (upper << 4)).cast_signed() - 32;
    }
}
