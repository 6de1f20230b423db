//! From the vectors of a text's tokens to the text's, and to length 1.

use super::steps::Pooling;

/// Writes a text's vectors by several poolings, one after another.
pub(super) fn pool_each(poolings: &[Pooling], rows: &[f32], out: &mut [f32]) {
    let width = out.len() / poolings.len();
    for (pooling, out) in poolings.iter().zip(out.chunks_exact_mut(width)) {
        pool(*pooling, rows, out);
    }
}

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
        Pooling::Attention => unreachable!("a learned query pools by its own weights"),
        Pooling::Mean | Pooling::MeanSqrtLen | Pooling::WeightedMean => {
            let is_weighted = pooling == Pooling::WeightedMean;
            let mut sums = vec![0.0_f64; width];
            for (token, row) in rows.chunks_exact(width).enumerate() {
                let weight = if is_weighted { (token + 1) as f64 } else { 1.0 };
                for (sum, x) in sums.iter_mut().zip(row) {
                    *sum += weight * f64::from(*x);
                }
            }
            let whole = match pooling {
                Pooling::WeightedMean => (num_tokens * (num_tokens + 1) / 2) as f64,
                Pooling::MeanSqrtLen => (num_tokens as f64).sqrt(),
                _ => num_tokens as f64,
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

/// How relevant a document is by late interaction: of each of the query's vectors the greatest product with one of the
/// document's, added up in double precision (Khattab and Zaharia 2020, section 3.2). Without vectors it is 0.
///
/// `query` and `document` are rows of `width` numbers.
pub fn late_score(query: &[f32], document: &[f32], width: usize) -> f64 {
    let dot =
        |one: &[f32], other: &[f32]| -> f64 { one.iter().zip(other).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum() };
    if document.is_empty() {
        return 0.0;
    }
    let greatest = |row: &[f32]| {
        let products = document.chunks_exact(width).map(|other| dot(row, other));
        products.fold(f64::NEG_INFINITY, f64::max)
    };
    query.chunks_exact(width).map(greatest).sum()
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

    /// Each of the query's vectors counts by the document's nearest alone.
    #[test]
    fn late_scores_add_up_greatest_products() {
        let query = [1.0, 0.0, 0.0, 2.0];
        assert_eq!(late_score(&query, &[0.5, 0.0, 0.25, -1.0, -3.0, -4.0], 2), 0.5);
        assert_eq!(late_score(&query, &[-1.0, -1.0], 2), -3.0);
        assert_eq!(late_score(&query, &[], 2), 0.0);
        assert_eq!(late_score(&[], &query, 2), 0.0);
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
