//! The ranking of a row's tokens, made only as far down as a question needs.
//!
//! A vocabulary has up to 262,144 tokens and the filters mostly keep a few dozen. So a bound is found that at
//! least `n` tokens reach (from the maxima of runs of tokens, one pass), the tokens that reach it are gathered
//! (a second pass) and only those are sorted. A row too flat for that is divided into buckets.

use super::buckets::Buckets;
use super::{SampleError, SamplingParams};
use crate::elementwise::exp_sum;
use crate::isa::Isa;

/// Tokens ranked at first, unless top-k says how many are needed.
const FIRST_RANKED: usize = 256;
/// Tokens under one maximum when looking for a bound.
pub(super) const RUN: usize = 32;

/// The filters, each of which keeps a prefix of the ranking.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    top_k: usize,
    top_p: f64,
    min_p: f32,
}

/// A prefix of the ranking.
struct Kept {
    count: usize,
    /// Weight of all that the filters keep.
    mass: f64,
    /// Whether the prefix is all that they keep, and not only the part that is ranked.
    is_all: bool,
}

/// Top-p and min-p, going down the ranking.
pub(super) struct Walk {
    /// The weight at which top-p has enough.
    target: f64,
    min_p: f64,
    pub(super) count: usize,
    pub(super) mass: f64,
}

impl Walk {
    /// At the top of a ranking of `total` weight.
    pub(super) fn new(limits: &Limits, total: f64) -> Self {
        let target = if limits.top_p < 1.0 {
            limits.top_p * total
        } else {
            f64::INFINITY
        };
        Self {
            target,
            min_p: f64::from(limits.min_p),
            count: 0,
            mass: 0.0,
        }
    }

    /// Whether the filters may end among tokens of `mass` together and at least `least` each.
    pub(super) fn may_end_within(&self, mass: f64, least: f64) -> bool {
        self.mass + mass >= self.target || least < self.min_p
    }

    /// Takes in the next token unless min-p cuts it; whether it is the last, or cut.
    pub(super) fn ends_after(&mut self, weight: f64) -> bool {
        // The best token's weight is 1, so a weight is the ratio that min-p bounds.
        if weight < self.min_p {
            return true;
        }
        self.count += 1;
        self.mass += weight;
        self.mass >= self.target
    }
}

impl Limits {
    /// Whether top-p or min-p may cut.
    pub(super) fn cut_by_mass(&self) -> bool {
        self.top_p < 1.0 || self.min_p > 0.0
    }

    pub(super) fn of(params: &SamplingParams) -> Self {
        let top_k = if params.top_k == 0 { usize::MAX } else { params.top_k };
        Self {
            top_k,
            top_p: f64::from(params.top_p),
            min_p: params.min_p,
        }
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

    /// The token at which the kept tokens' mass, best first, first exceeds `uniform` of it.
    pub(super) fn sample(&mut self, logits: &[f32], best: u32, temperature: f32, limits: &Limits, uniform: f64) -> u32 {
        let greatest = logits[best as usize];
        let total = self.weigh(logits, greatest, temperature);
        let is_cut_by_k = limits.top_k < logits.len();
        let count = if is_cut_by_k {
            FIRST_RANKED.max(limits.top_k)
        } else {
            FIRST_RANKED
        };
        self.rank(logits, count);
        let is_whole = self.ranked.len() < count || count >= logits.len();
        match self.kept(total, is_whole, limits) {
            Some(kept) => self.sample_ranked(&kept, uniform),
            None => None,
        }
        .unwrap_or_else(|| {
            // A flat row, where neither filters nor sample end among the first: top-k would have.
            let buckets = Buckets::new(logits, &self.weights, greatest, temperature);
            buckets.sample(total, limits, uniform, &mut self.ranked)
        })
    }

    /// [`Self::sample`] from the ranked tokens, or `None` if it lies beyond them.
    fn sample_ranked(&self, kept: &Kept, uniform: f64) -> Option<u32> {
        let mut reached = 0.0;
        for key in &self.ranked[..kept.count] {
            reached += self.weight(*key);
            if reached > uniform * kept.mass {
                return Some(token_of(*key));
            }
        }
        // If these are all, only rounding can be short of the mass: the last token that has any.
        kept.is_all.then(|| {
            let last = self.ranked[..kept.count].iter().rfind(|key| self.weight(**key) > 0.0);
            token_of(*last.unwrap_or(&self.ranked[0]))
        })
    }

    /// What the filters keep of the ranked tokens. `None` when they end beyond them.
    fn kept(&self, total: f64, is_whole: bool, limits: &Limits) -> Option<Kept> {
        let is_cut_by_k = limits.top_k <= self.ranked.len();
        let candidates = &self.ranked[..self.ranked.len().min(limits.top_k)];
        let candidate_mass = if is_cut_by_k {
            candidates.iter().map(|key| self.weight(*key)).sum()
        } else {
            total
        };
        let is_all = is_whole || is_cut_by_k;
        if !limits.cut_by_mass() {
            return Some(Kept {
                count: candidates.len(),
                mass: candidate_mass,
                is_all,
            });
        }
        let mut walk = Walk::new(limits, candidate_mass);
        let ended = candidates.iter().position(|key| walk.ends_after(self.weight(*key)));
        let is_ended = ended.is_some() || is_all;
        is_ended.then_some(Kept {
            count: walk.count,
            mass: walk.mass,
            is_all: true,
        })
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
