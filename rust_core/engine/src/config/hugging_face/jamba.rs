//! Jamba in a `config.json`: which layers have attention and which have experts, by periods, and its Mamba.

use super::JsonConfig;
use crate::config::{MOST_LAYERS, Mamba1, Recurrent, invalid};
use crate::weights::ModelFileError;

/// The family's name.
pub(super) const NAME: &str = "jamba";

/// What is read of it besides; what says how others compute it, and what is so in all files.
pub(super) const FIELDS: &str = "attn_layer_period attn_layer_offset mamba_d_state mamba_d_conv mamba_expand mamba_dt_rank \
    mamba_conv_bias use_mamba_kernels use_mambapy use_associative_scan num_logits_to_keep calc_logits_for_entire_prompt n_ctx";

/// What is read of its experts besides.
pub(super) const OF_EXPERTS: &str = "expert_layer_period expert_layer_offset";

/// Periods and their offsets, where nothing is said.
const ATTENTION: (usize, usize) = (8, 4);
const EXPERTS: (usize, usize) = (2, 1);
/// Columns of the stream for each compressed step, likewise.
const COLUMNS_PER_STEP: usize = 16;

impl JsonConfig<'_> {
    /// Mamba's layers, and which they are.
    pub(super) fn jamba_recurrent(&self, num_layers: usize) -> Result<(Option<Recurrent>, Vec<bool>), ModelFileError> {
        let attention = self.every("attn", ATTENTION, num_layers)?;
        let layers: Vec<bool> = attention.into_iter().map(|has_attention| !has_attention).collect();
        let mamba = layers.contains(&true).then(|| self.mamba1().map(Recurrent::Mamba1));
        Ok((mamba.transpose()?, layers))
    }

    /// Which layers have no experts.
    pub(super) fn jamba_dense_layers(&self, num_layers: usize) -> Result<Vec<bool>, ModelFileError> {
        let experts = self.every("expert", EXPERTS, num_layers)?;
        Ok(experts.into_iter().map(|has_experts| !has_experts).collect())
    }

    /// The layers that are an offset behind a multiple of a period.
    fn every(
        &self,
        kind: &str,
        (period, offset): (usize, usize),
        num_layers: usize,
    ) -> Result<Vec<bool>, ModelFileError> {
        let (period_key, offset_key) = (format!("{kind}_layer_period"), format!("{kind}_layer_offset"));
        let period = self.optional_size(&period_key)?.unwrap_or(period);
        let offset = self.optional_size(&offset_key)?.unwrap_or(offset);
        if offset >= period {
            return Err(invalid(format!(
                "config.json: '{offset_key}' {offset} must be below '{period_key}' {period}"
            )));
        }
        let layers = 0..num_layers.min(MOST_LAYERS);
        Ok(layers.map(|layer| layer % period == offset).collect())
    }

    fn mamba1(&self) -> Result<Mamba1, ModelFileError> {
        let size = |key, default| Ok::<_, ModelFileError>(self.optional_size(key)?.unwrap_or(default));
        let hidden = self.size("hidden_size")?;
        Ok(Mamba1 {
            taps: size("mamba_d_conv", 4)?,
            inner_size: hidden.saturating_mul(size("mamba_expand", 2)?),
            state_size: size("mamba_d_state", 16)?,
            step_rank: match self.text("mamba_dt_rank") {
                Some("auto") => hidden.div_ceil(COLUMNS_PER_STEP),
                _ => size("mamba_dt_rank", hidden.div_ceil(COLUMNS_PER_STEP))?,
            },
            norm_epsilon: Some(self.norm_epsilon(NAME) as f32),
        })
    }
}
