//! Mirostat (arXiv 2007.14966): a filter that holds the surprise of the sampled tokens at a wanted mean.

use super::SamplingParams;
use super::filters::Filters;

/// Tokens from whose probabilities the exponent of Zipf's law is estimated, as in the paper's program.
pub(super) const NUM_ESTIMATED: usize = 100;

/// The bound on the surprise, in bits, which follows what was sampled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mirostat {
    is_second: bool,
    tau: f64,
    eta: f64,
    bound: f64,
    /// Of the row that is sampled from.
    mass: f64,
}

impl Mirostat {
    /// What the request asks for, if it does.
    pub(super) fn of(params: &SamplingParams) -> Option<Self> {
        (params.mirostat > 0).then(|| Self {
            is_second: params.mirostat == 2,
            tau: f64::from(params.mirostat_tau),
            eta: f64::from(params.mirostat_eta),
            bound: 2.0 * f64::from(params.mirostat_tau),
            mass: f64::NAN,
        })
    }

    /// Whether the best tokens' weights are asked for.
    pub(super) fn estimates(&self) -> bool {
        !self.is_second
    }

    /// The filter for a row of this mass: the second algorithm bounds surprise, the first estimates how many to keep.
    pub(super) fn filters(&mut self, best: &[f64], mass: f64, vocab: usize) -> Filters {
        self.mass = mass;
        if self.is_second {
            return Filters::only(0, ((-self.bound).exp2() * mass).min(1.0));
        }
        let exponent = zipf_exponent(best);
        let excess = exponent - 1.0;
        let scale = excess * self.bound.exp2() / (1.0 - (vocab as f64).powf(-excess));
        let count = scale.powf(1.0 / exponent).round();
        Filters::only(
            if count >= 1.0 {
                count.min(vocab as f64) as usize
            } else {
                1
            },
            0.0,
        )
    }

    /// Learns from a sampled token of this weight.
    pub(super) fn learn(&mut self, weight: f64) {
        let surprise = -(weight / self.mass).max(f64::MIN_POSITIVE).log2();
        self.bound -= self.eta * (surprise - self.tau);
    }
}

/// The least-squares estimate of the exponent with which probabilities fall by rank.
fn zipf_exponent(best: &[f64]) -> f64 {
    let pairs = best.windows(2).zip(1..).filter(|(pair, _)| pair[1] > 0.0);
    let (mut product, mut square) = (0.0, 0.0);
    for (pair, rank) in pairs {
        let step = (f64::from(rank + 1) / f64::from(rank)).ln();
        product += step * (pair[0] / pair[1]).ln();
        square += step * step;
    }
    let exponent = product / square;
    // One token, or none falls: as good as any.
    if exponent.is_finite() && (exponent - 1.0).abs() > 1e-9 {
        exponent
    } else {
        1.0 + 1e-6
    }
}
