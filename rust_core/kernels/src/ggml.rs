//! Tensor element types of GGUF files: their block layouts, and exact conversion to `f32`.
//!
//! Knows bytes, not files: the reader of model files is in `pyagent-engine`. Input is hostile, so each
//! length is checked and none of the functions here panics on bytes. The rounding is that of the `gguf`
//! Python package (each product rounded to `f32` before the subtraction, no fused multiply-add), so that a
//! dequantised tensor is equal to it bit for bit; `tests/oracle/test_dequantise.py` holds that claim.
//!
//! Every quantised type is read into the same [`Block`], whose element `i` in group `g = i / group` is
//! `(d * sub_scales[g]) * quants[i] - dmin * sub_mins[g]`. Who packs weights for a kernel takes the exact
//! integers from there; who wants numbers calls [`dequantise`].

mod block;
pub(crate) mod e4m3;
mod iq4;
mod k_quants;
mod kind;
mod legacy;
mod mxfp4;
mod quantise;

pub use block::{Block, MAX_BLOCK_ELEMENTS, MAX_BLOCK_GROUPS, blocks};
pub use e4m3::e4m3_to_f32;
pub use kind::GgmlType;
pub(crate) use mxfp4::half_power;
pub use quantise::quantise;

/// Why bytes cannot be read as elements of a [`GgmlType`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GgmlError {
    /// A row does not consist of whole blocks.
    #[error("a row of {cols} elements cannot be {kind}: the length must be a multiple of {block_elements}", kind = .kind.name(), block_elements = .kind.block_elements())]
    RowLength {
        /// The element type.
        kind: GgmlType,
        /// Elements in the row.
        cols: usize,
    },
    /// A row is longer than the address space.
    #[error("a row of {cols} elements of {kind} has more bytes than this machine can address", kind = .kind.name())]
    RowOverflow {
        /// The element type.
        kind: GgmlType,
        /// Elements in the row.
        cols: usize,
    },
    /// The bytes are not whole blocks.
    #[error("{got} bytes are not whole blocks of {kind}: the length must be a multiple of {block_bytes}", kind = .kind.name(), block_bytes = .kind.block_bytes())]
    ByteLength {
        /// The element type.
        kind: GgmlType,
        /// Bytes given.
        got: usize,
    },
    /// The output does not have room for exactly the elements in the bytes.
    #[error("the bytes hold {expected} elements of {kind} but the output has {got}: make it {expected}", kind = .kind.name())]
    OutputLength {
        /// The element type.
        kind: GgmlType,
        /// Elements in the bytes.
        expected: usize,
        /// Elements in the output.
        got: usize,
    },
    /// Blocks were asked of a type that has plain elements.
    #[error("{kind} has no blocks: read its elements with dequantise", kind = .kind.name())]
    NotQuantised {
        /// The element type.
        kind: GgmlType,
    },
    /// Elements of this type are read, but not made.
    #[error("{kind} is read but not written: choose another type", kind = .kind.name())]
    NotWritten {
        /// The element type.
        kind: GgmlType,
    },
    /// A number is infinite or none.
    #[error("one of the numbers is {value}")]
    NotFinite {
        /// As it is printed.
        value: String,
    },
    /// A number is beyond what the type can hold.
    #[error("one of the numbers is {value}, and {kind} holds up to 65,504: BF16 and F32 hold more", kind = .kind.name())]
    TooLarge {
        /// The element type.
        kind: GgmlType,
        /// As it is printed.
        value: String,
    },
}

/// Converts whole blocks of `kind` to `f32`, element for element.
///
/// `out` must have exactly `bytes.len() / block_bytes * block_elements` elements. NaN payloads of plain types
/// are kept; scales that are infinite or NaN give infinities and NaNs, never an error.
pub fn dequantise(kind: GgmlType, bytes: &[u8], out: &mut [f32]) -> Result<(), GgmlError> {
    let expected = element_count(kind, bytes)?;
    if out.len() != expected {
        return Err(GgmlError::OutputLength {
            kind,
            expected,
            got: out.len(),
        });
    }
    match kind {
        GgmlType::F32 => convert(bytes, out, f32::from_le_bytes),
        GgmlType::F16 => convert(bytes, out, |pair| f16_to_f32(u16::from_le_bytes(pair))),
        GgmlType::BF16 => convert(bytes, out, |pair| bf16_to_f32(u16::from_le_bytes(pair))),
        GgmlType::E4M3 => {
            let rows = out.chunks_exact_mut(kind.block_elements());
            for (block, row) in bytes.chunks_exact(kind.block_bytes()).zip(rows) {
                e4m3::write(block, row);
            }
        }
        _ => {
            let rows = out.chunks_exact_mut(kind.block_elements());
            for (block, row) in blocks(kind, bytes)?.zip(rows) {
                block.write(row);
            }
        }
    }
    Ok(())
}

fn element_count(kind: GgmlType, bytes: &[u8]) -> Result<usize, GgmlError> {
    if !bytes.len().is_multiple_of(kind.block_bytes()) {
        return Err(GgmlError::ByteLength { kind, got: bytes.len() });
    }
    // Saturation cannot be equal to the length of a real output, so it ends in OutputLength.
    Ok((bytes.len() / kind.block_bytes()).saturating_mul(kind.block_elements()))
}

fn convert<const N: usize>(bytes: &[u8], out: &mut [f32], element: impl Fn([u8; N]) -> f32) {
    let (elements, _) = bytes.as_chunks::<N>();
    for (value, raw) in out.iter_mut().zip(elements) {
        *value = element(*raw);
    }
}

/// The value of an IEEE 754 binary16 bit pattern; exact, since every one is representable in `f32`.
pub const fn f16_to_f32(bits: u16) -> f32 {
    let sign = ((bits & 0x8000) as u32) << 16;
    let exponent = ((bits >> 10) & 0x1f) as u32;
    let fraction = (bits & 0x3ff) as u32;
    let magnitude = match exponent {
        // Subnormal: fraction * 2^-24, an exact product of two normal floats.
        0 => (fraction as f32 * f32::from_bits((127 - 24) << 23)).to_bits(),
        0x1f => 0x7f80_0000 | (fraction << 13),
        _ => ((exponent + 127 - 15) << 23) | (fraction << 13),
    };
    f32::from_bits(sign | magnitude)
}

/// The value of a bfloat16 bit pattern: the upper half of an `f32`.
pub const fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

#[cfg(test)]
mod tests;
