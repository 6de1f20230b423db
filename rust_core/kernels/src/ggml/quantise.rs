//! From `f32` to the element types of GGUF files: the opposite of [`super::dequantise`].
//!
//! The types of 32 elements are written as the `gguf` Python package writes them, bit for bit. The K types have no such
//! reference: their scales are searched for, so that the weighted squared error is small ([`k_quants`] says how).

mod k_quants;
mod legacy;

use super::{GgmlError, GgmlType};
use crate::lanes::half::{Bf16, F16};

/// The greatest finite binary16, in which blocks keep their scales.
const MOST_F16: f32 = 65_504.0;

/// Blocks one thread takes at least, lest it costs more than it does.
const LEAST_BLOCKS: usize = 256;

impl GgmlType {
    /// Whether [`quantise`] writes it.
    pub const fn is_written(self) -> bool {
        !matches!(
            self,
            Self::Q2_K | Self::Q3_K | Self::IQ4_NL | Self::IQ4_XS | Self::MXFP4 | Self::E4M3
        )
    }
}

/// Writes `values` as whole blocks of `kind`, in so many threads at most; the bytes do not depend on how many.
///
/// Raises for numbers that are not finite, or too large for a binary16 where the type has one, for a number of values
/// that is not whole blocks, and for an output that has not exactly their bytes.
pub fn quantise(kind: GgmlType, values: &[f32], out: &mut [u8], threads: usize) -> Result<(), GgmlError> {
    if !kind.is_written() {
        return Err(GgmlError::NotWritten { kind });
    }
    let expected = kind.row_bytes(values.len())?;
    if out.len() != expected {
        return Err(GgmlError::ByteLength { kind, got: out.len() });
    }
    let (elements, bytes) = (kind.block_elements(), kind.block_bytes());
    let num_blocks = values.len() / elements;
    let share = num_blocks.div_ceil(threads.max(1)).max(LEAST_BLOCKS);
    let parts = values.chunks(share * elements).zip(out.chunks_mut(share * bytes));
    std::thread::scope(|scope| {
        let running: Vec<_> = parts
            .map(|(values, out)| scope.spawn(move || write(kind, values, out)))
            .collect();
        let mut ends = running.into_iter().map(|thread| thread.join());
        ends.try_for_each(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

fn write(kind: GgmlType, values: &[f32], out: &mut [u8]) -> Result<(), GgmlError> {
    check(kind, values)?;
    match kind {
        GgmlType::F32 => convert(values, out, f32::to_le_bytes),
        GgmlType::F16 => convert(values, out, |value| F16::from_f32(value).0.to_le_bytes()),
        GgmlType::BF16 => convert(values, out, |value| Bf16::from_f32(value).0.to_le_bytes()),
        _ => {
            let write_block = match kind {
                GgmlType::Q4_K | GgmlType::Q5_K | GgmlType::Q6_K => k_quants::write,
                _ => legacy::write,
            };
            let blocks = values.chunks_exact(kind.block_elements());
            for (block, bytes) in blocks.zip(out.chunks_exact_mut(kind.block_bytes())) {
                write_block(kind, block, bytes);
            }
        }
    }
    Ok(())
}

fn check(kind: GgmlType, values: &[f32]) -> Result<(), GgmlError> {
    let most = if matches!(kind, GgmlType::F32 | GgmlType::BF16) {
        f32::MAX
    } else {
        MOST_F16
    };
    match values.iter().find(|value| value.is_nan() || value.abs() > most) {
        Some(value) if value.is_finite() => Err(GgmlError::TooLarge {
            kind,
            value: value.to_string(),
        }),
        Some(value) => Err(GgmlError::NotFinite {
            value: value.to_string(),
        }),
        None => Ok(()),
    }
}

fn convert<const N: usize>(values: &[f32], out: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
    for (value, raw) in values.iter().zip(out.as_chunks_mut::<N>().0) {
        *raw = bytes(*value);
    }
}

/// Stores a scale; returns what was stored.
fn put_f16(bytes: &mut [u8], value: f32) -> f32 {
    let half = F16::from_f32(value);
    bytes[..2].copy_from_slice(&half.0.to_le_bytes());
    half.to_f32()
}

#[cfg(test)]
mod tests;
