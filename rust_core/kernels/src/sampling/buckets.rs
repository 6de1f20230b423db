//! The ranking of a flat row, in which thousands of tokens share the mass.
//!
//! Tokens fall into buckets by their distance from the best, so a bucket's tokens all rank before the next
//! bucket's. Whole buckets are passed over by their mass; only the one or two in which the filters or the sample
//! end are sorted. The time is linear in the vocabulary, whatever the row.

use super::filters::{Filters, Walk};
use super::rank::{RUN, rank_key, token_of};

/// Buckets for each factor of e in weight.
const PER_NAT: f32 = 256.0;
/// Buckets; the last also takes all that weighs less than e^-32 of the best.
const NUM_BUCKETS: usize = 32 * PER_NAT as usize;
/// The last bucket, as a depth.
const LAST: f32 = (NUM_BUCKETS - 1) as f32;

/// A row divided by weight.
pub(super) struct Buckets<'a> {
    logits: &'a [f32],
    weights: &'a [f32],
    greatest: f32,
    /// Buckets for each unit of logit.
    per_unit: f32,
    masses: Vec<f64>,
}

/// A place in the ranking: `count` tokens of a bucket, and all of those before it.
struct End {
    bucket: usize,
    count: usize,
    mass: f64,
}

impl<'a> Buckets<'a> {
    /// Divides a row whose tokens have these weights, `e^((logit - greatest) / temperature)`.
    pub(super) fn new(logits: &'a [f32], weights: &'a [f32], greatest: f32, temperature: f32) -> Self {
        let per_unit = (PER_NAT / temperature).min(f32::MAX);
        let mut buckets = Self {
            logits,
            weights,
            greatest,
            per_unit,
            masses: vec![0.0; NUM_BUCKETS],
        };
        for (logit, weight) in logits.iter().zip(weights) {
            let bucket = buckets.bucket_of(*logit);
            buckets.masses[bucket] += f64::from(*weight);
        }
        buckets
    }

    /// The token at which the kept mass, best first, first exceeds `uniform` of it. `keys` is worked in.
    pub(super) fn sample(&self, total: f64, filters: &Filters, uniform: f64, keys: &mut Vec<u64>) -> u32 {
        let end = self.end(total, filters, keys);
        let mut reached = 0.0;
        let mut last = 0;
        for (bucket, mass) in self.masses[..=end.bucket].iter().enumerate() {
            let is_end = bucket == end.bucket;
            if !is_end && reached + mass <= uniform * end.mass {
                reached += mass;
                continue;
            }
            self.sort(bucket, keys);
            let count = if is_end { end.count.min(keys.len()) } else { keys.len() };
            for key in &keys[..count] {
                let weight = self.weight(*key);
                reached += weight;
                last = if weight > 0.0 { token_of(*key) } else { last };
                if reached > uniform * end.mass {
                    return last;
                }
            }
        }
        last
    }

    /// Where top-p and min-p end.
    fn end(&self, total: f64, filters: &Filters, keys: &mut Vec<u64>) -> End {
        let mut walk = Walk::new(filters, total, 1.0);
        for (bucket, mass) in self.masses.iter().enumerate() {
            // A hair less than the bucket's lower border, as weights are rounded.
            let least = (-(bucket as f64 + 1.01) / f64::from(PER_NAT)).exp();
            if !filters.cut_by_mass() || !walk.may_end_within(*mass, least) {
                walk.mass += mass;
                continue;
            }
            self.sort(bucket, keys);
            walk.count = 0;
            if keys.iter().any(|key| walk.ends_after(self.weight(*key))) {
                return End {
                    bucket,
                    count: walk.count,
                    mass: walk.mass,
                };
            }
        }
        End {
            bucket: NUM_BUCKETS - 1,
            count: usize::MAX,
            mass: walk.mass,
        }
    }

    /// How far down the buckets a logit lies.
    fn depth(&self, logit: f32) -> f32 {
        ((self.greatest - logit) * self.per_unit).min(LAST)
    }

    fn bucket_of(&self, logit: f32) -> usize {
        self.depth(logit) as u32 as usize
    }

    /// Puts the keys of a bucket's tokens into `keys`, best first.
    fn sort(&self, bucket: usize, keys: &mut Vec<u64>) {
        let (top, bottom) = (bucket as f32, bucket as f32 + 1.0);
        let is_within = |logit: f32| {
            let depth = self.depth(logit);
            (depth >= top) & (depth < bottom)
        };
        keys.clear();
        for (i, run) in self.logits.chunks(RUN).enumerate() {
            // Without an early exit this is vectorised; most runs have none of the bucket.
            if !run.iter().fold(false, |found, logit| found | is_within(*logit)) {
                continue;
            }
            for (j, logit) in run.iter().enumerate() {
                if is_within(*logit) && *logit > f32::NEG_INFINITY {
                    keys.push(rank_key(*logit, i * RUN + j));
                }
            }
        }
        keys.sort_unstable();
    }

    fn weight(&self, key: u64) -> f64 {
        f64::from(self.weights[token_of(key) as usize])
    }
}
