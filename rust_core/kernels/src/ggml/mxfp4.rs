//! `MXFP4`: 4-bit floating-point numbers with a power of two per 32 (OCP Microscaling Formats, version 1.0).
//!
//! As integers, twice the numbers: so their scale is half the power.

use super::block::Block;

/// Twice what the 16 nibbles stand for: a sign, two bits of exponent, one of fraction. -0 is 0.
const NIBBLE_TO_TWICE: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half the power of two that the scale `exponent` stands for (E8M0): `2^(exponent - 128)`. What the standard calls no
/// number, 255, is the power 128, as other engines have it.
pub(crate) const fn half_power(exponent: u8) -> f32 {
    f32::from_bits(match exponent {
        0 | 1 => 0x0020_0000 << exponent, // too small for a normal number
        _ => (exponent as u32 - 1) << 23,
    })
}

/// Reads a block whose length the caller has checked.
pub(super) fn read(block: &mut Block, bytes: &[u8]) {
    block.d = half_power(bytes[0]);
    block.sub_scales[0] = 1;
    let (low, high) = block.quants[..32].split_at_mut(16);
    for (i, byte) in bytes[1..].iter().enumerate() {
        low[i] = NIBBLE_TO_TWICE[usize::from(byte & 0x0f)];
        high[i] = NIBBLE_TO_TWICE[usize::from(byte >> 4)];
    }
}
