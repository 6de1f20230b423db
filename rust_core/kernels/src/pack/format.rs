//! How each quantised type lies in memory once packed: bits per integer, offset, and the form of its scales.
//!
//! A group is 16 rows. Its bytes are a header (all scales) and then, per block of 32 columns, the integers as
//! bit planes over eight *quads*. A quad is the 64 bytes `[16 rows][4 columns]`, what one `vpdpbusd` or one
//! row of an AMX tile takes. The planes of an integer of `BITS` bits, in order of storage:
//!
//! | plane | lines of 64 bytes | line `i` holds | there when `BITS` is |
//! |---|---|---|---|
//! | 8 bits | 8 | quad `i` | 8 |
//! | low 4 bits | 4 | quads `2i` (low nibble), `2i + 1` | 4, 5, 6 |
//! | next 2 bits | 2 | quads `4i + j` at bit `2j` | 2, 3, 6 |
//! | next 1 bit | 1 | quad `j` at bit `j` | 3, 5 |
//!
//! so the integers take what they take in the file. The header is, per block, `d[16 rows]` and, with
//! offsets, `e[16 rows]`, as binary16 (of `MXFP4`, `d` is a byte); a super-block format has these once per 256 columns, followed per
//! scale by `sc[16 rows]` and, with offsets, `m[16 rows]`, as bytes. A weight is
//! `scale * (integer - OFFSET) + offset` with `scale = d * sc` and `offset = e * m`, exact products in `f32`.

use crate::ggml::GgmlType;

/// Rows in a group.
pub const GROUP_ROWS: usize = 16;
/// Columns in a block: they share the activations' scale.
pub const BLOCK_COLS: usize = 32;
/// Quads in a block.
pub(crate) const QUADS: usize = 8;
/// Bytes of a quad: 16 rows of 4 columns.
pub(crate) const QUAD_BYTES: usize = 64;
/// Blocks in the super-block of the K-quants.
pub(crate) const SUPER_BLOCKS: usize = 8;

/// What 16 stored integers stand for.
pub(crate) type Codebook = [i8; 16];
/// What the nibbles of `IQ4_NL` and `IQ4_XS` stand for.
const IQ4: Codebook = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// Twice what the nibbles of `MXFP4` stand for.
const E2M1: Codebook = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The packed form of one quantised type, as constants the kernels are compiled for.
pub(crate) trait Format {
    /// The type in the file.
    const KIND: GgmlType;
    /// Bits per stored integer.
    const BITS: usize;
    /// What is taken from the unsigned integer; zero or a power of two.
    const OFFSET: i32;
    /// Scales per block of 32 columns: 1 or 2.
    const SUBS: usize;
    /// Whether scales are `d * sc` with one `d` per 256 columns.
    const SUPER: bool;
    /// Whether weights have an offset.
    const MIN: bool;
    /// The numbers into which the stored integer is an index, if it is one; as bytes they are offset by 128.
    const CODEBOOK: Option<Codebook>;
    /// Bytes of a `d`: 2 of a binary16, 1 of an exponent.
    const D_BYTES: usize;
    /// Place of `d` in a block of the file.
    const SOURCE_D: usize;
    /// Place of `m` or `dmin` in a block of the file.
    const SOURCE_E: usize;

    /// Whether the stored integer is an index.
    const IS_CODEBOOK: bool = Self::CODEBOOK.is_some();
    /// The codebook as unsigned bytes.
    const CODEBOOK_BYTES: [u8; 16] = codebook_bytes(Self::CODEBOOK);
    /// Bytes of integers per group and block.
    const INT_BYTES: usize = QUAD_BYTES * Self::BITS;
    /// Quads under one scale.
    const SUB_QUADS: usize = QUADS / Self::SUBS;
    /// Blocks of 32 columns in a block of the file.
    const SOURCE_BLOCKS: usize = if Self::SUPER { SUPER_BLOCKS } else { 1 };
    /// Header bytes per block of the file.
    const SOURCE_HEADER: usize = {
        let values = if Self::MIN { 2 } else { 1 };
        let scales = if Self::SUPER {
            SUPER_BLOCKS * Self::SUBS * GROUP_ROWS
        } else {
            0
        };
        values * (Self::D_BYTES * GROUP_ROWS + scales)
    };
}

