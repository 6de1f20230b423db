//! Kimi Linear's `config.json`: published files have names of their own, and say by number which layers have attention.

use serde_json::{Map, Value};

use super::{JsonConfig, refuse_unknown};
use crate::config::{KimiDelta, MOST_LAYERS, Recurrent, invalid};
use crate::weights::ModelFileError;

/// The family's name.
pub(super) const NAME: &str = "kimi_linear";

/// What is read besides.
pub(super) const FIELDS: &str = "linear_head_dim linear_num_heads linear_conv_kernel_dim";

/// Names of published files, and the others'.
const RENAMED: [(&str, &str); 6] = [
    ("model_max_length", "max_position_embeddings"),
    ("moe_renormalize", "norm_topk_prob"),
    ("moe_router_activation_func", "scoring_func"),
    ("num_expert_group", "n_group"),
    ("num_experts_per_token", "num_experts_per_tok"),
    ("num_shared_experts", "n_shared_experts"),
];

/// What published files have in a table of its own, and what it is called beside it.
const TABLE: &str = "linear_attn_config";
const OF_TABLE: [(&str, &str); 3] = [
    ("head_dim", "linear_head_dim"),
    ("num_heads", "linear_num_heads"),
    ("short_conv_kernel_size", "linear_conv_kernel_dim"),
];
const KINDS: [(&str, &str); 2] = [
    ("kda_layers", "linear_attention"),
    ("full_attn_layers", "full_attention"),
];

/// The configuration with the names of other families; `None` for other models.
pub(super) fn completed(config: &Map<String, Value>) -> Result<Option<Map<String, Value>>, ModelFileError> {
    if config.get("model_type").and_then(Value::as_str) != Some(NAME) {
        return Ok(None);
    }
    let mut completed = config.clone();
    for (published, other) in RENAMED {
        if let Some(value) = completed.remove(published) {
            completed.entry(other).or_insert(value);
        }
    }
    // Nothing is rotated.
    completed.remove("rope_theta");
    for key in ["rope_scaling", "rope_parameters"] {
        if completed.remove(key).is_some_and(|value| !value.is_null()) {
            let text = format!("config.json: '{key}' is not implemented for {NAME}, which has no rotary positions");
            return Err(invalid(text));
        }
    }
    let Some(table) = completed.remove(TABLE).filter(|value| !value.is_null()) else {
        return Ok(Some(completed));
    };
    let table = table
        .as_object()
        .ok_or_else(|| invalid(format!("config.json: '{TABLE}' must be a table")))?;
    let known = OF_TABLE.iter().chain(&KINDS).map(|(name, _)| *name);
    refuse_unknown(table, &known.collect::<Vec<_>>(), "linear_attn_config.")?;
    for (name, other) in OF_TABLE {
        if let Some(value) = table.get(name) {
            completed.insert(other.to_owned(), value.clone());
        }
    }
    if completed.get("layer_types").is_none_or(Value::is_null) {
        let num_layers = JsonConfig(&completed, None).size("num_hidden_layers")?;
        completed.insert("layer_types".to_owned(), layer_types(table, num_layers)?);
    }
    Ok(Some(completed))
}

/// What each layer is, of lists of their numbers, which begin at 1.
fn layer_types(table: &Map<String, Value>, num_layers: usize) -> Result<Value, ModelFileError> {
    let mut types = vec![Value::Null; num_layers.min(MOST_LAYERS)];
    for (key, kind) in KINDS {
        for number in table.get(key).and_then(Value::as_array).into_iter().flatten() {
            let place = number
                .as_u64()
                .and_then(|number| usize::try_from(number).ok()?.checked_sub(1));
            let found = place
                .and_then(|place| types.get_mut(place))
                .filter(|kind| kind.is_null());
            *found.ok_or_else(|| wrong(num_layers))? = kind.into();
        }
    }
    let is_whole = types.len() == num_layers && !types.iter().any(Value::is_null);
    is_whole.then_some(Value::Array(types)).ok_or_else(|| wrong(num_layers))
}

fn wrong(num_layers: usize) -> ModelFileError {
    invalid(format!(
        "config.json: '{TABLE}' must have each of the layers 1 to {num_layers} once, in 'kda_layers' or 'full_attn_layers'"
    ))
}

impl JsonConfig<'_> {
    /// The layers, and which of them are recurrent.
    pub(super) fn kimi_recurrent(&self, num_layers: usize) -> Result<(Option<Recurrent>, Vec<bool>), ModelFileError> {
        if self.0.get("layer_types").is_none_or(Value::is_null) {
            return Err(invalid(format!("config.json lacks '{TABLE}'")));
        }
        let size = |key, default| Ok::<_, ModelFileError>(self.optional_size(key)?.unwrap_or(default));
        let shape = KimiDelta {
            taps: size("linear_conv_kernel_dim", 4)?,
            num_heads: size("linear_num_heads", 32)?,
            head_size: size("linear_head_dim", 128)?,
        };
        let layers = self.recurrent_layers(&["linear_attention"], num_layers, Vec::new())?;
        let has_any = layers.contains(&true);
        Ok((has_any.then_some(Recurrent::KimiDelta(shape)), layers))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::config::ModelConfig;

    /// The names of published files, and the table of layers, say what the other names do.
    #[test]
    fn published_names_are_the_others() {
        let common = json!({
            "model_type": "kimi_linear", "vocab_size": 64, "hidden_size": 64, "intermediate_size": 64,
            "moe_intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
            "hidden_act": "silu", "kv_lora_rank": 32, "q_lora_rank": null, "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 16, "v_head_dim": 32, "topk_group": 2, "first_k_dense_replace": 1, "num_experts": 8,
        });
        let published = json!({
            "num_experts_per_token": 2, "num_shared_experts": 3, "moe_renormalize": true, "num_expert_group": 4,
            "moe_router_activation_func": "sigmoid", "model_max_length": 512, "rope_theta": 1e4, "rope_scaling": null,
            "linear_attn_config": {"head_dim": 64, "num_heads": 3, "short_conv_kernel_size": 3, "kda_layers": [1],
                "full_attn_layers": [2]},
        });
        let other = json!({
            "num_experts_per_tok": 2, "n_shared_experts": 3, "norm_topk_prob": true, "n_group": 4,
            "scoring_func": "sigmoid", "max_position_embeddings": 512, "linear_head_dim": 64, "linear_num_heads": 3,
            "linear_conv_kernel_dim": 3, "layer_types": ["linear_attention", "full_attention"],
        });
        let [published, other] = [published, other].map(|more| {
            let mut fields = common.as_object().expect("an object").clone();
            fields.extend(more.as_object().expect("an object").clone());
            let config = ModelConfig::from_hugging_face(&fields, None).expect("a model that is supported");
            let experts = config.experts.as_ref().expect("experts");
            assert!(experts.is_renormalised && experts.num_groups == 4 && experts.shared_size == 96);
            config
        });
        assert_eq!(published, other);
    }
}
