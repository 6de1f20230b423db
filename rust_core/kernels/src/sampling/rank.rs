//! The ranking of a row's tokens, made only as far down as a question needs.
//!
//! A vocabulary has up to 262,144 tokens and the filters mostly keep a few dozen. So a bound is found that at
//! least `n` tokens reach (`scan.rs`), the tokens that reach it are gathered, and only those are weighed and sorted. A
//! row too flat for that is divided into buckets.

use super::SampleError;
use super::buckets::Buckets;
use super::filters::{Filters, Range, Ranked, mass_of};
use super::scan::Scan;
use super::weigh::{Row, Weighed, deviation};
use crate::isa::Isa;

/// Tokens ranked at first, unless top-k says how many are needed.
const FIRST_RANKED: usize = 256;
/// The part of the mass that the first have where the ranking goes further; where they have less, the row is flat.
const NEAR: f64 = 0.5;
/// How much further the ranking goes when filters need more of it.
const RANK_MORE: usize = 16;

/// Log-probabilities of a row.
pub(super) struct Report {
    pub(super) top: Vec<(u32, f32)>,
    pub(super) entropy: Option<f32>,
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

/// Works out rankings; keeps its memory from row to row.
#[derive(Clone, Debug)]
pub(super) struct Ranking {
    isa: Isa,
    scan: Scan,
    /// Keys of the best tokens, best first.
    ranked: Vec<u64>,
    /// Numbers of the ranked tokens, or of all tokens of a flat row.
    weights: Vec<f32>,
}

impl Ranking {
    pub(super) fn new(isa: Isa) -> Self {
        Self {
            isa,
            scan: Scan::new(isa),
            ranked: Vec::new(),
            weights: Vec::new(),
        }
    }

    /// Takes in a row, of which the other methods are then asked; its best token.
    pub(super) fn begin(&mut self, logits: &[f32]) -> Result<u32, SampleError> {
        self.scan.begin(logits)
    }

    /// The row's spread.
    pub(super) fn deviation(&self, logits: &[f32]) -> f32 {
        deviation(self.isa, logits)
    }

    /// The row at a temperature.
    pub(super) fn weighed<'a>(&self, logits: &'a [f32], best: u32, temperature: f32) -> Weighed<'a> {
        Weighed::new(self.isa, logits, best, temperature)
    }

    /// The best `count` tokens, best first.
    #[cfg(test)]
    pub(super) fn best(&mut self, logits: &[f32], count: usize) -> Vec<u32> {
        if self.begin(logits).is_err() {
            return Vec::new();
        }
        self.rank(logits, count);
        self.ranked.iter().map(|key| token_of(*key)).collect()
    }

    /// Log-probabilities of a row at temperature 1, with the `count` best tokens; the entropy comes of the same pass.
    pub(super) fn log_probabilities(&mut self, logits: &[f32], best: u32, count: usize, has_entropy: bool) -> Report {
        let row = self.weighed(logits, best, 1.0).row(0.0, has_entropy);
        self.rank(logits, count);
        let mut report = Report {
            top: Vec::new(),
            // Rounding may leave a row of one token with less than nothing.
            entropy: has_entropy.then(|| row.entropy().max(0.0) as f32),
            greatest: row.weighed.greatest,
            log_sum: row.mass().ln(),
        };
        let entry = |key: &u64| (token_of(*key), report.of(logits[token_of(*key) as usize]));
        report.top = self.ranked.iter().map(entry).collect();
        report
    }

    /// The token at which the kept tokens' mass, best first, first exceeds `uniform` of it.
    pub(super) fn sample(&mut self, row: &Row<'_>, filters: &Filters, uniform: f64) -> u32 {
        let weighed = &row.weighed;
        let vocab = weighed.logits.len();
        let mut count = if filters.top_k < vocab {
            filters.top_k
        } else {
            FIRST_RANKED
        };
        loop {
            self.rank(weighed.logits, count);
            let is_whole = self.ranked.len() < count || count >= vocab;
            let ranked = self.ranked_weights(weighed);
            let range = filters.keep(&ranked, row, is_whole);
            if let Some(token) = range.and_then(|range| self.sample_ranked(&ranked, range, uniform)) {
                return token;
            }
            let is_near = count == FIRST_RANKED && mass_of(&ranked) > NEAR * row.mass();
            if !is_near && (!filters.read_ranking() || filters.is_xtc_idle(&ranked, row)) {
                // A flat row, where neither filters nor sample end among the first: top-k would have.
                self.weights.clear();
                self.weights.extend_from_slice(weighed.logits);
                weighed.weigh(&mut self.weights);
                let buckets = Buckets::new(weighed, &self.weights);
                return buckets.sample(row.mass(), filters, uniform, &mut self.ranked);
            }
            count = count.saturating_mul(RANK_MORE);
        }
    }

    /// What is sampled from: the kept tokens with their probabilities, best first. For tests; ranks the whole row.
    pub(super) fn distribution(&mut self, row: &Row<'_>, filters: &Filters) -> Vec<(u32, f64)> {
        self.rank(row.weighed.logits, row.weighed.logits.len());
        let ranked = self.ranked_weights(&row.weighed);
        let range = filters.keep(&ranked, row, true).expect("the ranking is whole");
        let kept = self.ranked[range.first..range.end]
            .iter()
            .zip(&ranked[range.first..range.end]);
        kept.map(|(key, (_, weight))| (token_of(*key), weight / range.mass))
            .collect()
    }

    fn ranked_weights(&mut self, weighed: &Weighed<'_>) -> Vec<Ranked> {
        let logit = |key: &u64| weighed.logits[token_of(*key) as usize];
        self.weights.clear();
        self.weights.extend(self.ranked.iter().map(logit));
        weighed.weigh(&mut self.weights);
        let ranked = self.ranked.iter().zip(&self.weights);
        ranked
            .map(|(key, weight)| (weighed.log_weight(token_of(*key)), f64::from(*weight)))
            .collect()
    }

    /// [`Self::sample`] from the ranked tokens, or `None` if it lies beyond them.
    fn sample_ranked(&self, ranked: &[Ranked], range: Range, uniform: f64) -> Option<u32> {
        let kept = &ranked[range.first..range.end];
        let token = |index: usize| token_of(self.ranked[range.first + index]);
        let mut reached = 0.0;
        for (index, (_, weight)) in kept.iter().enumerate() {
            reached += weight;
            if reached > uniform * range.mass {
                return Some(token(index));
            }
        }
        // If these are all, only rounding can be short of the mass: the last token that has any.
        range.is_all.then(|| {
            let last = kept.iter().rposition(|(_, weight)| *weight > 0.0);
            last.map_or_else(|| token_of(self.ranked[0]), token)
        })
    }

    /// The weights of the best `count` tokens, best first.
    pub(super) fn best_weights(&mut self, weighed: &Weighed<'_>, count: usize) -> Vec<f64> {
        self.rank(weighed.logits, count);
        let ranked = self.ranked_weights(weighed);
        ranked.into_iter().map(|(_, weight)| weight).collect()
    }

    /// Puts the best `count` tokens into `ranked`; fewer if fewer are allowed.
    fn rank(&mut self, logits: &[f32], count: usize) {
        self.scan.gather(logits, count, &mut self.ranked);
        if self.ranked.len() > count {
            self.ranked.select_nth_unstable(count - 1);
        }
        self.ranked.truncate(count);
        self.ranked.sort_unstable();
    }
}
