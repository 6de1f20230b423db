//! Mamba, Falcon-Mamba and Mamba-2 in a `config.json`: all layers are recurrent, and nothing else.

use serde_json::{Map, Value};

use super::JsonConfig;
use crate::config::{Architecture, MOST_LAYERS, Mamba1, Mamba2, ModelConfig, Recurrent, invalid};
use crate::weights::ModelFileError;

/// The families' names.
pub(super) const NAMES: [&str; 3] = ["mamba", FALCON, "mamba2"];
const FALCON: &str = "falcon_mamba";

/// What is read besides; what training, or prompts in chunks, read, and what others name the same sizes; what Codestral
/// Mamba's file says of norms, which are after gates all the same.
pub(super) const FIELDS: &str = "state_size conv_kernel expand time_step_rank use_conv_bias layer_norm_epsilon mixer_rms_eps \
    time_step_scale time_step_min time_step_max time_step_init_scheme time_step_floor rescale_prenorm_residual \
    residual_in_fp32 use_mambapy use_falcon_mambapy use_associative_scan d_model d_inner n_layer ssm_cfg fused_add_norm \
    pad_vocab_size_multiple num_heads n_groups time_step_limit chunk_size norm_before_gate";

/// The epsilon of Falcon-Mamba's norms of what is selected, where nothing is said.
const FALCON_EPSILON: f64 = 1e-6;
/// Columns of the stream for each compressed step, likewise.
const COLUMNS_PER_STEP: usize = 16;

/// The configuration with the sizes that models with attention have; `None` for other models.
pub(super) fn completed(config: &Map<String, Value>) -> Option<Map<String, Value>> {
    let name = config.get("model_type").and_then(Value::as_str)?;
    if !NAMES.contains(&name) {
        return None;
    }
    let mut completed = config.clone();
    let (num_heads, _) = ModelConfig::NO_HEADS;
    for (key, size) in [
        ("num_attention_heads", num_heads),
        ("num_key_value_heads", num_heads),
        ("max_position_embeddings", ModelConfig::MANY_POSITIONS),
    ] {
        completed.entry(key).or_insert_with(|| size.into());
    }
    Some(completed)
}

impl JsonConfig<'_> {
    /// The layers, all of them recurrent.
    pub(super) fn mamba_alone(
        &self,
        architecture: Architecture,
        num_layers: usize,
    ) -> Result<(Option<Recurrent>, Vec<bool>), ModelFileError> {
        self.expect_text("hidden_act", &["silu"])?;
        let recurrent = match architecture {
            Architecture::Mamba2 => Recurrent::Mamba2(self.mamba2_alone()?),
            _ => Recurrent::Mamba1(self.mamba1_alone()?),
        };
        Ok((Some(recurrent), vec![true; num_layers.min(MOST_LAYERS)]))
    }

    fn mamba1_alone(&self) -> Result<Mamba1, ModelFileError> {
        let size = |key, default| Ok::<_, ModelFileError>(self.optional_size(key)?.unwrap_or(default));
        let hidden = self.size("hidden_size")?;
        let is_falcon = self.text("model_type") == Some(FALCON);
        Ok(Mamba1 {
            taps: size("conv_kernel", 4)?,
            inner_size: size("intermediate_size", hidden.saturating_mul(size("expand", 2)?))?,
            state_size: size("state_size", 16)?,
            step_rank: match self.text("time_step_rank") {
                Some("auto") => hidden.div_ceil(COLUMNS_PER_STEP),
                _ => size("time_step_rank", hidden.div_ceil(COLUMNS_PER_STEP))?,
            },
            norm_epsilon: is_falcon.then(|| self.number("mixer_rms_eps").unwrap_or(FALCON_EPSILON) as f32),
        })
    }

    fn mamba2_alone(&self) -> Result<Mamba2, ModelFileError> {
        let size = |key, default| Ok::<_, ModelFileError>(self.optional_size(key)?.unwrap_or(default));
        let (num_heads, head_size) = (size("num_heads", 128)?, size("head_dim", 64)?);
        let inner = self.size("hidden_size")?.saturating_mul(size("expand", 2)?);
        if num_heads.checked_mul(head_size) != Some(inner) {
            return Err(invalid(format!(
                "config.json: 'num_heads' {num_heads} times 'head_dim' {head_size} must be {inner}, the hidden size times \
                 'expand'"
            )));
        }
        Ok(Mamba2 {
            taps: size("conv_kernel", 4)?,
            num_heads,
            head_size,
            num_groups: size("n_groups", 8)?,
            state_size: size("state_size", 128)?,
            step_limits: self.step_limits()?,
            is_normalised: true,
        })
    }
}
