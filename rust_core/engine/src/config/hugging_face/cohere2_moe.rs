//! Command R7B's layers with experts in a `config.json`: Command A+ and North. The first layers may have none, and positions.

use super::JsonConfig;
use crate::config::{Architecture, Experts, Rating, periodic};
use crate::weights::ModelFileError;

/// Its name.
pub(super) const NAME: &str = "cohere2_moe";
/// What is read of its experts besides.
pub(super) const OF_EXPERTS: &str = "norm_topk_prob num_shared_experts shared_expert_combination_strategy expert_selection_fn \
    mlp_layer_types first_k_dense_replace prefix_dense_intermediate_size prefix_dense_sliding_window_pattern";
/// Of how many layers the last one sees everything: of those with experts.
const PERIOD: usize = 4;

impl JsonConfig<'_> {
    /// Whether norms of the stream are by mean and variance: Command A+'s where nothing is said of the root mean square's.
    pub(super) fn has_layer_norms(&self, architecture: Architecture) -> bool {
        match architecture {
            Architecture::Cohere2Moe => self.number("rms_norm_eps").is_none(),
            architecture => architecture.has_layer_norms(),
        }
    }

    /// How experts are chosen, and joined with those that all tokens share.
    pub(super) fn read_cohere2_moe_router(&self, experts: &mut Experts) -> Result<(), ModelFileError> {
        self.expect_text("expert_selection_fn", &["softmax", "sigmoid"])?;
        self.expect_text("shared_expert_combination_strategy", &["average", "sum"])?;
        let count = self.optional_size("num_shared_experts")?.unwrap_or(0);
        experts.shared_size = count.saturating_mul(self.size("intermediate_size")?);
        if self.text("expert_selection_fn") == Some("sigmoid") {
            experts.rating = Rating::Sigmoid;
        } else {
            experts.is_renormalised = true; // of the chosen alone
        }
        if self.text("shared_expert_combination_strategy") != Some("sum") {
            experts.average();
        }
        Ok(())
    }

    /// Width inside layers without experts.
    pub(super) fn cohere2_moe_dense_size(&self) -> Result<usize, ModelFileError> {
        let own = self.optional_size("prefix_dense_intermediate_size")?;
        own.map_or_else(|| self.size("intermediate_size"), Ok)
    }

    /// Which layers have a window where the file does not say: those without experts have a period of their own.
    pub(super) fn cohere2_moe_windows(&self, num_layers: usize) -> Result<Vec<bool>, ModelFileError> {
        let first = self
            .optional_size("first_k_dense_replace")?
            .unwrap_or(0)
            .min(num_layers);
        let of_first = self.prefix_period()?;
        let others = self.optional_size("sliding_window_pattern")?.unwrap_or(PERIOD);
        Ok([periodic(first, of_first), periodic(num_layers - first, others)].concat())
    }

    /// Which layers have rotary positions: those with windows, and those without experts where they all see everything.
    pub(super) fn cohere2_moe_rotary_layers(&self, windows: &[bool]) -> Result<Vec<bool>, ModelFileError> {
        let dense = self.dense_layers(NAME, windows.len())?;
        let is_forced = self.prefix_period()? == 1;
        let layers = windows.iter().zip(dense);
        Ok(layers
            .map(|(has_window, is_dense)| *has_window || (is_forced && is_dense))
            .collect())
    }

    fn prefix_period(&self) -> Result<usize, ModelFileError> {
        Ok(self.optional_size("prefix_dense_sliding_window_pattern")?.unwrap_or(1))
    }
}
