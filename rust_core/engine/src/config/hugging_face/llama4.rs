//! Llama 4's `config.json`, its text half, and the layers that it has.

use serde_json::{Map, Value};

use super::{JsonConfig, qwen_vl};
use crate::config::{MOST_LAYERS, QueryGrowth, invalid, periodic};
use crate::weights::ModelFileError;

/// The text half's name.
pub(super) const NAME: &str = "llama4_text";

/// What is read of it besides, and what tools leave there.
pub(super) const FIELDS: &str = "attention_chunk_size use_qk_norm attn_temperature_tuning attn_scale floor_scale \
    no_rope_layers no_rope_layer_interval for_llm_compressor";

/// Of experts.
pub(super) const OF_EXPERTS: &str = "moe_layers interleave_moe_layer_step intermediate_size_mlp";

/// The family's defaults.
const BASE: f64 = 500_000.0;
const CHUNK: usize = 8_192;
const FLOOR: usize = 8_192;
const GROWTH: f64 = 0.1;
const NO_ROPE_PERIOD: usize = 4;

/// The configuration of the text half; `None` for other models.
pub(super) fn text_half(config: &Map<String, Value>) -> Option<Map<String, Value>> {
    let kind = config.get("model_type").and_then(Value::as_str);
    if !matches!(kind, Some("llama4" | NAME)) {
        return None;
    }
    let mut text = qwen_vl::merged(config);
    text.insert("model_type".to_owned(), NAME.into());
    if text.get("rope_theta").is_none_or(Value::is_null) {
        text.insert("rope_theta".to_owned(), BASE.into());
    }
    // None of them is said so too.
    if text
        .get("no_rope_layers")
        .is_none_or(|layers| layers.as_array().is_some_and(Vec::is_empty))
    {
        text.remove("no_rope_layers");
        text.entry("no_rope_layer_interval").or_insert(NO_ROPE_PERIOD.into());
    }
    Some(text)
}

impl JsonConfig<'_> {
    /// Tokens of a chunk; none where layers see everything.
    pub(super) fn chunk_size(&self) -> Result<Option<usize>, ModelFileError> {
        match self.0.get("attention_chunk_size") {
            None => Ok(Some(CHUNK)),
            Some(_) => self.optional_size("attention_chunk_size"),
        }
    }

    /// Which layers see a chunk alone: those that `layer_types` says, else those with rotary positions.
    pub(super) fn chunked_layers(&self, rotary_layers: &[bool]) -> Result<Vec<bool>, ModelFileError> {
        let Some(types) = self.0.get("layer_types").filter(|value| !value.is_null()) else {
            return Ok(rotary_layers.to_vec());
        };
        let kind = |value: &Value| match value.as_str() {
            Some("chunked_attention") => Some(true),
            Some("full_attention") => Some(false),
            _ => None,
        };
        let layers: Option<Vec<bool>> = types.as_array().and_then(|types| types.iter().map(kind).collect());
        layers.ok_or_else(|| {
            invalid(
                "config.json: 'layer_types' must have chunked_attention or full_attention for each layer".to_owned(),
            )
        })
    }

    /// How queries of layers without rotary positions grow.
    pub(super) fn growth_of_unrotated(&self) -> Result<Option<QueryGrowth>, ModelFileError> {
        let tuning = self.0.get("attn_temperature_tuning").filter(|value| !value.is_null());
        let is_tuned = tuning.is_none_or(|tuning| tuning.as_bool().unwrap_or(tuning.as_f64() != Some(0.0)));
        Ok(is_tuned.then_some(QueryGrowth {
            beta: self.number("attn_scale").unwrap_or(GROWTH) as f32,
            original: self.optional_size("floor_scale")?.unwrap_or(FLOOR),
            offset: 1,
            is_of_unrotated: true,
        }))
    }

    /// Whether queries and keys are normalised.
    pub(super) fn has_bare_qk_norms(&self) -> bool {
        match self.text("model_type") {
            Some(NAME) => self.truth("use_qk_norm").unwrap_or(true),
            name => name == Some("nanochat"),
        }
    }

    /// Which layers have no experts: those that `moe_layers` leaves out, else all but every so many.
    pub(super) fn layers_without_experts(&self, num_layers: usize) -> Result<Vec<bool>, ModelFileError> {
        let Some(layers) = self.0.get("moe_layers").filter(|value| !value.is_null()) else {
            let step = self.optional_size("interleave_moe_layer_step")?.unwrap_or(1).max(1);
            return Ok(periodic(num_layers, step));
        };
        let layers = layers
            .as_array()
            .map(|layers| layers.iter().map(Value::as_u64).collect());
        let layers: Option<Option<Vec<u64>>> = layers;
        let layers = layers
            .flatten()
            .filter(|layers| layers.iter().all(|layer| *layer < num_layers as u64))
            .ok_or_else(|| {
                invalid(format!(
                    "config.json: 'moe_layers' must be a list of layers below {num_layers}"
                ))
            })?;
        let is_dense = |layer: usize| !layers.contains(&(layer as u64));
        Ok((0..num_layers.min(MOST_LAYERS)).map(is_dense).collect())
    }
}
