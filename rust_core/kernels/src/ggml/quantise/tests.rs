//! What is written is read back: nearly, and the same in any number of threads.

use proptest::prelude::*;

use super::super::{GgmlError, GgmlType, dequantise};
use super::quantise;

const WRITTEN: [GgmlType; 11] = [
    GgmlType::F32,
    GgmlType::F16,
    GgmlType::BF16,
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q8_0,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
];

fn written(kind: GgmlType, values: &[f32], threads: usize) -> Result<Vec<u8>, GgmlError> {
    let mut out = vec![0xaa; kind.row_bytes(values.len())?];
    quantise(kind, values, &mut out, threads)?;
    Ok(out)
}

fn read_back(kind: GgmlType, values: &[f32]) -> Vec<f32> {
    let bytes = written(kind, values, 1).unwrap();
    let mut back = vec![0.0; values.len()];
    dequantise(kind, &bytes, &mut back).unwrap();
    back
}

/// Numbers like a weight matrix's: a sum of four, so that most are near 0 and few are large.
fn weights(num: usize) -> Vec<f32> {
    let mut state = 7u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..num).map(|_| (next() + next() + next() + next()) / 10.0).collect()
}

#[test]
fn each_type_misses_no_more_than_its_bits_say() {
    let values = weights(4096);
    let size = values.iter().map(|value| value * value).sum::<f32>();
    for (kind, most) in WRITTEN
        .into_iter()
        .zip([0.0, 3e-4, 3e-3, 0.095, 0.085, 0.046, 0.042, 0.0055, 0.076, 0.038, 0.021])
    {
        let back = read_back(kind, &values);
        let missed = values.iter().zip(&back).map(|(a, b)| (a - b) * (a - b)).sum::<f32>();
        let relative = (missed / size).sqrt();
        assert!(relative <= most, "{}: {relative}", kind.name());
        assert!(
            kind == GgmlType::F32 || relative > most / 4.0,
            "{}: {relative}",
            kind.name()
        );
    }
}

#[test]
fn threads_do_not_change_a_byte() {
    let values = weights(256 * 1500);
    for kind in WRITTEN {
        assert!(
            written(kind, &values, 1) == written(kind, &values, 3),
            "{}",
            kind.name()
        );
    }
}

#[test]
fn blocks_of_one_number_are_exact() {
    for kind in WRITTEN {
        for number in [0.0, -0.0, 0.5, -0.5] {
            let back = read_back(kind, &[number; 256]);
            let worst = back.iter().map(|value| (value - number).abs()).fold(0.0, f32::max);
            assert!(worst <= 0.003, "{} of {number}: {worst}", kind.name());
        }
    }
}

#[test]
fn what_cannot_be_written_is_refused() {
    let row = |value: f32| {
        let mut values = weights(256 * 600);
        *values.last_mut().unwrap() = value;
        values
    };
    for kind in WRITTEN {
        let refused = written(kind, &row(f32::NAN), 2).unwrap_err();
        assert_eq!(refused, GgmlError::NotFinite { value: "NaN".into() });
        let refused = written(kind, &row(f32::NEG_INFINITY), 2).unwrap_err();
        assert_eq!(refused, GgmlError::NotFinite { value: "-inf".into() });
        let large = written(kind, &row(70_000.0), 2);
        assert_eq!(large.is_ok(), matches!(kind, GgmlType::F32 | GgmlType::BF16));
    }
    let kind = GgmlType::IQ4_XS;
    assert_eq!(written(kind, &[0.0; 256], 1), Err(GgmlError::NotWritten { kind }));
    let (kind, cols) = (GgmlType::Q4_K, 255);
    assert_eq!(written(kind, &[0.0; 255], 1), Err(GgmlError::RowLength { kind, cols }));
    let got = 3;
    let short = quantise(kind, &[0.0; 256], &mut [0; 3], 1);
    assert_eq!(short, Err(GgmlError::ByteLength { kind, got }));
}

proptest! {
    #[test]
    fn blocks_of_any_numbers_are_written(
        numbers in prop::collection::vec(-65_504.0f32..65_504.0, 256),
        power in -60i32..1,
    ) {
        let values: Vec<f32> = numbers.iter().map(|number| number * 2f32.powi(power)).collect();
        let peak = values.iter().fold(0.0f32, |peak, value| peak.max(value.abs()));
        for kind in WRITTEN {
            let worst = values.iter().zip(read_back(kind, &values)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            // Half a step of 4 bits over both signs; and half the least step of a binary16 scale, 128 * 32 times.
            prop_assert!(worst <= peak / 7.0 + 1.3e-4, "{}: {worst} of {peak}", kind.name());
        }
    }
}
