//! Rows of a quantised matrix as the blocks of types that the kernels have.
//!
//! Numbers of 4 bits less a zero point are from -16 to 15, which `Q5_0` holds exactly; where every zero point is the
//! middle, `Q4_0` does. Numbers of 8 bits less the middle are `Q8_0`'s. Scales become half precision. FP8's bytes and scales
//! are `E4M3`'s as they are. What has no such type is dequantised, to half precision where that keeps the numbers, or to
//! single.

use std::ops::Range;
use std::sync::Mutex;

use pyagent_kernels::elementwise::f32_to_f16;
use pyagent_kernels::ggml::{GgmlType, e4m3_to_f32, f16_to_f32};
use pyagent_kernels::isa::Isa;
use pyagent_kernels::thread_pool::ThreadPool;

use super::matrix::QuantisedMatrix;
use super::nvfp4::E2M1;
use super::scheme::Kind;
use super::tensors::fault;
use crate::weights::ModelFileError;

/// Columns of a block.
const BLOCK: usize = 32;
/// Rows that a thread reads at a time: words of AWQ's rows lie side by side in a line of memory.
const PIECE_ROWS: usize = 64;
/// How much of a scale may be lost in half precision: what bfloat16 loses of a number.
const MOST_LOSS: f32 = 1.0 / 512.0;
/// Half precision keeps numbers up to here.
const MOST_HALF: f32 = 65504.0;
/// The least that the largest number of a group may be, so that half precision keeps it as well as bfloat16 would.
const LEAST_HALF: f32 = 1.0 / 65536.0;
/// FP8's scales are kept between this and its inverse: products with them then neither vanish nor overflow.
const LEAST_FP8: f32 = 1.0 / (1_u64 << 60) as f32;

