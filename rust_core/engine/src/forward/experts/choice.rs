//! Which experts a token gets by its router's ratings, and how much of each.

use pyagent_kernels::elementwise;
use pyagent_kernels::isa::Isa;

use crate::config::{Experts, Rating};

/// What sums of sigmoids are at least, so that they can be divided by.
const LEAST_SUM: f64 = 1e-20;

/// Makes weights of a token's ratings: 0 for all but the highest, to which `correction` is added only to choose them.
pub(super) fn weigh(isa: Isa, ratings: &mut [f32], experts: &Experts, correction: Option<&[f32]>) {
    if experts.rating == Rating::InTurn {
        return weigh_in_turn(isa, ratings, experts.num_used);
    }
    // Sigmoids of high ratings are the same number: without a correction, the ratings themselves choose.
    let unrated = ratings.to_vec();
    let Some(of_all) = rate(isa, ratings, experts.rating) else {
        // No ratings to go by: what the token becomes is no number, as its ratings are.
        ratings.fill(0.0);
        ratings[..experts.num_used].fill(f32::NAN);
        return;
    };
    let mut left = match (experts.rating, correction) {
        (Rating::Sigmoid, None) if experts.num_groups == 1 => unrated,
        _ => ratings.to_vec(),
    };
    if let Some(correction) = correction {
        let corrected = left.iter_mut().zip(correction);
        corrected.for_each(|(rating, correction)| *rating = (f64::from(*rating) / of_all) as f32 + correction);
    }
    if experts.num_groups > 1 {
        leave_groups(&mut left, experts);
    }
    let mut weights = vec![0.0; ratings.len()];
    let mut of_chosen = 0.0;
    for _ in 0..experts.num_used {
        let best = highest(&left);
        weights[best] = ratings[best];
        of_chosen += f64::from(ratings[best]);
        left[best] = f32::NEG_INFINITY;
    }
    let total = match (experts.is_renormalised, experts.rating) {
        (false, _) => of_all,
        (true, Rating::Softmax) => of_chosen,
        (true, _) => of_chosen + LEAST_SUM,
    };
    for (rating, weight) in ratings.iter_mut().zip(weights) {
        *rating = (f64::from(weight) / total) as f32 * experts.weight_scale;
    }
}

/// Makes weights of the highest ratings, one after the other: each has its share of those left that are not far below it
/// (Phi-3.5-MoE's `SparseMixer`, arXiv 2409.12136, without its noise).
fn weigh_in_turn(isa: Isa, ratings: &mut [f32], num_used: usize) {
    if !ratings.iter().all(|rating| rating.is_finite()) {
        ratings.fill(0.0);
        ratings[..num_used].fill(f32::NAN);
        return;
    }
    let mut left = ratings.to_vec();
    let mut near = Vec::with_capacity(left.len());
    ratings.fill(0.0);
    for _ in 0..num_used {
        let chosen = highest(&left);
        let best = left[chosen];
        // 0 of 0 is not far.
        let is_far = |rating: f32| (best - rating) / rating.abs().max(best) > (2.0 * Experts::JITTER) as f32;
        near.clear();
        near.extend(
            left.iter()
                .copied()
                .filter(|rating| rating.is_finite() && !is_far(*rating)),
        );
        ratings[chosen] = (1.0 / elementwise::exp_sum(isa, &mut near, best, 1.0)) as f32;
        left[chosen] = f32::NEG_INFINITY;
    }
}

/// Makes shares of ratings, and gives what they are to be divided by; `None` where some are no numbers.
fn rate(isa: Isa, ratings: &mut [f32], rating: Rating) -> Option<f64> {
    match rating {
        Rating::Softmax => {
            let highest = ratings.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let of_all = elementwise::exp_sum(isa, ratings, highest, 1.0);
            of_all.is_finite().then_some(of_all)
        }
        Rating::Sigmoid => {
            elementwise::sigmoid(isa, ratings);
            ratings.iter().all(|rating| rating.is_finite()).then_some(1.0)
        }
        Rating::InTurn => unreachable!("weighed by itself"),
    }
}

/// Takes the experts away that are not in the groups with the best two experts.
fn leave_groups(left: &mut [f32], experts: &Experts) {
    let size = left.len() / experts.num_groups;
    let best_two = |group: &[f32]| {
        let best = highest(group);
        let others = group.iter().enumerate().filter(|(expert, _)| *expert != best);
        let second = others.map(|(_, rating)| *rating).reduce(f32::max);
        group[best] + second.unwrap_or(0.0)
    };
    let mut groups: Vec<f32> = left.chunks_exact(size).map(best_two).collect();
    let mut is_chosen = vec![false; groups.len()];
    for _ in 0..experts.num_used_groups {
        let best = highest(&groups);
        is_chosen[best] = true;
        groups[best] = f32::NEG_INFINITY;
    }
    for (group, is_chosen) in left.chunks_exact_mut(size).zip(is_chosen) {
        if !is_chosen {
            group.fill(f32::NEG_INFINITY);
        }
    }
}

/// Where the highest rating is: the first of equals.
fn highest(ratings: &[f32]) -> usize {
    let mut best = 0;
    for place in 1..ratings.len() {
        if ratings[place] > ratings[best] {
            best = place;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ratings whose sigmoids are one number still choose: the highest, not the first.
    #[test]
    fn the_highest_of_ratings_with_equal_sigmoids_is_chosen() {
        let experts = Experts {
            num_experts: 4,
            num_used: 1,
            rating: Rating::Sigmoid,
            is_renormalised: false,
            weight_scale: 1.0,
            weighs_inputs: true,
            num_groups: 1,
            num_used_groups: 1,
            shared_size: 0,
            is_shared_gated: false,
            shared_scale: 1.0,
            dense_size: 0,
        };
        let mut ratings = [30.0, 40.0, -1.0, 35.0];
        weigh(Isa::best(), &mut ratings, &experts, None);
        assert_eq!(ratings, [0.0, 1.0, 0.0, 0.0]);
    }

    /// The second is weighed among those that the first leaves, and what is far below the best counts for neither.
    #[test]
    fn experts_in_turn_have_shares_of_those_near_them() {
        let experts = Experts {
            rating: Rating::InTurn,
            ..Experts::of(4, 2)
        };
        let mut ratings = [1.0, 2.0, 1.99, 1.98];
        weigh(Isa::best(), &mut ratings, &experts, None);
        let near = |distances: &[f32]| 1.0 / distances.iter().map(|distance| (-distance).exp()).sum::<f32>();
        let expected = [0.0, near(&[0.0, 0.01, 0.02]), near(&[0.0, 0.01]), 0.0];
        for (found, expected) in ratings.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-5, "{ratings:?}");
        }
        let mut ratings = [f32::NAN, 2.0, 1.0, 0.0];
        weigh(Isa::best(), &mut ratings, &experts, None);
        assert!(ratings[0].is_nan() && ratings[1].is_nan());
    }
}
