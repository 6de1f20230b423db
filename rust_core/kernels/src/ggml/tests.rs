//! Blocks computed by hand, one per layout, and the refusals.

use super::*;

/// The value as binary16 bits, for the few exact ones the tests use.
const ONE: [u8; 2] = [0x00, 0x3c];
const TWO: [u8; 2] = [0x00, 0x40];
const HALF: [u8; 2] = [0x00, 0x38];
const MINUS_ONE: [u8; 2] = [0x00, 0xbc];

fn numbers(kind: GgmlType, parts: &[&[u8]]) -> Vec<f32> {
    let bytes = parts.concat();
    let mut out = vec![f32::NAN; bytes.len() / kind.block_bytes() * kind.block_elements()];
    dequantise(kind, &bytes, &mut out).expect("whole blocks");
    out
}

/// `length` bytes, zero but for the given places.
fn sparse(length: usize, places: &[(usize, u8)]) -> Vec<u8> {
    let mut bytes = vec![0; length];
    for (place, byte) in places {
        bytes[*place] = *byte;
    }
    bytes
}

/// Identifiers, names and sizes agree with the table of the GGUF specification.
#[test]
fn kinds_have_the_ids_and_sizes_of_the_specification() {
    let table = [
        (0, "F32", 1, 4),
        (1, "F16", 1, 2),
        (30, "BF16", 1, 2),
        (2, "Q4_0", 32, 18),
        (3, "Q4_1", 32, 20),
        (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24),
        (8, "Q8_0", 32, 34),
        (10, "Q2_K", 256, 84),
        (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176),
        (14, "Q6_K", 256, 210),
        (20, "IQ4_NL", 32, 18),
        (23, "IQ4_XS", 256, 136),
        (39, "MXFP4", 32, 17),
    ];
    for ((id, name, elements, bytes), kind) in table.into_iter().zip(GgmlType::ALL) {
        assert_eq!(GgmlType::from_id(id), Some(kind));
        assert_eq!(GgmlType::from_name(name), Some(kind));
        assert_eq!(
            (kind.name(), kind.block_elements(), kind.block_bytes()),
            (name, elements, bytes)
        );
        assert!(elements <= MAX_BLOCK_ELEMENTS && elements / kind.group_elements() <= MAX_BLOCK_GROUPS.max(elements));
    }
    assert_eq!(GgmlType::from_id(9), None);
    assert_eq!(GgmlType::E4M3.id(), None);
    assert_eq!(GgmlType::from_name("q4_0"), None);
}

/// Every one of the 65,536 binary16 patterns has the value that its fields spell out.
#[test]
fn f16_patterns_have_their_exact_values() {
    for bits in 0..=u16::MAX {
        let (sign, exponent, fraction) = (bits >> 15, i32::from((bits >> 10) & 31), f64::from(bits & 1023));
        let magnitude = match exponent {
            0 => fraction * 2f64.powi(-24),
            31 if fraction == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            _ => (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15),
        };
        let expected = if sign == 1 { -magnitude } else { magnitude } as f32;
        let got = f16_to_f32(bits);
        assert!(
            got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan()),
            "{bits:#06x}"
        );
    }
}

/// Plain types are converted element by element, little-endian.
#[test]
fn plain_types_are_converted() {
    assert_eq!(
        numbers(GgmlType::F32, &[&1.5f32.to_le_bytes(), &(-0.0f32).to_le_bytes()]),
        [1.5, -0.0]
    );
    assert_eq!(numbers(GgmlType::F16, &[&ONE, &HALF, &MINUS_ONE]), [1.0, 0.5, -1.0]);
    assert_eq!(numbers(GgmlType::BF16, &[&[0x80, 0x3f], &[0x00, 0xc0]]), [1.0, -2.0]);
}

