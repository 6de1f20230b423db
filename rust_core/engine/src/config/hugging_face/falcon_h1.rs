//! Falcon-H1's `config.json`: the state space of each layer, and the factors on its parts.

use serde_json::Value;

use super::JsonConfig;
use crate::config::{Architecture, Mamba2, Multipliers, invalid};
use crate::weights::ModelFileError;

/// What is read of it besides, and what its files say that is so in all of them, or that training and prompts in chunks read.
pub(super) const FIELDS: &str = "mamba_d_ssm mamba_n_heads mamba_d_head mamba_n_groups mamba_d_state mamba_d_conv mamba_expand \
    mamba_conv_bias mamba_rms_norm mamba_norm_before_gate mamba_proj_bias projectors_bias time_step_limit lm_head_multiplier \
    embedding_multiplier mlp_multipliers key_multiplier attention_in_multiplier attention_out_multiplier ssm_multipliers \
    ssm_in_multiplier ssm_out_multiplier mamba_chunk_size mamba_use_mlp mlp_expansion_factor attn_layer_indices \
    num_logits_to_keep layers_block_type time_step_min time_step_max time_step_floor time_step_rank rescale_prenorm_residual \
    residual_in_fp32";

/// Biases of matrices whose products have factors: none of the published models has them.
const WITHOUT: [&str; 4] = ["attention_bias", "mlp_bias", "mamba_proj_bias", "projectors_bias"];
/// Channels of a state space where nothing is said.
const INNER_SIZE: usize = 1_024;

impl JsonConfig<'_> {
    /// Layers here: two for each of a Falcon-H1's.
    pub(super) fn num_layers(&self, architecture: Architecture) -> Result<usize, ModelFileError> {
        let count = self.size("num_hidden_layers")?;
        let halves = 1 + usize::from(architecture == Architecture::FalconH1);
        Ok(count.saturating_mul(halves))
    }

    pub(super) fn mamba2_of_falcon(&self) -> Result<Mamba2, ModelFileError> {
        let size = |key, default| Ok::<_, ModelFileError>(self.optional_size(key)?.unwrap_or(default));
        let is_true = |key: &&str| {
            self.0
                .get(*key)
                .is_some_and(|value| value.as_bool() != Some(false) && !value.is_null())
        };
        if let Some(key) = WITHOUT.iter().find(|key| is_true(key)) {
            return Err(invalid(format!("config.json: '{key}' must be false for falcon_h1")));
        }
        let inner = match self.0.get("mamba_d_ssm") {
            Some(Value::Null) => self.size("hidden_size")?.saturating_mul(size("mamba_expand", 2)?),
            _ => size("mamba_d_ssm", INNER_SIZE)?,
        };
        let num_heads = size("mamba_n_heads", 128)?;
        let shared = inner / num_heads.max(1);
        let head_size = match self.text("mamba_d_head") {
            Some("auto") => shared,
            _ => size("mamba_d_head", shared)?,
        };
        if num_heads.checked_mul(head_size) != Some(inner) {
            return Err(invalid(format!(
                "config.json: 'mamba_n_heads' {num_heads} times 'mamba_d_head' {head_size} must be 'mamba_d_ssm', {inner}"
            )));
        }
        let is_normalised = self.truth("mamba_rms_norm").unwrap_or(false);
        if is_normalised && self.truth("mamba_norm_before_gate").unwrap_or(true) {
            let text = "config.json: 'mamba_norm_before_gate' must be false where 'mamba_rms_norm' is true";
            return Err(invalid(text.to_owned()));
        }
        Ok(Mamba2 {
            taps: size("mamba_d_conv", 4)?,
            num_heads,
            head_size,
            num_groups: size("mamba_n_groups", 1)?,
            state_size: size("mamba_d_state", 256)?,
            step_limits: self.step_limits()?,
            is_normalised,
        })
    }

    /// The factors on a layer's parts. Those on what attention reads are in the factors on scores and on what it gives.
    pub(super) fn multipliers(&self, architecture: Architecture) -> Result<Option<Multipliers>, ModelFileError> {
        if architecture != Architecture::FalconH1 {
            return Ok(None);
        }
        let [gate, down] = self.factors("mlp_multipliers")?;
        let space_input = self.factor("ssm_in_multiplier")?;
        let attention = self.factor("attention_in_multiplier")? * self.factor("attention_out_multiplier")?;
        Ok(Some(Multipliers {
            gate,
            outputs: [self.factor("ssm_out_multiplier")?, attention, down],
            space: self.factors("ssm_multipliers")?.map(|factor: f32| factor * space_input),
        }))
    }

    /// Factor on Falcon-H1's scores beside that of every head: of what queries and keys are made of, and of keys.
    pub(super) fn falcon_score_factor(&self) -> Result<f32, ModelFileError> {
        let input = self.factor("attention_in_multiplier")?;
        Ok(input * input * self.factor("key_multiplier")?)
    }

    /// So many factors; 1 where nothing is said.
    fn factors<const N: usize>(&self, key: &str) -> Result<[f32; N], ModelFileError> {
        let Some(said) = self.0.get(key).filter(|value| !value.is_null()) else {
            return Ok([1.0; N]);
        };
        let numbers = said.as_array().map(|all| all.iter().map(Value::as_f64));
        let numbers: Option<Vec<f32>> = numbers.and_then(|all| all.map(|one| Some(one? as f32)).collect());
        let numbers: Option<[f32; N]> = numbers.and_then(|all| all.try_into().ok());
        let numbers = numbers.filter(|all| all.iter().all(|one| one.is_finite() && *one > 0.0));
        numbers.ok_or_else(|| invalid(format!("config.json: '{key}' must be {N} numbers above 0")))
    }
}
