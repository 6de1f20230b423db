//! Packing loses nothing and refuses what does not fit.

use proptest::prelude::*;

use super::*;
use crate::ggml::dequantise;

fn bits(values: &[f32]) -> Vec<u32> {
    // A NaN's payload may change when it is multiplied; that it is one may not.
    let canonical = |x: &f32| if x.is_nan() { f32::NAN } else { *x };
    values.iter().map(|x| canonical(x).to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// A row read back, and a column, equals the dequantised source bit for bit, for arbitrary bytes of any type.
    #[test]
    fn rows_and_columns_equal_the_dequantised_source(
        kind in prop::sample::select(GgmlType::ALL.to_vec()),
        rows in 1_usize..40,
        blocks in 1_usize..4,
        seed in any::<u64>(),
    ) {
        let cols = blocks * kind.block_elements();
        let bytes = random_bytes(seed, rows * kind.row_bytes(cols).unwrap());
        let matrix = PackedMatrix::pack(kind, &bytes, rows, cols).unwrap();
        let mut expected = vec![0.0; rows * cols];
        dequantise(kind, &bytes, &mut expected).unwrap();
        let mut row = vec![0.0; cols];
        for (index, expected) in expected.chunks_exact(cols).enumerate() {
            matrix.row(index, &mut row);
            prop_assert_eq!(bits(&row), bits(expected), "row {}", index);
        }
        let mut column = vec![0.0; rows];
        for index in 0..cols {
            matrix.column(index, &mut column);
            let expected: Vec<f32> = expected.iter().copied().skip(index).step_by(cols).collect();
            prop_assert_eq!(bits(&column), bits(&expected), "column {}", index);
        }
    }
}

/// Bytes from a seed (SplitMix64).
fn random_bytes(mut seed: u64, count: usize) -> Vec<u8> {
    let mut next = move || {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    (0..count).map(|_| next() as u8).collect()
}

/// Groups packed one by one, in any order, give the matrix packed at once.
#[test]
fn groups_pack_independently() {
    let (kind, rows, cols) = (GgmlType::Q4_K, 70, 512);
    let bytes = random_bytes(7, rows * kind.row_bytes(cols).unwrap());
    let whole = PackedMatrix::pack(kind, &bytes, rows, cols).unwrap();
    let parts = PackedMatrix::allocate(kind, rows, cols).unwrap();
    for group in [4, 0, 2, 1, 3] {
        // SAFETY: nobody else has the matrix.
        unsafe { parts.pack_groups(&bytes, group..group + 1) };
    }
    for group in 0..whole.num_groups() {
        assert_eq!(whole.group(group), parts.group(group));
    }
}

/// A packed matrix of whole groups is as large as in the file, but for the scales of K-quants (a byte each, where
/// the file has four or six bits).
#[test]
fn packed_size_is_the_size_in_the_file() {
    for kind in GgmlType::ALL {
        let (rows, cols) = (32, 2048);
        let matrix = PackedMatrix::allocate(kind, rows, cols).unwrap();
        let in_file = rows * kind.row_bytes(cols).unwrap();
        let spare_bits = match kind {
            GgmlType::Q2_K => 16 * (4 + 4),
            GgmlType::Q3_K => 16 * 2,
            GgmlType::Q4_K | GgmlType::Q5_K => 8 * (2 + 2),
            GgmlType::IQ4_XS => 8 * 2,
            _ => 0,
        };
        let spare = rows * cols / 256 * spare_bits / 8;
        assert_eq!(matrix.bytes(), in_file + spare, "{}", kind.name());
    }
}

/// Wrong shapes and lengths are refused by name.
#[test]
fn misfits_are_refused() {
    let error = PackedMatrix::allocate(GgmlType::Q4_K, 4, 128).unwrap_err();
    assert!(error.to_string().contains("multiple of 256"), "{error}");
    let error = PackedMatrix::allocate(GgmlType::Q8_0, 0, 32).unwrap_err();
    assert_eq!(error, PackError::Empty { rows: 0, cols: 32 });
    let error = PackedMatrix::pack(GgmlType::Q8_0, &[0; 33], 1, 32).unwrap_err();
    assert_eq!(error.to_string(), "1 rows of 32 columns of Q8_0 take 34 bytes, got 33");
    for (rows, cols) in [(usize::MAX, 32), (2, usize::MAX / 64 * 32), (usize::MAX / 64, 1 << 20)] {
        assert!(PackedMatrix::allocate(GgmlType::Q8_0, rows, cols).is_err());
        assert!(PackedMatrix::allocate(GgmlType::F32, rows, cols).is_err());
    }
}
