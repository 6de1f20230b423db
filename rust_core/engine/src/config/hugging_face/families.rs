//! Families that are descriptions over shared layers, in a `config.json`: Command R, `StarCoder2`, Phi-2, `StableLM`, Nemotron,
//! OLMo, GPT-NeoX, GLM-4, dots.llm1, MiniMax-M2.

use serde_json::Value;

use super::JsonConfig;
use crate::config::{Activation, Architecture, invalid};
use crate::weights::ModelFileError;

/// Families whose layers see everything.
pub(super) const WITHOUT_WINDOWS: [&str; 13] = [
    "gemma",
    "glm4",
    "arcee",
    "granitemoe",
    "granitemoeshared",
    "minimax_m2",
    "cohere",
    "phi",
    "stablelm",
    "nemotron",
    "olmo",
    "gpt_neox",
    "internlm3",
];

/// Of how many of Command R7B's layers the last one sees everything.
const COHERE2_PERIOD: usize = 4;
const COHERE_LOGIT_SCALE: f64 = 0.0625;

/// What is read of a family besides, and what its files say that is so in all of them or that training reads.
pub(super) fn fields(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::Glm4 => "partial_rotary_factor",
        Architecture::GraniteMoe => "shared_intermediate_size",
        Architecture::MiniMaxM2 => {
            "rotary_dim partial_rotary_factor scoring_func use_qk_norm qk_norm_type use_routing_bias use_mtp num_mtp_modules \
             mtp_transformer_layers attn_type_list shared_intermediate_size layernorm_full_attention_beta \
             layernorm_linear_attention_beta layernorm_mlp_beta postnorm shared_moe_mode"
        }
        Architecture::Cohere => "logit_scale layer_norm_eps",
        Architecture::Cohere2 => {
            "logit_scale layer_norm_eps layer_switch position_embedding_type rotary_pct use_embedding_sharing \
             use_parallel_embedding"
        }
        Architecture::StarCoder2 => {
            "norm_epsilon layer_norm_epsilon norm_type mlp_type residual_dropout embedding_dropout activation_function \
             attention_softmax_in_fp32 scale_attention_softmax_in_fp32 scale_attn_weights"
        }
        Architecture::Phi2 => "layer_norm_eps partial_rotary_factor",
        Architecture::StableLm => "layer_norm_eps norm_eps partial_rotary_factor use_qkv_bias use_parallel_residual",
        Architecture::Nemotron => "norm_eps partial_rotary_factor kv_channels",
        Architecture::GptNeoX => {
            "layer_norm_eps rotary_pct rotary_emb_base use_parallel_residual classifier_dropout partial_rotary_factor"
        }
        _ => "",
    }
}

/// Whether the embedding is the output matrix too where the file does not say.
pub(super) fn is_tied(architecture: Architecture) -> bool {
    matches!(
        architecture,
        Architecture::Cohere | Architecture::Cohere2 | Architecture::StarCoder2
    )
}

/// Whether insides have no gate.
pub(super) fn has_bare_activation(architecture: Architecture) -> bool {
    matches!(
        architecture,
        Architecture::Arcee
            | Architecture::Nemotron
            | Architecture::StarCoder2
            | Architecture::Phi2
            | Architecture::GptNeoX
    )
}

/// The activation of insides without a gate.
pub(super) fn bare_activation(name: &str) -> Result<Activation, ModelFileError> {
    match name {
        "relu2" => Ok(Activation::ReluSquared),
        "gelu" => Ok(Activation::BareGelu),
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Ok(Activation::BareGeluTanh),
        other => Err(invalid(format!(
            "activation '{other}' is not supported for a block without a gate; expected relu2, gelu, gelu_new or \
             gelu_pytorch_tanh"
        ))),
    }
}

impl JsonConfig<'_> {
    /// Whether attention and the feed-forward block lie beside each other.
    pub(super) fn is_parallel(&self, architecture: Architecture) -> Result<bool, ModelFileError> {
        if let Some(is_parallel) = architecture.is_parallel() {
            return Ok(is_parallel);
        }
        match self.0.get("use_parallel_residual") {
            None | Some(Value::Null) => Ok(architecture.is_parallel_by_default()),
            Some(Value::Bool(said)) => Ok(*said),
            Some(other) => Err(invalid(format!(
                "config.json: 'use_parallel_residual' must be true or false, got {other}"
            ))),
        }
    }

    /// What Command R's logits are divided by: the file has what they are multiplied by.
    pub(super) fn cohere_divisor(&self) -> Result<f32, ModelFileError> {
        let scale = self.number("logit_scale").unwrap_or(COHERE_LOGIT_SCALE);
        Ok((1.0 / scale) as f32)
    }

    /// Of how many of Command R7B's layers the last one sees everything.
    pub(super) fn cohere_period(&self) -> Result<usize, ModelFileError> {
        let said = self.optional_size("sliding_window_pattern")?;
        let said = said.or(self.optional_size("_sliding_window_pattern")?);
        Ok(said.or(self.optional_size("layer_switch")?).unwrap_or(COHERE2_PERIOD))
    }

    /// The window of dots.llm1, of files that have layers with one.
    pub(super) fn dots_window(&self) -> Result<Option<usize>, ModelFileError> {
        let has_windows = self
            .0
            .get("layer_types")
            .and_then(Value::as_array)
            .is_some_and(|types| types.iter().any(|kind| kind == "sliding_attention"));
        Ok(self.optional_size("sliding_window")?.filter(|_| has_windows))
    }
}
