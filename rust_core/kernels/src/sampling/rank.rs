//! The ranking of a row's tokens, made only as far down as a question needs.
//!
//! A vocabulary has up to 262,144 tokens and the filters mostly keep a few dozen. So a bound is found that at
//! least `n` tokens reach (from the maxima of runs of tokens, one pass), the tokens that reach it are gathered
//! (a second pass) and only those are sorted. A row too flat for that is divided into buckets.

use super::SampleError;
use super::buckets::Buckets;
use super::filters::{Filters, Range, Ranked, Row};
use crate::elementwise::exp_sum;
use crate::isa::Isa;

/// Tokens ranked at first, unless top-k says how many are needed.
const FIRST_RANKED: usize = 256;
/// How much further the ranking goes when filters need more of it.
const RANK_MORE: usize = 16;
/// Tokens under one maximum when looking for a bound.
pub(super) const RUN: usize = 32;

/// How a row is weighed: each token by `e^((logit - greatest) / temperature)`.
pub(super) struct Weighed {
    greatest: f32,
    temperature: f32,
    /// Of all weights.
    pub(super) mass: f64,
}

impl Weighed {
    /// The weight of a logit so far below the greatest.
    pub(super) fn weight_below(&self, distance: f32) -> f64 {
        f64::from(-distance / self.temperature).exp()
    }

    /// The logarithm of the weight that belongs to a logit.
    fn log_weight(&self, logit: f32) -> f64 {
        f64::from((logit - self.greatest) / self.temperature)
    }
}

/// Log-probabilities of a row.
pub(super) struct Report {
    pub(super) top: Vec<(u32, f32)>,
    greatest: f32,
    log_sum: f64,
}

impl Report {
    /// The log-probability that belongs to a logit.
    pub(super) fn of(&self, logit: f32) -> f32 {
        (f64::from(logit) - f64::from(self.greatest) - self.log_sum) as f32
    }
}

/// The place of a token, best first when sorted ascending: the higher logit, then the lower id.
pub(super) fn rank_key(logit: f32, token: usize) -> u64 {
    let bits = (logit + 0.0).to_bits(); // -0 and 0 are equal logits
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 0x8000_0000 };
    u64::from(!ascending) << 32 | token as u64
}

pub(super) fn token_of(key: u64) -> u32 {
    key as u32
}