impl QuantisedMatrix<'_> {
    /// The type that its rows become. An error where a scale is not finite.
    pub(super) fn packed_kind(&self) -> Result<GgmlType, ModelFileError> {
        let (mut keeps_scales, mut keeps_halves, mut is_centred) = (true, true, true);
        let mut keeps_bytes = self.kind.is_e4m3() && self.shares_scales(GgmlType::E4M3.block_elements());
        let middle = self.middle();
        let isa = Isa::detect();
        let mut halves = vec![0; self.num_groups];
        for row in self.rows.clone() {
            let scales: Vec<f32> = (0..self.num_groups).map(|group| self.scale(row, group)).collect();
            f32_to_f16(isa, &scales, &mut halves);
            for (group, (scale, half)) in scales.iter().zip(&halves).enumerate() {
                if !scale.is_finite() {
                    return Err(fault(self.scale_name(), "has numbers that are not finite"));
                }
                let largest = scale.abs() * most(self.kind);
                keeps_scales &= (f16_to_f32(*half) - scale).abs() <= MOST_LOSS * scale.abs();
                keeps_halves &= *scale == 0.0 || (LEAST_HALF..=MOST_HALF).contains(&largest);
                keeps_bytes &= *scale == 0.0 || (LEAST_FP8..=1.0 / LEAST_FP8).contains(&scale.abs());
                is_centred &= self.zero(row, group) == middle;
            }
        }
        let integers = match (self.kind.bits, is_centred) {
            _ if keeps_bytes => Some(GgmlType::E4M3),
            _ if self.kind.is_float || !self.shares_scales(BLOCK) || !keeps_scales => None,
            (4, true) => Some(GgmlType::Q4_0),
            (4, false) => Some(GgmlType::Q5_0),
            (_, true) => Some(GgmlType::Q8_0),
            (_, false) => None,
        };
        let plain = if keeps_halves { GgmlType::F16 } else { GgmlType::F32 };
        Ok(integers.unwrap_or(plain))
    }

    /// Its rows as blocks of a type, using the pool's threads.
    pub(super) fn blocks(&self, kind: GgmlType, pool: &ThreadPool) -> Result<Vec<u8>, ModelFileError> {
        let refused = |error: String| fault(self.name, &format!("cannot be read: {error}"));
        let row_bytes = kind.row_bytes(self.cols).map_err(|error| refused(error.to_string()))?;
        let mut bytes = vec![0; self.rows.len() * row_bytes];
        let pieces: Vec<_> = bytes.chunks_mut(PIECE_ROWS * row_bytes).map(Mutex::new).collect();
        pool.run(&[pieces.len()], |piece| {
            let first = self.rows.start + piece.index * PIECE_ROWS;
            let rows = first..(first + PIECE_ROWS).min(self.rows.end);
            if let Ok(mut out) = pieces[piece.index].lock() {
                self.write(&rows, kind, &mut out);
            }
        })
        .map_err(|error| refused(error.to_string()))?;
        drop(pieces);
        Ok(bytes)
    }

    fn write(&self, rows: &Range<usize>, kind: GgmlType, out: &mut [u8]) {
        let mut numbers = vec![0i16; rows.len() * self.cols];
        self.unpack(rows, &mut numbers);
        let row_bytes = out.len() / rows.len();
        let rows = rows.clone().zip(numbers.chunks_exact_mut(self.cols));
        for ((row, numbers), out) in rows.zip(out.chunks_exact_mut(row_bytes)) {
            let groups = 0..self.num_groups;
            let scales: Vec<f32> = groups.clone().map(|group| self.scale(row, group)).collect();
            if kind == GgmlType::E4M3 {
                self.write_bytes(numbers, &scales, out);
                continue;
            }
            if self.kind.is_float {
                self.write_plain(numbers, &scales, kind, out);
                continue;
            }
            let zeros: Vec<i16> = groups.map(|group| self.zero(row, group)).collect();
            for (number, group) in numbers.iter_mut().zip(&self.groups) {
                *number -= zeros[*group as usize];
            }
            match kind {
                GgmlType::F16 | GgmlType::F32 => self.write_plain(numbers, &scales, kind, out),
                _ => self.write_integers(numbers, &scales, kind, out),
            }
        }
    }

    fn write_plain(&self, numbers: &[i16], scales: &[f32], kind: GgmlType, out: &mut [u8]) {
        let value = |number: i16| match self.kind.is_float {
            true if self.kind.is_e4m3() => e4m3_to_f32(number as u8),
            true => E2M1[number as usize & 0x0f],
            false => f32::from(number),
        };
        let values = numbers.iter().zip(&self.groups);
        let values: Vec<f32> = values
            .map(|(number, group)| value(*number) * scales[*group as usize])
            .collect();
        if kind == GgmlType::F32 {
            out.copy_from_slice(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>());
            return;
        }
        let mut halves = vec![0; values.len()];
        f32_to_f16(Isa::detect(), &values, &mut halves);
        for (pair, half) in out.as_chunks_mut().0.iter_mut().zip(halves) {
            *pair = half.to_le_bytes();
        }
    }

    fn write_bytes(&self, numbers: &[i16], scales: &[f32], out: &mut [u8]) {
        let (columns, bytes) = (GgmlType::E4M3.block_elements(), GgmlType::E4M3.block_bytes());
        let blocks = numbers.chunks_exact(columns).zip(self.groups.chunks_exact(columns));
        for ((numbers, groups), block) in blocks.zip(out.chunks_exact_mut(bytes)) {
            let (scale, block) = block.split_at_mut(bytes - columns);
            scale.copy_from_slice(&scales[groups[0] as usize].to_le_bytes());
            for (byte, number) in block.iter_mut().zip(numbers) {
                *byte = *number as u8;
            }
        }
    }

    /// Whether the columns are whole blocks of so many, each with one scale.
    fn shares_scales(&self, columns: usize) -> bool {
        let is_one = |block: &[u32]| block.iter().all(|group| *group == block[0]);
        self.cols.is_multiple_of(columns) && self.groups.chunks(columns).all(is_one)
    }

    fn write_integers(&self, numbers: &[i16], scales: &[f32], kind: GgmlType, out: &mut [u8]) {
        let mut halves = vec![0; scales.len()];
        f32_to_f16(Isa::detect(), scales, &mut halves);
        let blocks = numbers.as_chunks::<BLOCK>().0.iter().enumerate();
        for ((index, numbers), block) in blocks.zip(out.chunks_exact_mut(kind.block_bytes())) {
            let (scale, integers) = block.split_at_mut(2);
            scale.copy_from_slice(&halves[self.groups[index * BLOCK] as usize].to_le_bytes());
            match kind {
                GgmlType::Q4_0 => write_nibbles(numbers, 8, integers),
                GgmlType::Q5_0 => {
                    let (high, nibbles) = integers.split_at_mut(4);
                    let fifth = |place: usize| u32::from(numbers[place] >= 0) << place;
                    high.copy_from_slice(&(0..BLOCK).map(fifth).sum::<u32>().to_le_bytes());
                    write_nibbles(numbers, 16, nibbles);
                }
                _ => {
                    for (byte, number) in integers.iter_mut().zip(numbers) {
                        *byte = *number as u8;
                    }
                }
            }
        }
    }
}

impl Kind {
    /// The type that rows of so many columns become, as far as config.json says it.
    pub(super) fn packed_kind(self, cols: usize) -> GgmlType {
        let shares = |columns| self.group.is_multiple_of(columns) && !self.has_order;
        let bytes = GgmlType::E4M3.block_elements();
        match (self.bits, self.is_symmetric) {
            _ if self.is_e4m3() && shares(bytes) && cols.is_multiple_of(bytes) => GgmlType::E4M3,
            _ if self.is_float || !shares(BLOCK) => GgmlType::F16,
            (4, true) => GgmlType::Q4_0,
            (4, false) => GgmlType::Q5_0,
            (_, true) => GgmlType::Q8_0,
            (_, false) => GgmlType::F16,
        }
    }
}

/// Numbers `i` and `i + 16` in each byte, their low four bits.
fn write_nibbles(numbers: &[i16; BLOCK], offset: i16, out: &mut [u8]) {
    for (place, byte) in out.iter_mut().enumerate() {
        let nibble = |place: usize| (numbers[place] + offset) as u8 & 0x0f;
        *byte = nibble(place) | nibble(place + BLOCK / 2) << 4;
    }
}

/// The largest that a number may be.
fn most(kind: Kind) -> f32 {
    match (kind.is_float, kind.bits) {
        (true, 8) => 448.0,
        (true, _) => 6.0,
        (false, 4) => 16.0,
        _ => 256.0,
    }
}
