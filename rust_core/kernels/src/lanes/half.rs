//! Numbers of sixteen bits in plain Rust: IEEE-754 binary16, equal bit for bit to what F16C does in hardware, and
//! bfloat16, the upper half of an `f32`.

/// A half-precision number as its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct F16(pub(crate) u16);

impl F16 {
    /// Rounds to nearest, ties to even; beyond the range gives infinity, a NaN stays a (quiet) NaN.
    pub(crate) fn from_f32(x: f32) -> Self {
        let bits = x.to_bits();
        let sign = ((bits >> 16) & 0x8000) as u16;
        let magnitude = bits & 0x7fff_ffff;
        let half = if magnitude > 0x7f80_0000 {
            0x7e00 | ((magnitude >> 13) & 0x03ff) as u16
        } else if magnitude >= 0x4780_0000 {
            0x7c00 // 65,536 and more; what rounds up to it is handled by the carry below
        } else if magnitude >= 0x3880_0000 {
            let rebased = magnitude - 0x3800_0000; // exponent bias 127 -> 15
            round_off(rebased, 13)
        } else if magnitude < 0x3300_0000 {
            0 // under half of the least subnormal
        } else {
            let mantissa = (magnitude & 0x007f_ffff) | 0x0080_0000;
            round_off(mantissa, 126 - (magnitude >> 23))
        };
        Self(sign | half)
    }

    /// Widens exactly; a NaN comes back quiet, as from the hardware.
    ///
    /// Without a branch, so that sixteen at a time are vectorised: the bits are shifted into place and the
    /// exponent is rebased by a product, which is exact and also right for subnormals.
    #[inline(always)]
    pub(crate) fn to_f32(self) -> f32 {
        const REBASE: f32 = f32::from_bits((127 + 112) << 23);
        let sign = u32::from(self.0 & 0x8000) << 16;
        let magnitude = u32::from(self.0 & 0x7fff);
        let finite = (f32::from_bits(magnitude << 13) * REBASE).to_bits();
        let quiet = u32::from(magnitude > 0x7c00) << 22;
        let special = 0x7f80_0000 | (magnitude << 13) | quiet;
        f32::from_bits(sign | if magnitude >= 0x7c00 { special } else { finite })
    }
}

/// Factors of bfloat16 are at least this large, or 0: a product is then a multiple of 2^-114, and so is any rounded sum of
/// products. None is subnormal, which is where CPUs differ.
pub(crate) const SMALLEST_BF16: f32 = 1.0 / (1_u64 << 50) as f32;

/// A bfloat16 number as its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Bf16(pub(crate) u16);

impl Bf16 {
    /// Rounds to nearest, ties to even, also subnormals; a NaN stays a (quiet) NaN.
    pub(crate) fn from_f32(x: f32) -> Self {
        let bits = x.to_bits();
        let upper = bits >> 16;
        let rounded = (bits.wrapping_add(0x7fff + (upper & 1))) >> 16;
        Self(if x.is_nan() { upper | 0x40 } else { rounded } as u16)
    }

    /// Widens exactly.
    #[inline(always)]
    pub(crate) fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

/// Drops the lowest `shift` bits, rounding to nearest, ties to even. `shift` is 1 to 31.
fn round_off(value: u32, shift: u32) -> u16 {
    let kept = value >> shift;
    let dropped = value & ((1 << shift) - 1);
    let tie = 1 << (shift - 1);
    (kept + u32::from(dropped > tie || (dropped == tie && kept & 1 == 1))) as u16
}
