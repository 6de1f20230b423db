//! Counter-based random numbers: a sample is a hash of seed and step, so it needs no state and no order.

/// The increment of SplitMix64 (Steele, Lea and Flood 2014): 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of SplitMix64: a bijection whose every output bit depends on every input bit.
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A number in `[0, 1)` with 53 random bits. Mixed twice, so that close seeds have unrelated streams.
pub(super) fn uniform(seed: u64, step: u64) -> f64 {
    let stream = mix(seed.wrapping_add(GOLDEN));
    let bits = mix(stream.wrapping_add(step.wrapping_add(1).wrapping_mul(GOLDEN)));
    (bits >> 11) as f64 * 2.0_f64.powi(-53)
}
