//! Mamba and Falcon-Mamba in a `config.json`: all layers are recurrent, and nothing else.

use serde_json::{Map, Value};

use super::JsonConfig;
use crate::config::{MOST_LAYERS, Mamba1, ModelConfig, Recurrent};
use crate::weights::ModelFileError;

pub(super) const NAME: &str = "mamba";
const FALCON: &str = "falcon_mamba";

/// What is read besides; what training reads, and what others name the same sizes.
pub(super) const FIELDS: &str = "state_size conv_kernel expand time_step_rank use_conv_bias layer_norm_epsilon mixer_rms_eps \
    time_step_scale time_step_min time_step_max time_step_init_scheme time_step_floor rescale_prenorm_residual \
    residual_in_fp32 use_mambapy use_falcon_mambapy use_associative_scan d_model d_inner n_layer ssm_cfg fused_add_norm \
    pad_vocab_size_multiple";

/// The epsilon of Falcon-Mamba's norms of what is selected, where nothing is said.
const FALCON_EPSILON: f64 = 1e-6;
/// Columns of the stream for each compressed step, likewise.
const COLUMNS_PER_STEP: usize = 16;

/// The configuration with the sizes that models with attention have; `None` for other models.
pub(super) fn completed(config: &Map<String, Value>) -> Option<Map<String, Value>> {
    let name = config.get("model_type").and_then(Value::as_str)?;
    if ![NAME, FALCON].contains(&name) {
        return None;
    }
    let mut completed = config.clone();
    let (num_heads, head_dim) = ModelConfig::NO_HEADS;
    for (key, size) in [
        ("num_attention_heads", num_heads),
        ("num_key_value_heads", num_heads),
        ("head_dim", head_dim),
        ("max_position_embeddings", ModelConfig::MANY_POSITIONS),
    ] {
        completed.entry(key).or_insert_with(|| size.into());
    }
    Some(completed)
}

impl JsonConfig<'_> {
    /// The layers, all of them recurrent.
    pub(super) fn mamba_alone(&self, num_layers: usize) -> Result<(Option<Recurrent>, Vec<bool>), ModelFileError> {
        let size = |key, default| Ok::<_, ModelFileError>(self.optional_size(key)?.unwrap_or(default));
        let hidden = self.size("hidden_size")?;
        let is_falcon = self.text("model_type") == Some(FALCON);
        let shape = Mamba1 {
            taps: size("conv_kernel", 4)?,
            inner_size: size("intermediate_size", hidden.saturating_mul(size("expand", 2)?))?,
            state_size: size("state_size", 16)?,
            step_rank: match self.text("time_step_rank") {
                Some("auto") => hidden.div_ceil(COLUMNS_PER_STEP),
                _ => size("time_step_rank", hidden.div_ceil(COLUMNS_PER_STEP))?,
            },
            norm_epsilon: is_falcon.then(|| self.number("mixer_rms_eps").unwrap_or(FALCON_EPSILON) as f32),
        };
        let layers = vec![true; num_layers.min(MOST_LAYERS)];
        Ok((Some(Recurrent::Mamba1(shape)), layers))
    }
}
