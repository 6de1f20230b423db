//! `E4M3`: 8-bit floating-point numbers (OCP 8-bit Floating Point Specification, version 1.0) with a binary32 scale per 64.
//!
//! No GGUF file has the type: checkpoints of safetensors become it. A block is its scale, then a byte a number.

/// Bytes of a block's scale.
pub(crate) const SCALE_BYTES: usize = 4;

/// The number that a byte is: a sign, four bits of an exponent, three of a fraction. Exact. The bytes 0x7f and 0xff, which
/// the standard has for NaN, are 480 and -480: who reads files refuses them.
pub const fn e4m3_to_f32(byte: u8) -> f32 {
    let (exponent, fraction) = ((byte >> 3 & 15) as u32, (byte & 7) as u32);
    // The fraction of numbers below 2^-6 counts in steps of 2^-9; of others it follows a one.
    let size = match exponent {
        0 => fraction as f32 / 512.0,
        _ => f32::from_bits((exponent + 127 - 7) << 23 | fraction << 20),
    };
    if byte < 128 { size } else { -size }
}

/// [`e4m3_to_f32`] of every byte.
pub(crate) static E4M3_NUMBERS: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut byte = 0;
    while byte < table.len() {
        table[byte] = e4m3_to_f32(byte as u8);
        byte += 1;
    }
    table
};

/// Writes the numbers of a block whose length the caller has checked.
pub(super) fn write(block: &[u8], out: &mut [f32]) {
    let (scale, numbers) = block.split_at(SCALE_BYTES);
    let scale = f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]);
    for (value, byte) in out.iter_mut().zip(numbers) {
        *value = scale * E4M3_NUMBERS[usize::from(*byte)];
    }
}
