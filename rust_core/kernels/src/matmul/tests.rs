//! Every instruction set against plain Rust, bit for bit, and plain Rust against exact arithmetic.

use proptest::prelude::*;

use super::*;
use crate::ggml::GgmlType;
use crate::pack::format::with_format;

/// Bytes from a seed (SplitMix64), with every 16 bits finite as binary16 so that scales are; those that are exponents are
/// of powers near 1.
fn weights(kind: GgmlType, rows: usize, cols: usize, mut seed: u64) -> PackedMatrix {
    let bytes: Vec<u8> = (0..rows * kind.row_bytes(cols).unwrap())
        .map(|at| {
            let byte = next(&mut seed) as u8;
            match at % 2 {
                _ if kind == GgmlType::MXFP4 && at % kind.block_bytes() == 0 => byte / 16 + 118,
                1 => byte & 0xbb,
                _ => byte,
            }
        })
        .collect();
    PackedMatrix::pack(kind, &bytes, rows, cols).unwrap()
}

fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = (*seed ^ (*seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn activations(tokens: usize, cols: usize, is_quantised: bool, mut seed: u64) -> Activations {
    let mut batch = Activations::new();
    batch.resize(tokens, cols, is_quantised, !is_quantised);
    for token in 0..tokens {
        let x: Vec<f32> = (0..cols)
            .map(|_| {
                let magnitude = if next(&mut seed).is_multiple_of(29) { 50.0 } else { 1.0 };
                ((next(&mut seed) >> 40) as f32 / (1 << 23) as f32 - 1.0) * magnitude
            })
            .collect();
        // SAFETY: plain Rust runs everywhere; nobody else has the batch.
        unsafe { batch.write_row(Isa::Scalar, token, &x) };
    }
    batch
}

/// A way to run a job: an instruction set, or a part of one that this CPU would not choose.
type Run = unsafe fn(&Job);

/// The tiled algorithm of AMX on tiles in plain Rust, around plain vectors.
unsafe fn tiled_on_scalar(job: &Job) {
    if !job.w.is_quantised() {
        // SAFETY: as for the other runs.
        return unsafe { scalar::run(job) };
    }
    // SAFETY: as for the other runs.
    with_format!(job.w.kind(), F => unsafe { tiled::quantised::<scalar::Scalar, tiled::Software, F>(job, scalar::run) });
}

/// The same around AVX-512, as on a CPU with AMX.
#[cfg(target_arch = "x86_64")]
unsafe fn tiled_on_avx512(job: &Job) {
    if !job.w.is_quantised() {
        // SAFETY: as for the other runs.
        return unsafe { avx512::run(job) };
    }
    // SAFETY: as for the other runs.
    with_format!(job.w.kind(), F => unsafe { amx::on_avx512::<tiled::Software, F>(job) });
}

fn runs() -> Vec<(&'static str, Run)> {
    let mut runs: Vec<(&'static str, Run)> = vec![("scalar", scalar::run), ("tiles", tiled_on_scalar)];
    #[cfg(target_arch = "x86_64")]
    {
        if Isa::Avx2.is_supported() {
            runs.push(("avx2", avx2::maddubs::run));
        }
        if Isa::Avx2.is_supported() && is_x86_feature_detected!("avxvnni") {
            runs.push(("avx2 with vnni", avx2::vnni::run));
        }
        if Isa::Avx512.is_supported() {
            runs.push(("avx512", avx512::run));
            runs.push(("tiles on avx512", tiled_on_avx512));
        }
        if Isa::Amx.is_supported() {
            runs.push(("amx", amx::run));
        }
    }
    runs
}

fn product(
    run: Run,
    w: &PackedMatrix,
    x: &Activations,
    stride: usize,
    parts: &[(Range<usize>, Range<usize>)],
) -> Vec<u32> {
    let mut out = vec![-7.0_f32; x.tokens() * stride];
    for (groups, tokens) in parts {
        let job = Job {
            w,
            groups: groups.clone(),
            x,
            gathered: None,
            tokens: tokens.clone(),
            out: out.as_mut_ptr(),
            out_stride: stride,
        };
        // SAFETY: `runs` lists what the CPU has; all is packed and written; `out` has a place per token and row.
        unsafe { run(&job) };
    }
    out.iter().map(|x| x.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Each type on each instruction set equals plain Rust bit for bit, whatever the shape, writes no place but
    /// its own, and does not depend on how groups and tokens are split.
    #[test]
    fn instruction_sets_agree(
        kind in prop::sample::select(GgmlType::ALL.to_vec()),
        rows in 1_usize..70,
        blocks in 1_usize..5,
        tokens in 1_usize..40,
        spare in 0_usize..3,
        cut in (0.0..1.0, 0.0..1.0),
        seed in any::<u64>(),
    ) {
        let cols = blocks * kind.block_elements().max(if kind.is_quantised() { 32 } else { 7 });
        let w = weights(kind, rows, cols, seed);
        let x = activations(tokens, cols, kind.is_quantised(), seed ^ 1);
        let (groups, stride) = (w.num_groups(), rows + spare);
        let expected = product(scalar::run, &w, &x, stride, &[(0..groups, 0..tokens)]);
        for (at, value) in expected.iter().enumerate() {
            prop_assert_eq!(at % stride >= rows, *value == (-7.0_f32).to_bits());
        }
        let group = (cut.0 * groups as f64) as usize;
        let token = (cut.1 * tokens as f64) as usize;
        let quarters = [
            (group..groups, 0..token), (0..group, 0..token), (0..group, token..tokens), (group..groups, token..tokens),
        ];
        for (name, run) in runs() {
            prop_assert_eq!(&product(run, &w, &x, stride, &[(0..groups, 0..tokens)]), &expected, "{}", name);
            prop_assert_eq!(&product(run, &w, &x, stride, &quarters), &expected, "{} in parts", name);
        }
    }
}

/// A product is that of the dequantised numbers, up to the rounding of a sum of `cols` terms in `f32`: relative
/// to the sum of magnitudes, 1e-5 is about 150 half-units in the last place, and no chain here is longer.
#[test]
fn products_are_those_of_the_dequantised_numbers() {
    for kind in GgmlType::ALL {
        let (rows, cols, tokens) = (21, 512, 3);
        let w = weights(kind, rows, cols, 5);
        let x = activations(tokens, cols, kind.is_quantised(), 6);
        let out = product(scalar::run, &w, &x, rows, &[(0..w.num_groups(), 0..tokens)]);
        let mut row = vec![0.0; cols];
        for r in 0..rows {
            w.row(r, &mut row);
            for token in 0..tokens {
                let terms = row
                    .iter()
                    .enumerate()
                    .map(|(c, w)| f64::from(*w) * number(&x, token, c));
                let (sum, magnitude) = terms.fold((0.0, 0.0), |(sum, magnitude), term| {
                    (sum + term, magnitude + term.abs())
                });
                let got = f64::from(f32::from_bits(out[token * rows + r]));
                assert!(
                    (got - sum).abs() <= 1e-5 * magnitude,
                    "{} row {r}: {got} for {sum}",
                    kind.name()
                );
            }
        }
    }
}

/// The activation at a column, as the kernels see it.
fn number(x: &Activations, token: usize, column: usize) -> f64 {
    // SAFETY: the batch is written, and the column exists.
    unsafe {
        if x.has_dense() {
            return f64::from(*x.dense_row(token).add(column));
        }
        let block = &*x.blocks_of(token).add(column / 32);
        let integer = (i32::from(block.high[column % 32]) << activations::LOW_BITS) + i32::from(block.low[column % 32]);
        f64::from(block.scale) * f64::from(integer)
    }
}

/// The extreme integers of every type neither saturate nor wrap.
#[test]
fn extreme_integers_are_exact() {
    for kind in GgmlType::ALL.into_iter().filter(|kind| kind.is_quantised()) {
        for byte in [0x00_u8, 0x3f, 0x80, 0xff] {
            let (rows, cols) = (16, 256);
            let mut bytes = vec![byte; rows * kind.row_bytes(cols).unwrap()];
            for block in bytes.chunks_exact_mut(kind.block_bytes()) {
                // Any finite scale will do: 0x3f3f wherever a scale may be.
                for at in [0, 2, 80, 82, 108, 208] {
                    if let Some(place) = block.get_mut(at..at + 2) {
                        place.fill(0x3f);
                    }
                }
            }
            let w = PackedMatrix::pack(kind, &bytes, rows, cols).unwrap();
            for value in [-1.0_f32, 1.0] {
                let mut x = Activations::new();
                x.resize(1, cols, true, false);
                // SAFETY: as in `activations`.
                unsafe { x.write_row(Isa::Scalar, 0, &vec![value; cols]) };
                let expected = product(scalar::run, &w, &x, rows, &[(0..1, 0..1)]);
                for (name, run) in runs() {
                    assert_eq!(
                        product(run, &w, &x, rows, &[(0..1, 0..1)]),
                        expected,
                        "{} {name}",
                        kind.name()
                    );
                }
            }
        }
    }
}

/// One token that is not finite makes its own outputs NaN and leaves its neighbours' alone.
#[test]
fn a_bad_token_spoils_only_itself() {
    let w = weights(GgmlType::Q4_K, 16, 256, 3);
    let x = activations(3, 256, true, 4);
    let clean = product(scalar::run, &w, &x, 16, &[(0..1, 0..3)]);
    let mut bad = vec![0.5; 256];
    bad[40] = f32::NAN;
    // SAFETY: as in `activations`.
    unsafe { x.write_row(Isa::Scalar, 1, &bad) };
    for (_, run) in runs() {
        let out = product(run, &w, &x, 16, &[(0..1, 0..3)]);
        assert!(out[16..32].iter().all(|bits| f32::from_bits(*bits).is_nan()));
        assert_eq!((&out[..16], &out[32..]), (&clean[..16], &clean[32..]));
    }
}

/// Tokens that are vectors anywhere in the batch give what those vectors give one by one, on every instruction set.
#[test]
fn gathered_vectors_are_multiplied_as_each_is_alone() {
    for kind in [
        GgmlType::Q4_K,
        GgmlType::Q8_0,
        GgmlType::Q4_0,
        GgmlType::F32,
        GgmlType::BF16,
        GgmlType::E4M3,
    ] {
        let (w, vectors) = (weights(kind, 40, 256, 3), [4_u32, 0, 4, 11, 2, 7, 7, 1, 9, 10, 3]);
        let x = activations(12, 256, w.is_quantised(), 5);
        for isa in [Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Amx] {
            if !isa.is_supported() {
                continue;
            }
            let mut out = vec![0.0; vectors.len() * 40];
            // SAFETY: the instruction set is there; nobody else has the output.
            unsafe { matmul_gathered(isa, &w, 0..3, &x, &vectors, 2..11, out.as_mut_ptr(), 40) };
            assert!(out[..2 * 40].iter().all(|value| *value == 0.0));
            for (token, &vector) in vectors.iter().enumerate().skip(2) {
                let (vector, mut alone) = (vector as usize, vec![0.0; 12 * 40]);
                // SAFETY: as above.
                unsafe { matmul(isa, &w, 0..3, &x, vector..vector + 1, alone.as_mut_ptr(), 40) };
                assert_eq!(
                    out[token * 40..][..40],
                    alone[vector * 40..][..40],
                    "{} {token}",
                    kind.name()
                );
            }
        }
    }
}

/// Each of E4M3's 256 bytes is widened to its own number, in every column and lane, on every instruction set.
#[test]
fn every_byte_of_e4m3_is_widened_exactly() {
    let (rows, cols) = (21, 256);
    let byte_of = |row: usize, column: usize| (column + 13 * row) as u8;
    let bytes: Vec<u8> = (0..rows)
        .flat_map(|row| (0..cols / 64).map(move |block| (row, 64 * block)))
        .flat_map(|(row, first)| {
            let numbers = (first..first + 64).map(move |column| byte_of(row, column));
            0.75_f32.to_le_bytes().into_iter().chain(numbers)
        })
        .collect();
    let w = PackedMatrix::pack(GgmlType::E4M3, &bytes, rows, cols).unwrap();
    let mut x = Activations::new();
    x.resize(cols, cols, false, true);
    let mut one = vec![0.0; cols];
    for column in 0..cols {
        one[column] = 1.0;
        // SAFETY: as in `activations`.
        unsafe { x.write_row(Isa::Scalar, column, &one) };
        one[column] = 0.0;
    }
    for (name, run) in runs() {
        let out = product(run, &w, &x, rows, &[(0..w.num_groups(), 0..cols)]);
        for (column, out) in out.chunks_exact(rows).enumerate() {
            for (row, bits) in out.iter().enumerate() {
                let expected = 0.75 * crate::ggml::e4m3_to_f32(byte_of(row, column));
                assert_eq!(f32::from_bits(*bits), expected, "{name} {row} {column}");
            }
        }
    }
}
