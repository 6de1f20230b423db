//! The ranking of a flat row, in which thousands of tokens share the mass.
//!
//! Tokens fall into buckets by their distance from the best, so a bucket's tokens all rank before the next
//! bucket's. Whole buckets are passed over by their mass; only the one or two in which the filters or the sample
//! end are sorted. The time is linear in the vocabulary, whatever the row.

use super::filters::{Filters, Walk};
use super::rank::{rank_key, token_of};
use super::weigh::Weighed;

/// Buckets for each factor of e in weight.
const PER_NAT: f32 = 256.0;
/// Buckets; the last also takes all that weighs less than e^-32 of the best.
const NUM_BUCKETS: usize = 32 * PER_NAT as usize;
/// The last bucket, as a depth.
const LAST: f32 = (NUM_BUCKETS - 1) as f32;

/// Tokens that are looked at together for one of a bucket.
const RUN: usize = 64;

/// A row divided by weight.
pub(super) struct Buckets<'a> {
    logits: &'a [f32],
    weights: &'a [f32],
    /// Each token's bucket.
    buckets: Vec<u16>,
    masses: Vec<f64>,
}

/// A place in the ranking: `count` tokens of a bucket, and all of those before it.
struct End {
    bucket: usize,
    count: usize,
    mass: f64,
}

impl<'a> Buckets<'a> {
    /// Divides a row whose tokens have these weights.
    pub(super) fn new(weighed: &Weighed<'a>, weights: &'a [f32]) -> Self {
        // Buckets for each unit of logit.
        let per_unit = (PER_NAT / weighed.temperature).min(f32::MAX);
        let depth = |logit: &f32| ((weighed.greatest - logit) * per_unit).min(LAST);
        let buckets: Vec<u16> = weighed.logits.iter().map(|logit| depth(logit) as i32 as u16).collect();
        let mut masses = vec![0.0; NUM_BUCKETS];
        for (bucket, weight) in buckets.iter().zip(weights) {
            masses[usize::from(*bucket)] += f64::from(*weight);
        }
        Self {
            logits: weighed.logits,
            weights,
            buckets,
            masses,
        }
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
        // The first bucket whose tokens may weigh too little: a hair less than its border, as weights are rounded.
        let border = |bucket: usize| (-(bucket as f64 + 1.01) / f64::from(PER_NAT)).exp();
        let (mut light, mut above) = (0, NUM_BUCKETS);
        while light < above {
            let middle = (light + above) / 2;
            (light, above) = if walk.cuts(border(middle)) {
                (light, middle)
            } else {
                (middle + 1, above)
            };
        }
        for (bucket, mass) in self.masses.iter().enumerate() {
            if !filters.cut_by_mass() || bucket < light && !walk.may_end_within(*mass) {
                walk.mass += mass;
                continue;
            }
            if *mass == 0.0 {
                continue; // nothing is there
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

    /// Puts the keys of a bucket's tokens into `keys`, best first.
    fn sort(&self, bucket: usize, keys: &mut Vec<u64>) {
        keys.clear();
        for (i, run) in self.buckets.chunks(RUN).enumerate() {
            // Without an early exit this is vectorised; most runs have none of the bucket.
            if !run.iter().fold(false, |found, other| found | (*other == bucket as u16)) {
                continue;
            }
            for (token, _) in (i * RUN..).zip(run).filter(|(_, other)| **other == bucket as u16) {
                if self.logits[token] > f32::NEG_INFINITY {
                    keys.push(rank_key(self.logits[token], token));
                }
            }
        }
        keys.sort_unstable();
    }

    fn weight(&self, key: u64) -> f64 {
        f64::from(self.weights[token_of(key) as usize])
    }
}