const fn codebook_bytes(codebook: Option<Codebook>) -> [u8; 16] {
    let mut bytes = [0; 16];
    if let Some(codebook) = codebook {
        let mut i = 0;
        while i < bytes.len() {
            bytes[i] = codebook[i].cast_unsigned() ^ 0x80;
            i += 1;
        }
    }
    bytes
}

/// Bytes of a group's header, rounded up so that the integers start on a line.
pub(crate) const fn header_bytes<F: Format>(num_blocks: usize) -> usize {
    (num_blocks / F::SOURCE_BLOCKS * F::SOURCE_HEADER).next_multiple_of(QUAD_BYTES)
}

/// Offset in the header of `d` for block `block`; `e` follows 32 bytes later.
#[inline(always)]
pub(crate) const fn d_at<F: Format>(block: usize) -> usize {
    block / F::SOURCE_BLOCKS * F::SOURCE_HEADER
}

/// Offset in the header of `sc` for scale `sub` of block `block`; `m` follows 16 bytes later.
#[inline(always)]
pub(crate) const fn sc_at<F: Format>(block: usize, sub: usize) -> usize {
    let values = if F::MIN { 2 } else { 1 };
    let index = block % SUPER_BLOCKS * F::SUBS + sub;
    d_at::<F>(block) + values * (2 * GROUP_ROWS + index * GROUP_ROWS)
}

macro_rules! formats {
    ($($kind:ident: $bits:literal - $offset:literal, $subs:literal, $is_super:literal, $min:literal, $codebook:expr, $d:literal, $e:literal, $d_bytes:literal;)*) => {
        $(
            #[allow(non_camel_case_types, reason = "named as the type it packs")]
            pub(crate) struct $kind;
            impl Format for $kind {
                const KIND: GgmlType = GgmlType::$kind;
                const BITS: usize = $bits;
                const OFFSET: i32 = $offset;
                const SUBS: usize = $subs;
                const SUPER: bool = $is_super;
                const MIN: bool = $min;
                const CODEBOOK: Option<Codebook> = $codebook;
                const D_BYTES: usize = $d_bytes;
                const SOURCE_D: usize = $d;
                const SOURCE_E: usize = $e;
            }
        )*

        /// Evaluates an expression with `$F` bound to the [`Format`] of a quantised `GgmlType`.
        macro_rules! with_format {
            ($value:expr, $F:ident => $body:expr) => {
                match $value {
                    $($crate::ggml::GgmlType::$kind => { type $F = $crate::pack::format::$kind; $body })*
                    plain => unreachable!("{} is not a quantised type", plain.name()),
                }
            };
        }
        pub(crate) use with_format;
    };
}

// kind: bits - offset, scales per 32, super-blocks, offsets, codebook, place of d, place of m or dmin, bytes of d.
formats! {
    Q4_0: 4 - 8, 1, false, false, None, 0, 0, 2;
    Q4_1: 4 - 0, 1, false, true, None, 0, 2, 2;
    Q5_0: 5 - 16, 1, false, false, None, 0, 0, 2;
    Q5_1: 5 - 0, 1, false, true, None, 0, 2, 2;
    Q8_0: 8 - 128, 1, false, false, None, 0, 0, 2;
    Q2_K: 2 - 0, 2, true, true, None, 80, 82, 2;
    Q3_K: 3 - 4, 2, true, false, None, 108, 0, 2;
    Q4_K: 4 - 0, 1, true, true, None, 0, 2, 2;
    Q5_K: 5 - 0, 1, true, true, None, 0, 2, 2;
    Q6_K: 6 - 32, 2, true, false, None, 208, 0, 2;
    IQ4_NL: 4 - 128, 1, false, false, Some(IQ4), 0, 0, 2;
    IQ4_XS: 4 - 128, 1, true, false, Some(IQ4), 0, 0, 2;
    MXFP4: 4 - 128, 1, false, false, Some(E2M1), 0, 0, 1;
}
