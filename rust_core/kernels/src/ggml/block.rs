//! One block of any quantised type, taken apart into exact integers and its floating-point scales.

use super::{GgmlError, GgmlType, f16_to_f32, iq4, k_quants, legacy, mxfp4};

/// Elements of the longest block.
pub const MAX_BLOCK_ELEMENTS: usize = 256;

/// Groups of the block with most groups.
pub const MAX_BLOCK_GROUPS: usize = 16;

/// A block taken apart: element `i` of group `g = i / group` is
/// `(d * sub_scales[g]) * quants[i] - dmin * sub_mins[g]`, each product rounded to `f32`.
///
/// Entries past `len` elements or `len / group` groups are zero. Types without sub-scales have
/// `sub_scales = 1`; types without an offset have `dmin = 0` and `sub_mins = 0`; `Q4_1` and `Q5_1`, which
/// add an offset, have `dmin` equal to minus that offset.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// The integers, biases and table look-ups already applied.
    pub quants: [i8; MAX_BLOCK_ELEMENTS],
    /// Integer factors of `d`, one per group.
    pub sub_scales: [i8; MAX_BLOCK_GROUPS],
    /// Integer factors of `dmin`, one per group.
    pub sub_mins: [u8; MAX_BLOCK_GROUPS],
    /// The block's scale, stored as binary16 or as a power of two.
    pub d: f32,
    /// The block's scale of minima, stored as binary16.
    pub dmin: f32,
    /// Elements that share a scale: 16 or 32.
    pub group: usize,
    /// Elements in the block: 32 or 256.
    pub len: usize,
}

impl Block {
    /// Reads one block, whose bytes must be exactly `kind.block_bytes()`.
    pub fn read(kind: GgmlType, bytes: &[u8]) -> Result<Self, GgmlError> {
        if !kind.is_quantised() {
            return Err(GgmlError::NotQuantised { kind });
        }
        if bytes.len() != kind.block_bytes() {
            return Err(GgmlError::ByteLength { kind, got: bytes.len() });
        }
        Ok(Self::read_checked(kind, bytes))
    }

    /// The scale of group `g`: `d * sub_scales[g]`, rounded once.
    pub fn scale(&self, g: usize) -> f32 {
        self.d * f32::from(self.sub_scales[g])
    }

    /// What group `g` adds to its scaled integers: `-(dmin * sub_mins[g])`, rounded once.
    ///
    /// It is -0.0, which changes no number and no sign of zero, for types without an offset.
    pub fn offset(&self, g: usize) -> f32 {
        -(self.dmin * f32::from(self.sub_mins[g]))
    }

    /// Writes the elements' values to the first `len` places of `out`.
    ///
    /// # Panics
    /// If `out` has fewer than `len` places.
    pub fn write(&self, out: &mut [f32]) {
        let groups = out[..self.len]
            .chunks_exact_mut(self.group)
            .zip(self.quants.chunks_exact(self.group));
        for (g, (values, quants)) in groups.enumerate() {
            let (scale, offset) = (self.scale(g), self.offset(g));
            for (value, quant) in values.iter_mut().zip(quants) {
                *value = scale * f32::from(*quant) + offset;
            }
        }
    }

    /// A block of `kind` with all numbers zero, for the readers of the families to fill.
    pub(crate) fn empty(kind: GgmlType) -> Self {
        Self {
            quants: [0; MAX_BLOCK_ELEMENTS],
            sub_scales: [0; MAX_BLOCK_GROUPS],
            sub_mins: [0; MAX_BLOCK_GROUPS],
            d: 0.0,
            dmin: 0.0,
            group: kind.group_elements(),
            len: kind.block_elements(),
        }
    }

    fn read_checked(kind: GgmlType, bytes: &[u8]) -> Self {
        let mut block = Self::empty(kind);
        block.refill(kind, bytes);
        block
    }

    /// Reads the scales and minima of another block of a K-quant or of `IQ4_XS`, as [`Self::refill`]; others have none.
    pub(crate) fn refill_scales(&mut self, kind: GgmlType, bytes: &[u8]) {
        match kind {
            GgmlType::Q2_K | GgmlType::Q3_K | GgmlType::Q4_K | GgmlType::Q5_K | GgmlType::Q6_K => {
                k_quants::read_scales(self, kind, bytes);
            }
            GgmlType::IQ4_XS => iq4::read_scales(self, bytes),
            _ => {}
        }
    }

    /// Reads another block of the same kind, whose length the caller has checked, into this one.
    pub(crate) fn refill(&mut self, kind: GgmlType, bytes: &[u8]) {
        match kind {
            GgmlType::Q2_K | GgmlType::Q3_K | GgmlType::Q4_K | GgmlType::Q5_K | GgmlType::Q6_K => {
                k_quants::read(self, kind, bytes);
            }
            GgmlType::IQ4_NL | GgmlType::IQ4_XS => iq4::read(self, kind, bytes),
            GgmlType::MXFP4 => mxfp4::read(self, bytes),
            _ => legacy::read(self, kind, bytes),
        }
    }
}

/// The blocks in `bytes`, which must be whole blocks of a quantised `kind`.
pub fn blocks(kind: GgmlType, bytes: &[u8]) -> Result<impl ExactSizeIterator<Item = Block> + '_, GgmlError> {
    if !kind.is_quantised() {
        return Err(GgmlError::NotQuantised { kind });
    }
    if !bytes.len().is_multiple_of(kind.block_bytes()) {
        return Err(GgmlError::ByteLength { kind, got: bytes.len() });
    }
    Ok(bytes
        .chunks_exact(kind.block_bytes())
        .map(move |block| Block::read_checked(kind, block)))
}

/// The little-endian binary16 at the start of `bytes`.
pub(super) fn leading_f16(bytes: &[u8]) -> f32 {
    f16_to_f32(u16::from_le_bytes([bytes[0], bytes[1]]))
}