/// The low nibbles are the first half of a block of 32, the high ones the second, less 8.
#[test]
fn q4_0_halves_are_low_and_high_nibbles() {
    let out = numbers(GgmlType::Q4_0, &[&TWO, &sparse(16, &[(0, 0xf3), (15, 0x0a)])]);
    assert_eq!(
        (out[0], out[16], out[15], out[31], out[1]),
        (-10.0, 14.0, 4.0, -16.0, -16.0)
    );
}

/// `Q4_1` adds its offset to the scaled quant.
#[test]
fn q4_1_adds_its_offset() {
    let out = numbers(GgmlType::Q4_1, &[&TWO, &MINUS_ONE, &sparse(16, &[(2, 0x51)])]);
    assert_eq!((out[2], out[18], out[0]), (1.0, 9.0, -1.0));
}

/// The fifth bit of element `i` is bit `i` of the word before the nibbles.
#[test]
fn q5_takes_its_fifth_bits_from_the_word() {
    let high = (1u32 | 1 << 17).to_le_bytes();
    let nibbles = sparse(16, &[(0, 0x02), (1, 0x30)]);
    let out = numbers(GgmlType::Q5_0, &[&ONE, &high, &nibbles]);
    assert_eq!((out[0], out[17], out[16], out[31]), (2.0, 3.0, -16.0, -16.0));
    let out = numbers(GgmlType::Q5_1, &[&HALF, &ONE, &high, &nibbles]);
    assert_eq!((out[0], out[17], out[16]), (10.0, 10.5, 1.0));
}

/// `Q8_0` is signed bytes by the scale, and a negative scale times zero is negative zero.
#[test]
fn q8_0_is_signed_bytes() {
    let out = numbers(GgmlType::Q8_0, &[&MINUS_ONE, &sparse(32, &[(3, 0x80), (31, 0x7f)])]);
    assert_eq!((out[3], out[31]), (128.0, -127.0));
    assert!(out[0] == 0.0 && out[0].is_sign_negative());
}

/// `Q2_K` has 16 groups of 16 with a scale and a minimum each.
#[test]
fn q2_k_scales_each_sixteen() {
    let scales = sparse(16, &[(0, 0x23), (3, 0x01), (9, 0x50)]);
    // Byte 0: element 0 has 1, element 32 has 2, 64 has 3, 96 has 0. Byte 17 of the first run: element 49 is bits 2..4.
    let quants = sparse(64, &[(0, 0b00_11_10_01), (17, 0b00_00_11_00)]);
    let out = numbers(GgmlType::Q2_K, &[&scales, &quants, &TWO, &HALF]);
    assert_eq!(
        (out[0], out[1], out[49], out[144], out[159]),
        (6.0 - 1.0, -1.0, 6.0, -2.5, -2.5)
    );
    assert_eq!((out[16], out[255]), (0.0, 0.0));
}

/// `Q3_K` scales are six bits less 32, and a clear high bit takes 4.
#[test]
fn q3_k_high_bit_and_scales() {
    // Group 0: low nibble 1, upper bits 10 -> 33 - 32 = 1. Group 15: high nibble of byte 7, bits 6..8 of byte 11.
    let scales = sparse(12, &[(0, 0x01), (8, 0b10), (7, 0xf0), (11, 0b1100_0000)]);
    let high = sparse(32, &[(0, 0x01), (31, 0x80)]);
    let quants = sparse(64, &[(0, 0b11), (63, 0b01_00_00_00)]);
    let out = numbers(GgmlType::Q3_K, &[&high, &quants, &scales, &ONE]);
    assert_eq!((out[0], out[1]), (3.0, -4.0));
    assert_eq!((out[255], out[254]), (31.0 * 1.0, 31.0 * -4.0));
    assert_eq!(out[16], -32.0 * -4.0);
}

