//! Nemotron-H's `config.json`: a layer has one block, and the file says which, by a letter or by a word.

use serde_json::{Map, Value};

use super::JsonConfig;
use crate::config::{Blocks, MOST_LAYERS, invalid};
use crate::weights::ModelFileError;

/// The family's name.
pub(super) const NAME: &str = "nemotron_h";

/// What is read of it besides; what training and prompts in chunks read; what drafts of further tokens have, which are
/// left alone.
pub(super) const FIELDS: &str = "hybrid_override_pattern layers_block_type layer_norm_epsilon norm_eps mlp_hidden_act \
    attention_head_dim mamba_num_heads mamba_head_dim n_groups ssm_state_size conv_kernel mamba_hidden_act time_step_limit \
    moe_shared_expert_overlap expand use_conv_bias chunk_size mamba_ssm_cache_dtype time_step_min time_step_max \
    time_step_floor time_step_rank num_logits_to_keep rescale_prenorm_residual residual_in_fp32 use_mamba_kernels \
    num_nextn_predict_layers mtp_layers_block_type mtp_hybrid_override_pattern keys_to_ignore_at_inference";

/// What changes the model with another value than this, which is also the one where nothing is said.
const EXPECTED: [(&str, &str); 3] = [
    ("mlp_hidden_act", "\"relu2\""),
    ("mamba_hidden_act", "\"silu\""),
    ("n_shared_experts", "1"),
];

/// What a layer is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Mamba,
    Attention,
    Dense,
    Experts,
}

impl Kind {
    fn of(text: &str) -> Option<Self> {
        match text {
            "M" | "mamba" | "linear_attention" => Some(Self::Mamba),
            "*" | "attention" | "full_attention" => Some(Self::Attention),
            "-" | "mlp" => Some(Self::Dense),
            "E" | "moe" => Some(Self::Experts),
            _ => None,
        }
    }

    pub(super) fn blocks(self) -> Blocks {
        match self {
            Self::Mamba | Self::Attention => Blocks::Mixer,
            Self::Dense | Self::Experts => Blocks::FeedForward,
        }
    }
}

/// The configuration with its number of layers, which newer files leave out; `None` for other models.
pub(super) fn counted(config: &Map<String, Value>) -> Result<Option<Map<String, Value>>, ModelFileError> {
    if config.get("model_type").and_then(Value::as_str) != Some(NAME) {
        return Ok(None);
    }
    let num_layers = JsonConfig(config, None).kinds()?.len();
    let mut counted = config.clone();
    counted.insert("num_hidden_layers".to_owned(), num_layers.into());
    Ok(Some(counted))
}

impl JsonConfig<'_> {
    /// What each layer is.
    pub(super) fn kinds(&self) -> Result<Vec<Kind>, ModelFileError> {
        let said = |key| self.0.get(key).filter(|value| !value.is_null());
        let wrong = |key| {
            invalid(format!(
                "config.json: '{key}' must say of each of 1 to {MOST_LAYERS} layers that it is M or mamba, * or attention, - \
                 or mlp, E or moe"
            ))
        };
        let kinds = match (said("layers_block_type"), said("hybrid_override_pattern")) {
            (Some(words), _) => {
                let words = words.as_array().map(|words| words.iter());
                let kinds = words.and_then(|words| words.map(|word| Kind::of(word.as_str()?)).collect());
                kinds.ok_or_else(|| wrong("layers_block_type"))
            }
            (None, Some(letters)) => {
                let letters = letters
                    .as_str()
                    .map(|letters| letters.split("").filter(|one| !one.is_empty()));
                let kinds = letters.and_then(|letters| letters.map(Kind::of).collect());
                kinds.ok_or_else(|| wrong("hybrid_override_pattern"))
            }
            (None, None) => Err(invalid("config.json lacks 'hybrid_override_pattern'".to_owned())),
        };
        let kinds: Vec<Kind> = kinds?;
        let told = self.optional_size("num_hidden_layers")?.unwrap_or(kinds.len());
        if kinds.is_empty() || kinds.len() > MOST_LAYERS {
            return Err(wrong("hybrid_override_pattern"));
        }
        if told != kinds.len() {
            return Err(invalid(format!(
                "the kinds of {} layers are told, of {told}",
                kinds.len()
            )));
        }
        Ok(kinds)
    }

    /// Refuses what would change the model.
    pub(super) fn check_nemotron(&self) -> Result<(), ModelFileError> {
        for (field, expected) in EXPECTED {
            let value = self.0.get(field).filter(|value| !value.is_null());
            if value.map(Value::to_string).is_some_and(|found| found != expected) {
                return Err(invalid(format!("config.json: '{field}' must be {expected}")));
            }
        }
        if self.truth("use_bias") == Some(true) {
            return Err(invalid(
                "config.json: 'use_bias' is not implemented for nemotron_h".to_owned(),
            ));
        }
        match self.0.get("sliding_window").filter(|value| !value.is_null()) {
            Some(_) => Err(invalid(
                "config.json: 'sliding_window' is not implemented for nemotron_h".to_owned(),
            )),
            None => Ok(()),
        }
    }
}
