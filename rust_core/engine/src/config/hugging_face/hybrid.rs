//! Recurrent layers in a `config.json`: LFM2's short convolutions, Qwen 3.5's gated delta nets, Granite 4's,
//! Bamba's and Nemotron-H's Mamba-2.

use serde_json::Value;

use super::JsonConfig;
use super::nemotron::Kind;
use crate::config::{Architecture, Blocks, DeltaNet, Mamba2, Recurrent, invalid};
use crate::weights::{ModelFileError, clipped};

/// What is read of LFM2 besides, and what its files say of training and of sizes that are the hidden size.
pub(super) const LFM2: &str = "conv_L_cache conv_bias norm_eps full_attn_idxs tie_embedding block_ff_dim \
    block_auto_adjust_ff_dim block_ffn_dim_multiplier block_multiple_of block_dim conv_dim conv_dim_out num_heads \
    block_norm_eps block_use_swiglu use_pos_enc block_mlp_init_scale block_out_init_scale block_use_xavier_init \
    conv_use_xavier_init theta";

/// What is read of Qwen 3.5 besides; what is said of the head that drafts, which tensors tell; the type of states.
pub(super) const QWEN35: &str = "linear_conv_kernel_dim linear_key_head_dim linear_value_head_dim \
    linear_num_key_heads linear_num_value_heads full_attention_interval attn_output_gate partial_rotary_factor \
    mtp_num_hidden_layers mtp_use_dedicated_embeddings mamba_ssm_dtype";

/// What is read of Granite 4 besides; what only training and prompts in chunks read.
pub(super) const GRANITE: &str = "shared_intermediate_size position_embedding_type mamba_n_heads mamba_n_groups mamba_d_state mamba_d_head \
    mamba_d_conv mamba_expand mamba_conv_bias time_step_limit mamba_chunk_size init_method";

/// What is read of Bamba besides, and what files say of it that is so in all of them, or that training reads.
pub(super) const BAMBA: &str = "attn_layer_indices mamba_n_heads mamba_n_groups mamba_d_state mamba_d_head mamba_d_conv mamba_expand \
    mamba_conv_bias time_step_limit mamba_chunk_size partial_rotary_factor attn_rotary_emb num_logits_to_keep z_loss_coefficient";

/// Granite's factors.
pub(super) const FACTORS: &str = "embedding_multiplier residual_multiplier attention_multiplier logits_scaling";

/// The families' defaults.
const LFM2_TAPS: usize = 3;
const LFM2_MULTIPLE: usize = 256;
const QWEN35_INTERVAL: usize = 4;