/// `Q4_K` groups 4..8 assemble their six bits from two places.
#[test]
fn q4_k_assembles_six_bit_scales() {
    // Scale 0 is 5; scale 4 is 0b11_0010 = 50; minimum 0 is 3; minimum 4 is 0b01_0001 = 17.
    let scales = sparse(12, &[(0, 0b11_000101), (4, 0b01_000011), (8, 0x12)]);
    let quants = sparse(128, &[(0, 0x07), (64, 0x02)]);
    let out = numbers(GgmlType::Q4_K, &[&ONE, &HALF, &scales, &quants]);
    assert_eq!((out[0], out[1]), (35.0 - 1.5, -1.5));
    assert_eq!((out[128], out[129]), (100.0 - 8.5, -8.5));
    assert_eq!(out[255], 0.0);
}

/// `Q5_K` is `Q4_K` with a fifth bit, 32 elements to a bit position.
#[test]
fn q5_k_adds_a_fifth_bit() {
    let scales = sparse(12, &[(1, 2), (11, 0x01)]);
    let high = sparse(32, &[(4, 0x02), (31, 0x80)]);
    let quants = sparse(128, &[(4, 0x90), (127, 0xf0)]);
    let out = numbers(GgmlType::Q5_K, &[&ONE, &ONE, &scales, &high, &quants]);
    assert_eq!((out[36], out[37], out[255], out[0]), (50.0, 0.0, 31.0, 0.0));
}

/// `Q6_K` joins four low and two high bits, less 32, with signed scales per 16.
#[test]
fn q6_k_joins_low_and_high_bits() {
    let low = sparse(128, &[(0, 0x5f), (127, 0x10)]);
    let high = sparse(64, &[(0, 0b00_01_00_11), (63, 0b10_00_00_00)]);
    let scales = sparse(16, &[(0, 1), (4, 2), (15, 0xff)]);
    let out = numbers(GgmlType::Q6_K, &[&low, &high, &scales, &TWO]);
    assert_eq!((out[0], out[1]), (62.0, -64.0));
    // Element 64: high nibble of byte 0, bits 4..6 of high byte 0; scale 2.
    assert_eq!(out[64], 2.0 * 2.0 * (5.0 + 16.0 - 32.0));
    assert_eq!((out[255], out[254]), (-2.0 * (1.0 + 32.0 - 32.0), 64.0));
}

/// `MXFP4` has the sixteen numbers of E2M1, times a power of two; -0 is 0, and no exponent is an error.
#[test]
fn mxfp4_has_the_numbers_of_its_standard() {
    let numbers_at = |exponent: u8| {
        numbers(
            GgmlType::MXFP4,
            &[&[exponent], &sparse(16, &[(0, 0xf7), (1, 0x8c), (2, 0x21)])],
        )
    };
    let out = numbers_at(127);
    assert_eq!((out[0], out[16], out[1], out[2], out[18]), (6.0, -6.0, -2.0, 0.5, 1.0));
    assert_eq!(out[17].to_bits(), 0);
    for exponent in 0..255 {
        let power = 2.0_f64.powi(i32::from(exponent) - 127);
        assert_eq!(f64::from(numbers_at(exponent)[18]), power, "{exponent}");
    }
}

/// `IQ4_NL` looks its nibbles up, and `IQ4_XS` scales each 32 of them by six bits less 32.
#[test]
fn iq4_looks_up_its_nibbles() {
    let out = numbers(GgmlType::IQ4_NL, &[&ONE, &sparse(16, &[(0, 0xf8)])]);
    assert_eq!((out[0], out[16], out[1]), (1.0, 113.0, -127.0));
    // Group 0: low 1, upper 2 -> 33 - 32. Group 7: low 0xf, upper 3 -> 31.
    let high = (0b10u16 | 0b11 << 14).to_le_bytes();
    let low = [0x01, 0, 0, 0xf0];
    let out = numbers(
        GgmlType::IQ4_XS,
        &[&ONE, &high, &low, &sparse(128, &[(0, 0xf8), (112, 0x09)])],
    );
    assert_eq!(
        (out[0], out[16], out[224], out[240]),
        (1.0, 113.0, 31.0 * 13.0, 31.0 * -127.0)
    );
    assert_eq!(out[32], -32.0 * -127.0);
}