/// The sum of a function of each pair of numbers, added in sixteen lanes, so that it is vectorised.
fn sum_of(a: &[f32], b: &[f32], term: impl Fn(f64, f64) -> f64) -> f64 {
    let mut lanes = [0.0; 16];
    for (a, b) in a.chunks(16).zip(b.chunks(16)) {
        for (lane, (a, b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane += term(f64::from(*a), f64::from(*b));
        }
    }
    lanes.iter().sum()
}

/// The greatest logit's token, the lowest of equals; also the check that the row is sound.
pub(super) fn argmax(logits: &[f32]) -> Result<u32, SampleError> {
    let greatest = greatest(logits);
    if greatest.is_nan() || greatest == f32::INFINITY {
        let broken = |x: &f32| x.is_nan() || *x == f32::INFINITY;
        let token = logits
            .iter()
            .position(broken)
            .expect("the row has a number that is not finite");
        return Err(SampleError::NotFinite {
            token: token as u32,
            value: logits[token],
        });
    }
    if greatest == f32::NEG_INFINITY {
        let vocab = logits.len();
        return Err(if vocab == 0 {
            SampleError::Empty
        } else {
            SampleError::AllMasked { vocab }
        });
    }
    // Whole runs first: looking for equality without an early exit inside a run is vectorised.
    let run = logits
        .chunks(RUN)
        .position(|run| run.iter().fold(false, |found, x| found | (*x == greatest)));
    let start = run.expect("the maximum is in the row") * RUN;
    let within = logits[start..]
        .iter()
        .position(|x| *x == greatest)
        .expect("the maximum is in its run");
    Ok((start + within) as u32)
}

/// The greatest number, or NaN if there is one.
fn greatest(logits: &[f32]) -> f32 {
    let mut best = [f32::NEG_INFINITY; 16];
    let mut is_nan = [false; 16];
    let chunks = logits.chunks_exact(16);
    for (i, x) in chunks.remainder().iter().enumerate() {
        best[i] = if *x > best[i] { *x } else { best[i] };
        is_nan[i] |= x.is_nan();
    }
    for chunk in chunks {
        for (i, x) in chunk.iter().enumerate() {
            best[i] = if *x > best[i] { *x } else { best[i] };
            is_nan[i] |= x.is_nan();
        }
    }
    if is_nan.contains(&true) {
        return f32::NAN;
    }
    best.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

/// Works out rankings; keeps its memory from row to row.
#[derive(Clone, Debug)]
pub(super) struct Ranking {
    isa: Isa,
    /// Keys of the best tokens, best first.
    ranked: Vec<u64>,
    run_maxima: Vec<f32>,
    /// `e^((logit - greatest) / temperature)` of every token.
    weights: Vec<f32>,
}

impl Ranking {
    pub(super) fn new(isa: Isa) -> Self {
        Self {
            isa,
            ranked: Vec::new(),
            run_maxima: Vec::new(),
            weights: Vec::new(),
        }
    }

    /// The best `count` tokens, best first.
    #[cfg(test)]
    pub(super) fn best(&mut self, logits: &[f32], count: usize) -> Vec<u32> {
        self.rank(logits, count);
        self.ranked.iter().map(|key| token_of(*key)).collect()
    }

    /// Log-probabilities of a row at temperature 1, with the `count` best tokens.
    pub(super) fn log_probabilities(&mut self, logits: &[f32], best: u32, count: usize) -> Report {
        let greatest = logits[best as usize];
        let log_sum = self.weigh(logits, greatest, 1.0).ln();
        self.rank(logits, count);
        let mut report = Report {
            top: Vec::new(),
            greatest,
            log_sum,
        };
        let entry = |key: &u64| (token_of(*key), report.of(logits[token_of(*key) as usize]));
        report.top = self.ranked.iter().map(entry).collect();
        report
    }

    /// Weighs a row at a temperature; its mass, and its entropy in nats where that is read.
    pub(super) fn begin(&mut self, logits: &[f32], best: u32, temperature: f32) -> Weighed {
        let greatest = logits[best as usize];
        let mass = self.weigh(logits, greatest, temperature);
        Weighed {
            greatest,
            temperature,
            mass,
        }
    }

    /// The mass, and the entropy in nats, of the tokens of at least this weight.
    pub(super) fn row(&self, logits: &[f32], weighed: &Weighed, least: f64, with_entropy: bool) -> Row {
        let mut row = Row {
            mass: weighed.mass,
            entropy: f64::NAN,
        };
        if least > 0.0 {
            row.mass = sum_of(
                &self.weights,
                &self.weights,
                |weight, _| if weight >= least { weight } else { 0.0 },
            );
        }
        if with_entropy {
            let moment = sum_of(&self.weights, logits, |weight, logit| {
                let log = weighed.log_weight(logit as f32);
                if weight >= least && weight > 0.0 {
                    weight * log
                } else {
                    0.0
                }
            });
            row.entropy = row.mass.ln() - moment / row.mass;
        }
        row
    }

    /// The token at which the kept tokens' mass, best first, first exceeds `uniform` of it.
    pub(super) fn sample(
        &mut self,
        logits: &[f32],
        weighed: &Weighed,
        filters: &Filters,
        row: Row,
        uniform: f64,
    ) -> u32 {
        let mut count = FIRST_RANKED;
        if filters.top_k < logits.len() {
            count = count.max(filters.top_k);
        }
        loop {
            self.rank(logits, count);
            let is_whole = self.ranked.len() < count || count >= logits.len();
            let range = filters.keep(&self.ranked_weights(logits, weighed), row, is_whole);
            if let Some(token) = range.and_then(|range| self.sample_ranked(range, uniform)) {
                return token;
            }
            if !filters.read_ranking() {
                // A flat row, where neither filters nor sample end among the first: top-k would have.
                let buckets = Buckets::new(logits, &self.weights, weighed.greatest, weighed.temperature);
                return buckets.sample(row.mass, filters, uniform, &mut self.ranked);
            }
            count = count.saturating_mul(RANK_MORE);
        }
    }

    /// What is sampled from: the kept tokens with their probabilities, best first. For tests; ranks the whole row.
    pub(super) fn distribution(
        &mut self,
        logits: &[f32],
        weighed: &Weighed,
        filters: &Filters,
        row: Row,
    ) -> Vec<(u32, f64)> {
        self.rank(logits, logits.len());
        let ranked = self.ranked_weights(logits, weighed);
        let range = filters.keep(&ranked, row, true).expect("the ranking is whole");
        let kept = self.ranked[range.first..range.end]
            .iter()
            .zip(&ranked[range.first..range.end]);
        kept.map(|(key, (_, weight))| (token_of(*key), weight / range.mass))
            .collect()
    }

    fn ranked_weights(&self, logits: &[f32], weighed: &Weighed) -> Vec<Ranked> {
        let ranked = |key: &u64| (weighed.log_weight(logits[token_of(*key) as usize]), self.weight(*key));
        self.ranked.iter().map(ranked).collect()
    }

    /// [`Self::sample`] from the ranked tokens, or `None` if it lies beyond them.
    fn sample_ranked(&self, range: Range, uniform: f64) -> Option<u32> {
        let kept = &self.ranked[range.first..range.end];
        let mut reached = 0.0;
        for key in kept {
            reached += self.weight(*key);
            if reached > uniform * range.mass {
                return Some(token_of(*key));
            }
        }
        // If these are all, only rounding can be short of the mass: the last token that has any.
        range.is_all.then(|| {
            let last = kept.iter().rfind(|key| self.weight(**key) > 0.0);
            token_of(*last.unwrap_or(&self.ranked[0]))
        })
    }

    /// The weight of a token.
    pub(super) fn weight_of(&self, token: u32) -> f64 {
        f64::from(self.weights[token as usize])
    }

    /// The weights of the best `count` tokens, best first.
    pub(super) fn best_weights(&mut self, logits: &[f32], count: usize) -> Vec<f64> {
        self.rank(logits, count);
        self.ranked.iter().map(|key| self.weight(*key)).collect()
    }

    fn weight(&self, key: u64) -> f64 {
        f64::from(self.weights[token_of(key) as usize])
    }

    /// Fills `weights`; gives their sum.
    fn weigh(&mut self, logits: &[f32], greatest: f32, temperature: f32) -> f64 {
        self.weights.clear();
        self.weights.extend_from_slice(logits);
        exp_sum(self.isa, &mut self.weights, greatest, temperature)
    }

    /// Puts the best `count` tokens into `ranked`; fewer if fewer are allowed.
    fn rank(&mut self, logits: &[f32], count: usize) {
        self.ranked.clear();
        if count == 0 {
            return;
        }
        let bound = self.bound(logits, count);
        for (i, run) in logits.chunks(RUN).enumerate() {
            if self.run_maxima[i] < bound {
                continue;
            }
            for (j, logit) in run.iter().enumerate() {
                if *logit >= bound && *logit > f32::NEG_INFINITY {
                    self.ranked.push(rank_key(*logit, i * RUN + j));
                }
            }
        }
        if self.ranked.len() > count {
            self.ranked.select_nth_unstable(count - 1);
        }
        self.ranked.truncate(count);
        self.ranked.sort_unstable();
    }

    /// A logit that at least `count` tokens reach: the `count`-th greatest maximum of runs.
    fn bound(&mut self, logits: &[f32], count: usize) -> f32 {
        let maximum = |run: &[f32]| run.iter().fold(f32::NEG_INFINITY, |a, b| if *b > a { *b } else { a });
        self.run_maxima.clear();
        self.run_maxima.extend(logits.chunks(RUN).map(maximum));
        if count > self.run_maxima.len() {
            return f32::NEG_INFINITY;
        }
        let mut maxima = self.run_maxima.clone();
        *maxima.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a)).1
    }
}
