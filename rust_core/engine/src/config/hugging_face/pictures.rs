//! The text half of models of pictures whose `config.json` names its family in `text_config`: Mistral Small 3.1 and 3.2,
//! Ministral 3, Mistral Small 4, Gemma 3, and Command A Vision and A+.

use serde_json::{Map, Value};

use super::qwen_vl;

/// A family of pictures and text.
struct Family {
    /// Its name. Without a `text_config` it is a text model's.
    name: &'static str,
    /// The family of the text half, where nothing is said.
    text: &'static str,
    /// Numbers of the text half, where nothing is said.
    numbers: &'static [(&'static str, u64)],
    /// The activation, where nothing is said.
    activation: &'static str,
}

/// Command A Vision and A+, whose output matrix is the embedding where nothing is said.
const COHERE2_VISION: &str = "cohere2_vision";

const FAMILIES: [Family; 3] = [
    Family {
        name: COHERE2_VISION,
        text: "cohere2",
        numbers: &[],
        activation: "silu",
    },
    Family {
        name: "mistral3",
        text: "mistral",
        numbers: &[],
        activation: "silu",
    },
    Family {
        name: "gemma3",
        text: "gemma3_text",
        numbers: &[
            ("head_dim", 256),
            ("max_position_embeddings", 131_072),
            ("num_attention_heads", 8),
            ("num_key_value_heads", 4),
            ("query_pre_attn_scalar", 256),
            ("rope_local_base_freq", 10_000),
            ("rope_theta", 1_000_000),
            ("vocab_size", 262_208),
        ],
        activation: "gelu_pytorch_tanh",
    },
];

/// What tells of pictures, besides what other families have.
const OF_PICTURES: [&str; 6] = [
    "alignment_intermediate_size",
    "downsample_factor",
    "projector_hidden_act",
    "vision_feature_layer",
    "multimodal_projector_bias",
    "spatial_merge_size",
];

/// The configuration of the text half; `None` for other models.
pub(super) fn text_half(config: &Map<String, Value>) -> Option<Map<String, Value>> {
    let inner = config.get("text_config").and_then(Value::as_object)?;
    let name = config.get("model_type").and_then(Value::as_str)?;
    let family = FAMILIES.iter().find(|family| family.name == name)?;
    let mut text = qwen_vl::merged(config);
    text.retain(|name, _| !OF_PICTURES.contains(&name.as_str()));
    let is_tied = "tie_word_embeddings";
    if name == COHERE2_VISION && !has(config, is_tied) && !has(inner, is_tied) {
        text.remove(is_tied);
    }
    let kind = inner.get("model_type").cloned();
    text.insert("model_type".to_owned(), kind.unwrap_or_else(|| family.text.into()));
    let numbers = family.numbers.iter().map(|(key, number)| (*key, Value::from(*number)));
    let activation = [("hidden_act", family.activation.into())];
    let has_activation = has(&text, "hidden_activation") || has(&text, "hidden_act");
    let activation = activation.into_iter().filter(|_| !has_activation);
    for (key, value) in numbers.chain(activation) {
        let is_said = has(&text, key) || (key == "rope_theta" && has(&text, "rope_parameters"));
        if !is_said {
            text.insert(key.to_owned(), value);
        }
    }
    Some(text)
}

fn has(fields: &Map<String, Value>, key: &str) -> bool {
    fields.get(key).is_some_and(|value| !value.is_null())
}