/// Lengths that are not whole blocks, or do not match the output, are refused with the numbers in the text.
#[test]
fn wrong_lengths_are_refused() {
    let error = dequantise(GgmlType::Q4_0, &[0; 19], &mut [0.0; 32]).unwrap_err();
    assert_eq!(
        error,
        GgmlError::ByteLength {
            kind: GgmlType::Q4_0,
            got: 19
        }
    );
    assert_eq!(
        error.to_string(),
        "19 bytes are not whole blocks of Q4_0: the length must be a multiple of 18"
    );
    let error = dequantise(GgmlType::Q4_0, &[0; 18], &mut [0.0; 31]).unwrap_err();
    assert_eq!(
        error,
        GgmlError::OutputLength {
            kind: GgmlType::Q4_0,
            expected: 32,
            got: 31
        }
    );
    let error = GgmlType::Q4_K.row_bytes(288).unwrap_err();
    assert_eq!(
        error,
        GgmlError::RowLength {
            kind: GgmlType::Q4_K,
            cols: 288
        }
    );
    assert_eq!(GgmlType::Q4_K.row_bytes(512), Ok(288));
    let cols = usize::MAX - 3;
    assert_eq!(
        GgmlType::F32.row_bytes(cols),
        Err(GgmlError::RowOverflow {
            kind: GgmlType::F32,
            cols
        })
    );
    assert_eq!(
        Block::read(GgmlType::F16, &[0; 2]),
        Err(GgmlError::NotQuantised { kind: GgmlType::F16 })
    );
    assert!(blocks(GgmlType::Q8_0, &[0; 35]).is_err());
}

proptest::proptest! {
    /// No bytes of whole blocks make the readers panic, and the scaled integers are the dequantised numbers.
    #[test]
    fn any_block_is_its_integers_by_its_scales(seed in proptest::collection::vec(proptest::prelude::any::<u8>(), 210)) {
        for kind in GgmlType::ALL.into_iter().filter(|kind| kind.is_quantised()) {
            let bytes = &seed[..kind.block_bytes()];
            let block = Block::read(kind, bytes).unwrap();
            let mut out = vec![0.0; kind.block_elements()];
            dequantise(kind, bytes, &mut out).unwrap();
            for (i, value) in out.iter().enumerate() {
                let g = i / block.group;
                let scaled = (block.d * f32::from(block.sub_scales[g])) * f32::from(block.quants[i]);
                let expected = scaled - block.dmin * f32::from(block.sub_mins[g]);
                proptest::prop_assert!(value.to_bits() == expected.to_bits() || (value.is_nan() && expected.is_nan()));
            }
        }
    }
}

/// `E4M3` has the numbers of OCP's standard: its extremes, its subnormal numbers, both signs, times a scale.
#[test]
fn e4m3_has_the_numbers_of_the_standard() {
    let numbers = [
        (0x00, 0.0),
        (0x01, 1.0 / 512.0),
        (0x07, 7.0 / 512.0),
        (0x08, 8.0 / 512.0),
        (0x38, 1.0),
        (0x7e, 448.0),
        (0x81, -1.0 / 512.0),
        (0xb9, -1.125),
        (0xfe, -448.0),
    ];
    let mut block = vec![0; GgmlType::E4M3.block_bytes()];
    block[..4].copy_from_slice(&3.0_f32.to_le_bytes());
    for (place, (byte, _)) in numbers.iter().enumerate() {
        block[4 + place] = *byte;
    }
    let mut out = vec![0.0; 64];
    dequantise(GgmlType::E4M3, &block, &mut out).unwrap();
    for ((byte, number), value) in numbers.into_iter().zip(out) {
        assert_eq!((e4m3_to_f32(byte), value), (number, 3.0 * number), "{byte:#x}");
    }
}
