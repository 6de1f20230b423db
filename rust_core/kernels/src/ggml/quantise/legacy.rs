//! `Q4_0`, `Q4_1`, `Q5_0`, `Q5_1`, `Q8_0`, as the `gguf` package rounds them.

use super::super::GgmlType;
use super::put_f16;

/// Writes a block of 32.
pub(super) fn write(kind: GgmlType, values: &[f32], bytes: &mut [u8]) {
    match kind {
        GgmlType::Q4_0 => write_signed(values, bytes, 8.0),
        GgmlType::Q5_0 => write_signed(values, bytes, 16.0),
        GgmlType::Q4_1 => write_with_offset(values, bytes, 15.0),
        GgmlType::Q5_1 => write_with_offset(values, bytes, 31.0),
        _ => write_bytes(values, bytes),
    }
}

/// The number of largest magnitude becomes the least quant, which is one further from 0 than the greatest.
fn write_signed(values: &[f32], bytes: &mut [u8], bias: f32) {
    let mut peak = 0.0f32;
    for value in values {
        if value.abs() > peak.abs() {
            peak = *value;
        }
    }
    let scale = peak / -bias;
    let inverse = inverse(scale);
    put_f16(bytes, scale);
    write_quants(bytes, 2, 2.0 * bias - 1.0, |i| values[i] * inverse + (bias + 0.5));
}

/// The least number becomes 0, the greatest the greatest quant.
fn write_with_offset(values: &[f32], bytes: &mut [u8], most: f32) {
    let least = values.iter().copied().fold(f32::INFINITY, f32::min);
    let greatest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let scale = (greatest - least) / most;
    let inverse = inverse(scale);
    put_f16(bytes, scale);
    put_f16(&mut bytes[2..], least);
    write_quants(bytes, 4, most, |i| (values[i] - least) * inverse + 0.5);
}

fn write_bytes(values: &[f32], bytes: &mut [u8]) {
    let peak = values.iter().fold(0.0f32, |peak, value| peak.max(value.abs()));
    let scale = peak / 127.0;
    let inverse = inverse(scale);
    put_f16(bytes, scale);
    for (byte, value) in bytes[2..].iter_mut().zip(values) {
        *byte = ((value * inverse).round() as i8).cast_unsigned();
    }
}

/// Writes quants, cut off below their point, from byte `start` on: where they go beyond 15, their fifth bits first.
fn write_quants(bytes: &mut [u8], start: usize, most: f32, quant: impl Fn(usize) -> f32) {
    let quant = |i| quant(i).min(most) as u8;
    let has_fifth = most > 15.0;
    let start = if has_fifth {
        let fifths = (0..32).fold(0u32, |bits, i| bits | u32::from(quant(i) >> 4) << i);
        bytes[start..start + 4].copy_from_slice(&fifths.to_le_bytes());
        start + 4
    } else {
        start
    };
    for (i, byte) in bytes[start..].iter_mut().enumerate() {
        *byte = (quant(i) & 0x0f) | (quant(i + 16) << 4);
    }
}

fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}
