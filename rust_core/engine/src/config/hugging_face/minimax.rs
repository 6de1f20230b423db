//! MiniMax-01's `config.json`: every other layer has lightning attention where nothing is said.

use super::JsonConfig;
use crate::config::{Architecture, Lightning, MOST_LAYERS, NormedStream, Recurrent};
use crate::weights::ModelFileError;

/// The family's name.
pub(super) const NAME: &str = "minimax";

/// What is read besides; how many tokens the reference takes at a time.
pub(super) const FIELDS: &str = "full_attn_alpha_factor full_attn_beta_factor linear_attn_alpha_factor linear_attn_beta_factor \
    mlp_alpha_factor mlp_beta_factor block_size";

impl JsonConfig<'_> {
    /// The layers, and which of them are recurrent.
    pub(super) fn lightning(
        &self,
        num_layers: usize,
        num_heads: usize,
        head_size: usize,
    ) -> Result<(Option<Recurrent>, Vec<bool>), ModelFileError> {
        // Queries, keys and values of lightning attention are activated by it too.
        self.expect_text("hidden_act", &["silu"])?;
        let by_family = (0..num_layers.min(MOST_LAYERS)).map(|layer| layer % 2 == 1).collect();
        let layers = self.recurrent_layers(&["linear_attention"], num_layers, by_family)?;
        let shape = Lightning { num_heads, head_size };
        Ok((layers.contains(&true).then_some(Recurrent::Lightning(shape)), layers))
    }

    /// Factors on the norms that blocks read and on what they give.
    pub(super) fn normed_stream(&self, architecture: Architecture) -> Result<Option<NormedStream>, ModelFileError> {
        if architecture != Architecture::MiniMax01 {
            return Ok(None);
        }
        let both = |block: &str| {
            let factor = |which| self.factor_above_zero(&format!("{block}_{which}_factor"));
            Ok::<_, ModelFileError>([factor("alpha")?, factor("beta")?])
        };
        Ok(Some(NormedStream {
            attention: both("full_attn")?,
            lightning: both("linear_attn")?,
            experts: both("mlp")?,
        }))
    }
}
