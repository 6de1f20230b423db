//! The element types this engine reads, with their identifiers and block sizes in the GGUF specification.

use super::GgmlError;

/// The element type of a tensor in a GGUF file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types, reason = "the names users know from file names: Q4_K, IQ4_XS")]
pub enum GgmlType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper 16 bits of a binary32.
    BF16,
    /// 4-bit quants less 8, one scale per 32.
    Q4_0,
    /// 4-bit quants, one scale and one offset per 32.
    Q4_1,
    /// 5-bit quants less 16, one scale per 32.
    Q5_0,
    /// 5-bit quants, one scale and one offset per 32.
    Q5_1,
    /// 8-bit quants, one scale per 32.
    Q8_0,
    /// 2-bit quants, 4-bit scales and minima per 16 in blocks of 256.
    Q2_K,
    /// 3-bit quants less 4, 6-bit scales per 16 in blocks of 256.
    Q3_K,
    /// 4-bit quants, 6-bit scales and minima per 32 in blocks of 256.
    Q4_K,
    /// 5-bit quants, 6-bit scales and minima per 32 in blocks of 256.
    Q5_K,
    /// 6-bit quants less 32, 8-bit scales per 16 in blocks of 256.
    Q6_K,
    /// 4-bit indexes into a fixed table of 16 integers, one scale per 32.
    IQ4_NL,
    /// 4-bit indexes into the table of `IQ4_NL`, 6-bit scales per 32 in blocks of 256.
    IQ4_XS,
    /// 4-bit floating-point numbers (E2M1), one power of two per 32: OCP's microscaling format.
    MXFP4,
    /// 8-bit floating-point numbers (E4M3), one binary32 scale per 64; of no GGUF file.
    E4M3,
}

impl GgmlType {
    /// Every type, in the order of declaration.
    pub const ALL: [Self; 17] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ4_NL,
        Self::IQ4_XS,
        Self::MXFP4,
        Self::E4M3,
    ];

    /// The number that stands for the type in a GGUF tensor header, if such files have it.
    pub const fn id(self) -> Option<u32> {
        self.facts().0
    }

    /// The type with this GGUF number, if this engine reads it.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.id() == Some(id))
    }

    /// The name as written in file names and by other tools, such as `Q4_K`.
    pub const fn name(self) -> &'static str {
        self.facts().1
    }

    /// The type with this exact name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Elements that are stored together; a row is a multiple of this.
    pub const fn block_elements(self) -> usize {
        self.facts().2
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        self.facts().3
    }

    /// Elements that share a scale (1 for plain types).
    pub const fn group_elements(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q2_K | Self::Q3_K | Self::Q6_K => 16,
            Self::E4M3 => 64,
            _ => 32,
        }
    }

    /// Whether elements are integers with a scale, readable as [`super::Block`]s.
    pub const fn is_quantised(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::BF16 | Self::E4M3)
    }

    /// Bytes of a row of `cols` elements, or an error if it is not made of whole blocks.
    pub fn row_bytes(self, cols: usize) -> Result<usize, GgmlError> {
        if !cols.is_multiple_of(self.block_elements()) {
            return Err(GgmlError::RowLength { kind: self, cols });
        }
        let num_blocks = cols / self.block_elements();
        num_blocks
            .checked_mul(self.block_bytes())
            .ok_or(GgmlError::RowOverflow { kind: self, cols })
    }

    /// GGUF number, name, elements and bytes per block: one line a type, each byte sum in the order of storage.
    const fn facts(self) -> (Option<u32>, &'static str, usize, usize) {
        match self {
            Self::F32 => (Some(0), "F32", 1, 4),
            Self::F16 => (Some(1), "F16", 1, 2),
            Self::BF16 => (Some(30), "BF16", 1, 2),
            Self::Q4_0 => (Some(2), "Q4_0", 32, 2 + 16),
            Self::Q4_1 => (Some(3), "Q4_1", 32, 2 + 2 + 16),
            Self::Q5_0 => (Some(6), "Q5_0", 32, 2 + 4 + 16),
            Self::Q5_1 => (Some(7), "Q5_1", 32, 2 + 2 + 4 + 16),
            Self::Q8_0 => (Some(8), "Q8_0", 32, 2 + 32),
            Self::Q2_K => (Some(10), "Q2_K", 256, 16 + 64 + 2 + 2),
            Self::Q3_K => (Some(11), "Q3_K", 256, 32 + 64 + 12 + 2),
            Self::Q4_K => (Some(12), "Q4_K", 256, 2 + 2 + 12 + 128),
            Self::Q5_K => (Some(13), "Q5_K", 256, 2 + 2 + 12 + 32 + 128),
            Self::Q6_K => (Some(14), "Q6_K", 256, 128 + 64 + 16 + 2),
            Self::IQ4_NL => (Some(20), "IQ4_NL", 32, 2 + 16),
            Self::IQ4_XS => (Some(23), "IQ4_XS", 256, 2 + 2 + 4 + 128),
            Self::MXFP4 => (Some(39), "MXFP4", 32, 1 + 16),
            Self::E4M3 => (None, "E4M3", 64, 4 + 64),
        }
    }
}
