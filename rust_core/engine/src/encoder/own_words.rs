//! Configurations of encoders in words of their own, under transformers' names.

use serde_json::{Map, Value};

use super::bert_config::EncoderArchitecture;
use crate::config::invalid;
use crate::weights::{ModelFileError, clipped};

/// What a family's configurations say otherwise.
struct OwnWords {
    /// Its own names, and what transformers calls the same.
    names: &'static [(&'static str, &'static str)],
    /// What is only implemented with these values.
    neutral: &'static str,
    /// What changes no number of the layers.
    other: &'static str,
}

const NOMIC_NAMES: &[(&str, &str)] = &[
    ("n_embd", "hidden_size"),
    ("n_head", "num_attention_heads"),
    ("n_inner", "intermediate_size"),
    ("n_layer", "num_hidden_layers"),
    ("n_positions", "max_position_embeddings"),
    ("layer_norm_epsilon", "layer_norm_eps"),
    ("rotary_emb_base", "rope_theta"),
];
const NOMIC_OTHER: &str = "attn_pdrop dense_seq_output fused_bias_fc fused_dropout_add_ln last_layer_subset \
        max_trained_positions pad_vocab_size_multiple parallel_block_tied_norm reorder_and_upcast_attn summary_activation \
        summary_first_dropout summary_proj_to_labels summary_type summary_use_proj use_flash_attn use_xentropy \
    moe_impl moe_resid_pdrop router_aux_loss_coef";
const NOMIC: OwnWords = OwnWords {
    names: NOMIC_NAMES,
    neutral: r#"{"activation_function": "swiglu", "causal": false, "mlp_fc1_bias": false,
        "mlp_fc2_bias": false, "qkv_proj_bias": false, "parallel_block": false, "prenorm": false,
        "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": false, "scale_attn_by_inverse_layer_idx": false,
        "scale_attn_weights": true, "use_rms_norm": false, "rotary_emb_scale_base": null,
        "rotary_scaling_factor": null}"#,
    other: NOMIC_OTHER,
};
/// With experts.
const NOMIC_MOE: OwnWords = OwnWords {
    names: NOMIC_NAMES,
    neutral: r#"{"activation_function": "gelu", "causal": false, "mlp_fc1_bias": true,
        "mlp_fc2_bias": true, "qkv_proj_bias": true, "parallel_block": false, "prenorm": false,
        "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": false, "scale_attn_by_inverse_layer_idx": false,
        "scale_attn_weights": true, "use_rms_norm": false, "rotary_emb_scale_base": null,
        "rotary_scaling_factor": null, "moe_normalize_expert_weights": false, "num_shared_experts": 0,
        "expert_choice_router": false, "ffn_div": 1}"#,
    other: NOMIC_OTHER,
};
const DISTIL: OwnWords = OwnWords {
    names: &[
        ("dim", "hidden_size"),
        ("n_heads", "num_attention_heads"),
        ("hidden_dim", "intermediate_size"),
        ("n_layers", "num_hidden_layers"),
        ("activation", "hidden_act"),
    ],
    neutral: "{}",
    // The rows of sinusoidal positions are in the file as well.
    other: "sinusoidal_pos_embds qa_dropout seq_classif_dropout tie_weights_",
};

const JINA_V3: OwnWords = OwnWords {
    names: &[("rotary_emb_base", "rope_theta")],
    neutral: r#"{"truncate_dim": null, "emb_pooler": null}"#,
    other: "",
};

/// A configuration under transformers' names. What says nothing new is left out, and what is not implemented refused.
pub(super) fn without_own_words(
    config: &Map<String, Value>,
    architecture: EncoderArchitecture,
) -> Result<Map<String, Value>, ModelFileError> {
    let words = match architecture {
        EncoderArchitecture::NomicBert if has_experts(config) => NOMIC_MOE,
        EncoderArchitecture::NomicBert => NOMIC,
        EncoderArchitecture::DistilBert => DISTIL,
        EncoderArchitecture::Roberta if config.contains_key("rotary_emb_base") => JINA_V3,
        _ => return Ok(config.clone()),
    };
    let neutral: Map<String, Value> = serde_json::from_str(words.neutral).expect("it is JSON");
    let mut fields = Map::new();
    for (name, value) in config {
        if words.other.split_whitespace().any(|other| other == name) {
            continue;
        }
        match neutral.get(name) {
            Some(expected) if expected == value || value.is_null() => {}
            Some(_) => {
                return Err(invalid(format!(
                    "config.json: '{name}' is {}, which is not implemented",
                    clipped(&value.to_string())
                )));
            }
            None => {
                let own = words.names.iter().find(|(own, _)| own == name);
                let name = own.map_or(name.as_str(), |(_, theirs)| theirs);
                fields.insert(name.to_owned(), value.clone());
            }
        }
    }
    Ok(fields)
}

/// Whether some layers have experts.
pub(super) fn has_experts(config: &Map<String, Value>) -> bool {
    let period = config.get("moe_every_n_layers").and_then(Value::as_u64);
    period.is_some_and(|period| period > 0)
}
