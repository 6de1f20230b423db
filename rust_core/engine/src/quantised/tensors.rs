//! Tensors of one quantised matrix, looked at before they are used.

use pyagent_kernels::ggml::{bf16_to_f32, e4m3_to_f32, f16_to_f32};

use crate::config::invalid;
use crate::weights::{ModelFile, ModelFileError, StoredTensor, clipped};

/// Element types that scales may have.
const FLOATS: &[&str] = &["F32", "F16", "BF16", "F8_E8M0"];

/// A matrix's tensors, by the ends of their names.
#[derive(Clone, Copy)]
pub(super) struct Module<'a, 'n> {
    pub(super) file: &'a ModelFile,
    pub(super) name: &'n str,
}

impl<'a> Module<'a, '_> {
    pub(super) fn find(self, end: &str) -> Result<Option<StoredTensor<'a>>, ModelFileError> {
        self.file.find_stored(&format!("{}.{end}", self.name))
    }

    pub(super) fn tensor(self, end: &str) -> Result<StoredTensor<'a>, ModelFileError> {
        let name = || format!("{}.{end}", self.name);
        self.find(end)?
            .ok_or_else(|| ModelFileError::TensorMissing { name: name() })
    }

    /// A tensor of this shape (rows first) and one of these element types, or an error that says what it is.
    pub(super) fn expect(self, end: &str, shape: &[usize], kinds: &[&str]) -> Result<StoredTensor<'a>, ModelFileError> {
        let tensor = self.tensor(end)?;
        expect_kind(&tensor, kinds)?;
        let found: Vec<usize> = tensor.dims.iter().rev().copied().collect();
        if found == shape {
            return Ok(tensor);
        }
        Err(fault(tensor.name, &format!("is {found:?}; expected {shape:?}")))
    }

    /// As `expect`, of 32-bit words.
    pub(super) fn words(self, end: &str, shape: &[usize]) -> Result<Words<'a>, ModelFileError> {
        let tensor = self.expect(end, shape, &["I32"])?;
        Ok(Words(tensor.bytes.as_chunks().0))
    }

    /// As `expect`, of scales.
    pub(super) fn floats(self, end: &str, shape: &[usize]) -> Result<Floats<'a>, ModelFileError> {
        self.expect(end, shape, FLOATS).map(Floats::of)
    }

    /// As `expect`, of scales of 8 bits.
    pub(super) fn scales_of_8_bits(self, end: &str, shape: &[usize]) -> Result<Floats<'a>, ModelFileError> {
        self.expect(end, shape, &["F8_E4M3"]).map(Floats::of)
    }

    /// A tensor of one number, which must be above 0 and finite.
    pub(super) fn one(self, end: &str) -> Result<f32, ModelFileError> {
        let tensor = self.tensor(end)?;
        let shape: Vec<usize> = tensor.dims.iter().rev().copied().collect();
        if shape.iter().product::<usize>() != 1 {
            return Err(fault(tensor.name, &format!("is {shape:?}; expected one number")));
        }
        let number = self.floats(end, &shape)?.at(0);
        match number > 0.0 && number.is_finite() {
            true => Ok(number),
            false => Err(fault(tensor.name, &format!("is {number}; expected a number above 0"))),
        }
    }
}

fn expect_kind(tensor: &StoredTensor<'_>, kinds: &[&str]) -> Result<(), ModelFileError> {
    if kinds.contains(&tensor.kind) {
        return Ok(());
    }
    let problem = format!(
        "is of element type {}; expected {}",
        clipped(tensor.kind),
        kinds.join(", ")
    );
    Err(fault(tensor.name, &problem))
}

pub(super) fn fault(name: &str, problem: &str) -> ModelFileError {
    invalid(format!("tensor '{}' {problem}", clipped(name)))
}

/// 32-bit words, at any address.
#[derive(Clone, Copy)]
pub(super) struct Words<'a>(&'a [[u8; 4]]);

impl<'a> Words<'a> {
    pub(super) fn at(self, index: usize) -> u32 {
        u32::from_le_bytes(self.0[index])
    }

    /// Some of them in turn.
    pub(super) fn run(self, first: usize, count: usize) -> impl Iterator<Item = u32> + 'a {
        self.0[first..first + count].iter().copied().map(u32::from_le_bytes)
    }

    pub(super) fn all(self) -> impl Iterator<Item = u32> + 'a {
        self.run(0, self.0.len())
    }

    pub(super) fn bytes(self) -> &'a [u8] {
        self.0.as_flattened()
    }
}

/// Scales in one of several element types.
#[derive(Clone, Copy)]
pub(super) struct Floats<'a> {
    pub(super) name: &'a str,
    kind: &'a str,
    bytes: &'a [u8],
}

impl<'a> Floats<'a> {
    fn of(StoredTensor { name, kind, bytes, .. }: StoredTensor<'a>) -> Self {
        Self { name, kind, bytes }
    }

    pub(super) fn at(self, index: usize) -> f32 {
        let half = || u16::from_le_bytes([self.bytes[2 * index], self.bytes[2 * index + 1]]);
        match self.kind {
            "F16" => f16_to_f32(half()),
            "BF16" => bf16_to_f32(half()),
            "F8_E4M3" if self.bytes[index] & 0x7f == 0x7f => f32::NAN,
            "F8_E4M3" => e4m3_to_f32(self.bytes[index]),
            "F8_E8M0" => power_of_two(self.bytes[index]),
            _ => f32::from_le_bytes(self.bytes.as_chunks().0[index]),
        }
    }
}

/// The power of two that a byte is the exponent of (OCP's E8M0); 255 is no number.
fn power_of_two(exponent: u8) -> f32 {
    match exponent {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(exponent) << 23),
    }
}
