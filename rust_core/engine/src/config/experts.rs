//! The experts of a mixture: how many there are, and how a token's are chosen and weighed.

use super::invalid;
use crate::weights::ModelFileError;

/// What a router's ratings become before experts are chosen by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rating {
    /// Shares of all experts that sum to one.
    Softmax,
    /// Each by itself.
    Sigmoid,
    /// Phi-3.5-MoE: experts are chosen one after the other, each with its share of those left that are not far below it.
    InTurn,
}

/// The experts of a feed-forward block, of which each token has those that its router rates highest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Experts of a layer.
    pub num_experts: usize,
    /// Experts of a token.
    pub num_used: usize,
    /// What they are chosen by; a layer may have a correction for each, which the weights do not have.
    pub rating: Rating,
    /// Whether the weights of a token's experts are divided by their sum.
    pub is_renormalised: bool,
    /// Factor on weights, after that.
    pub weight_scale: f32,
    /// Llama 4: whether weights are factors of what experts are given, not of what they give.
    pub weighs_inputs: bool,
    /// Groups of neighbouring experts (DeepSeek-V3, arXiv 2412.19437): those with the best two experts are chosen first.
    pub num_groups: usize,
    /// Groups that a token's experts are chosen from.
    pub num_used_groups: usize,
    /// Width inside the expert that all tokens share; 0 where there is none.
    pub shared_size: usize,
    /// Whether each token has a weight for that expert.
    pub is_shared_gated: bool,
    /// Factor on what that expert gives.
    pub shared_scale: f32,
    /// Width inside the feed-forward block of layers without experts; 0 where all have some.
    pub dense_size: usize,
}

/// Experts of a layer at most.
const MOST_EXPERTS: usize = 1_024;
/// Width of a feed-forward block at most.
const MOST_SIZE: usize = 1 << 22;

impl Experts {
    /// Of experts that are chosen in turn, those are far below the best whose distance to it is more than twice this share.
    pub const JITTER: f64 = 0.01;

    /// Experts of which a token has the most likely, each with its share of the likelihood.
    pub(crate) fn of(num_experts: usize, num_used: usize) -> Self {
        Self {
            num_experts,
            num_used,
            rating: Rating::Softmax,
            is_renormalised: true,
            weight_scale: 1.0,
            weighs_inputs: false,
            num_groups: 1,
            num_used_groups: 1,
            shared_size: 0,
            is_shared_gated: false,
            shared_scale: 1.0,
            dense_size: 0,
        }
    }

    /// Takes the mean of what routed and shared experts give, where there are any of these.
    pub(super) fn average(&mut self) {
        if self.shared_size > 0 {
            (self.weight_scale, self.shared_scale) = (0.5 * self.weight_scale, 0.5);
        }
    }

    /// Refuses what no token can have.
    pub(super) fn check(&self) -> Result<(), ModelFileError> {
        let limits = [
            ("experts of a layer", self.num_experts, 1, MOST_EXPERTS),
            ("experts of a token", self.num_used, 1, self.num_experts),
            ("groups of experts", self.num_groups, 1, self.num_experts),
            ("groups of a token", self.num_used_groups, 1, self.num_groups),
            ("columns of a shared expert", self.shared_size, 0, MOST_SIZE),
            ("columns of a dense layer", self.dense_size, 0, MOST_SIZE),
        ];
        if let Some((what, value, least, most)) = limits
            .into_iter()
            .find(|(_, value, least, most)| !(least..=most).contains(&value))
        {
            return Err(invalid(format!("{what} are {value}; expected {least} to {most}")));
        }
        if self.rating == Rating::InTurn && self.num_used != 2 {
            let count = self.num_used;
            return Err(invalid(format!(
                "experts of a token are {count}; expected 2, chosen in turn"
            )));
        }
        let group = self.num_experts / self.num_groups;
        if group * self.num_groups != self.num_experts || self.num_used > group * self.num_used_groups {
            return Err(invalid(format!(
                "{} of {} experts in {} of {} groups cannot be chosen",
                self.num_used, self.num_experts, self.num_used_groups, self.num_groups
            )));
        }
        if !(self.weight_scale.is_finite() && self.weight_scale > 0.0) {
            return Err(invalid(
                "the factor on experts' weights is not a number above 0".to_owned(),
            ));
        }
        Ok(())
    }
}
