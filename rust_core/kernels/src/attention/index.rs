//! Sparse attention's indexer (DeepSeek-V3.2): rates earlier positions by a few small heads, and picks the best of them.
//!
//! A rating is a chain over the index heads in their order, so it does not depend on how many are computed together; which
//! positions are picked follows from ratings alone, and of equals the earlier comes first.

use super::kernel::Group;
use super::{AttentionArgs, AttentionScratch, BLOCK_TOKENS, CHUNK_TOKENS, KvLayout, run_group};
use crate::isa::Isa;
use crate::lanes::{LANES, Lanes};

/// Where a group's rows add to positions' ratings.
#[derive(Clone, Copy)]
pub(super) struct Ratings {
    /// Of each row, the factor of its scores.
    weights: *const f32,
    /// The rating of the group's first block's first position.
    out: *mut f32,
}

/// Rates the positions of some chunks of a token's text: the sum, over index heads, of a weight and the head's score with
/// the position's index key, where that is above 0.
///
/// `args` has one query token; its heads are index heads. `out` has a place for each position of whole chunks from position
/// 0 on, of which those of `chunks` are written; what stands for positions after the token's means nothing.
///
/// # Panics
/// When the layer has no index keys, or weights are not one for each head.
///
/// # Safety
/// As [`super::attend`] but for `args.out`, which is not used; `out` has room for the chunks, which nobody else uses
/// meanwhile.
pub unsafe fn rate(
    isa: Isa,
    layout: &KvLayout,
    args: &AttentionArgs<'_>,
    weights: &[f32],
    chunks: std::ops::Range<usize>,
    out: *mut f32,
    scratch: &mut AttentionScratch,
) {
    let index = layout.index().expect("a layer with index keys");
    assert!(
        args.num_tokens == 1 && weights.len() == args.num_query_heads_per_kv,
        "a weight for each head"
    );
    let args = AttentionArgs {
        kv: args.kv.from(layout.index_at()),
        ..*args
    };
    let limit = args.check(isa, &index);
    // SAFETY: the caller's promises; the scratch was reserved.
    unsafe {
        args.transpose_queries(isa, &index, limit, scratch);
        for chunk in chunks {
            let first = chunk * CHUNK_TOKENS;
            let out = out.add(first);
            std::slice::from_raw_parts_mut(out, CHUNK_TOKENS).fill(0.0);
            args.each_group(&index, limit, chunk, scratch, |group, first_row, _| {
                group.ratings = Some(Ratings {
                    weights: weights[first_row..].as_ptr(),
                    out,
                });
                run_group(isa, group);
            });
        }
    }
}

/// Adds a group's scores to ratings.
///
/// # Safety
/// The group is scored, and the CPU has the set of `L`.
#[inline(always)]
pub(super) unsafe fn add_ratings<L: Lanes, const ROWS: usize>(group: &Group<'_>, ratings: Ratings) {
    for block in 0..group.blocks.len() {
        // SAFETY: the caller promises scores and ratings of the group's blocks, and the set of `L`.
        unsafe {
            let out = ratings.out.add(block * BLOCK_TOKENS);
            let scores = group.scores.add(block * ROWS * LANES);
            let mut sum = L::load(out);
            for row in 0..ROWS {
                let score = L::load(scores.add(row * LANES)).max(L::splat(0.0));
                sum = L::splat(*ratings.weights.add(row)).fma(score, sum);
            }
            sum.store(out);
        }
    }
}

/// Digits of a rating's bits, highest first: where each begins, and how many values it has.
const DIGITS: [(u32, usize); 3] = [(21, 1 << 11), (10, 1 << 11), (0, 1 << 10)];

/// The positions of the best `picked.len()` ratings, in ascending order. Of equal ratings the earlier position is better; a
/// rating that is no number is better or worse than all by its sign.
///
/// # Panics
/// When there are fewer ratings.
pub fn pick(ratings: &[f32], picked: &mut [u32]) {
    assert!(picked.len() <= ratings.len(), "more positions than there are");
    // The least rating that is picked, digit by digit, and how many of it.
    let (mut least, mut mask, mut wanted) = (0_u32, 0_u32, picked.len());
    for (shift, num_values) in DIGITS {
        let mut counts = [0_usize; 1 << 11];
        for rank in ratings.iter().map(|rating| rank(*rating)) {
            if rank & mask == least {
                counts[(rank >> shift) as usize & (num_values - 1)] += 1;
            }
        }
        let mut digit = num_values - 1;
        while digit > 0 && counts[digit] < wanted {
            wanted -= counts[digit];
            digit -= 1;
        }
        least |= (digit as u32) << shift;
        mask |= (num_values as u32 - 1) << shift;
    }
    let mut places = picked.iter_mut();
    for (position, rating) in ratings.iter().enumerate() {
        let rank = rank(*rating);
        let is_last = rank == least && wanted > 0;
        if rank > least || is_last {
            wanted -= usize::from(is_last);
            let Some(place) = places.next() else { return };
            *place = position as u32;
        }
    }
}

/// A number whose order is that of ratings; both zeros are one.
fn rank(rating: f32) -> u32 {
    let bits = (rating + 0.0).to_bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A stable sort by rating gives the same, with many equals, signs, zeros of both kinds and what is no number.
        #[test]
        fn picked_are_the_first_of_a_stable_sort(
            ratings in proptest::collection::vec(prop_oneof![
                (-3_i8..4).prop_map(f32::from), Just(-0.0), any::<f32>().prop_filter("a number", |x| !x.is_nan())], 1..700),
            share in 0.0_f64..=1.0,
        ) {
            let count = (share * ratings.len() as f64) as usize;
            let mut order: Vec<u32> = (0..ratings.len() as u32).collect();
            order.sort_by(|a, b| ratings[*b as usize].partial_cmp(&ratings[*a as usize]).expect("numbers"));
            order.truncate(count);
            order.sort_unstable();
            let mut picked = vec![0; count];
            pick(&ratings, &mut picked);
            prop_assert_eq!(picked, order);
        }
    }
}