impl JsonConfig<'_> {
    /// The recurrent layers of a family that has any, and which they are; it may have as many heads, as wide, as attention.
    pub(super) fn recurrent(
        &self,
        architecture: Architecture,
        num_layers: usize,
        (num_heads, head_dim): (usize, usize),
    ) -> Result<(Option<Recurrent>, Vec<bool>), ModelFileError> {
        match architecture {
            Architecture::Lfm3 => self.lfm3_convolutions(num_layers),
            _ if architecture.has_short_convolutions() => {
                self.check_lfm2()?;
                let taps = self.optional_size("conv_L_cache")?.unwrap_or(LFM2_TAPS);
                let attention = self.0.get("full_attn_idxs").and_then(Value::as_array);
                let has_attention = |layer: usize| {
                    attention.is_none_or(|layers| layers.iter().any(|index| index.as_u64() == Some(layer as u64)))
                };
                let by_family = (0..num_layers.min(crate::config::MOST_LAYERS)).map(|layer| !has_attention(layer));
                let layers = self.recurrent_layers(&["conv"], num_layers, by_family.collect())?;
                Ok((Some(Recurrent::ShortConvolution { taps }), layers))
            }
            _ if architecture.has_delta_nets() => {
                if self
                    .0
                    .get("attn_output_gate")
                    .is_some_and(|gate| gate.as_bool() != Some(true))
                {
                    return Err(invalid("config.json: 'attn_output_gate' must be true".to_owned()));
                }
                let every = self
                    .optional_size("full_attention_interval")?
                    .unwrap_or(QWEN35_INTERVAL);
                let by_family = crate::config::periodic(num_layers, every);
                let layers = self.recurrent_layers(&["linear_attention"], num_layers, by_family)?;
                Ok((Some(Recurrent::DeltaNet(self.delta_net()?)), layers))
            }
            Architecture::GraniteHybrid => {
                let by_family = vec![true; num_layers.min(crate::config::MOST_LAYERS)];
                let layers = self.recurrent_layers(&["linear_attention", "mamba"], num_layers, by_family)?;
                let has_any = layers.contains(&true);
                let space = has_any.then(|| self.mamba2().map(Recurrent::Mamba2));
                Ok((space.transpose()?, layers))
            }
            Architecture::Bamba => {
                let attention = self.0.get("attn_layer_indices").and_then(Value::as_array);
                let indices = attention.and_then(|all| all.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>());
                let attention = indices
                    .filter(|all| all.iter().all(|&index| index < num_layers as u64))
                    .ok_or_else(|| {
                        let text =
                            format!("config.json: 'attn_layer_indices' must be a list of layers below {num_layers}");
                        invalid(text)
                    })?;
                let layers = 0..num_layers.min(crate::config::MOST_LAYERS);
                let layers: Vec<bool> = layers.map(|layer| !attention.contains(&(layer as u64))).collect();
                let space = layers.contains(&true).then(|| self.mamba2().map(Recurrent::Mamba2));
                Ok((space.transpose()?, layers))
            }
            Architecture::FalconH1 => {
                let space = Recurrent::Mamba2(self.mamba2_of_falcon()?);
                Ok((Some(space), crate::config::periodic(num_layers, 2)))
            }
            Architecture::Jamba => self.jamba_recurrent(num_layers),
            Architecture::KimiLinear => self.kimi_recurrent(num_layers),
            Architecture::MiniMax01 => self.lightning(num_layers, num_heads, head_dim),
            _ if architecture.is_recurrent_alone() => self.mamba_alone(architecture, num_layers),
            Architecture::NemotronH => {
                self.check_nemotron()?;
                let layers: Vec<bool> = self.kinds()?.iter().map(|kind| *kind == Kind::Mamba).collect();
                let space = layers
                    .contains(&true)
                    .then(|| self.mamba2_of_nemotron().map(Recurrent::Mamba2));
                Ok((space.transpose()?, layers))
            }
            _ => Ok((None, vec![false; num_layers.min(crate::config::MOST_LAYERS)])),
        }
    }

    /// Which blocks each layer has.
    pub(super) fn blocks(&self, architecture: Architecture, num_layers: usize) -> Result<Vec<Blocks>, ModelFileError> {
        match architecture {
            Architecture::NemotronH => Ok(self.kinds()?.into_iter().map(Kind::blocks).collect()),
            Architecture::FalconH1 => Ok(crate::config::layers::halves(num_layers)),
            _ if architecture.is_recurrent_alone() => {
                Ok(vec![Blocks::Mixer; num_layers.min(crate::config::MOST_LAYERS)])
            }
            _ => Ok(vec![Blocks::Both; num_layers.min(crate::config::MOST_LAYERS)]),
        }
    }

    /// Width of a head.
    pub(super) fn head_dim(&self, by_family: usize) -> Result<usize, ModelFileError> {
        let said = match self.optional_size("head_dim")? {
            None => self.optional_size("attention_head_dim")?, // Nemotron-H's first files
            said => said,
        };
        Ok(said.unwrap_or(by_family))
    }

    /// Whether layers with attention may have rotary positions: Granite 4's only where the file says so, Jamba's have none.
    pub(super) fn has_positions(&self, architecture: Architecture) -> Result<bool, ModelFileError> {
        match architecture {
            Architecture::GraniteHybrid => {}
            architecture => return Ok(architecture.has_rotary_attention()),
        }
        match self.text("position_embedding_type") {
            Some("rope") => Ok(true),
            None | Some("nope") => Ok(false),
            Some(other) => Err(invalid(format!(
                "config.json: 'position_embedding_type' '{}' is not implemented; expected rope or nope",
                clipped(other)
            ))),
        }
    }

    fn mamba2(&self) -> Result<Mamba2, ModelFileError> {
        let size = |key, default| Ok::<_, ModelFileError>(self.optional_size(key)?.unwrap_or(default));
        let num_heads = size("mamba_n_heads", 128)?;
        let inner = self.size("hidden_size")?.saturating_mul(size("mamba_expand", 2)?);
        let head_size = match self.text("mamba_d_head") {
            Some("auto") => inner / num_heads.max(1),
            _ => size("mamba_d_head", inner / num_heads.max(1))?,
        };
        if num_heads.checked_mul(head_size) != Some(inner) {
            return Err(invalid(format!(
                "config.json: 'mamba_n_heads' {num_heads} times 'mamba_d_head' {head_size} must be {inner}, the hidden \
                 size times 'mamba_expand'"
            )));
        }
        Ok(Mamba2 {
            taps: size("mamba_d_conv", 4)?,
            num_heads,
            head_size,
            num_groups: size("mamba_n_groups", 1)?,
            state_size: size("mamba_d_state", 256)?,
            step_limits: self.step_limits()?,
            is_normalised: true,
        })
    }

    fn mamba2_of_nemotron(&self) -> Result<Mamba2, ModelFileError> {
        let size = |key, default| Ok::<_, ModelFileError>(self.optional_size(key)?.unwrap_or(default));
        Ok(Mamba2 {
            taps: size("conv_kernel", 4)?,
            num_heads: size("mamba_num_heads", 128)?,
            head_size: size("mamba_head_dim", 64)?,
            num_groups: size("n_groups", 8)?,
            state_size: size("ssm_state_size", 128)?,
            step_limits: self.step_limits()?,
            is_normalised: true,
        })
    }

    /// What steps are at least and at most; without an end, a limit is written as `{"__float__": "Infinity"}`.
    pub(super) fn step_limits(&self) -> Result<[f64; 2], ModelFileError> {
        let Some(limits) = self.0.get("time_step_limit").filter(|value| !value.is_null()) else {
            return Ok([0.0, f64::INFINITY]);
        };
        let limit = |value: &Value| match value.get("__float__").and_then(Value::as_str) {
            Some("Infinity") => Some(f64::INFINITY),
            _ => value.as_f64(),
        };
        let both = limits
            .as_array()
            .and_then(|limits| limits.iter().map(limit).collect::<Option<Vec<f64>>>());
        both.and_then(|both| both.try_into().ok())
            .ok_or_else(|| invalid("config.json: 'time_step_limit' must be two numbers".to_owned()))
    }

    fn delta_net(&self) -> Result<DeltaNet, ModelFileError> {
        let size = |key, default| Ok::<_, ModelFileError>(self.optional_size(key)?.unwrap_or(default));
        Ok(DeltaNet {
            taps: size("linear_conv_kernel_dim", 4)?,
            num_key_heads: size("linear_num_key_heads", 16)?,
            num_value_heads: size("linear_num_value_heads", 32)?,
            key_size: size("linear_key_head_dim", 128)?,
            value_size: size("linear_value_head_dim", 128)?,
            is_tiled: false,
        })
    }

    /// Which layers are recurrent: those that `layer_types` calls one of `kinds`, else those the family has.
    pub(super) fn recurrent_layers(
        &self,
        kinds: &[&str],
        num_layers: usize,
        by_family: Vec<bool>,
    ) -> Result<Vec<bool>, ModelFileError> {
        let Some(types) = self.0.get("layer_types").filter(|value| !value.is_null()) else {
            return Ok(by_family);
        };
        let is_recurrent = |value: &Value| match value.as_str() {
            Some("full_attention" | "attention") => Some(false),
            Some(name) if kinds.contains(&name) => Some(true),
            _ => None,
        };
        let layers = types.as_array().map(|types| types.iter().map(is_recurrent).collect());
        let layers: Option<Vec<bool>> = layers.flatten();
        layers.filter(|layers| layers.len() == num_layers).ok_or_else(|| {
            invalid(format!(
                "config.json: 'layer_types' must have {} or full_attention for each of {num_layers} layers",
                kinds[0]
            ))
        })
    }

    /// Refuses an LFM2 whose blocks have another width than the stream, or no gate.
    fn check_lfm2(&self) -> Result<(), ModelFileError> {
        let hidden = self.size("hidden_size")?;
        for key in ["block_dim", "conv_dim", "conv_dim_out"] {
            if self.optional_size(key)?.is_some_and(|size| size != hidden) {
                return Err(invalid(format!(
                    "config.json: '{key}' must be the hidden size, {hidden}"
                )));
            }
        }
        for key in ["block_use_swiglu", "use_pos_enc"] {
            if self.0.get(key).is_some_and(|truth| truth.as_bool() != Some(true)) {
                return Err(invalid(format!("config.json: '{key}' must be true")));
            }
        }
        Ok(())
    }

    /// The width of LFM2's feed-forward blocks: two thirds of what is said, in whole multiples.
    pub(super) fn lfm2_ffn_size(&self) -> Result<usize, ModelFileError> {
        let said = match self.optional_size("block_ff_dim")? {
            Some(size) => size,
            None => self.size("intermediate_size")?,
        };
        if self.0.get("block_auto_adjust_ff_dim").and_then(Value::as_bool) == Some(false) {
            return Ok(said);
        }
        let adjusted = said.saturating_mul(2) / 3;
        let factor = match self.0.get("block_ffn_dim_multiplier") {
            Some(Value::Null) => return Ok(adjusted),
            value => value.and_then(Value::as_f64).unwrap_or(1.0),
        };
        let multiple = self.optional_size("block_multiple_of")?.unwrap_or(LFM2_MULTIPLE).max(1);
        let adjusted = (factor * adjusted as f64) as usize;
        adjusted
            .checked_next_multiple_of(multiple)
            .ok_or_else(|| invalid("config.json: the feed-forward size is too large".to_owned()))
    }
}
