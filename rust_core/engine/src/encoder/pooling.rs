//! From the vectors of a text's tokens to the text's, and to length 1.

use super::steps::Pooling;

/// Writes a text's vector. `rows` has its tokens' vectors, of `out.len()` numbers each.
///
/// Sums run over the tokens in order, in double precision.
pub(super) fn pool(pooling: Pooling, rows: &[f32], out: &mut [f32]) {
    let width = out.len();
    let num_tokens = rows.len() / width;
    match pooling {
        Pooling::Cls => out.copy_from_slice(&rows[..width]),
        Pooling::Last => out.copy_from_slice(&rows[(num_tokens - 1) * width..]),
        Pooling::Max => {
            out.copy_from_slice(&rows[..width]);
            for row in rows.chunks_exact(width) {
                for (most, x) in out.iter_mut().zip(row) {
                    // A NaN stays.
                    *most = if *x > *most || x.is_nan() { *x } else { *most };
                }
            }
        }
        Pooling::Mean | Pooling::WeightedMean => {
            let is_weighted = pooling == Pooling::WeightedMean;
            let mut sums = vec![0.0_f64; width];
            for (token, row) in rows.chunks_exact(width).enumerate() {
                let weight = if is_weighted { (token + 1) as f64 } else { 1.0 };
                for (sum, x) in sums.iter_mut().zip(row) {
                    *sum += weight * f64::from(*x);
                }
            }
            let whole = if is_weighted {
                (num_tokens * (num_tokens + 1) / 2) as f64
            } else {
                num_tokens as f64
            };
            for (out, sum) in out.iter_mut().zip(sums) {
                *out = (sum / whole) as f32;
            }
        }
    }
}

/// Scales a vector to length 1; zeros stay.
pub(super) fn normalise(out: &mut [f32]) {
    let length = out.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        out.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: [f32; 6] = [3.0, 0.0, 0.0, 4.0, 0.0, -8.0];

    fn pooled(pooling: Pooling) -> [f32; 2] {
        let mut out = [0.0; 2];
        pool(pooling, &ROWS, &mut out);
        normalise(&mut out);
        out
    }

    /// Each kind is what its name says, of length 1.
    #[test]
    fn each_pooling_is_what_its_name_says() {
        let root = |x: f64, y: f64| {
            let length = x.hypot(y);
            [(x / length) as f32, (y / length) as f32]
        };
        assert_eq!(pooled(Pooling::Cls), [1.0, 0.0]);
        assert_eq!(pooled(Pooling::Last), [0.0, -1.0]);
        assert_eq!(pooled(Pooling::Max), root(3.0, 4.0));
        for (got, expected) in [
            (pooled(Pooling::Mean), root(1.0, -4.0 / 3.0)),
            (pooled(Pooling::WeightedMean), root(0.5, -16.0 / 6.0)),
        ] {
            assert!(
                got.iter()
                    .zip(expected)
                    .all(|(got, expected)| (got - expected).abs() < 1e-6)
            );
        }
    }

    /// Zeros have no direction and stay; a NaN shows.
    #[test]
    fn what_has_no_direction_shows() {
        let mut out = [1.0; 2];
        pool(Pooling::Mean, &[1.0, -1.0, -1.0, 1.0], &mut out);
        normalise(&mut out);
        assert_eq!(out, [0.0, 0.0]);
        for pooling in [Pooling::Mean, Pooling::Max, Pooling::WeightedMean] {
            pool(pooling, &[1.0, f32::NAN, 2.0, 0.0], &mut out);
            normalise(&mut out);
            assert!(out[1].is_nan());
        }
    }
}
