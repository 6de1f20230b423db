//! The integers of a block of 32 columns as they are stored, straight from the file's bytes: eight to a word.

use super::format::Format;
use crate::ggml::GgmlType;

/// 32 unsigned integers, a byte each, the first in the lowest byte.
pub(super) type Columns = [u64; 4];

/// A word with 1 in each byte.
pub(super) const EACH: u64 = 0x0101_0101_0101_0101;
const NIBBLES: u64 = 0x0f * EACH;

/// The words with bit `i` of a byte in byte `i`.
static SPREAD: [u64; 256] = {
    let mut words = [0; 256];
    let mut byte = 0;
    while byte < words.len() {
        let mut i = 0;
        while i < 8 {
            words[byte] |= (byte as u64 >> i & 1) << (8 * i);
            i += 1;
        }
        byte += 1;
    }
    words
};

/// The integers of block `block` of the 32 columns that a block of the file has, or of its only one.
///
/// Where each lies in the file is told beside the readers in [`crate::ggml`]; what they take from it is added again.
#[inline(always)]
pub(super) fn columns<F: Format>(bytes: &[u8], block: usize) -> Columns {
    match F::KIND {
        GgmlType::Q4_0 | GgmlType::IQ4_NL => halves(bytes, 2),
        GgmlType::Q4_1 => halves(bytes, 4),
        GgmlType::MXFP4 => halves(bytes, 1),
        GgmlType::IQ4_XS => halves(bytes, 8 + 16 * block),
        GgmlType::Q5_0 => with_fifth(halves(bytes, 6), &bytes[2..6]),
        GgmlType::Q5_1 => with_fifth(halves(bytes, 8), &bytes[4..8]),
        GgmlType::Q8_0 => each(words(bytes, 2), |word| word ^ (0x80 * EACH)),
        GgmlType::Q2_K => field(bytes, 16 + block / 4 * 32, 2 * (block % 4), 0x03),
        GgmlType::Q3_K => {
            let low = field(bytes, 32 + block / 4 * 32, 2 * (block % 4), 0x03);
            joined(low, field(bytes, 0, block, 0x01), 2)
        }
        GgmlType::Q4_K => field(bytes, 16 + block / 2 * 32, 4 * (block % 2), 0x0f),
        GgmlType::Q5_K => {
            let low = field(bytes, 48 + block / 2 * 32, 4 * (block % 2), 0x0f);
            joined(low, field(bytes, 16, block, 0x01), 4)
        }
        GgmlType::Q6_K => {
            let low = field(bytes, block / 4 * 64 + block % 2 * 32, block % 4 / 2 * 4, 0x0f);
            joined(low, field(bytes, 128 + block / 4 * 32, 2 * (block % 4), 0x03), 4)
        }
        plain => unreachable!("{} is not a quantised type", plain.name()),
    }
}

/// The words that a function gives of four. A loop: calls in `array::map` may stay calls.
#[inline(always)]
fn each(words: Columns, of: impl Fn(u64) -> u64) -> Columns {
    let mut given = words;
    for word in &mut given {
        *word = of(*word);
    }
    given
}

/// Word `index` of the bytes from a place on.
#[inline(always)]
fn word(bytes: &[u8], at: usize, index: usize) -> u64 {
    let (words, _) = bytes[at..].as_chunks();
    u64::from_le_bytes(words[index])
}

/// 32 bytes.
#[inline(always)]
fn words(bytes: &[u8], at: usize) -> Columns {
    let at = |index| word(bytes, at, index);
    [at(0), at(1), at(2), at(3)]
}

/// Of each of 32 bytes the bits of a mask, from a bit on.
#[inline(always)]
fn field(bytes: &[u8], at: usize, shift: usize, mask: u64) -> Columns {
    each(words(bytes, at), |word| (word >> shift) & (mask * EACH))
}

/// Low nibbles of 16 bytes, then their high ones.
#[inline(always)]
fn halves(bytes: &[u8], at: usize) -> Columns {
    let (one, two) = (word(bytes, at, 0), word(bytes, at, 1));
    each([one, two, one >> 4, two >> 4], |word| word & NIBBLES)
}

/// The integers with those of another field above theirs.
#[inline(always)]
fn joined(low: Columns, high: Columns, shift: usize) -> Columns {
    let mut both = low;
    for (word, high) in both.iter_mut().zip(high) {
        *word |= high << shift;
    }
    both
}

/// The integers with bit `i` of 32 as the fifth of integer `i`.
#[inline(always)]
fn with_fifth(low: Columns, bits: &[u8]) -> Columns {
    let spread = |byte: usize| SPREAD[usize::from(bits[byte])];
    joined(low, [spread(0), spread(1), spread(2), spread(3)], 4)
}
