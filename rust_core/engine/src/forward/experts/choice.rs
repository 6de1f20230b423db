//! Which experts a token gets by its router's ratings, and how much of each.

use pyagent_kernels::elementwise;
use pyagent_kernels::isa::Isa;

use crate::config::{Experts, Rating};

/// What sums of sigmoids are at least, so that they can be divided by.
const LEAST_SUM: f64 = 1e-20;

/// Makes weights of a token's ratings: 0 for all but the highest, to which `correction` is added only to choose them.
pub(super) fn weigh(isa: Isa, ratings: &mut [f32], experts: &Experts, correction: Option<&[f32]>) {
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
        (true, Rating::Sigmoid) => of_chosen + LEAST_SUM,
    };
    for (rating, weight) in ratings.iter_mut().zip(weights) {
        *rating = (f64::from(weight) / total) as f32 * experts.weight_scale;
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
}
