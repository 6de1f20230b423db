//! Of what kind a `config.json`'s values are. One of another kind is refused: a default in its place would be another model.

use serde_json::{Map, Value};

use crate::config::invalid;
use crate::weights::ModelFileError;

const NUMBERS: &str = "alpha attention_factor attn_scale beta_fast beta_slow factor high_freq_factor layer_norm_eps \
    layer_norm_epsilon logit_scale low_freq_factor moe_layer_end_index mscale mscale_all_dim norm_eps norm_epsilon \
    original_max_position_embeddings partial_rotary_factor query_pre_attn_scalar rms_norm_eps rope_local_base_freq rope_theta \
    input_jitter_noise long_mscale num_ln_in_parallel_attn router_jitter_noise short_mscale rotary_dim rotary_emb_base rotary_pct route_scale router_scaling_factor routed_scaling_factor scale_depth scale_emb llama_4_scaling_beta";
const TRUTHS: &str = "alibi attention_k_eq_v enable_moe_block is_encoder_decoder norm_topk_prob original_lm_head \
    rope_interleave scale_decoder_outputs tie_embedding tie_word_embeddings truncate use_bias use_double_wide_mlp \
    new_decoder_architecture multi_query parallel_attn use_parallel_residual use_qk_norm use_sliding_window mup_enabled";
const TABLES: &str =
    "attn_config dual_chunk_attention_config rope_parameters rope_scaling full_attention sliding_attention";
const TEXTS: &str =
    "activation activation_function hidden_act hidden_activation mlp_hidden_act rope_type scoring_func topk_method";

/// Refuses a field that is read as a number, as true or false, as a table or as a text, and is something else; null is nothing.
pub(super) fn refuse_others(fields: &Map<String, Value>, place: &str) -> Result<(), ModelFileError> {
    let is_among = |names: &str, field: &str| names.split_whitespace().any(|name| name == field);
    for (field, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        let expected = match field.as_str() {
            name if is_among(NUMBERS, name) && !value.is_number() => "a number",
            name if is_among(TRUTHS, name) && !value.is_boolean() => "true or false",
            name if is_among(TEXTS, name) && !value.is_string() => "a text",
            name if is_among(TABLES, name) && !value.is_object() => "a table",
            _ => continue,
        };
        return Err(invalid(format!(
            "config.json: '{place}{field}' must be {expected}, got {}",
            shown(value)
        )));
    }
    Ok(())
}

pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a table".to_owned(),
        Value::String(_) => "a text".to_owned(),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_another_kind_are_no_defaults() {
        let said = |field: &str, value: Value| {
            let fields = Map::from_iter([(field.to_owned(), value)]);
            refuse_others(&fields, "rope_parameters.")
                .err()
                .map(|error| error.to_string())
        };
        assert_eq!(said("factor", Value::Null), None);
        assert_eq!(said("factor", 8.into()), None);
        let text = said("factor", "8".into()).unwrap();
        assert!(
            text.contains("'rope_parameters.factor' must be a number, got a text"),
            "{text}"
        );
        let text = said("use_qk_norm", 1.into()).unwrap();
        assert!(
            text.contains("'rope_parameters.use_qk_norm' must be true or false, got 1"),
            "{text}"
        );
        let text = said("alibi", 0.into()).unwrap();
        assert!(
            text.contains("'rope_parameters.alibi' must be true or false, got 0"),
            "{text}"
        );
        let text = said("rope_scaling", "yarn".into()).unwrap();
        assert!(
            text.contains("'rope_parameters.rope_scaling' must be a table, got a text"),
            "{text}"
        );
        let text = said("rope_type", Value::Array(Vec::new())).unwrap();
        assert!(
            text.contains("'rope_parameters.rope_type' must be a text, got a list"),
            "{text}"
        );
    }
}
